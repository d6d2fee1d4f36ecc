"""Each invariant, broken once: the ledger below is right, and one change of one row makes it wrong."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from corral.model.invariants import TABLES, Violation, check, compare, gather

Tables = dict[str, list[dict[str, Any]]]


def session(id_: str, phase: str, seq: int, attempt: int = 1, **columns: Any) -> dict[str, Any]:
    row = {"id": id_, "phase": phase, "attempt": attempt, "seq": seq, "wanted": "run", "outcome": None}
    return (
        row | {"exit_class": None, "ended_at": None, "next_check_at": 9.0, "room_by": None, "stop_for": None} | columns
    )


def kernel(session_id: str, attempt: int, rank: int, **columns: Any) -> dict[str, Any]:
    row = {"token": f"1-{session_id}-{attempt}-{rank}", "session": session_id, "attempt": attempt, "rank": rank}
    row |= {"node": "n0", "node_epoch": 1, "claimed_version": 3, "ready_at": None, "result_at": None}
    return row | {"certificate": None} | columns


def holding(session_id: str, attempt: int, rank: int, device: str = "", **columns: Any) -> dict[str, Any]:
    row = {"token": f"1-{session_id}-{attempt}-{rank}", "device": device, "session": session_id, "attempt": attempt}
    amounts = (0, 0, 1000, 80) if device else (500, 256, 0, 0)
    row |= dict(zip(("cpu_milli", "memory_mib", "share_milli", "vram_mib"), amounts, strict=True))
    return row | {"node": "n0", "exclusive": int(bool(device)), "released_at": None} | columns


def pin(session_id: str, device: str = "") -> dict[str, Any]:
    held = holding(session_id, 1, 0, device)
    return {name: held[name] for name in held if name not in ("session", "attempt", "exclusive", "released_at")} | {
        "owner": "wait"
    }


def story(session_id: str, *steps: tuple[str, str, int]) -> list[dict[str, Any]]:
    source, events = None, []
    for seq, (fact, target, attempt) in enumerate(steps, 1):
        row = {"session": session_id, "seq": seq, "fact": fact, "source": source, "target": target}
        events.append(row | {"attempt": attempt})
        source = target
    return events


def right() -> Tables:
    """`run` runs on two ranks in its second attempt, `end` has ended and its room is kept for `wait`, which waits."""
    first = [kernel("run", 1, rank, certificate="exit", result_at=4.0) for rank in (0, 1)]
    second = [kernel("run", 2, rank, ready_at=5.0) for rank in (0, 1)]
    begun = (("submitted", "pending", 1), ("placed", "placed", 1), ("claimed", "starting", 1), ("ready", "running", 1))
    ending = (("decided", "stopping", 1), ("exited", "stopping", 1))
    again = (("requeued", "pending", 1), ("placed", "placed", 2), ("claimed", "starting", 2), ("ready", "running", 2))
    return {
        "session": [
            session("run", "running", 10, 2),
            session(
                "end", "ended", 7, outcome="succeeded", exit_class="ok", ended_at=6.0, next_check_at=None, wanted="stop"
            ),
            session("wait", "pending", 2, room_by=20.0),
        ],
        "attempt": [
            {"session": "run", "attempt": 1, "live": 0, "ended_at": 4.0},
            {"session": "run", "attempt": 2, "live": 1, "ended_at": None},
            {"session": "end", "attempt": 1, "live": 0, "ended_at": 6.0},
        ],
        "kernel": [*first, *second, kernel("end", 1, 0, certificate="exit", result_at=6.0)],
        "holding": [
            *(holding("run", 1, rank, released_at=4.0) for rank in (0, 1)),
            *(holding("run", 2, rank) for rank in (0, 1)),
            holding("run", 2, 0, "gpu0"),
            holding("end", 1, 0, released_at=6.0),
        ],
        "pin": [pin("end"), pin("end", "gpu1")],
        "node": [
            {
                "name": "n0",
                "epoch": 1,
                "cpu_milli": 4000,
                "memory_mib": 4096,
                "cpu_used_milli": 1500,
                "memory_used_mib": 768,
                "desired_version": 5,
                "served_version": 4,
            }
        ],
        "device": [
            {"node": "n0", "uuid": "gpu0", "capacity_mib": 80, "used_mib": 80, "used_milli": 1000},
            {"node": "n0", "uuid": "gpu1", "capacity_mib": 80, "used_mib": 80, "used_milli": 1000},
        ],
        "event": [
            *story("run", *begun, *ending, *again),
            *story("end", *begun, ("decided", "stopping", 1), ("cancel", "stopping", 1), ("released", "ended", 1)),
            *story("wait", ("submitted", "pending", 1), ("update", "pending", 1)),
        ],
    }


def find(tables: Tables, table: str, **key: Any) -> dict[str, Any]:
    return next(row for row in tables[table] if all(row[name] == value for name, value in key.items()))


def put(table: str, where: dict[str, Any], **columns: Any) -> Callable[[Tables], None]:
    return lambda tables: find(tables, table, **where).update(columns)


def drop(table: str, **key: Any) -> Callable[[Tables], None]:
    return lambda tables: tables[table].remove(find(tables, table, **key))


def add(table: str, row: dict[str, Any]) -> Callable[[Tables], None]:
    return lambda tables: tables[table].append(row)


RUN, END, WAIT = {"id": "run"}, {"id": "end"}, {"id": "wait"}
LIVE = {"token": "1-run-2-0"}
GPU = {"token": "1-run-2-0", "device": "gpu0"}
BROKEN = {
    "no such step": ("SE1", put("event", {"session": "end", "seq": 2}, fact="claimed")),
    "leads elsewhere": ("SE1", put("event", {"session": "end", "seq": 3}, target="running")),
    "leaves another phase": ("SE1", put("event", {"session": "end", "seq": 4}, source="placed")),
    "begins without a submit": ("SE1", put("event", {"session": "wait", "seq": 1}, fact="release")),
    "attempt not counted": ("SE1", put("event", {"session": "run", "seq": 8}, attempt=1)),
    "a user's wish moves it": ("SE1", put("event", {"session": "wait", "seq": 2}, target="placed")),
    "out of the end": (
        "SE1",
        add(
            "event",
            {"session": "end", "seq": 8, "fact": "ready", "source": "ended", "target": "running", "attempt": 1},
        ),
    ),
    "end without outcome": ("SE3", put("session", END, outcome=None)),
    "outcome without end": ("SE3", put("session", WAIT, exit_class="ok")),
    "next attempt without death": ("SE4", put("kernel", {"token": "1-run-1-1"}, certificate=None)),
    "ended without death": ("SE4", put("kernel", {"token": "1-end-1-0"}, certificate=None)),
    "kernel of a later attempt": ("SE4", add("kernel", kernel("run", 3, 0, certificate="void"))),
    "kernel of nobody": ("SE4", add("kernel", kernel("gone", 1, 0))),
    "two live attempts": ("SE4", put("attempt", {"session": "run", "attempt": 1}, live=1, ended_at=None)),
    "no live attempt": ("SE4", put("attempt", {"session": "run", "attempt": 2}, live=0, ended_at=7.0)),
    "live and ended": ("SE4", put("attempt", {"session": "run", "attempt": 2}, ended_at=7.0)),
    "attempts with a gap": ("SE4", drop("attempt", session="run", attempt=1)),
    "silent": ("SE5", put("session", WAIT, next_check_at=None)),
    "gang with a hole": ("SE6", drop("kernel", token="1-run-2-0")),
    "gang shrunk": ("SE6", drop("kernel", token="1-run-2-1")),
    "gang half claimed": ("SE6", put("kernel", LIVE, claimed_version=None)),
    "running without kernels": (
        "SE6",
        lambda tables: tables["kernel"].__setitem__(slice(2, 4), []),
    ),
    "cancelled and waiting": ("CB1", put("session", WAIT, wanted="stop")),
    "cancelled and running": ("CB1", put("session", RUN, wanted="stop")),
    "running unstarted": ("KE4", put("kernel", LIVE, ready_at=None)),
    "kernel on no node": ("KE3", put("kernel", LIVE, node="n9")),
    "claimed in the future": ("KE3", put("kernel", LIVE, claimed_version=6)),
    "served too much": ("KE3", put("node", {"name": "n0"}, served_version=6)),
    "kernel of a later epoch": ("EP1", put("kernel", LIVE, node_epoch=2)),
    "memory over-committed": ("AL1", put("device", {"uuid": "gpu0"}, capacity_mib=79)),
    "share over-committed": ("AL1", put("holding", GPU, share_milli=1001)),
    "shared exclusive": ("AL1", add("holding", holding("run", 2, 1, "gpu0", share_milli=0, vram_mib=0, exclusive=0))),
    "cpus over-committed": ("AL1", put("node", {"name": "n0"}, cpu_milli=900)),
    "sum of a node": ("AL2", put("node", {"name": "n0"}, memory_used_mib=511)),
    "sum of a device": ("AL2", put("device", {"uuid": "gpu1"}, used_mib=1)),
    "held on nothing": ("AL2", drop("device", uuid="gpu0")),
    "given back alive": ("AL3", put("holding", GPU, released_at=7.0)),
    "held elsewhere": ("AL3", put("holding", GPU, node="n9")),
    "held by nobody": ("AL3", put("holding", GPU, token="1-gone-1-0")),
    "given back too early": ("AL4", put("holding", GPU, released_at=7.0)),
    "held too long": ("AL9", put("holding", {"token": "1-end-1-0"}, released_at=None)),
    "holds nothing": ("AL9", drop("holding", token="1-run-2-1")),
    "kept of too little": ("AL1", put("device", {"uuid": "gpu1"}, capacity_mib=79)),
    "kept beside who holds it whole": ("AL1", put("pin", {"device": "gpu1"}, device="gpu0")),
    "kept and not counted": ("AL2", put("device", {"uuid": "gpu1"}, used_milli=0)),
    "kept for nobody": ("AL8", put("pin", {"device": "gpu1"}, owner="gone")),
    "kept for who runs": ("AL8", put("pin", {"device": "gpu1"}, owner="run")),
    "kept for who is held": ("AL8", put("session", WAIT, wanted="hold")),
    "kept and not expected": ("AL8", put("session", WAIT, room_by=None)),
    "still making room": ("AL8", put("session", RUN, room_by=20.0)),
    "has room to move to, and was not stopped": ("AL8", put("session", RUN, room_by=20.0, stop_for="preempted")),
    "preempted twice": (
        "AL8",
        lambda tables: [put("event", {"session": "run", "seq": seq}, fact="preempted")(tables) for seq in (9, 10)],
    ),
    "preempted waiting": ("AL8", put("event", {"session": "wait", "seq": 2}, fact="preempted")),
    "gap in the events": ("EV1", drop("event", session="run", seq=5)),
    "no events": ("EV1", lambda tables: tables["event"].__setitem__(slice(17, 19), [])),
    "row ahead of its events": ("EV1", put("session", RUN, seq=11)),
    "phase without event": ("EV1", put("session", WAIT, phase="stopping")),
    "events of nobody": ("EV1", drop("session", id="wait")),
}


def test_a_right_ledger_is_right() -> None:
    tables = right()
    assert check(tables) == []
    assert compare(tables, tables) == []
    assert check({}) == []


@pytest.mark.parametrize("name", BROKEN)
def test_each_violation_is_seen(name: str) -> None:
    code, break_it = BROKEN[name]
    tables = right()
    break_it(tables)
    assert tables != right(), "the change hit nothing"
    assert code in {violation.code for violation in check(tables)}


CHANGED = {
    "session gone": ("SE2", drop("session", id="wait")),
    "ended otherwise": ("SE3", put("session", END, outcome="failed")),
    "ended and back": ("SE3", put("session", END, phase="pending")),
    "attempt back": ("SE4", put("session", RUN, attempt=1)),
    "attempt alive again": ("SE4", put("attempt", {"session": "run", "attempt": 1}, live=1)),
    "kernel moved": ("SE4", put("kernel", LIVE, node="n1")),
    "seq back": ("EV1", put("session", RUN, seq=9)),
    "event rewritten": ("EV1", put("event", {"session": "run", "seq": 2}, fact="cancel")),
    "event gone": ("EV1", drop("event", session="run", seq=2)),
    "cancel taken back": ("CB2", put("session", END, wanted="run")),
    "result rewritten": ("KE5", put("kernel", {"token": "1-end-1-0"}, result_at=7.0)),
    "certificate rewritten": ("KE5", put("kernel", {"token": "1-end-1-0"}, certificate="void")),
    "held again": ("AL4", put("holding", {"token": "1-end-1-0"}, released_at=None)),
    "given back twice": ("AL4", put("holding", {"token": "1-end-1-0"}, released_at=8.0)),
    "amount changed": ("AL4", put("holding", GPU, vram_mib=1)),
    "epoch back": ("EP1", put("node", {"name": "n0"}, epoch=0)),
    "version back": ("EP1", put("node", {"name": "n0"}, desired_version=4)),
}


@pytest.mark.parametrize("name", CHANGED)
def test_what_may_never_change_is_seen(name: str) -> None:
    code, change = CHANGED[name]
    before, after = right(), deepcopy(right())
    change(after)
    assert code in {violation.code for violation in compare(before, after)}


def test_violations_read_as_one_line() -> None:
    assert str(Violation("AL1", "n0/gpu0", "90 MiB held of 80")) == "AL1 n0/gpu0: 90 MiB held of 80"


def test_rows_are_gathered_by_table() -> None:
    tables = gather(iter([("node", {"name": "n0"}), ("event", {"seq": 1}), ("node", {"name": "n1"})]))
    assert tables["node"] == [{"name": "n0"}, {"name": "n1"}]
    assert set(tables) == set(TABLES)
