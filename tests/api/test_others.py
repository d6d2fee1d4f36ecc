"""What is not yours does not exist for you: no history, event, reason or explanation names others' sessions."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from corral.model.lifecycle import ExitClass
from corral.model.session import FactKind, Result
from corral.reconcile.defragmenting import clear, clearances, look
from corral.reconcile.placement import PER_SHAPE, commit, new_refusals
from corral.reconcile.preempting import preempt
from corral.scheduling.cycle import cycle
from corral.scheduling.moving.clearing import Wanted
from tests.api.face import Face, Node, fact

SESSIONS = "/api/v1/sessions"


def turn(face: Face) -> list[str]:
    """One pass, with whom it has stopped; whom it placed."""

    def one_pass(tx: Any) -> list[str]:
        snapshot = tx.snapshot(PER_SHAPE)
        plan = cycle(snapshot)
        commit(tx, plan, new_refusals(snapshot, plan), "manager:test", claiming=True)
        for one in plan.preemptions:
            assert not one.victims or preempt(tx, one, "manager:test")
        return [placed.session.id for placed in plan.placements]

    return face.tx(one_pass)


def start(face: Face, agent: Node, owner: str, **fields: Any) -> tuple[str, str]:
    """The id and the launch token of one that runs."""
    id_ = face.submit(as_=owner, **fields)["id"]
    assert turn(face) == [id_]
    (order,) = agent.orders()
    agent.exchange(*(fact(order.token, kind) for kind in (FactKind.ACCEPTED, FactKind.READY)))
    return id_, order.token


def all_told(face: Face, id_: str, as_: str) -> Iterator[Any]:
    """Everything that a caller can read of a session."""
    for part in ("", "/explain", "/history", "/attempts", "/launches", "/wait?timeout_s=0"):
        yield face.get(f"{SESSIONS}/{id_}{part}", as_=as_)
    yield face.get(SESSIONS, as_=as_)
    yield face.get("/api/v1/events:page", as_=as_)
    with_stream = face.request("GET", "/api/v1/events?follow=false", as_)
    assert with_stream.status_code == 200
    yield with_stream.text


@pytest.fixture
def node(face: Face) -> Node:
    found = face.node().register()
    options = {"preemption": "priority", "preemption_min_runtime": "0s"}
    changed = face.request("PATCH", "/api/v1/groups/default", json={"order": "priority", "options": options})
    assert changed.status_code == 200
    return found


def test_who_was_stopped_for_whom_is_each_ones_own(face: Face, node: Node) -> None:
    victim, token = start(face, node, "ann", cpus=6, preemptible=True, name="mine")
    claimant = face.submit(as_="bob", cpus=8, priority=7)["id"]
    assert [turn(face), turn(face)] == [[], []]
    assert face.get(f"{SESSIONS}/{victim}")["preempted_for"] == claimant, "administrators see everything"
    assert face.get(f"{SESSIONS}/{victim}", as_="ann")["preempted_for"] == "another session (priority 7)"
    assert "preempted for another session (priority 7)" in face.get(f"{SESSIONS}/{victim}/explain", "ann")["summary"]
    (order,) = node.orders()
    assert order.stop is not None and claimant not in order.stop.message
    killed = fact(token, FactKind.RESULT, 143)
    killed = replace(killed, result=Result(signal=15, exit_class=ExitClass.CANCELLED))
    node.exchange(killed, fact(token, FactKind.EXITED))
    for told in all_told(face, victim, "ann"):
        assert claimant not in str(told) and "'bob'" not in str(told)
    for told in all_told(face, claimant, "bob"):
        assert victim not in str(told) and "'ann'" not in str(told)
    (line,) = [one for one in face.get(f"{SESSIONS}/{victim}/history", "ann") if one["fact"] == "preempted"]
    assert line["detail"] == {"for": "another session (priority 7)"}
    (line,) = [one for one in face.get(f"{SESSIONS}/{claimant}/history", "bob") if one["fact"] == "preempting"]
    assert [one.partition(" (")[0] for one in line["detail"]["victims"]] == ["another session"]
    (reason,) = [one["reason"]["message"] for one in face.get(f"{SESSIONS}/{victim}/attempts", "ann")]
    assert "another session (priority 7)" in reason
    history = face.get(f"{SESSIONS}/{victim}/history")
    assert [one["detail"] for one in history if one["fact"] == "preempted"] == [{"for": claimant}]
    cancelled = face.post(f"{SESSIONS}/{victim}/cancel", as_="ann")
    assert claimant not in str(cancelled)


def test_ones_own_are_named(face: Face, node: Node) -> None:
    victim, _ = start(face, node, "ann", cpus=6, preemptible=True)
    claimant = face.submit(as_="ann", cpus=8, priority=7)["id"]
    assert [turn(face), turn(face)] == [[], []]
    assert face.get(f"{SESSIONS}/{victim}", as_="ann")["preempted_for"] == claimant
    (line,) = [one for one in face.get(f"{SESSIONS}/{claimant}/history", "ann") if one["fact"] == "preempting"]
    assert line["detail"]["victims"] == [victim]


def test_who_is_in_front_is_told_without_a_name(face: Face, node: Node) -> None:
    start(face, node, "admin", cpus=6, time="1h", priority=9)
    first = face.submit(as_="bob", cpus=8, priority=5)["id"]
    mine = face.submit(as_="ann", cpus=2)["id"]
    assert [turn(face), turn(face)] == [[], []]
    for told in all_told(face, mine, "ann"):
        assert first not in str(told)
    told = face.get(f"{SESSIONS}/{mine}/explain", as_="ann")
    assert any("another session (priority 5), which is before it" in one["message"] for one in told["blockers"])
    assert any(first in one["message"] for one in face.get(f"{SESSIONS}/{mine}/explain")["blockers"])
    plan = face.post(f"{SESSIONS}:plan", {"command": ["x"], "cpus": 2}, "ann")
    assert plan["blockers"] and first not in str(plan)
    again = face.submit(as_="ann", cpus=2)
    assert first not in str(again)


def test_who_moved_for_whom_is_each_ones_own(face: Face, node: Node) -> None:
    mover, _ = start(face, node, "ann", cpus=2, preemptible=True)
    other = face.node("n2").register()
    start(face, other, "admin", cpus=5, preemptible=False, node=["n2"])
    goal = face.submit(as_="bob", cpus=8, priority=3)["id"]
    off = face.request("PATCH", "/api/v1/groups/default", json={"options": {"preemption": "none"}})
    assert off.status_code == 200 and turn(face) == []

    def move(tx: Any) -> None:
        (planned,) = clearances(*look(tx, Wanted()))
        clear(tx, planned, "user:admin")

    face.tx(move)
    (line,) = [one for one in face.get(f"{SESSIONS}/{mover}/history", "ann") if one["fact"] == "moving"]
    assert line["detail"]["for"] == "another session (priority 3)"
    for told in all_told(face, mover, "ann"):
        assert goal not in str(told)
    for told in all_told(face, goal, "bob"):
        assert mover not in str(told)
