"""Backfill in a replay: planned starts for the first who wait, and whoever delays none of them starts before."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator

from corral.scheduling.ahead.backfill import Ahead, Planned
from corral.scheduling.claiming.contention import Places
from corral.scheduling.snapshot import Shape
from corral.sim.deciding import Stage
from corral.sim.line import Entry, Line
from corral.sim.policies import Policy
from corral.sim.room import FleetRoom
from corral.sim.state import Run


class Filling:
    """Plans are kept while all goes as known. Once somebody ends early, each in order moves up as far as the plans of
    all others let it, and never back; once the fleet changes or somebody comes in front, all are made anew."""

    def __init__(self, policy: Policy, room: FleetRoom, stage: Stage) -> None:
        self.line = Line()
        self._by_length = Line() if policy.shortest else self.line
        self._policy = policy
        self._room = room
        self._stage = stage
        self._ahead = Ahead(room, 0.0)
        self._plans: dict[Run, Planned] = {}
        self._fresh: list[Entry] = []
        self._freed = False
        self._early = False
        self._stale = False
        self._hopeless: set[Shape] = set()
        self._too_long: dict[Shape, float] = {}

    def submitted(self, run: Run) -> None:
        key = self._policy.key(run.job, run.ordinal)
        self.line.add(key, run)
        if self._policy.shortest:
            self._by_length.add((run.limit_s,), run)
        self._fresh.append((key, run.ordinal, run))

    def gone(self, run: Run, now_s: float, ended: bool) -> None:
        assert run.began_s is not None
        expected_s = _until_s(run.began_s, run.limit_s)
        self._freed = True
        if now_s < expected_s:
            self._ahead.at(now_s)
            self._ahead.free(run.places, now_s, expected_s)
            self._early = True

    def nodes_changed(self) -> None:
        self._stale = True

    def decide(self, now_s: float) -> float | None:
        """The next planned start is when to look again: it is to begin then, and at no other time."""
        self._ahead.at(now_s)
        self._hopeless.clear()
        self._too_long.clear()
        if self._plans and self._fresh and min(self._fresh)[:2] < max(self._entry(run)[:2] for run in self._plans):
            self._stale = True
        if self._stale:
            self._give_up_plans()
        elif self._early:
            self._move_up()
        started = self._start_due(now_s)
        everybody = self._stale or self._early or (self._freed and len(self._plans) < self.line.count)
        for entry in self._everybody() if everybody else iter(sorted(self._fresh, key=self._turn)):
            if self._try(entry[2], now_s):
                started.append(entry[2])
        for run in started:
            self.line.remove(self._entry(run)[0], run)
            if self._policy.shortest:
                self._by_length.remove((run.limit_s,), run)
        self._fresh.clear()
        self._freed = self._early = self._stale = False
        return min((planned.at_s for planned in self._plans.values() if planned.at_s > now_s), default=None)

    def _entry(self, run: Run) -> Entry:
        return (self._policy.key(run.job, run.ordinal), run.ordinal, run)

    def _turn(self, entry: Entry) -> tuple[tuple[float, ...], int]:
        """Whose turn it is to overtake."""
        key, ordinal, run = entry
        return ((run.limit_s,) if self._policy.shortest else key), ordinal

    def _give_up_plans(self) -> None:
        for run, planned in self._plans.items():
            self._ahead.free(planned.places, planned.at_s, _until_s(planned.at_s, run.limit_s))
        self._plans.clear()

    def _move_up(self) -> None:
        for _, _, run in sorted(self._entry(run) for run in self._plans):
            planned = self._plans[run]
            self._ahead.free(planned.places, planned.at_s, _until_s(planned.at_s, run.limit_s))
            sooner = self._ahead.plan(run.job.shape, run.limit_s)
            if sooner is not None and sooner.at_s < planned.at_s:
                planned = self._plans[run] = sooner
            self._ahead.hold(planned.places, planned.at_s, _until_s(planned.at_s, run.limit_s))

    def _start_due(self, now_s: float) -> list[Run]:
        due = sorted(self._entry(run) for run, planned in self._plans.items() if planned.at_s <= now_s)
        for _, _, run in due:
            at_s, places = self._plans.pop(run)
            if at_s != now_s:
                self._ahead.free(places, at_s, _until_s(at_s, run.limit_s))
                self._ahead.hold(places, now_s, _until_s(now_s, run.limit_s))
            self._room.take(places)
            self._stage.start(run, places)
        return [run for _, _, run in due]

    def _everybody(self) -> Iterator[Entry]:
        """All who may start or get a plan, best first, then all who may overtake."""
        for entry in self._merged(self.line):
            if self._policy.shortest and len(self._plans) >= self._policy.planned:
                break
            yield entry
        if self._policy.shortest:
            yield from self._merged(self._by_length)

    def _merged(self, line: Line) -> Iterator[Entry]:
        """Of each shape only those short enough to have a chance."""
        heads = [(row[0], 0, row) for row in line.rows.values()]
        heapq.heapify(heads)
        while heads:
            entry, index, row = heads[0]
            yield entry
            index = self._next(row, index + 1)
            if index < len(row):
                heapq.heapreplace(heads, (row[index], index, row))
            else:
                heapq.heappop(heads)

    def _next(self, row: list[Entry], index: int) -> int:
        if len(self._plans) < self._policy.planned:
            return index
        shape = row[0][2].job.shape
        if shape in self._hopeless:
            return len(row)
        too_long_s = self._too_long.get(shape)
        if too_long_s is not None:
            while index < len(row) and row[index][2].limit_s >= too_long_s:
                index += 1
        return index

    def _try(self, run: Run, now_s: float) -> bool:
        """Start it now or, if a plan is left, plan it."""
        if run in self._plans or run.began_s is not None:
            return False
        shape, limit_s = run.job.shape, run.limit_s
        places = self._now(shape, limit_s, now_s)
        if places is not None:
            self._ahead.hold(places, now_s, _until_s(now_s, limit_s))
            self._stage.start(run, places)
            return True
        if len(self._plans) < self._policy.planned:
            planned = self._ahead.plan(shape, limit_s)
            if planned is not None:
                self._plans[run] = planned
                self._ahead.hold(planned.places, planned.at_s, _until_s(planned.at_s, limit_s))
                run.planned_s = planned.at_s if run.planned_s is None else run.planned_s
        return False

    def _now(self, shape: Shape, limit_s: float, now_s: float) -> Places | None:
        """Room for it that is free now and as long as it may run, taken."""
        if shape in self._hopeless or limit_s >= self._too_long.get(shape, float("inf")) != float("inf"):
            return None
        places = self._room.place(shape)
        if places is None:
            self._hopeless.add(shape)
            return None
        if not self._plans or self._ahead.holds(places, _until_s(now_s, limit_s)):
            return places
        self._room.give_back(places)
        places = self._ahead.fits_from(shape, now_s, limit_s)
        if places is None:
            self._too_long[shape] = limit_s
        else:
            self._room.take(places)
        return places


def _until_s(from_s: float, limit_s: float) -> float:
    """Whoever starts holds its room for the least time there is at least: one that takes no time ends early."""
    return max(from_s + limit_s, math.nextafter(from_s, math.inf))


def planned_starts(runs: Iterable[Run]) -> dict[str, float]:
    """The first planned start of everybody who was given one."""
    return {run.job.id: run.planned_s for run in runs if run.planned_s is not None}
