"""Shims whose job directory is gone: found by the lock they have open, and ended before anything is called dead."""

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.agent import jobdir
from corral.agent.processes import ProcessTrees, lock_holders
from corral.agent.trees import detect

TOKEN = "1-0123456789-1-0"
HOLD = """
import sys, time
from corral.agent import jobdir
assert jobdir.try_lock(sys.argv[1]) is not None
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    folder = tmp_path / "jobs" / TOKEN
    folder.mkdir(parents=True)
    jobdir.reserve(str(folder))
    with subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


@pytest.mark.parametrize("removed", [False, True])
def test_who_holds_a_lock_is_part_of_the_tree(tmp_path: Path, holder: subprocess.Popen[str], removed: bool) -> None:
    jobs = str(tmp_path / "jobs")
    if removed:
        shutil.rmtree(jobs)
    assert lock_holders(jobs) == {TOKEN: {holder.pid}}
    assert lock_holders(f"{jobs}-of-another") == {}

    async def end() -> None:
        trees = ProcessTrees(detect(f"test-{tmp_path.name}").to_json(), jobs)
        assert TOKEN in await trees.tokens()
        assert not await trees.is_empty(TOKEN)
        await trees.kill(TOKEN)
        assert holder.wait(timeout=10) == -9
        assert await trees.is_empty(TOKEN)
        await trees.remove(TOKEN)

    asyncio.run(end())


def test_our_own_lock_is_not_a_shim(tmp_path: Path) -> None:
    folder = tmp_path / "jobs" / TOKEN
    folder.mkdir(parents=True)
    with jobdir.held_lock(str(folder)) as free:
        assert free
        assert lock_holders(str(tmp_path / "jobs")) == {}
