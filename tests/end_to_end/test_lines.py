"""Lines, gangs, tries and planned starts on two managers over PostgreSQL: whichever is asked, and whichever dies."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from corral.client import Client
from corral.store import upgrade
from tests.chaos.world import World, managed_world
from tests.end_to_end.control_plane import wait_until
from tests.end_to_end.test_gang import RENDEZVOUS
from tests.services.postgres import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
SLEEP = ("sleep", "600")
_keys = itertools.count()


@pytest.fixture(scope="module")
def two(postgres_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with postgres_server.fresh_database() as database:
        upgrade(database)
        with managed_world(tmp_path_factory.mktemp("lines"), [database, database]) as world:
            yield world
            wait_until(lambda: world.ask("GET", "doctor", prefer=0)["ok"], "doctor", 30)
    assert world.left_over() == []


@pytest.fixture(autouse=True)
def whole_again(two: World) -> Iterator[None]:
    """All managers, the group as it is at first, and nobody left."""
    group(two, order="fifo", placement="pack", options={"backfill": "easy"})
    yield
    two.heal()
    two.ready()
    two.ask("POST", "groups/default/resume")
    for id_, one in two.sessions().items():
        if one["phase"] != "ended":
            two.ask("POST", f"sessions/{id_}/cancel")
    wait_until(lambda: all(one["phase"] == "ended" for one in two.sessions().values()), "nobody to be left", 60)


def group(world: World, **change: Any) -> None:
    world.ask("PATCH", "groups/default", change)


def submit(world: World, *command: str, **more: Any) -> str:
    """Through one manager after the other."""
    number = next(_keys)
    body = {"command": [*command], "cpus": 0.1, "memory": "32MiB", "env": {"MARKS": str(world.marks)}, **more}
    return world.ask("POST", "sessions", body, f"line-{number}", prefer=number % 2)["id"]


def show(world: World, id_: str, through: int = 0) -> dict[str, Any]:
    return world.ask("GET", f"sessions/{id_}", prefer=through)


def is_in(world: World, phase: str, *ids: str) -> Callable[[], bool]:
    return lambda: all(show(world, id_)["phase"] == phase for id_ in ids)


def history(world: World, id_: str, through: int) -> list[Any]:
    with Client(world.urls[through], world.token_file.read_text().strip()) as asking:
        return list(asking.history(id_))


def full(world: World, node: str, **more: Any) -> str:
    """Somebody who has all of it."""
    id_ = submit(world, *SLEEP, cpus=4, node=[node], grace="1s", **more)
    wait_until(is_in(world, "running", id_), f"{id_} to run on {node}")
    return id_


def test_by_priority_with_a_place_that_is_shown_and_a_pause_that_stops_nobody(two: World) -> None:
    group(two, order="priority")
    runs = full(two, "node-1")
    two.ask("POST", "groups/default/pause", prefer=1)
    command = ("sh", "-c", 'date +%s%N > "$MARKS/began-$CORRAL_SESSION_ID"')
    ids = {priority: submit(two, *command, cpus=4, node=["node-1"], priority=priority) for priority in (1, 7, 3)}
    for through in (0, 1):
        told = [two.ask("GET", f"sessions/{ids[priority]}/explain", prefer=through) for priority in (7, 3, 1)]
        assert [one["position"] for one in told] == [1, 2, 3]
        assert "group_paused" in {one["code"] for one in show(two, ids[7], through)["refusals"]}
    free = submit(two, "true", node=["node-2"])
    two.managers[0].kill()
    two.ask("POST", f"sessions/{runs}/cancel", prefer=1)
    wait_until(is_in(two, "ended", runs), "who ran to end")
    assert is_in(two, "pending", free, *ids.values())(), "nobody starts in a queue that is paused"
    two.ask("POST", "groups/default/resume", prefer=1)
    wait_until(is_in(two, "ended", free, *ids.values()), "all to end")
    began = [int((two.marks / f"began-{ids[priority]}").read_text()) for priority in (7, 3, 1)]
    assert began == sorted(began)


def test_who_has_used_less_goes_first_though_it_came_later(two: World) -> None:
    group(two, order="fair-share")
    full(two, "node-1", project="much")
    blocks = full(two, "node-2", project="other")
    first = submit(two, *SLEEP, cpus=4, node=["node-2"], project="much/again")
    later = submit(two, *SLEEP, cpus=4, node=["node-2"], project="little")
    wait_until(lambda: show(two, first)["refusals"] and show(two, later)["refusals"], "both to be told why they wait")
    two.managers[1].kill()
    two.ask("POST", f"sessions/{blocks}/cancel")
    wait_until(is_in(two, "running", later), "the one whose project has less")
    assert show(two, first)["phase"] == "pending"


def test_each_rank_of_a_gang_knows_the_others_and_is_kept_apart(two: World) -> None:
    script = f"{RENDEZVOUS}\nprint(rank, size, os.environ['LOCAL_RANK'], os.environ['CORRAL_NODE_LIST'])\n"
    script += "raise SystemExit(0 if rank < 4 else 40 + rank)\n"
    id_ = submit(two, "python3", "-c", script, nodes=3, ranks_per_node=2, time="60s", outcome_rule="all")
    two.managers[0].kill()
    wait_until(is_in(two, "ended", id_), "the gang to end")
    two.heal()
    two.ready()
    for through in (0, 1):
        kernels = sorted(show(two, id_, through)["kernels"], key=lambda one: one["rank"])
        assert [one["exit_code"] for one in kernels] == [0, 0, 0, 0, 44, 45]
        with Client(two.urls[through], two.token_file.read_text().strip()) as asking:
            logs = [b"".join(asking.logs(id_, rank=rank)).decode().splitlines() for rank in range(6)]
        assert logs[0][0] == f"sum {10 * sum(range(1, 6))}"
        told = [lines[-1].split() for lines in logs]
        assert [(rank, size, local) for rank, size, local, _ in told] == [
            (str(rank), "6", str(rank % 2)) for rank in range(6)
        ]
        assert len({nodes for *_, nodes in told}) == 1
    assert (show(two, id_)["outcome"], show(two, id_)["attempt"]) == ("failed", 1)


def test_a_try_is_an_attempt_of_its_own_whichever_manager_saw_it(two: World) -> None:
    script = 'echo "$CORRAL_ATTEMPT $CORRAL_LAUNCH_TOKEN" >> "$MARKS/tries"; exit $((CORRAL_ATTEMPT + 2))'
    id_ = submit(two, "sh", "-c", script, retries=2)
    marks = two.marks / "tries"
    for number in range(2):
        wait_until(lambda number=number: marks.exists() and len(marks.read_text().split("\n")) > number + 1, "a try")
        two.managers[number].kill()
        two.heal()
    wait_until(is_in(two, "ended", id_), "the last try to end", 120)
    assert (show(two, id_)["exit_code"], show(two, id_)["attempt"]) == (5, 3), "no fourth"
    tries = [line.split() for line in marks.read_text().splitlines()]
    assert [attempt for attempt, _ in tries] == ["1", "2", "3"]
    for through in (0, 1):
        with Client(two.urls[through], two.token_file.read_text().strip()) as asking:
            launches = asking.launches(id_)["launches"]
        assert [one["token"] for one in launches] == [token for _, token in tries]
        facts = [(line["attempt"], line["fact"]) for line in history(two, id_, through)]
        assert [facts.count((attempt, "decided")) for attempt in (1, 2, 3)] == [1, 1, 1]
        assert [facts.count((attempt, "requeued")) for attempt in (1, 2, 3)] == [1, 1, 0]


def test_who_waits_for_others_starts_once_they_end_as_it_wants(two: World) -> None:
    bad = submit(two, "sh", "-c", "sleep 1; exit 3")
    ids = {
        "ok": submit(two, "true", after=[f"{bad}:ok"]),
        "notok": submit(two, "true", after=[f"{bad}:notok"]),
        "any": submit(two, "true", after=[f"{bad}:any"]),
    }
    last = submit(two, "true", after=[f"{ids['ok']}:any", f"{ids['notok']}:ok"])
    two.managers[0].kill()
    wait_until(is_in(two, "ended", bad, last, *ids.values()), "all to end")
    for through in (1, 0):
        outcomes = {name: show(two, id_, through)["outcome"] for name, id_ in ids.items()}
        assert outcomes == {"ok": "cancelled", "notok": "succeeded", "any": "succeeded"}
        assert show(two, ids["ok"], through)["reason"]["code"] == "dependency_failed"
    assert show(two, last)["outcome"] == "succeeded"


def test_a_planned_start_is_kept_by_whoever_passes_next(two: World) -> None:
    """The first in line could have the second one's node, for longer than that one was promised."""
    group(two, options={"backfill": "conservative"})
    full(two, "node-1", time="10m")
    long = full(two, "node-2", time="20m")
    first = submit(two, *SLEEP, cpus=4, node=["node-1", "node-2"], time="90m", grace="1s")
    wait_until(lambda: show(two, first)["planned_start"], "the first to be told when it starts")
    second = submit(two, *SLEEP, cpus=4, node=["node-2"], time="30m", grace="1s")
    wait_until(lambda: show(two, second)["planned_start"], "the second to be told when it starts")
    told = show(two, first)["planned_start"]
    assert told < show(two, second)["planned_start"]
    for manager in two.managers:
        manager.kill()
    two.heal()
    two.ready()
    assert show(two, first)["planned_start"] == told
    two.ask("POST", f"sessions/{long}/cancel")
    wait_until(is_in(two, "running", second), "the second to start, earlier than it was told")
    assert (show(two, first)["phase"], show(two, first)["planned_start"]) == ("pending", told)
    assert {one["code"] for one in show(two, first)["refusals"]} & {"would_delay", "not_enough_cpus"}
    facts = {line["fact"] for id_ in (first, second) for line in history(two, id_, 1)}
    assert "put_off" not in facts
