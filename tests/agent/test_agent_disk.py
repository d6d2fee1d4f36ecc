"""Full disks: what cannot be accepted is refused, and what runs is reported to its end all the same."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.model.lifecycle import ExitClass
from corral.model.session import FactKind, Result
from tests.agent.agents import Agent
from tests.agent.manager import ScriptedManager
from tests.agent.node import PATIENCE_S, until

T1, T2 = "1-aaaaaaaaaa-1-0", "1-bbbbbbbbbb-1-0"


class SmallDisk:
    """A tmpfs of 40 MiB that can be filled to the last byte and inode."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: list[Path] = []

    def fill(self) -> None:
        path = self.folder / f"filler-{len(self.files)}"
        self.files.append(path)
        with open(path, "wb", buffering=0) as file:
            size = 1 << 16
            while size:
                try:
                    file.write(b"x" * size)
                except OSError:
                    size //= 2

    def empty(self) -> None:
        while self.files:
            self.files.pop().unlink()


def mounted(folder: Path) -> Iterator[SmallDisk]:
    folder.mkdir(parents=True, exist_ok=True)
    if os.getuid() != 0:
        pytest.skip("mounting a small disk needs root")
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=40m,mode=0700", "tmpfs", str(folder)], check=True, timeout=PATIENCE_S
    )
    yield SmallDisk(folder)
    subprocess.run(["umount", "-l", str(folder)], check=True, timeout=PATIENCE_S)


@pytest.fixture
def small_state(manager: ScriptedManager) -> Iterator[tuple[Agent, SmallDisk]]:
    yield from small(manager, Agent(manager.url), "state")


@pytest.fixture
def small_run(manager: ScriptedManager) -> Iterator[tuple[Agent, SmallDisk]]:
    yield from small(manager, Agent(manager.url), "run")


def small(manager: ScriptedManager, agent: Agent, which: str) -> Iterator[tuple[Agent, SmallDisk]]:
    for disk in mounted(agent.state if which == "state" else agent.run):
        try:
            agent.start()
            until(lambda: manager.registrations, f"the registration ({agent.output()})")
            yield agent, disk
        finally:
            print(agent.output())
            disk.empty()
            agent.close()


WAITS = "until [ -e {go} ]; do sleep 0.02; done; echo last words; exit 3"


def test_the_end_is_reported_although_the_state_directory_is_full(
    manager: ScriptedManager, small_state: tuple[Agent, SmallDisk]
) -> None:
    agent, disk = small_state
    go = agent.root / "go"
    manager.launch(T1, "sh", "-c", WAITS.format(go=go))
    manager.wait_for(T1, "ready")
    disk.fill()
    go.touch()
    manager.wait_for(T1, "exited")
    assert manager.wait_for(T1, "result").result == Result(3, None, ExitClass.USER)
    manager.launch(T2, "true")
    assert manager.why(T2, "refused").code == "node_disk"
    disk.empty()
    third = "1-cccccccccc-1-0"
    manager.launch(third, "true")
    manager.wait_for(third, "exited")


def test_an_agent_starts_again_on_a_full_disk(manager: ScriptedManager, small_state: tuple[Agent, SmallDisk]) -> None:
    agent, disk = small_state
    go = agent.root / "go"
    manager.launch(T1, "sh", "-c", WAITS.format(go=go))
    manager.wait_for(T1, "ready")
    agent.kill()
    disk.fill()
    go.touch()
    agent.start()
    manager.wait_for(T1, "exited")
    assert manager.wait_for(T1, "result").result == Result(3, None, ExitClass.USER)


def test_the_end_is_reported_although_the_run_directory_is_full(
    manager: ScriptedManager, small_run: tuple[Agent, SmallDisk]
) -> None:
    agent, disk = small_run
    go = agent.root / "go"
    manager.launch(T1, "sh", "-c", WAITS.format(go=go))
    manager.wait_for(T1, "ready")
    disk.fill()
    manager.launch(T2, "true")
    assert manager.why(T2, "refused").code == "node_disk"
    go.touch()
    manager.wait_for(T1, "exited")
    assert manager.wait_for(T1, "result").result == Result(3, None, ExitClass.USER)
    assert manager.fact(T2, FactKind.ACCEPTED) is None


def test_a_stop_on_a_full_run_directory_is_carried_out_once_there_is_room(
    manager: ScriptedManager, small_run: tuple[Agent, SmallDisk]
) -> None:
    _, disk = small_run
    manager.launch(T1, "sleep", "300")
    manager.wait_for(T1, "ready")
    disk.fill()
    manager.stop(T1)
    until(lambda: manager.exchanges[-1].have_version >= 2, "the stop taken in")
    disk.empty()
    manager.wait_for(T1, "exited")
    assert manager.wait_for(T1, "result").result == Result(None, 15, ExitClass.CANCELLED)
