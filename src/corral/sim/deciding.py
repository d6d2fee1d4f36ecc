"""Who decides in a replay, and what it may do. The engine answers; a decider carries questions and answers."""

from __future__ import annotations

import heapq
from typing import Protocol

from corral.scheduling.claiming.contention import Places
from corral.scheduling.snapshot import Shape
from corral.sim.line import Line
from corral.sim.policies import Policy
from corral.sim.room import FleetRoom
from corral.sim.state import Run


class Stage(Protocol):
    """What carries decisions out; the room is the decider's to take and give back."""

    @property
    def now_s(self) -> float: ...

    @property
    def running(self) -> dict[str, Run]: ...

    def start(self, run: Run, places: Places) -> None: ...

    def preempt(self, run: Run) -> None: ...


class Decider(Protocol):
    line: Line

    def submitted(self, run: Run) -> None:
        """It waits from now on."""
        ...

    def gone(self, run: Run, now_s: float, ended: bool) -> None:
        """It is about to end, or else to lose its node and wait again; it is where it was still."""
        ...

    def nodes_changed(self) -> None: ...

    def decide(self, now_s: float) -> float | None:
        """Start and stop; answers when to look again although nothing happens."""
        ...


class InOrder:
    """Best first, whoever fits starts; `strict` stops at the first who does not. A shape that found no room finds none
    until room comes free, so that nobody like it is asked again before."""

    def __init__(self, policy: Policy, room: FleetRoom, stage: Stage) -> None:
        self.line = Line()
        self._policy = policy
        self._room = room
        self._stage = stage
        self._hopeless: set[Shape] = set()

    def submitted(self, run: Run) -> None:
        self.line.add(self._policy.key(run.job, run.ordinal), run)

    def gone(self, run: Run, now_s: float, ended: bool) -> None:
        self._hopeless.clear()

    def nodes_changed(self) -> None:
        self._hopeless.clear()

    def decide(self, now_s: float) -> None:
        rows, strict = self.line.rows, self._policy.strict
        heads = [row[0] for shape, row in rows.items() if strict or shape not in self._hopeless]
        heapq.heapify(heads)
        while heads:
            key, _, run = heads[0]
            shape = run.job.shape
            places = None if shape in self._hopeless else self._room.place(shape)
            if places is None:
                self._hopeless.add(shape)
                if strict:
                    return
                heapq.heappop(heads)
                continue
            self.line.remove(key, run)
            self._stage.start(run, places)
            if shape in rows:
                heapq.heapreplace(heads, rows[shape][0])
            else:
                heapq.heappop(heads)
