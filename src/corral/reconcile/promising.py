"""Planned starts at the commit of a pass: no manager breaks what another has promised since it looked.

Who notes promises in a group has the group for itself; who places there shares it. So of two that overlap the second
sees what the first has done: it drops the placements that run into a start it did not know of, and notes none of its
own where somebody changed them or took room of theirs. The next pass, which it asks for, sees all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from corral.model.lifecycle import Phase, Wanted
from corral.model.node import Node
from corral.model.session import Entry
from corral.ports import Tx
from corral.reconcile.sessions import change_of
from corral.scheduling.ahead.heads import until_s
from corral.scheduling.ahead.promises import NO_STARTS, NewStarts, new_starts, runs_into
from corral.scheduling.plan import Placed, Plan
from corral.scheduling.reserving import moment
from corral.scheduling.snapshot import Promise, Snapshot


class Ahead(NamedTuple):
    """What a pass changes of the promises, and the nodes that it promises on as they were then."""

    starts: NewStarts = NO_STARTS
    nodes: Mapping[str, Node] = {}

    @property
    def writes(self) -> bool:
        return bool(self.starts.noted or self.starts.gone)

    @property
    def sessions(self) -> set[str]:
        return {*self.starts.noted, *self.starts.gone, *self.starts.put_off}


NOTHING_AHEAD = Ahead()


class AsPlanned(NamedTuple):
    """The placements that break no promise, and whether the pass may note its own."""

    placements: Sequence[Placed]
    notes: bool


def ahead_of(snapshot: Snapshot, plan: Plan) -> Ahead:
    starts = new_starts(snapshot, plan)
    names = {rank.node for one in starts.noted.values() for rank in one.ranks}
    return Ahead(starts, {node.name: node for node in snapshot.nodes if node.name in names} if names else {})


def as_planned(tx: Tx, placements: Sequence[Placed], ahead: Ahead) -> AsPlanned:
    starts = ahead.starts
    _lock_groups(tx, {one.group for one in placements}, {one.group for one in starts.noted.values()})
    there = tx.promises() if placements or ahead.writes else {}
    if there == starts.before and not _somebody_came(tx, ahead.nodes):
        return AsPlanned(placements, notes=True)
    placed = {one.session.id for one in placements}
    unknown = {id_: one for id_, one in there.items() if id_ not in placed and not _is_same(one, starts.after.get(id_))}
    kept = [one for one in placements if not runs_into(one, until_s(one.session, tx.now), unknown)]
    return AsPlanned(kept, notes=False)


def _lock_groups(tx: Tx, shared: set[str], alone: set[str]) -> None:
    """By name, whichever way: the one order everywhere."""
    if not alone:
        tx.share_groups(shared)
        return
    for name in sorted(shared | alone):
        if name in alone:
            tx.lock_group(name)
        else:
            tx.share_groups([name])


def _somebody_came(tx: Tx, nodes: Mapping[str, Node]) -> bool:
    """Whether less is free there than the pass saw."""
    if not nodes:
        return False
    now = tx.nodes(sorted(nodes))
    return any(
        (one := now.get(name)) is None
        or one.cpu_used_milli > seen.cpu_used_milli
        or one.memory_used_mib > seen.memory_used_mib
        for name, seen in nodes.items()
    )


def _is_same(one: Promise, other: Promise | None) -> bool:
    return other is not None and (one.at, one.group, one.ranks) == (other.at, other.group, other.ranks)


def note(tx: Tx, ahead: Ahead, by: str) -> None:
    """What is planned now, and to whom a start was promised that is not kept: why."""
    starts = ahead.starts
    tx.note_planned(starts.noted, starts.gone)
    if not starts.put_off:
        return
    changes = [
        change_of(session, session, Entry("put_off", session.phase, session.phase, session.attempt, by, detail))
        for id_, session in tx.sessions(starts.put_off).items()
        if session.phase is Phase.PENDING and session.wanted is Wanted.RUN
        for detail in [_told(starts, id_)]
    ]
    tx.write(changes, by)


def _told(starts: NewStarts, id_: str) -> dict[str, object]:
    now = starts.after.get(id_)
    to = None if now is None else moment(now.told)
    return {"from": moment(starts.before[id_].told), "to": to, "why": starts.put_off[id_]}
