"""A manager's passes in a replay: the whole of what a resource group has, decided by `scheduling.cycle` itself.

Here a session that is stopped for others stops at once, and whom it stops for begins; what is read from a store in a
control plane is known here. Quotas, planned starts, who is stopped: all the engine's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from corral.model.node import Device, Node
from corral.scheduling.ahead.promises import new_starts
from corral.scheduling.claiming.contention import Places
from corral.scheduling.cycle import cycle
from corral.scheduling.kept.picture import Changed, Mark, Picture
from corral.scheduling.plan import Plan, Preemption
from corral.scheduling.policies.group_options import asks_who_runs, group_options
from corral.scheduling.policies.registry import takes_turns
from corral.scheduling.policies.shares import half_life_of
from corral.scheduling.snapshot import Promise, Running, Snapshot, Waiting
from corral.sim.deciding import Stage
from corral.sim.grouped import Grouped
from corral.sim.ledger import Ledger
from corral.sim.line import Line
from corral.sim.room import FleetRoom
from corral.sim.state import Run

MOST_PASSES = 10_000  # at one moment


class Passing:
    def __init__(self, grouped: Grouped, room: FleetRoom, stage: Stage) -> None:
        self.line = Line()
        self._grouped = grouped
        self._room = room
        self._stage = stage
        self._groups = {name: replace(grouped.group, name=name) for name in sorted({one.group for one in room.nodes})}
        self._asks = tuple(self._groups) if asks_who_runs(grouped.group) else ()
        self._options = group_options(grouped.group)
        self._ledger = Ledger(half_life_of(grouped.group))
        self._picture = Picture()
        self._mark = Mark("", 0, 0)
        self._waits: dict[str, Run] = {}
        self._came: dict[str, Run] = {}  # since the picture was told
        self._went: dict[str, None] = {}
        self._began: dict[str, Run] = {}
        self._touched = {node.name for node in room.nodes}
        self._turns: dict[str, str] = {}
        self._planned: Mapping[str, Promise] = {}

    def submitted(self, run: Run) -> None:
        self.line.add((run.ordinal,), run)
        self._waits[run.id] = self._came[run.id] = run

    def gone(self, run: Run, now_s: float, ended: bool) -> None:
        self._ledger.gave_back(self._group_of(run), run, now_s)
        self._touched.update(place.node for place in run.places)
        self._began.pop(run.id, None)
        self._went[run.id] = None

    def nodes_changed(self) -> None:
        self._touched.update(node.name for node in self._room.nodes)

    def decide(self, now_s: float) -> float | None:
        for _ in range(MOST_PASSES):
            if not self.line.count:
                return None
            plan = self._pass(now_s)
            for placed in plan.placements:
                self._start(self._waits[placed.session.id], placed.ranks, now_s)
                if takes_turns(self._grouped.group):
                    self._turns[placed.group] = placed.ranks[-1].node
            stopped = [self._preempt(one, now_s) for one in plan.preemptions]
            if not (plan.placements and plan.more) and not any(stopped):
                return self._next_look_s(plan, now_s)
        return None

    def _pass(self, now_s: float) -> Plan:
        self._tell(now_s)
        quotas = self._grouped.quotas
        if quotas.listed:
            quotas = quotas._replace(held=self._ledger.held())
        waiting, last_read = self._picture.line(self._groups, self._planned, quotas)
        snapshot = Snapshot(
            now=now_s,
            nodes=self._picture.nodes,
            devices=self._picture.devices,
            waiting=waiting,
            groups=self._groups,
            last_read=last_read,
            usage=self._ledger.usage(now_s),
            running=self._picture.running(self._asks),
            turns=self._turns,
            quotas=quotas,
            planned=self._planned,
        )
        plan = cycle(snapshot, fleet=self._picture.fleet)
        self._planned = new_starts(snapshot, plan).after
        for id_, one in self._planned.items():
            run = self._waits[id_]
            run.planned_s = one.told if run.planned_s is None else run.planned_s
        return plan

    def _tell(self, now_s: float) -> None:
        """The picture what changed."""
        nodes = [node for node in self._room.nodes if node.name in self._touched]
        rows = [self._as_used(node) for node in nodes]
        self._picture.merge(
            Changed(
                self._mark,
                self._picture.mark is None,
                [node for node, _ in rows],
                [device for _, devices in rows for device in devices],
                [(self._waiting(run), 0.0) for run in self._came.values()],
                [self._running(run) for run in self._began.values()],
                [id_ for id_ in self._went if id_ not in self._came and id_ not in self._began],
            ),
            now_s,
        )
        self._touched.clear()
        self._came.clear()
        self._began.clear()
        self._went.clear()

    def _as_used(self, node: Node) -> tuple[Node, list[Device]]:
        room = self._room.trial(node.name)
        used = replace(
            node,
            cpu_used_milli=node.cpu_milli - room.cpu_free_milli,
            memory_used_mib=node.memory_mib - room.memory_free_mib,
        )
        return used, [
            replace(one.device, used_milli=1000 - one.free_milli, used_mib=one.device.capacity_mib - one.free_mib)
            for one in room.devices
        ]

    def _waiting(self, run: Run) -> Waiting:
        job = run.job
        limit_s = None if job.limit_s is None else math.ceil(job.limit_s)
        return Waiting(
            run.id, run.ordinal, run.starts + 1, 0, job.priority, job.owner, job.project, job.submitted_s, job.shape,
            time_limit_s=limit_s, gpu_s=run.attained_s * job.gpus, grace_s=0,
            cpu_s=run.attained_s * job.shape.nodes * job.shape.ranks_per_node * job.shape.resources.cpu_milli / 1000,
        )  # fmt: skip

    def _running(self, run: Run) -> Running:
        assert run.began_s is not None
        job = run.job
        ends_at = None if job.limit_s is None else run.began_s + math.ceil(job.limit_s) + run.restart_s
        return Running(
            run.id, run.ordinal, run.starts, 0, self._group_of(run), job.owner, job.project, job.priority, job.shape,
            run.places, run.began_s, run.began_s, ends_at, preemptions=run.preempted,
        )  # fmt: skip

    def _group_of(self, run: Run) -> str:
        return self._room.node(run.places[0].node).group

    def _start(self, run: Run, places: Places, now_s: float) -> None:
        self._room.take(places)
        self.line.remove((run.ordinal,), run)
        del self._waits[run.id]
        self._came.pop(run.id, None)
        self._stage.start(run, places)
        self._began[run.id] = run
        self._touched.update(place.node for place in places)
        self._ledger.took(self._group_of(run), run, now_s)

    def _preempt(self, one: Preemption, now_s: float) -> bool:
        """Whether they were stopped, and the claimant has begun."""
        victims = [self._stage.running[victim.id] for victim in one.victims]
        for run in victims:
            self.gone(run, now_s, ended=False)
            self._room.give_back(run.places)
        if not self._fits(one):
            for run in victims:
                self._room.take(run.places)
                self._ledger.took(self._group_of(run), run, now_s)
                self._began[run.id] = run
            return False
        for run in victims:
            self._stage.preempt(run)
            self.submitted(run)
        self._start(self._waits[one.claimant.id], one.ranks, now_s)
        return True

    def _fits(self, one: Preemption) -> bool:
        nodes = {rank.node for rank in one.ranks}
        return all(self._room.trial(node).fits([rank for rank in one.ranks if rank.node == node]) for node in nodes)

    def _next_look_s(self, plan: Plan, now_s: float) -> float | None:
        """When something comes due although nothing happens: a planned start, the patience of the first of a line,
        the least run time of one that may be stopped."""
        return min((at_s for at_s in self._due(plan) if at_s > now_s), default=None)

    def _due(self, plan: Plan) -> Iterator[float]:
        if not self.line.count:
            return
        yield from (start.at for start in plan.planned.values())
        if self._options["backfill"] != "none":
            first = min(row[0][2].job.submitted_s for row in self.line.rows.values())
            yield first + self._options["backfill_patience"]
        if self._options["preemption"] != "none":
            least_s = self._options["preemption_min_runtime"]
            yield from ((run.began_s or 0.0) + least_s for run in self._stage.running.values())
