"""The job directory's files and the log segments, without a shim."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from corral.agent import jobdir
from corral.agent.jobspec import BadJobFile, Go, Limits, Mount, Spec, Stop
from corral.agent.logfile import LogWriter, read_log, segments

# --- spec.json ---


def spec_json(**changes: Any) -> dict[str, Any]:
    needed = {"token": "1-a-1-0", "boot_id": "b", "run_id": "r", "node_epoch": 1, "argv": ["true"], "env": {}}
    return needed | {"cwd": "/", "stdout": "/o", "stderr": "/e"} | changes


def test_a_spec_survives_the_way_through_json() -> None:
    spec = Spec.from_json(
        spec_json(limits={"nofile": 10}, mounts=[{"src": "/a", "dst": "/b", "read_only": True}], make_dirs=["/w"])
    )
    assert spec.limits == Limits(nofile=10)
    assert spec.mounts == (Mount("/a", "/b", True),)
    assert Spec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


@pytest.mark.parametrize(
    "changes",
    [
        {"argv": []},
        {"argv": "true"},
        {"argv": ["a\0b"]},
        {"env": {"A=B": "c"}},
        {"env": {"": "c"}},
        {"env": {"A": 1}},
        {"time_limit_s": -1},
        {"time_limit_s": float("inf")},
        {"grace_s": True},
        {"node_epoch": "1"},
        {"warn_signal": 65},
        {"limits": {"nofile": -1}},
        {"limits": {"files": 1}},
        {"mounts": [{"src": "/a"}]},
        {"mounts": ["/a:/b"]},
        {"uid": -1},
        {"colour": "red"},
    ],
)
def test_a_spec_that_cannot_be_understood_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(BadJobFile, match=r"spec\.json"):
        Spec.from_json(spec_json(**changes))


def test_a_spec_with_a_key_missing_is_refused_by_its_name() -> None:
    raw = spec_json()
    del raw["cwd"]
    with pytest.raises(BadJobFile, match="cwd"):
        Spec.from_json(raw)


def test_a_stop_has_defaults_and_a_go_is_checked() -> None:
    assert Stop.from_json({}) == Stop("stop", "", 30.0, None)
    assert Stop.from_json({"signal": 10}).signal == 10
    with pytest.raises(BadJobFile, match="signal"):
        Stop.from_json({"signal": 65})
    with pytest.raises(BadJobFile):
        Stop.from_json({"grace_s": "soon"})
    with pytest.raises(BadJobFile):
        Go.from_json({"env": {"A": None}})


# --- the decision ---


def test_the_first_decision_stands(tmp_path: Path) -> None:
    folder = str(tmp_path)
    jobdir.reserve(folder)
    assert jobdir.decision_of(folder) is None
    assert jobdir.decide_run(folder, "boot", 12, 34, 5.0)
    assert not jobdir.void(folder, "agent", "cancelled")
    assert jobdir.decision_of(folder) == "run"


def test_a_void_launch_never_runs_and_may_be_voided_again(tmp_path: Path) -> None:
    folder = str(tmp_path)
    jobdir.reserve(folder)
    assert jobdir.void(folder, "agent", "cancelled")
    assert jobdir.void(folder, "agent", "again")
    assert not jobdir.decide_run(folder, "boot", 12, 34, 5.0)
    started = jobdir.read_object(folder, jobdir.STARTED)
    assert started is not None
    assert started["reason"] == "cancelled"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff"])
def test_a_decision_that_cannot_be_read_is_a_run_that_died(tmp_path: Path, content: bytes) -> None:
    (tmp_path / jobdir.STARTED).write_bytes(content)
    assert jobdir.decision_of(str(tmp_path)) == "run"
    assert not jobdir.void(str(tmp_path), "agent", "cancelled")


def test_the_last_words_use_the_room_kept_for_them(tmp_path: Path) -> None:
    jobdir.reserve(str(tmp_path))
    inode = os.stat(tmp_path / "result.tmp").st_ino
    jobdir.write_object(str(tmp_path), jobdir.RESULT, {"exit_code": 0})
    assert os.stat(tmp_path / jobdir.RESULT).st_ino == inode
    assert jobdir.read_object(str(tmp_path), jobdir.RESULT) == {"exit_code": 0}


def test_rubbish_in_a_file_is_told_apart_from_no_file(tmp_path: Path) -> None:
    assert jobdir.read_object(str(tmp_path), jobdir.GO) is None
    (tmp_path / jobdir.GO).write_bytes(b"nonsense")
    with pytest.raises(jobdir.Unreadable):
        jobdir.read_object(str(tmp_path), jobdir.GO)


def test_the_lock_has_one_holder_and_probing_does_not_take_it(tmp_path: Path) -> None:
    folder = str(tmp_path)
    assert not jobdir.probe_lock(folder)
    with jobdir.held_lock(folder) as first:
        assert first
        assert jobdir.probe_lock(folder)
        with jobdir.held_lock(folder) as second:
            assert not second
        assert jobdir.probe_lock(folder)
    assert not jobdir.probe_lock(folder)


# --- output ---


def test_what_is_written_is_read_back_at_every_offset(tmp_path: Path) -> None:
    stem = str(tmp_path / "deep" / "stdout")
    assert read_log(stem, 0, 10) == (0, b"", 0, 0)
    log = LogWriter(stem, limit_bytes=1000, segment_bytes=7)
    text = bytes(range(100))
    for start in range(0, 100, 9):
        log.write(text[start : start + 9])
    log.close()
    for offset in range(100):
        start, data, following, end = read_log(stem, offset, 5)
        assert (start, end) == (offset, 100)
        assert text[offset:].startswith(data)
        assert data
        assert following == offset + len(data)
    assert read_log(stem, 100, 5) == (100, b"", 100, 100)


def test_the_oldest_goes_and_the_reader_is_told(tmp_path: Path) -> None:
    stem = str(tmp_path / "stdout")
    log = LogWriter(stem, limit_bytes=100, segment_bytes=10)
    for number in range(100):
        log.write(b"%09d\n" % number)
        assert sum(size for _, size in segments(stem)) <= 100
    log.close()
    start, data, _, end = read_log(stem, 0, 10)
    assert end == 1000
    assert start > 0
    assert data == b"%09d\n" % (start // 10)
    assert log.lost == 0


def test_a_hole_in_the_output_is_skipped_and_visible(tmp_path: Path) -> None:
    (tmp_path / f"stdout.{0:016d}").write_bytes(b"abc")
    (tmp_path / f"stdout.{10:016d}").write_bytes(b"klm")
    stem = str(tmp_path / "stdout")
    assert read_log(stem, 0, 99) == (0, b"abc", 3, 13)
    assert read_log(stem, 3, 99) == (10, b"klm", 13, 13)


def test_other_files_beside_the_segments_are_not_taken_for_them(tmp_path: Path) -> None:
    for name in ("stdout", "stdout.1", "stdout.x", f"stderr.{0:016d}", f"stdout.more.{0:016d}"):
        (tmp_path / name).write_bytes(b"no")
    assert segments(str(tmp_path / "stdout")) == []


def test_a_limit_of_nothing_keeps_nothing_and_counts_all(tmp_path: Path) -> None:
    log = LogWriter(str(tmp_path / "stdout"), limit_bytes=0, segment_bytes=10)
    log.write(b"x" * 50)
    assert (log.end, log.lost) == (50, 50)
    assert segments(str(tmp_path / "stdout")) == []


def test_a_folder_that_cannot_be_made_loses_bytes_and_raises_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    log = LogWriter(str(tmp_path / "file" / "stdout"), limit_bytes=1000, segment_bytes=10)
    log.write(b"x" * 50)
    assert (log.end, log.lost) == (50, 50)
