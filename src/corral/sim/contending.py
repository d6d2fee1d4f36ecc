"""Preemptive policies in a replay: by each one's claim, who should run now."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator

from corral.scheduling.claiming.claims import Claim, Key, Served
from corral.scheduling.claiming.contention import Contender, contend
from corral.scheduling.claiming.learning import Learning
from corral.sim.deciding import Stage
from corral.sim.line import Entry, Line
from corral.sim.policies import Policy
from corral.sim.room import FleetRoom
from corral.sim.state import Run


class Contending:
    """Claims of those who wait are as they were when they began to wait, until they are overdue; those of the few who
    run are taken anew at each look."""

    def __init__(self, policy: Policy, claim: Claim, room: FleetRoom, stage: Stage) -> None:
        self.line = Line()
        self._policy = policy
        self._claim = claim
        self._room = room
        self._stage = stage
        self._keys: dict[str, tuple[Key, Run]] = {}
        self._fresh: list[Run] = []
        self._ended: list[Run] = []
        self._due: list[tuple[float, int, int, Run]] = []  # who becomes overdue when, unless it has started since

    def submitted(self, run: Run) -> None:
        if isinstance(self._claim, Learning):
            self._claim.now_s = self._stage.now_s
            self._claim.came(run)
        self._stand_in_line(run)
        if not run.overdue and math.isfinite(self._policy.patience_s):
            self._fresh.append(run)

    def _stand_in_line(self, run: Run) -> None:
        key = self._claim.key(self._served(run, 0.0))
        self._keys[run.id] = key, run
        self.line.add(key, run)

    def gone(self, run: Run, now_s: float, ended: bool) -> None:
        if ended:
            self._ended.append(run)

    def nodes_changed(self) -> None:
        pass

    def decide(self, now_s: float) -> float | None:
        self._learn(now_s)
        self._promote(now_s)
        if not self.line.count:
            return None
        running = sorted(
            (self._claim.key(self._served(run, now_s)), run.ordinal, run) for run in self._stage.running.values()
        )
        active = {run.id: self._contender(run, now_s) for _, _, run in running}
        shapes = {run.job.shape for _, _, run in running}.union(self.line.rows)
        change = contend(
            lambda: self._everybody(running, active), list(active.values()), self._room, self._room.capacity,
            len(shapes), may_move=self._policy.moves, may_fill=self._policy.fills,
        )  # fmt: skip
        for id_ in change.stops:
            run = self._stage.running[id_]
            self._stage.preempt(run)
            self.submitted(run)
        for id_, places in change.starts:
            key, run = self._keys.pop(id_)
            self.line.remove(key, run)
            self._stage.start(run, places)
        return self._next_look_s(now_s)

    def _everybody(self, running: list[Entry], active: dict[str, Contender]) -> Iterator[Contender]:
        for _, _, run in heapq.merge(running, *self.line.rows.values()):
            yield active.get(run.id) or Contender(run.id, run.job.shape)

    def _learn(self, now_s: float) -> None:
        """Those who wait stand anew where something else is thought of them."""
        if isinstance(self._claim, Learning):
            self._claim.now_s = now_s
            near = [other.ordinal for run in self._ended for other in self._claim.ended(run, now_s)]
            for id_ in dict.fromkeys(map(str, near)):
                if id_ in self._keys:
                    key, run = self._keys[id_]
                    self.line.remove(key, run)
                    self._stand_in_line(run)
        self._ended.clear()

    def _promote(self, now_s: float) -> None:
        """Who has waited longer than the policy's patience since it last ran is overdue from then on."""
        for run in self._fresh:
            heapq.heappush(self._due, (now_s + self._policy.patience_s, run.ordinal, run.starts, run))
        self._fresh.clear()
        while self._due and self._due[0][0] <= now_s:
            _, _, starts, run = heapq.heappop(self._due)
            if run.starts == starts and run.id in self._keys:
                self.line.remove(self._keys[run.id][0], run)
                run.overdue = True
                self._stand_in_line(run)

    def _next_look_s(self, now_s: float) -> float | None:
        """When the first claim of one that runs weakens, the first may be stopped, or the first is overdue."""
        if not self.line.count:
            return None
        times = [self._due[0][0]] if self._due else []
        if self._fresh:
            times.append(now_s + self._policy.patience_s)
        for run in self._stage.running.values():
            times.append(now_s + self._claim.weaker_after_s(self._served(run, now_s)))
            free_s = (run.began_s or 0.0) + self._least_run_s(run)
            times += [free_s] if free_s > now_s else []
        first_s = min(times, default=math.inf)
        return first_s if math.isfinite(first_s) else None

    def _least_run_s(self, run: Run) -> float:
        return self._policy.least_run_s * self._policy.grows**run.preempted

    def _served(self, run: Run, now_s: float) -> Served:
        left_s = run.left_at(now_s) if self._claim.knows_run_times else math.inf
        return Served(run.ordinal, run.job.size, run.attained_at(now_s), left_s, run.began_s is not None, run.overdue)

    def _contender(self, run: Run, now_s: float) -> Contender:
        assert run.began_s is not None
        pinned = run.preempted >= self._policy.budget or now_s < run.began_s + self._least_run_s(run)
        return Contender(run.id, run.job.shape, run.places, pinned, run.job.size)
