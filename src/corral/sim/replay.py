"""A trace in virtual time: what happens next happens, then the engine decides, until nothing is left to happen.

    1. events    everything due at this moment: ends, nodes that come and go, submits, claims that weaken
    2. decide    the policy's pass: order and fit, backfill, or contention
    3. carry out starts and stops; the end of each start is a new event

Deterministic: equal input, equal result. Time is the trace's own; no clock is read.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

from corral.scheduling.claiming.contention import Places
from corral.sim.contending import Contending
from corral.sim.deciding import Decider, InOrder
from corral.sim.filling import Filling
from corral.sim.fleets import Machines
from corral.sim.jobs import Job
from corral.sim.nodeevents import NodeEvent
from corral.sim.passing import Passing
from corral.sim.policies import Policy
from corral.sim.room import FleetRoom
from corral.sim.state import Run
from corral.sim.watch import Watch

END, NODE, SUBMIT, LOOK = range(4)  # in which order what happens at one moment happens
Event = tuple[float, int, int, Run | NodeEvent | None]


@dataclass(frozen=True, slots=True)
class Replayed:
    """What became of everybody. Those `waiting` never ended: there was no room for them, or none any more."""

    policy: str
    ended: tuple[Run, ...]
    waiting: tuple[Run, ...]
    watch: Watch


class Replay:
    """One run of a trace under one policy. `checkpoint_s`: how often a job saves its work, for when its node fails; 0:
    never. One that is preempted saves its work as it stops. `round_s`: the engine decides only so often; 0: at once."""

    def __init__(
        self,
        machines: Machines,
        policy: Policy,
        *,
        placement: str = "pack",
        node_events: Sequence[NodeEvent] = (),
        checkpoint_s: float = 0.0,
        round_s: float = 0.0,
    ) -> None:
        firsts = {event.node: event.what for event in reversed(node_events)}
        self.room = FleetRoom(machines, placement, [node for node, what in firsts.items() if what == "join"])
        self.running: dict[str, Run] = {}
        self.now_s = 0.0
        self._policy = policy
        self._checkpoint_s = checkpoint_s
        self._round_s = round_s
        self._due_s = 0.0  # the next round, or the last one
        self._watch = Watch(self.room.capacity, by_gpu=machines.gpus > 0)
        self._decider = self._deciding()
        self._ended: list[Run] = []
        self._events: list[Event] = []
        self._pushed = 0
        self._look = (math.inf, 0)  # when the decider wants to look again, and which event that is
        for event in node_events:
            self._push(event.at_s, NODE, event)

    def _deciding(self) -> Decider:
        policy = self._policy
        if policy.grouped is not None:
            return Passing(policy.grouped, self.room, self)
        if policy.claim is not None:
            return Contending(policy, policy.claim(), self.room, self)
        return Filling(policy, self.room, self) if policy.planned else InOrder(policy, self.room, self)

    def run(self, jobs: Sequence[Job]) -> Replayed:
        self.room.expect(job.shape for job in jobs)
        ordered = sorted(jobs, key=lambda job: job.submitted_s)  # stable: equal times as the trace has them
        for ordinal, job in enumerate(ordered):
            self._push(job.submitted_s, SUBMIT, Run(job, ordinal, job.run_s))
        measured = self._watch
        while self._events:
            if self._superseded(self._events[0]):
                heapq.heappop(self._events)
                continue
            self.now_s = self._events[0][0]
            self._watch.until(self.now_s)
            ran = bool(self.running)
            while self._events and self._events[0][0] <= self.now_s:
                _, kind, token, what = heapq.heappop(self._events)
                self._happen(kind, token, what)
            self._decide()
            if self.room.out:  # a node that left counts until it is empty
                self._watch.capacity = self.room.capacity
            self._watch.settle(self._decider.line.count)
            if ran and not self.running:  # what comes after the last end is not measured
                measured = self._watch.so_far()
        waiting = tuple(run for _, _, run in self._decider.line.in_order())
        return Replayed(self._policy.name, tuple(self._ended), waiting, measured)

    def _decide(self) -> None:
        if self._round_s and self._due_s < self.now_s:
            self._due_s = max(self.now_s, math.ceil(self.now_s / self._round_s) * self._round_s)
        if self.now_s < self._due_s:
            self._look_again(self._due_s)
            return
        look_s = self._decider.decide(self.now_s)
        if self._round_s and self._decider.line.count:
            self._due_s += self._round_s
            look_s = self._due_s
        self._look_again(look_s)

    def _push(self, at_s: float, kind: int, what: Run | NodeEvent | None) -> None:
        self._pushed += 1
        heapq.heappush(self._events, (at_s, kind, self._pushed, what))

    def _look_again(self, look_s: float | None) -> None:
        """Then and not before; a look that was wanted earlier is not any more. Later than now, or time stands still."""
        if look_s is None:
            self._look = math.inf, 0
        elif look_s != self._look[0]:
            self._push(max(look_s, math.nextafter(self.now_s, math.inf)), LOOK, None)
            self._look = look_s, self._pushed

    def _superseded(self, event: Event) -> bool:
        _, kind, token, _ = event
        return kind == LOOK and token != self._look[1]

    def _happen(self, kind: int, token: int, what: Run | NodeEvent | None) -> None:
        if what is None:
            if token == self._look[1]:
                self._look = math.inf, 0
        elif isinstance(what, NodeEvent):
            self._node(what)
        elif kind == SUBMIT:
            self._decider.submitted(what)
        elif what.end_token == token:
            self._release(what, ended=True)
            what.pause(self.now_s, what.left_s, 0.0)
            what.ended_s = self.now_s
            self._ended.append(what)

    def start(self, run: Run, places: Places) -> None:
        """It runs on places that are taken already."""
        run.begin(self.now_s, places)
        self.running[run.id] = run
        self._watch.taken(run.job.shape, 1)
        self._push(run.ends_s, END, run)
        run.end_token = self._pushed

    def preempt(self, run: Run) -> None:
        """It saves its work and waits again; its room is free already."""
        run.preempted += 1
        self._off(run)
        run.pause(self.now_s, run.worked_s(self.now_s), self._policy.restart_s)

    def _off(self, run: Run) -> None:
        del self.running[run.id]
        self._watch.taken(run.job.shape, -1)
        run.end_token = 0

    def _release(self, run: Run, *, ended: bool) -> None:
        self._decider.gone(run, self.now_s, ended)
        self.room.give_back(run.places)
        self._off(run)

    def _node(self, event: NodeEvent) -> None:
        self.room.set_in(event.node, event.what == "join")
        if event.what == "fail":
            here = [run for run in self.running.values() if any(place.node == event.node for place in run.places)]
            for run in here:
                self._release(run, ended=False)
                run.failed += 1
                worked_s = run.worked_s(self.now_s)
                saved_s = worked_s // self._checkpoint_s * self._checkpoint_s if self._checkpoint_s else 0.0
                run.pause(self.now_s, saved_s, self._policy.restart_s if saved_s else 0.0)
                self._decider.submitted(run)
        self._watch.capacity = self.room.capacity
        self._decider.nodes_changed()
