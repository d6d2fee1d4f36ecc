"""Planned starts from pass to pass: what is noted of them, and which of an earlier pass still bind whom.

A start that was promised is a bound for the passes after it, whichever manager makes them: the room that was planned
for it stays held, and it is moved only to start earlier. It does not bind whoever comes to stand before it without a
promise of its own: who was submitted with a higher rank, or came back to an earlier place. Where it cannot be kept
(a node is gone, somebody outlives his end, a reservation was made) it is made anew, and the session is told why.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from corral.scheduling.ordering import line_of
from corral.scheduling.places import RankPlace
from corral.scheduling.plan import Placed, Plan, PlannedStart
from corral.scheduling.policies.group_options import group_options
from corral.scheduling.snapshot import Promise, Snapshot, Waiting

SAME_START_S, SAME_START_PART = 60.0, 0.01  # by how much a planned start may be off before it is told anew
NOBODY: frozenset[str] = frozenset()


def is_another(before: float, at: float, now: float) -> bool:
    return abs(at - before) > max(SAME_START_S, SAME_START_PART * (at - now))


class NewStarts(NamedTuple):
    """What a pass changes of the promises: those to be noted, the sessions that have none any more, and why of those
    that are not kept. `before` is what the pass began with, `after` what it leaves."""

    noted: Mapping[str, Promise]
    gone: Sequence[str]
    put_off: Mapping[str, str]
    before: Mapping[str, Promise]
    after: Mapping[str, Promise]


NO_STARTS = NewStarts({}, (), {}, {}, {})


def new_starts(snapshot: Snapshot, plan: Plan) -> NewStarts:
    """What one was told is left as it is while it is nearly right. Who had no turn in this pass keeps what it has."""
    if not plan.planned and not snapshot.planned:
        return NO_STARTS
    priorities = {one.id: one.priority for one in snapshot.waiting if one.id in plan.planned}
    after = {
        id_: _promise(start, priorities[id_], snapshot.planned.get(id_), snapshot.now)
        for id_, start in plan.planned.items()
    }
    placed = {one.session.id for one in plan.placements}
    had_no_turn = {one.id for one in snapshot.waiting if one.id not in plan.refusals} - placed
    after |= {id_: one for id_, one in snapshot.planned.items() if id_ in had_no_turn and id_ not in after}
    noted = {id_: one for id_, one in after.items() if snapshot.planned.get(id_) != one}
    gone = [id_ for id_ in snapshot.planned if id_ not in after]
    put_off = {
        id_: why
        for id_, why in plan.put_off.items()
        if id_ not in after or after[id_].told > snapshot.planned[id_].told
    }
    return NewStarts(noted, gone, put_off, snapshot.planned, after)


def _promise(start: PlannedStart, priority: int, before: Promise | None, now: float) -> Promise:
    told = start.at if before is None or is_another(before.told, start.at, now) else before.told
    return Promise(told, start.at, start.group, tuple(map(_anywhen, start.ranks)), priority)


def _anywhen(rank: RankPlace) -> RankPlace:
    """Whatever the node's agent is by then."""
    return rank if not rank.epoch and not rank.run_id else replace(rank, epoch=0, run_id="")


def runs_into(placed: Placed, until: float, promises: Mapping[str, Promise]) -> bool:
    """Whether it would still be there, on the same nodes, when one of these starts is to come."""
    nodes = {rank.node for rank in placed.ranks}
    return any(
        id_ != placed.session.id and one.at < until and not nodes.isdisjoint(rank.node for rank in one.ranks)
        for id_, one in promises.items()
    )


class Kept:
    """During a pass: the promises that were not looked at yet, each in its line."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._groups = snapshot.groups
        self._open: dict[str | None, dict[str, Promise]] = {}
        self._ids: dict[str | None, frozenset[str]] = {}
        for one in snapshot.waiting if snapshot.planned else ():
            promise = snapshot.planned.get(one.id)
            if promise is not None and self._binds(promise, one):
                self._open.setdefault(self._line(one), {})[one.id] = promise

    def _binds(self, promise: Promise, waiting: Waiting) -> bool:
        group = self._groups.get(self._line(waiting) or "")
        there = waiting.shape.group in (None, promise.group) and promise.priority == waiting.priority
        return there and bool(promise.ranks) and group is not None and group_options(group)["backfill"] != "none"

    def _line(self, waiting: Waiting) -> str | None:
        return line_of(waiting.shape.group, self._groups)

    def __bool__(self) -> bool:
        return any(self._open.values())

    def all(self) -> Iterable[tuple[str, Promise]]:
        return [pair for line in self._open.values() for pair in line.items()]

    def of(self, waiting: Waiting) -> Promise | None:
        return self._open.get(self._line(waiting), {}).get(waiting.id)

    def drop(self, id_: str) -> None:
        """It binds nobody: nothing was held for it."""
        for line, promises in self._open.items():
            if promises.pop(id_, None) is not None:
                self._ids.pop(line, None)

    def looked_at(self, waiting: Waiting) -> Promise | None:
        """It has its turn: from then on it binds all behind it, or none if its room is let go."""
        line = self._line(waiting)
        self._ids.pop(line, None)
        return self._open.get(line, {}).pop(waiting.id, None)

    def not_for(self, waiting: Waiting) -> frozenset[str]:
        """Those in its own line that do not bind it: all, if it comes to its turn before them without a promise."""
        if not self._open:
            return NOBODY
        line = self._line(waiting)
        promises = self._open.get(line, {})
        if waiting.id in promises:
            return frozenset((waiting.id,))
        if line not in self._ids:
            self._ids[line] = frozenset(promises)
        return self._ids[line]

    def behind(self, waiting: Waiting) -> frozenset[str]:
        """All in its line that had no turn yet."""
        return frozenset(self._open.get(self._line(waiting), {}))
