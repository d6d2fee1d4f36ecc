"""Rows of the database to model values and back. Column orders are those of store.sql."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec

from corral import wire
from corral.model.dependency import DependencyKind
from corral.model.lifecycle import ExitClass, Outcome, Phase, Wanted
from corral.model.node import Device, Holding, Node, NodeState, ResourceGroup
from corral.model.session import Certificate, Entry, Kernel, Result, Session, StopFor, Why
from corral.model.spec import SessionSpec
from corral.ports import DependencyRow, EventRow
from corral.scheduling.places import Grant, RankPlace
from corral.scheduling.snapshot import Pin, Shape, shape_of

Row = Sequence[Any]
MOST_DEVICES = 1024  # of one rank


@lru_cache(maxsize=4096)
def spec_of(text: str) -> SessionSpec:
    return wire.spec_from_json(text)


@lru_cache(maxsize=4096)
def shape_in(text: str) -> Shape:
    """The shape of a stored spec."""
    return shape_of(spec_of(text))


@lru_cache(maxsize=4096)
def shape_name(text: str) -> str:
    """A short name that stored specs of one shape share, so that the database can group by it."""
    return hashlib.sha256(msgspec.json.encode(shape_in(text))).hexdigest()[:16]


def why(code: str | None, message: str | None) -> Why | None:
    return None if code is None else Why(code, message or "")


def session_of(row: Row) -> Session:
    """A `Session`; `Invalid` or `ValueError` when the stored row cannot be read."""
    return Session(
        id=row[0],
        ordinal=row[1],
        spec=spec_of(row[2]),
        owner=row[3],
        submitted_at=row[4],
        phase=Phase(row[5]),
        attempt=row[6],
        seq=row[7],
        wanted=Wanted(row[8]),
        group=row[9],
        priority=row[10],
        time_limit_s=row[11],
        outcome=None if row[12] is None else Outcome(row[12]),
        exit_class=None if row[13] is None else ExitClass(row[13]),
        exit_code=row[14],
        reason=why(row[15], row[16]),
        cause=why(row[17], row[18]),
        stop_for=None if row[19] is None else StopFor(row[19]),
        phase_at=row[20],
        started_at=row[21],
        ended_at=row[22],
        not_before=row[23],
        next_check_at=row[24],
        failures=row[25],
        infra_failures=row[26],
        refusals=row[27],
        requeue_of=row[28],
        error=row[29],
        preemptions=row[30],
        preempted_for=row[31],
        room_by=row[32],
        continuations=row[33],
    )


def session_columns(session: Session) -> dict[str, Any]:
    """What WRITE_SESSION sets."""
    reason, cause = session.reason, session.cause
    return {
        "id": session.id,
        "phase": session.phase.value,
        "attempt": session.attempt,
        "seq": session.seq,
        "wanted": session.wanted.value,
        "grp": session.group,
        "priority": session.priority,
        "time_limit_s": session.time_limit_s,
        "outcome": session.outcome and session.outcome.value,
        "exit_class": session.exit_class and session.exit_class.value,
        "exit_code": session.exit_code,
        "reason_code": reason and reason.code,
        "reason_message": reason and reason.message,
        "cause_code": cause and cause.code,
        "cause_message": cause and cause.message,
        "stop_for": session.stop_for and session.stop_for.value,
        "phase_at": session.phase_at,
        "started_at": session.started_at,
        "ended_at": session.ended_at,
        "not_before": session.not_before,
        "next_check_at": session.next_check_at,
        "failures": session.failures,
        "infra_failures": session.infra_failures,
        "refusals": session.refusals,
        "preemptions": session.preemptions,
        "preempted_for": session.preempted_for,
        "room_by": session.room_by,
        "continuations": session.continuations,
    }


def kernel_of(row: Row) -> Kernel:
    result = None
    if row[13] is not None:
        result = Result(exit_code=row[14], signal=row[15], exit_class=ExitClass(row[16]), started=bool(row[17]))
    return Kernel(
        token=row[0],
        session=row[1],
        attempt=row[2],
        rank=row[3],
        node=row[4],
        node_epoch=row[5],
        run_id=row[6],
        claimed_version=row[7],
        stop_asked=bool(row[8]),
        go=bool(row[9]),
        accepted_at=row[10],
        ready_at=row[11],
        port=row[12],
        result_at=row[13],
        result=result,
        refused=why(row[18], row[19]),
        failed=why(row[20], row[21]),
        exit_reason=row[22],
        certificate=None if row[23] is None else Certificate(row[23]),
        certified_at=row[24],
    )


def node_of(row: Row) -> Node:
    return Node(
        name=row[0],
        group=row[1],
        state=NodeState(row[2]),
        schedulable=bool(row[3]),
        epoch=row[4],
        boot_id=row[5],
        run_id=row[6],
        incarnation=row[7],
        hardware_id=row[8],
        nonce=row[9],
        address=row[10],
        cpu_milli=row[11],
        memory_mib=row[12],
        cpu_used_milli=row[13],
        memory_used_mib=row[14],
        desired_version=row[15],
        served_version=row[16],
        seen_at=row[17],
        registered_at=row[18],
        backoff_until=row[19],
        labels=msgspec.json.decode(row[20]),
        runtimes=tuple(msgspec.json.decode(row[21])),
        containment=row[22],
        agent_version=row[23],
    )


def device_of(row: Row) -> Device:
    return Device(
        node=row[0],
        uuid=row[1],
        index=row[2],
        model=row[3],
        arch=row[4],
        capacity_mib=row[5],
        used_mib=row[6],
        used_milli=row[7],
        present=bool(row[8]),
    )


def holding_of(row: Row) -> Holding:
    return Holding(
        token=row[0],
        session=row[1],
        attempt=row[2],
        node=row[3],
        device=row[4] or None,
        cpu_milli=row[5],
        memory_mib=row[6],
        share_milli=row[7],
        vram_mib=row[8],
    )


def pins_of(found: Sequence[Row]) -> list[Pin]:
    """One pin for each token; the room on the node itself is the row whose device is ''."""
    grants: defaultdict[str, list[Grant]] = defaultdict(list)
    for row in found:
        if row[1]:
            grants[row[0]].append(Grant(row[1], row[6], row[7]))
    return [
        Pin(row[2], RankPlace(row[3], row[9], row[10], row[4], row[5], tuple(grants[row[0]])), row[8])
        for row in found
        if not row[1]
    ]


def event_of(row: Row) -> EventRow:
    source = None if row[5] is None else Phase(row[5])
    target = Phase(row[6]) if row[6] else None
    entry = Entry(row[4], source, target, row[7], row[8], msgspec.json.decode(row[9]))
    return EventRow(id=row[0], at=row[1], session=row[2], seq=row[3], entry=entry, group=row[10], quota=row[11])


def dependency_of(needs: str, kind: str, phase: str | None, outcome: str | None) -> DependencyRow:
    """Of a session that is gone nothing good is known any more: it has ended, and not well."""
    ended = Outcome.FAILED if phase is None else None
    return DependencyRow(
        needs, DependencyKind(kind), Phase(phase or Phase.ENDED), Outcome(outcome) if outcome else ended
    )


def group_of(row: Row) -> ResourceGroup:
    """The group; options that cannot be read become one that no policy knows, so that this group alone is broken."""
    return ResourceGroup(
        name=row[0],
        order=row[1],
        placement=row[2],
        backend=row[3],
        order_options=_options(row[4]),
        placement_options=_options(row[5]),
        paused=bool(row[6]),
        version=row[7],
        options=_options(row[8]),
    )


def _options(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError:
        return {"unreadable": text[:80]}


def group_columns(group: ResourceGroup) -> dict[str, Any]:
    return {
        "name": group.name,
        "order": group.order,
        "placement": group.placement,
        "order_options": dumps(group.order_options),
        "placement_options": dumps(group.placement_options),
        "paused": int(group.paused),
        "options": dumps(group.options),
    }


def dumps(value: object) -> str:
    return msgspec.json.encode(value).decode()
