"""Output of any shape and amount: kept within its limit, never in the way of a stop, honest about a full disk."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.agent import jobdir
from corral.agent.logfile import read_log, segments
from tests.agent.node import Node, until

TOKEN = "1-k3f9x2m4qa-1-0"


def test_binary_output_without_a_line_end_is_kept_byte_by_byte(node: Node) -> None:
    script = "i=0; while [ $i -lt 40 ]; do printf '\\000\\377\\r\\033[2Jx'; i=$((i+1)); done"
    node.launch(TOKEN, "sh", "-c", script, log_segment_bytes=33)
    node.finish(TOKEN)
    assert node.output(TOKEN) == b"\0\xff\r\033[2Jx" * 40
    assert len(segments(node.log(TOKEN))) > 5


def test_a_flood_stays_within_its_limit_and_does_not_delay_a_stop(node: Node) -> None:
    limit = 1 << 20
    node.launch(TOKEN, "yes", "flood", log_limit_bytes=limit, log_segment_bytes=limit // 8)
    stem = node.log(TOKEN)
    until(lambda: read_log(stem, 0, 1).end > 4 * limit, "the flood went round its limit")
    told = time.monotonic()
    node.tell(TOKEN, jobdir.STOP, reason="cancelled", grace_s=0)
    node.wait_for(TOKEN, jobdir.EXIT)
    assert time.monotonic() - told < 5
    kept = segments(stem)
    assert sum(size for _, size in kept) <= limit
    start, data, _, end = read_log(stem, 0, 6)
    assert start > 0
    assert data in [(b"flood\n" * 3)[shift : shift + 6] for shift in range(6)]
    assert node.wait_for(TOKEN, jobdir.EXIT)["logs"]["stdout"] == {"end": end, "lost": 0}


def test_a_flood_does_not_delay_a_time_limit(node: Node) -> None:
    node.launch(TOKEN, "sh", "-c", "trap '' TERM; yes", time_limit_s=0.2, grace_s=0.2, log_limit_bytes=1 << 20)
    began = time.monotonic()
    assert node.finish(TOKEN)["timed_out"]
    assert time.monotonic() - began < 5


def test_the_last_words_of_a_command_are_kept(node: Node) -> None:
    node.launch(TOKEN, "sh", "-c", "head -c 60000 /dev/zero; echo end")
    node.finish(TOKEN)
    assert node.output(TOKEN) == b"\0" * 60000 + b"end\n"


def test_a_command_that_closes_its_output_runs_on(node: Node) -> None:
    node.launch(TOKEN, "sh", "-c", "echo before; exec >&- 2>&-; sleep 0.05; exit 5")
    assert node.finish(TOKEN)["exit_code"] == 5
    assert node.output(TOKEN) == b"before\n"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 256 KiB and 60 inodes."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k,nr_inodes=60", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, timeout=10).returncode:
        pytest.skip("a small file system cannot be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True, timeout=10)


def fill(place: Path) -> None:
    """Take every block, then every inode."""

    def blocks() -> None:
        with open(place / "filler", "wb", buffering=0) as filler:
            for _ in range(1000):
                filler.write(b"x" * 4096)

    def inodes() -> None:
        for number in range(1000):
            (place / f"filler{number}").touch()

    for take_all in (blocks, inodes):
        with pytest.raises(OSError, match="No space"):
            take_all()


def test_a_full_disk_loses_output_but_never_the_result(node: Node, small_disk: Path) -> None:
    node.jobs = small_disk
    script = f"echo before; until [ -e {node.root}/full ]; do sleep 0.01; done; head -c 100000 /dev/zero; exit 3"
    stem = str(small_disk / "stdout")
    node.launch(TOKEN, "sh", "-c", script, stdout=stem, stderr=str(small_disk / "stderr"))
    until(lambda: read_log(stem, 0, 10).data == b"before\n", "output")
    fill(small_disk)
    (node.root / "full").touch()
    assert node.finish(TOKEN)["exit_code"] == 3
    logs = node.wait_for(TOKEN, jobdir.EXIT)["logs"]["stdout"]
    assert logs["end"] == 100007
    assert logs["lost"] > 90000
    assert logs["lost"] + sum(size for _, size in segments(stem)) == logs["end"]


def test_room_again_shows_a_hole_and_goes_on(node: Node, small_disk: Path) -> None:
    script = (
        f"echo before; until [ -e {node.root}/full ]; do sleep 0.01; done; head -c 100000 /dev/zero;"
        f"touch {node.root}/wrote; until [ -e {node.root}/room ]; do sleep 0.01; done; echo after"
    )
    stem = str(small_disk / "stdout")
    node.launch(TOKEN, "sh", "-c", script, stdout=stem)
    until(lambda: read_log(stem, 0, 10).data == b"before\n", "output")
    fill(small_disk)
    (node.root / "full").touch()
    until((node.root / "wrote").exists, "the flood went by")
    (small_disk / "filler").unlink()
    (small_disk / "filler0").unlink()
    (node.root / "room").touch()
    node.finish(TOKEN)
    last = segments(stem)[-1]
    assert read_log(stem, last[0], 100).data.endswith(b"after\n")
    logs = node.wait_for(TOKEN, jobdir.EXIT)["logs"]["stdout"]
    assert logs["end"] == 7 + 100000 + 6
    assert logs["lost"] > 0


def test_a_launch_accepted_on_a_disk_that_then_filled_still_starts_and_ends(node: Node, small_disk: Path) -> None:
    node.jobs = small_disk
    node.accept(TOKEN, "sh", "-c", "exit 4")
    fill(small_disk)
    node.spawn(TOKEN)
    assert node.finish(TOKEN)["exit_code"] == 4


def test_a_launch_can_be_voided_on_a_full_disk(node: Node, small_disk: Path) -> None:
    node.jobs = small_disk
    node.accept(TOKEN, "true")
    fill(small_disk)
    assert jobdir.void(node.folder(TOKEN), "agent", "cancelled")


def test_a_stop_on_a_full_disk_is_obeyed(node: Node, small_disk: Path) -> None:
    node.jobs = small_disk
    node.launch(TOKEN, "sleep", "1000", stop_file=str(small_disk / "stops" / "file"))
    node.wait_for(TOKEN, jobdir.STARTED)
    fill(small_disk)
    node.tell(TOKEN, jobdir.STOP, reason="cancelled", grace_s=30)
    assert node.finish(TOKEN)["stopped"] == "cancelled"
    (small_disk / "filler").unlink()


def test_a_launch_without_room_for_its_last_words_is_refused(small_disk: Path) -> None:
    fill(small_disk)
    (small_disk / "filler0").unlink()
    with pytest.raises(OSError, match="No space"):
        jobdir.reserve(str(small_disk))
