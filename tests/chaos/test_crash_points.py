"""Death at every named crash point of the node and of the manager, under sessions that pass all of them."""

import importlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from corral import agent as agent_package
from corral.server import CRASH_POINTS as OF_THE_MANAGER
from tests.chaos import oracle
from tests.chaos.work import Tale, Work
from tests.chaos.world import World, managed_world
from tests.end_to_end.control_plane import command_of, wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(900)]

SOURCES = Path(agent_package.__path__[0])
OF_THE_NODE = sorted(
    name
    for path in SOURCES.glob("[!_]*.py")
    for name in getattr(importlib.import_module(f"corral.agent.{path.stem}"), "CRASH_POINTS", ())
)
OF_SUPERVISORS = [name for name in OF_THE_NODE if not name.startswith("agent.")]
NODE = "node-1"
REACHED_S = 240.0


@pytest.fixture
def database_file(tmp_path: Path) -> str:
    from corral.store import upgrade

    url = f"sqlite:///{tmp_path}/corral.db"
    upgrade(url)
    return url


class Users:
    """Submit what passes every point, round after round, until all have been reached."""

    def __init__(self, world: World, tale: Tale) -> None:
        self.world, self.tale = world, tale
        self._numbers = count()

    def submit(self, work: Work, **more: object) -> str:
        key = f"points-{next(self._numbers)}"
        id_ = self._insist("POST", "sessions", work.fields(self.world, **more), key)["id"]
        self.tale.submitted[id_] = work
        return id_

    def cancel(self, id_: str) -> None:
        self._insist("POST", f"sessions/{id_}/cancel")
        self.tale.cancelled.add(id_)

    def _insist(self, method: str, path: str, body: object = None, key: str | None = None) -> dict[str, Any]:
        for _ in range(60):
            with suppress(AssertionError):
                return self.world.ask(method, path, body, key, patience_s=1.0)
            self.world.tend()
        raise AssertionError(f"nobody answered {method} {path}")

    def phase(self, id_: str) -> str:
        return str(self._insist("GET", f"sessions/{id_}")["phase"])

    def one_round(self) -> None:
        """A short one, one that leaves a tree behind, a gang behind its barrier, one that is cancelled while it runs,
        one whose supervisor is killed, one that is voided before it starts."""
        on = {"node": [NODE]}
        self.submit(Work(0, seconds=0.1), **on)
        self.submit(Work(0, "stubborn", seconds=0.1, code=3), **on)
        self.submit(Work(0, seconds=0.1, ranks=2), nodes=1, ranks_per_node=2, **on)
        running = [self.submit(Work(0, "stubborn", seconds=60), **on) for _ in range(2)]
        for id_ in running:
            self._until(lambda id_=id_: self.phase(id_) in ("running", "ended"), f"{id_} to run")
            self.cancel(id_)
        self._kill_a_supervisor(on)
        self._void_one(on)
        oracle.no_double(self.world)

    def _until(self, condition: Callable[[], object], what: str) -> None:
        def tended() -> object:
            self.world.tend()
            return condition()

        wait_until(tended, what, 60)

    def _kill_a_supervisor(self, on: dict[str, list[str]]) -> None:
        before = set(self.world.shim_pids())
        id_ = self.submit(Work(0, "stubborn", seconds=2), **on)

        def killed() -> bool:
            for pid in set(self.world.shim_pids()) - before:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    self.tale.lost_supervisors += 1
                    return True
            return self.phase(id_) == "ended"

        self._until(killed, "a supervisor to kill")

    def _void_one(self, on: dict[str, list[str]]) -> None:
        """Its start is asked for and cannot happen, since the zygote is frozen; the cancel comes first."""
        with self._frozen_zygotes():
            id_ = self.submit(Work(0, seconds=0.1), **on)
            jobs_folder = self.world.runs[NODE] / "jobs"
            self._until(
                lambda: list(jobs_folder.glob(f"*-{id_}-*")) or self.phase(id_) in ("stopping", "ended"),
                "its directory",
            )
            self.cancel(id_)
            self._until(lambda: self.phase(id_) == "ended", f"{id_} to be voided")

    @contextmanager
    def _frozen_zygotes(self) -> Iterator[None]:
        frozen: list[int] = []
        for pid in self.world.zygote_pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                frozen.append(pid)
        try:
            yield
        finally:
            for pid in frozen:
                if "zygote.py" in command_of(pid):
                    os.kill(pid, signal.SIGCONT)


def test_an_agent_and_its_supervisors_die_at_every_point(database_file: str, tmp_path: Path, tale: Tale) -> None:
    """All points are armed at once, each for one death: the first process that passes it dies there."""
    armed = {name: tmp_path / name for name in OF_THE_NODE}
    crash = ",".join(f"{name}:1:{mark}" for name, mark in armed.items())
    with managed_world(tmp_path, [database_file], nodes=1) as world:
        agent = world.agents[NODE]
        agent.kill()
        agent.armed = crash
        agent.start()
        users = Users(world, tale)
        tale.lost_supervisors += len(OF_SUPERVISORS)
        deadline = time.monotonic() + REACHED_S
        while left := [name for name, mark in armed.items() if not mark.exists()]:
            assert time.monotonic() < deadline, f"never reached: {left}"
            users.one_round()
        oracle.everything_holds(world, tale)
    assert world.left_over() == []


@pytest.mark.parametrize("point", OF_THE_MANAGER)
def test_a_manager_dies_around_its_commits(
    database_file: str, tmp_path: Path, tale: Tale, point: str, long: bool
) -> None:
    """At the first commit, the second and so on: every step of a session's life is one of them."""
    with managed_world(tmp_path, [database_file], nodes=1) as world:
        users = Users(world, tale)
        manager = world.managers[0]
        for number in range(1, 40 if long else 5):
            manager.kill()
            manager.start(crash=f"{point}:{number * (1 if long else 3)}")
            armed = manager.pid

            def died(armed: int = armed, number: int = number) -> bool:
                """There are commits as long as there is something to do."""
                users.submit(Work(0, seconds=0.05, code=number % 3))
                return manager.pid != armed or not manager.alive

            wait_until(died, f"death at commit {number}", 60)
            world.tend()
        oracle.everything_holds(world, tale)
    assert world.left_over() == []


def test_nothing_of_these_points_is_left_out() -> None:
    """A point that the code passes and no list names would never be tried."""
    named = {part.split('"')[0] for path in SOURCES.glob("*.py") for part in _points_in(path.read_text())}
    assert named == set(OF_THE_NODE)
    assert len(OF_THE_NODE) > 30


def _points_in(text: str) -> list[str]:
    return [piece for call in ("point(", "pass_by(") for piece in text.split(f'{call}"')[1:]]
