"""Sessions that make way for others, with real processes: told in time, their work kept, and whoever dies meanwhile."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from corral.store import upgrade
from tests.chaos.world import World, managed_world
from tests.end_to_end.control_plane import Plane, plane, wait_until
from tests.services.postgres import Server

OPTIONS = ("preemption=priority", "preemption_min_runtime=0", "backfill=none")
# Counts in its checkpoint; stops when it is told to, and says so.
CHECKPOINTED = """
n=$(cat "$CORRAL_CHECKPOINT_DIR/n" 2>/dev/null || echo 0)
echo "attempt $CORRAL_ATTEMPT begins at $n"
trap 'cat "$CORRAL_STOP_FILE"; echo $((n + 1)) > "$CORRAL_CHECKPOINT_DIR/n"; exit 85' TERM
[ "$n" -ge 1 ] && exit 0
while :; do sleep 0.05; done
"""
FOR_EVER = "while :; do sleep 0.05; done"


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    folder = tmp_path_factory.mktemp("crowded")
    with plane(folder, "--simulate-gpus", "2xA100:80GB", "--cpus", "4", "--memory", "8GiB") as running:
        words = [word for option in OPTIONS for word in ("--option", option)]
        assert running.run("group", "set", "default", *words).code == 0
        yield running


def submit(running: Plane, *words: str, script: str = FOR_EVER) -> str:
    return running.submit("--gpus", "2", *words, "--", "sh", "-c", script)


def history(running: Plane, id_: str) -> list[dict[str, Any]]:
    return running.run("history", id_, "-o", "json").json()


def test_one_makes_way_checkpoints_and_goes_on_where_it_was(crowded: Plane) -> None:
    weak = submit(crowded, script=CHECKPOINTED)
    crowded.wait_phase(weak, "running")
    plan = crowded.run("submit", "--dry-run", "--gpus", "1", "--priority", "5", "--", "true").out
    assert "when others have made way" in plan
    assert "1 session would be stopped for it, with a grace of at most 30s" in plan
    strong = crowded.submit("--gpus", "1", "--priority", "5", "--", "sh", "-c", "sleep 0.3")
    assert crowded.run("wait", strong).code == 0
    assert crowded.run("wait", weak).code == 0
    shown = crowded.show(weak)
    assert (shown["outcome"], shown["attempt"], shown["preemptions"]) == ("succeeded", 2, 1)
    assert "attempt 2 begins at 1" in crowded.run("logs", weak).out
    first = crowded.run("logs", weak, "--attempt", "1").out
    notice = json.loads(first.splitlines()[-1])
    assert notice["reason"] == "preempted"
    assert "for another session" in notice["message"] and strong not in notice["message"]
    assert notice["seconds_left"] > 20
    assert [one["detail"] for one in history(crowded, weak) if one["fact"] == "preempted"] == [{"for": strong}]
    assert [one["detail"]["victims"] for one in history(crowded, strong) if one["fact"] == "preempting"] == [[weak]]
    assert crowded.run("doctor").code == 0


def test_one_that_does_not_listen_is_killed_after_its_grace_and_runs_again(crowded: Plane) -> None:
    weak = submit(crowded, "--grace", "1s", script=f"trap '' TERM; [ $CORRAL_ATTEMPT -ge 2 ] && exit 0; {FOR_EVER}")
    crowded.wait_phase(weak, "running")
    strong = submit(crowded, "--priority", "5", script="exit 0")
    told = crowded.run("explain", strong, "-o", "json").json()
    seen = wait_until(
        lambda: [one for one in crowded.run("explain", strong, "-o", "json").json()["blockers"]
                 if one["code"] == "preempting"] or crowded.show(strong)["outcome"],
        f"it to be told that room is made, and not only {told['summary']}",
    )  # fmt: skip
    assert seen == "succeeded" or "1 session stops for it; room is expected by" in seen[0]["message"]
    assert crowded.run("wait", strong, weak).code == 0
    assert (crowded.show(weak)["attempt"], crowded.show(weak)["preemptions"]) == (2, 1)


# Each rank saves when it is told by the signal it asked for, and takes SIGTERM for a fault.
BY_SIGNAL = """
trap 'echo saved; cat "$CORRAL_STOP_FILE"; echo 1 > "$CORRAL_CHECKPOINT_DIR/$RANK"; exit 85' USR1
trap 'echo wrong; exit 1' TERM
[ -e "$CORRAL_CHECKPOINT_DIR/$RANK" ] && exit 0
while :; do sleep 0.05; done
"""


def test_a_signal_of_its_own_is_what_tells_it_to_make_way(crowded: Plane) -> None:
    ranks = ("--gpus", "1", "--ranks-per-node", "2", "--signal", "USR1")
    weak = crowded.submit(*ranks, "--", "sh", "-c", BY_SIGNAL)
    crowded.wait_phase(weak, "running")
    strong = submit(crowded, "--priority", "5", script="exit 0")
    assert crowded.run("wait", strong, weak).code == 0
    assert (crowded.show(weak)["attempt"], crowded.show(weak)["preemptions"]) == (2, 1)
    for rank in ("0", "1"):
        first = crowded.run("logs", weak, "--attempt", "1", "--rank", rank).out.splitlines()
        assert first[0] == "saved"
        assert json.loads(first[1])["reason"] == "preempted"
        assert "wrong" not in first


def test_for_anything_else_it_is_told_by_sigterm(crowded: Plane) -> None:
    id_ = crowded.submit("--signal", "USR1@30", "--", "sh", "-c", "trap 'echo term; exit 0' TERM; " + FOR_EVER)
    crowded.wait_phase(id_, "running")
    assert crowded.run("requeue", id_).code == 0
    assert crowded.run("wait", id_).code == 0
    assert crowded.run("logs", id_).out == "term\n"


def test_one_that_may_not_be_stopped_is_not(crowded: Plane) -> None:
    weak = submit(crowded, "--no-preemptible")
    crowded.wait_phase(weak, "running")
    strong = submit(crowded, "--priority", "5", script="exit 0")
    refused = wait_until(lambda: crowded.show(strong)["refusals"], "the strong one to be refused")
    assert {one["code"] for one in refused} == {"not_enough_gpus"}
    assert crowded.show(weak)["phase"] == "running"
    assert "no" in crowded.run("show", weak).out
    assert crowded.run("cancel", weak).code == 0
    assert crowded.run("wait", strong).code == 0


# --- two managers, and one of them dies


@pytest.fixture(scope="module")
def two(postgres_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("managers")
    with postgres_server.fresh_database() as database:
        upgrade(database)
        with managed_world(folder, [database, database]) as world:
            options = {"options": {"preemption": "priority", "preemption_min_runtime": 0, "backfill": "none"}}
            world.ask("PATCH", "groups/default", options)
            yield world
            wait_until(lambda: world.ask("GET", "doctor", prefer=1)["ok"], "doctor", 30)
    assert world.left_over() == []


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_kill_9_of_a_manager_between_preempting_and_placement(two: World) -> None:
    """Whenever the death comes, the room goes to the claimant, the victims run again, and nothing stays kept."""
    for moment in ("preempting", "preempted", "requeued"):
        nodes = two.ask("GET", "nodes")
        nodes = nodes["nodes"] if isinstance(nodes, dict) else nodes
        cpus = int(nodes[0]["cpus"])
        victims = [
            _submit(two, f"{moment}-v{number}", CHECKPOINTED, cpus=cpus, node=[node["name"]], grace="5s")
            for number, node in enumerate(nodes)
        ]
        wait_until(lambda ids=victims: all(_phase(two, id_) == "running" for id_ in ids), "the nodes to be full")
        claimant = _submit(two, f"{moment}-c", "exit 0", cpus=cpus, nodes=len(nodes), priority=10)
        watched = claimant if moment == "preempting" else victims[0]
        wait_until(lambda id_=watched, fact=moment: fact in _facts(two, id_), moment, 30)
        two.managers[0].kill()
        wait_until(lambda ids=(claimant, *victims): all(_phase(two, id_) == "ended" for id_ in ids), "all to end", 90)
        ended = {id_: two.ask("GET", f"sessions/{id_}") for id_ in (claimant, *victims)}
        assert {one["outcome"] for one in ended.values()} == {"succeeded"}
        assert [ended[id_]["preemptions"] for id_ in victims] == [1] * len(victims)
        assert [ended[id_]["attempt"] for id_ in victims] == [2] * len(victims)
        two.heal()
        two.ready()
    nodes = two.ask("GET", "nodes")
    nodes = nodes["nodes"] if isinstance(nodes, dict) else nodes
    assert {node["cpus_used"] for node in nodes} == {0}


def _submit(world: World, key: str, script: str, **more: Any) -> str:
    body = {"command": ["sh", "-c", script], "memory": "32MiB", **more}
    return world.ask("POST", "sessions", body, key)["id"]


def _phase(world: World, id_: str) -> str:
    return world.ask("GET", f"sessions/{id_}")["phase"]


def _facts(world: World, id_: str) -> list[str]:
    found = world.ask("GET", f"sessions/{id_}/history")
    rows = found["events"] if isinstance(found, dict) else found
    return [row["fact"] for row in rows]
