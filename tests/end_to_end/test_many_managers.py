"""Two managers on one PostgreSQL, three agents that know both: whichever is asked, whichever dies (A1, B2)."""

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from corral.client import Client
from corral.model.faults import Fault
from corral.store import upgrade
from tests.chaos.world import World, managed_world
from tests.end_to_end.control_plane import wait_until
from tests.services.postgres import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
NOBODY_WAITS_S = 15.0
_keys = itertools.count()


@pytest.fixture(scope="module")
def two(postgres_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("managers")
    with postgres_server.fresh_database() as database:
        upgrade(database)
        with managed_world(folder, [database, database]) as world:
            yield world
            wait_until(lambda: world.ask("GET", "doctor", prefer=0)["ok"], "doctor", 30)
            wait_until(lambda: world.ask("GET", "doctor", prefer=1)["ok"], "doctor", 30)
    assert world.left_over() == []


@pytest.fixture(autouse=True)
def whole_again(two: World) -> Iterator[None]:
    yield
    two.heal()
    two.ready()


def client(world: World, number: int) -> Client:
    return Client(world.urls[number], world.token_file.read_text().strip())


def submit(world: World, through: int, *command: str, **more: Any) -> str:
    body = {"command": [*command], "cpus": 0.1, "memory": "32MiB", "env": {"MARKS": str(world.marks)}, **more}
    return world.ask("POST", "sessions", body, f"many-{next(_keys)}", prefer=through)["id"]


def ended(world: World, ids: list[str], through: int, within_s: float) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        found = {id_: world.ask("GET", f"sessions/{id_}", prefer=through) for id_ in ids}
        return found if all(one["phase"] == "ended" for one in found.values()) else None

    return wait_until(look, f"{len(ids)} sessions to end", within_s)


def running(world: World, id_: str) -> Callable[[], bool]:
    return lambda: world.ask("GET", f"sessions/{id_}")["phase"] == "running"


def test_sessions_through_either_are_placed_once_and_run_once(two: World) -> None:
    mark = 'echo "$CORRAL_LAUNCH_TOKEN" >> "$MARKS/$CORRAL_SESSION_ID"'
    ids = [submit(two, number % 2, "sh", "-c", mark) for number in range(24)]
    gangs = [submit(two, number % 2, "true", nodes=3) for number in range(4)]
    for number in range(2):
        sessions = ended(two, ids + gangs, number, 60)
        assert {(one["outcome"], one["attempt"]) for one in sessions.values()} == {("succeeded", 1)}
    for id_ in ids:
        assert (two.marks / id_).read_text().split() == [sessions[id_]["kernels"][0]["token"]]
        facts = [event["fact"] for event in client(two, 1).history(id_)]
        assert [facts.count(fact) for fact in ("placed", "claimed", "ready", "decided", "released")] == [1] * 5


def test_logs_are_read_through_either_manager_whichever_the_agent_speaks_to(two: World) -> None:
    ids = [submit(two, n % 2, "sh", "-c", f"echo from node-{n}", node=[f"node-{n}"]) for n in (1, 2, 3)]
    ended(two, ids, 0, 60)
    for number in range(2):
        with client(two, number) as asking:
            assert [b"".join(asking.logs(id_)) for id_ in ids] == [f"from node-{n}\n".encode() for n in (1, 2, 3)]


def test_a_log_is_followed_through_either_manager_while_it_grows(two: World) -> None:
    pipe = two.folder / "pipe"
    os.mkfifo(pipe)
    id_ = submit(two, 0, "sh", "-c", f"echo one; cat {pipe}; echo three")
    wait_until(running(two, id_), "it to run")
    heard: list[list[bytes]] = [[], []]

    def follow(number: int) -> None:
        with client(two, number) as asking:
            heard[number].extend(chunk.data for chunk in asking.follow_logs(id_))

    threads = [threading.Thread(target=follow, args=(number,), daemon=True) for number in range(2)]
    for thread in threads:
        thread.start()
    wait_until(lambda: all(b"".join(one) == b"one\n" for one in heard), "both to hear the first line", 20)
    pipe.write_text("two\n")
    for thread in threads:
        thread.join(30)
    assert [b"".join(one) for one in heard] == [b"one\ntwo\nthree\n"] * 2


def test_a_hanging_start_delays_nothing_through_either(two: World) -> None:
    pipe = two.folder / "slow-pipe"
    os.mkfifo(pipe)
    hanging = _with_bootstrap(two, f"#!/bin/sh\ncat {pipe}\n")
    wait_until(lambda: two.ask("GET", f"sessions/{hanging}")["phase"] != "pending", "the slow one to be placed")
    quick = [submit(two, number % 2, "true") for number in range(12)]
    ended(two, quick, 1, 30)
    assert two.ask("GET", f"sessions/{hanging}")["phase"] in ("starting", "running")
    pipe.write_text("")
    assert ended(two, [hanging], 0, 30)[hanging]["outcome"] == "succeeded"


def _with_bootstrap(world: World, script: str) -> str:
    import hashlib

    content = script.encode()
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    with client(world, 1) as asking:
        asking.put_blob(digest, content)
    return submit(world, 1, "true", bootstrap=digest)


def test_kill_9_of_one_manager_at_any_moment_loses_nothing_and_nobody_waits(two: World) -> None:
    mark = 'echo "$CORRAL_LAUNCH_TOKEN" >> "$MARKS/$CORRAL_SESSION_ID"; sleep 0.2; exit $0'
    for victim, moment_s in ((0, 0.0), (1, 0.05), (0, 0.15), (1, 0.4)):
        other = 1 - victim
        before = [submit(two, victim, "sh", "-c", mark, str(code)) for code in (0, 3)]
        time.sleep(moment_s)  # the moment of the death is what varies
        two.managers[victim].kill()
        after = [submit(two, other, "sh", "-c", mark, str(code)) for code in (0, 3)]
        sessions = ended(two, before + after, other, NOBODY_WAITS_S)
        assert [sessions[id_]["exit_code"] for id_ in before + after] == [0, 3, 0, 3]
        assert {one["attempt"] for one in sessions.values()} == {1}
        for id_ in before + after:
            assert (two.marks / id_).read_text().split() == [sessions[id_]["kernels"][0]["token"]]
        two.heal()
        two.ready()


def test_a_watcher_resumes_through_the_other_manager_without_a_gap(two: World) -> None:
    seen: list[int] = []
    begun = client(two, 1).events(limit=10_000)
    since = begun[-1]["id"] if begun else 0

    def watch() -> None:
        """Whichever manager lives is asked for what comes after the last event seen."""
        for number in itertools.cycle((0, 1)):
            with suppress(Fault), client(two, number) as asking:
                page = asking.events(seen[-1] if seen else since, 5)  # a few at a time, then from the other one
                seen.extend(event["id"] for event in page)
            time.sleep(0.05)
            if done.is_set():
                return

    done = threading.Event()
    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    ids = [submit(two, 0, "true") for _ in range(6)]
    wait_until(lambda: seen, "the first event", 20)
    two.managers[0].kill()
    ids += [submit(two, 1, "true") for _ in range(6)]
    ended(two, ids, 1, 30)
    told = client(two, 1).events(since, 10_000)
    last = told[-1]["id"]
    wait_until(lambda: seen and seen[-1] >= last, f"the watcher to see event {last}, it saw {seen[-5:]}", 60)
    done.set()
    assert seen[: len(told)] == [event["id"] for event in told]
    watching_again = [submit(two, 1, "true")]
    ended(two, watching_again, 1, 30)
    watching.join(20)


def test_tokens_and_sessions_outlive_both_managers(two: World, tmp_path: Path) -> None:
    """Both are killed at once while a session runs; the agents keep it, and the next managers hear of its end."""
    id_ = submit(two, 0, "sh", "-c", "sleep 2; exit 7")
    wait_until(running(two, id_), "it to run")
    for manager in two.managers:
        manager.kill()
    wait_until(lambda: not two.live_tokens(), "the job to end with nobody to tell", 20)
    two.heal()
    session = ended(two, [id_], 0, 60)[id_]
    assert (session["exit_code"], session["attempt"]) == (7, 1)
