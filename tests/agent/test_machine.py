"""Where job directories lie: nobody else may have made the place, and what is forgotten there goes."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.agent.machine import STATE_OF, choose_run_dir, forget_orphans, mark_run_dir
from corral.model.faults import Refused

T1 = "1-aaaaaaaaaa-1-0"
ANOTHER_USER = 65533


@pytest.fixture
def shm() -> Iterator[Path]:
    if not os.path.isdir("/dev/shm"):
        pytest.skip("no tmpfs")
    folder = Path(tempfile.mkdtemp(prefix="corral-test-", dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder)


def test_the_place_is_made_for_this_user_only(shm: Path) -> None:
    base = shm / "corral"
    chosen = Path(choose_run_dir("/somewhere", [str(base)]))
    assert chosen.parent == base
    assert base.stat().st_mode & 0o777 == 0o700
    assert choose_run_dir("/somewhere", [str(base)]) == str(chosen)
    assert choose_run_dir("/elsewhere", [str(base)]) != str(chosen)


def test_a_place_that_another_user_made_is_refused(shm: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("giving a folder away needs root")
    base = shm / "corral"
    base.mkdir(0o700)
    os.chown(base, ANOTHER_USER, ANOTHER_USER)
    with pytest.raises(Refused, match="is not a folder of this user") as refused:
        choose_run_dir("/somewhere", [str(base)])
    assert refused.value.code == "run_dir_not_ours"


def test_a_place_that_is_a_link_is_refused(shm: Path, tmp_path: Path) -> None:
    (shm / "corral").symlink_to(tmp_path)
    with pytest.raises(Refused, match="is not a folder of this user"):
        choose_run_dir("/somewhere", [str(shm / "corral")])


def test_a_place_that_others_can_write_is_refused(shm: Path) -> None:
    base = shm / "corral"
    base.mkdir()
    base.chmod(0o777)
    with pytest.raises(Refused, match="can be written by other users"):
        choose_run_dir("/somewhere", [str(base)])


def run_dir(shm: Path, state: Path) -> Path:
    run = Path(choose_run_dir(str(state), [str(shm / "corral")]))
    (run / "jobs").mkdir(parents=True)
    (run / "agent.lock").touch()
    mark_run_dir(run, state)
    return run


def test_run_directories_whose_state_is_gone_are_removed(shm: Path, tmp_path: Path) -> None:
    states = {name: tmp_path / name for name in ("ours", "kept", "gone", "in_use", "with_a_launch")}
    for name in ("ours", "kept"):
        states[name].mkdir()
    runs = {name: run_dir(shm, state) for name, state in states.items()}
    (runs["with_a_launch"] / "jobs" / T1).mkdir()
    stranger = shm / "corral" / "not-a-run-directory"
    stranger.mkdir()
    with open(runs["in_use"] / "agent.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        forget_orphans(runs["ours"])
    assert {name for name, run in runs.items() if run.exists()} == {"ours", "kept", "in_use", "with_a_launch"}
    assert stranger.exists()
    assert (runs["ours"] / STATE_OF).read_text() == str(states["ours"])
