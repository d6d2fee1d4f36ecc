"""Preemptive policies in a replay: by each one's claim, who should run now."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from corral.scheduling.claims import Claim, Key, Served
from corral.scheduling.contention import Contender, contend
from corral.sim.deciding import Stage
from corral.sim.line import Entry, Line
from corral.sim.policies import Policy
from corral.sim.room import FleetRoom
from corral.sim.state import Run


class Contending:
    """Those who wait stand in rows of one shape, level and family, so that a new rank moves a row, not its members.
    Claims of the few who run are taken anew at each look."""

    def __init__(self, policy: Policy, claim: Claim, room: FleetRoom, stage: Stage) -> None:
        self.line = Line()
        self._policy = policy
        self._claim = claim
        self._room = room
        self._stage = stage
        self._waiting: dict[str, tuple[Key, int, Run]] = {}
        self._levels: dict[Run, int] = {}

    def submitted(self, run: Run) -> None:
        served = self._served(run, 0.0)
        key, level = self._claim.key(served), self._claim.level(served)
        self._levels.setdefault(run, level)
        self._waiting[run.id] = key, level, run
        self.line.add(key, run, (level, run.family))

    def gone(self, run: Run, now_s: float, ended: bool) -> None:
        self._pass_levels(run, now_s)
        if ended:
            self._claim.left_level(run.job.size, run.family, self._levels.pop(run), True)
        else:
            self._levels.pop(run)  # its work is lost: it is learned from once, as it was

    def nodes_changed(self) -> None:
        pass

    def _pass_levels(self, run: Run, now_s: float) -> None:
        level = self._claim.level(self._served(run, now_s))
        for passed in range(self._levels[run], level):
            self._claim.left_level(run.job.size, run.family, passed, False)
        self._levels[run] = max(level, self._levels[run])

    def decide(self, now_s: float) -> float | None:
        if not self.line.count:
            return None
        for run in self._stage.running.values():
            self._pass_levels(run, now_s)
        running = sorted(self._entry(run, now_s) for run in self._stage.running.values())
        active = {run.id: self._contender(run, now_s) for _, _, run in running}
        shapes = {run.job.shape for _, _, run in running}.union(shape for shape, _ in self.line.rows)
        change = contend(
            lambda: self._everybody(running, active), list(active.values()), self._room, self._room.capacity, len(shapes),
            may_move=self._policy.moves,
        )  # fmt: skip
        for id_ in change.stops:
            run = self._stage.running[id_]
            self._stage.preempt(run)
            self.submitted(run)
        for id_, places in change.starts:
            key, level, run = self._waiting.pop(id_)
            self.line.remove(key, run, (level, run.family))
            self._stage.start(run, places)
        return self._next_look_s(now_s) if self.line.count else None

    def _entry(self, run: Run, now_s: float) -> Entry:
        served = self._served(run, now_s)
        rank = self._claim.rank(run.job.size, run.family, self._claim.level(served), True)
        return ((rank, *self._claim.key(served)), run.ordinal, run)

    def _ranked(self, level: int, family: int, row: list[Entry]) -> Iterator[Entry]:
        rank = self._claim.rank(row[0][2].job.size, family, level, False)
        return (((rank, *key), ordinal, run) for key, ordinal, run in row)

    def _next_look_s(self, now_s: float) -> float | None:
        """When the first who runs reaches a new level, or may be stopped."""
        times: list[float] = []
        for run in self._stage.running.values():
            times.append(now_s + self._claim.next_level_s(self._served(run, now_s)))
            may_stop_s = self._may_stop_s(run)
            times += [may_stop_s] if may_stop_s > now_s else []
        return min(times, default=None)

    def _served(self, run: Run, now_s: float) -> Served:
        left_s = run.left_at(now_s) if self._claim.knows_run_times else float("inf")
        return Served(run.ordinal, run.job.size or 1e-3, run.attained_at(now_s), left_s, run.began_s is not None)

    def _may_stop_s(self, run: Run) -> float:
        return (run.began_s or 0.0) + self._policy.least_run_s * self._policy.least_growth**run.preempted

    def _contender(self, run: Run, now_s: float) -> Contender:
        assert run.began_s is not None
        pinned = run.preempted >= self._policy.budget or now_s < self._may_stop_s(run)
        return Contender(run.id, run.job.shape, run.places, pinned, run.job.size)

    def _everybody(self, running: list[Entry], active: dict[str, Contender]) -> Iterator[Contender]:
        rows = [self._ranked(level, family, row) for (_, (level, family)), row in self.line.rows.items()]
        for _, _, run in heapq.merge(running, *rows):
            yield active.get(run.id) or Contender(run.id, run.job.shape)
