"""What is left to others when sessions move: reserved nodes, and those where somebody in front is planned to start.

Told as nodes that a shape may not have, so that whoever looks for room for it need not know why. Who moves stands in no
line, so all are in front of it but the one that it moves for and those behind that. A node that is promised is left
alone whole, though there might be room beside.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from corral.scheduling.claiming.contention import Contender
from corral.scheduling.cycle import cycle
from corral.scheduling.plan import PlannedStart
from corral.scheduling.reserving import in_the_way
from corral.scheduling.snapshot import Running, Shape, Snapshot, Waiting
from corral.scheduling.stopping.ground import ROOM_MARGIN_S


class Yielding:
    """`planned` are the starts that a pass plans now, and `turn` is the place of each that it refused."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._now = snapshot.now
        self._reservations = snapshot.reservations
        self._running = {one.id: one for one in snapshot.running}
        self._waiting = {one.id: one for one in snapshot.waiting}
        self._late_s = ROOM_MARGIN_S + max((one.grace_s for one in snapshot.running), default=0)
        plan = cycle(replace(snapshot, unread=frozenset()))
        self.planned: dict[str, PlannedStart] = dict(plan.planned)
        self.turn = {one.id: len(plan.refusals) for one in snapshot.waiting}
        self.turn |= {id_: number for number, id_ in enumerate(plan.refusals)}

    def of_goal(self, one: Waiting) -> Shape:
        """The goal, on those nodes alone where it is in nobody's way."""
        return self._off(one.shape, one.owner, one.project, self.until(one.id), one.id)

    def of_mover(self, goal: str, one: Contender) -> Shape:
        """The same of one that moves for this goal."""
        runs = self._running[one.id]
        return self._off(one.shape, runs.owner, runs.project, self.mover_until(one.id), goal)

    def until(self, goal: str) -> float:
        """When a goal will have ended that starts as late as others may make room for it."""
        one = self._waiting[goal]
        return math.inf if one.time_limit_s is None else self._now + self._late_s + one.time_limit_s + one.grace_s

    def mover_until(self, id_: str) -> float:
        """When one that moves will have ended, which has all its time again."""
        one = self._running[id_]
        return (
            math.inf if one.ends_at is None else self._now + self._late_s + one.ends_at - (one.started_at or self._now)
        )

    def late(self, one: Waiting) -> Waiting:
        """As if it were to be there until then."""
        until = self.until(one.id)
        limit = None if math.isinf(until) else math.ceil(until - self._now)
        return one._replace(time_limit_s=limit, grace_s=0)

    def again(self, one: Running) -> Waiting:
        """One that moves, as it waits for its next room."""
        until = self.mover_until(one.id)
        limit = None if math.isinf(until) else math.ceil(until - self._now)
        return Waiting(one.id, one.ordinal, one.attempt + 1, one.seq, one.priority, one.owner, one.project,
                       self._now, one.shape, time_limit_s=limit, grace_s=0)  # fmt: skip

    def _off(self, shape: Shape, owner: str, project: str, until: float, goal: str) -> Shape:
        kept = {*self._reserved(owner, project, until), *self._promised(goal, until)}
        return replace(shape, not_nodes=tuple(sorted({*shape.not_nodes, *kept}))) if kept else shape

    def _reserved(self, owner: str, project: str, until: float) -> Iterator[str]:
        for one in self._reservations:
            if in_the_way([one], one.nodes, owner, project, self._now, until) is not None:
                yield from one.nodes

    def _promised(self, goal: str, until: float) -> Iterator[str]:
        last = self.turn.get(goal, math.inf)
        for id_, start in self.planned.items():
            if id_ != goal and start.at < until and self.turn[id_] < last:
                yield from (rank.node for rank in start.ranks)
