"""The disk under an agent's state and run directory is full while its jobs run, end and are started."""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from corral.store import upgrade
from tests.chaos import oracle
from tests.chaos.work import Tale, Work
from tests.chaos.world import managed_world
from tests.end_to_end.control_plane import wait_until

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount the small file system this test fills"),
]


@contextmanager
def small_file_system(folder: Path, size: str) -> Iterator[Path]:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "corral-chaos", folder], check=True, timeout=20)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True, timeout=20)


def fill(path: Path) -> None:
    """Until not one byte more fits."""
    with path.open("wb", buffering=0) as out:
        for size in (1 << 16, 1 << 10, 1):
            try:
                while True:
                    out.write(b"\0" * size)
            except OSError:
                continue


def test_results_outlive_a_full_disk_and_nothing_is_lost(tmp_path: Path, tale: Tale) -> None:
    database = f"sqlite:///{tmp_path}/corral.db"
    upgrade(database)
    with small_file_system(tmp_path / "small", "24m") as disk:
        states = {"node-1": disk / "state", "node-2": tmp_path / "node-2"}
        with managed_world(tmp_path, [database], states=states, runs={"node-1": disk / "run"}) as world:

            def submit(work: Work, **more: object) -> str:
                key = f"disk-{len(tale.submitted)}"
                id_ = world.ask("POST", "sessions", work.fields(world, **more), key)["id"]
                tale.submitted[id_] = work
                return id_

            def phase(id_: str) -> str:
                world.tend()
                return world.ask("GET", f"sessions/{id_}")["phase"]

            here = {"node": ["node-1"]}
            running = [submit(Work(0, seconds=2.5, code=code), **here) for code in (0, 4, 0)]
            stubborn = submit(Work(0, "stubborn", seconds=60), **here)
            for id_ in (*running, stubborn):
                wait_until(lambda id_=id_: phase(id_) == "running", f"{id_} to run")
            filler = disk / "filler"
            fill(filler)
            elsewhere = submit(Work(0, seconds=0.1), node=["node-2"])
            anywhere = [submit(Work(0, seconds=0.1), name="either") for _ in range(4)]
            stuck = submit(Work(0, seconds=0.1), **here)
            world.ask("POST", f"sessions/{stubborn}/cancel")
            tale.cancelled.add(stubborn)
            wait_until(lambda: phase(elsewhere) == "ended", "the other node's session to end")
            ended = [f"{world.marks}/{id_}-0.ends" for id_ in running]
            wait_until(lambda: all(os.path.exists(path) for path in ended), "the jobs to end on the full disk", 30)
            began = time.monotonic()
            wait_until(lambda: world.tend() or time.monotonic() - began > 3, "some time on a full disk", 10)
            oracle.no_double(world)
            filler.unlink()
            sessions = oracle.everything_holds(world, tale)
            assert {sessions[id_]["attempt"] for id_ in running} == {1}
            assert all(sessions[id_]["outcome"] == "succeeded" for id_ in (elsewhere, stuck, *anywhere))
        assert [line for line in world.left_over() if str(disk) in line] == []
