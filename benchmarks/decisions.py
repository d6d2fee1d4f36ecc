"""(g) How fast the engine decides, in seconds of one core's time, so that what else the machine does matters little.

- `pack` on 5,000 nodes of 8 GPUs, fractional requests of 100 shapes until nothing fits; beside it a full scan: the same
  requests, every node looked at for every decision, in numpy.
- `least-fragmentation` on the 1,213 nodes of openb, its default workload, one order.
- Growth: waiting sessions of 500 shapes on 10,000 nodes. `fill_s`: 100,000 of them fill the fleet in one go.
  `kept_fill_s`: the same 500 a pass, as a manager does, its picture kept. Then one session ends, while 1,000, 10,000 or
  100,000 wait. `pass_ms`: a whole new pass from a snapshot; `kept_ms`: one with a kept picture that is told of the end.
- What a manager's passes cost through its database is measured beside it: `benchmarks.passes`.
"""

from __future__ import annotations

import gc
import random
import resource
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from benchmarks import openb
from corral.model.node import Device, Node, NodeState, ResourceGroup
from corral.model.resources import WHOLE_GPU_MILLI, GpuRequest, Resources
from corral.scheduling.cycle import cycle
from corral.scheduling.fleet import Fleet
from corral.scheduling.kept.picture import Changed, Mark, Picture
from corral.scheduling.places import RankPlace
from corral.scheduling.plan import Placed, Plan
from corral.scheduling.policies.score import PLACEMENTS
from corral.scheduling.snapshot import Running, Shape, Snapshot, Waiting
from corral.server import GC_THRESHOLDS

GROUP = "default"
NOW = 1000.0
GPU_MIB = 80_000
MARK = Mark("benchmark", 1, 1)
Machines = tuple[list[Node], dict[str, list[Device]]]


def run() -> dict[str, float]:
    """With garbage collected as seldom as a manager has it."""
    gc.set_threshold(*GC_THRESHOLDS)
    found = {"least_fragmentation_per_s": least_fragmentation()}
    machines, shapes = fleet_of(5000, 8), fractional(100, seed=1)
    found |= {"pack_per_s": fill(machines, shapes), "full_scan_per_s": full_scan(5000, 8, shapes)}
    return found | growth() | {"peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def least_fragmentation() -> float:
    nodes, devices = openb.gpu_nodes()
    shapes, (_, order) = openb.shapes_of("default"), next(openb.orders("default"))
    filled = openb.replay(shapes, order, "least-fragmentation", nodes, devices)
    return filled.decisions / filled.seconds


def fill(machines: Machines, shapes: Sequence[Shape], placement: str = "pack") -> float:
    """Decisions per second until no shape fits any more, the fleet's making included."""
    chance = random.Random(2)
    open_ = list(shapes)
    began, decisions = time.process_time(), 0
    fleet = Fleet(*machines, {GROUP: PLACEMENTS[placement]})
    while open_:
        number = chance.randrange(len(open_))
        decisions += 1
        if fleet.place(open_[number]) is None:
            open_.pop(number)
    return decisions / (time.process_time() - began)


def full_scan(nodes: int, gpus: int, shapes: Sequence[Shape]) -> float:
    """Best fit the plain way: among all GPUs of all nodes, the least free one that has room enough."""
    chance = random.Random(2)
    cpu, memory = np.full(nodes, 96_000), np.full(nodes, 786_432)
    share = np.full((nodes, gpus), WHOLE_GPU_MILLI)
    wanted = [(one.resources.cpu_milli, one.resources.memory_mib, one.resources.gpu) for one in shapes]
    began, decisions = time.process_time(), 0
    while wanted:
        number = chance.randrange(len(wanted))
        cpu_milli, memory_mib, gpu = wanted[number]
        decisions += 1
        assert gpu is not None
        fits = ((cpu >= cpu_milli) & (memory >= memory_mib))[:, None] & (share >= gpu.share_milli)
        best = int(np.where(fits, share, 2 * WHOLE_GPU_MILLI).argmin())
        row, column = divmod(best, gpus)
        if not fits[row, column]:
            wanted.pop(number)
            continue
        cpu[row] -= cpu_milli
        memory[row] -= memory_mib
        share[row, column] -= gpu.share_milli
    return decisions / (time.process_time() - began)


def growth() -> dict[str, float]:
    """A pass that fills the fleet, then passes over those it left waiting, fewer and more of them."""
    nodes, devices = fleet_of(10_000, 1, cpus=16, memory_mib=131_072)
    shapes = fractional(500, seed=3)
    chance = random.Random(4)
    rows = [
        Waiting(f"s{number:06}", number, 1, 1, 0, "admin", "default", NOW, chance.choice(shapes))
        for number in range(120_000)
    ]
    empty = Snapshot(NOW, nodes, devices, rows, {GROUP: ResourceGroup(GROUP)})
    fill_s, plan = _timed(replace(empty, waiting=rows[:100_000]))
    found = {"fill_s": fill_s, "fill_placed": float(len(plan.placements))}
    kept = Kept(empty, rows[:100_000])
    found |= {"kept_fill_s": kept.fill(), "kept_fill_placed": float(len(kept.running))}
    still = [one for one in rows if one.id not in kept.running]
    for count in (1_000, 10_000, 100_000):
        kept.wait(still[:count])
        found[f"pass_ms_{count}"] = 1000 * _timed(kept.snapshot(still[:count]))[0]
        found[f"kept_ms_{count}"] = 1000 * kept.after_one_end()
    return found


class Kept:
    """A manager's picture without its database: what a pass places holds its room in the next one."""

    def __init__(self, snapshot: Snapshot, waiting: Sequence[Waiting]) -> None:
        self.running: dict[str, Running] = {}
        self._around = snapshot
        self._nodes = {node.name: node for node in snapshot.nodes}
        self._devices = {name: list(ones) for name, ones in snapshot.devices.items()}
        self._waiting: Sequence[Waiting] = ()
        self._picture = Picture()
        self._tell(Changed(MARK, True, snapshot.nodes, [one for ones in snapshot.devices.values() for one in ones]))
        self.wait(waiting)

    def wait(self, waiting: Sequence[Waiting]) -> None:
        """These wait from now on, and nobody else."""
        left = {one.id for one in self._waiting}.difference(one.id for one in waiting)
        self._tell(Changed(MARK, False, waiting=[(one, 0.0) for one in waiting], gone=sorted(left)))
        self._waiting = waiting
        self._pass()

    def fill(self) -> float:
        began = time.process_time()
        while self._pass():
            pass
        return time.process_time() - began

    def after_one_end(self) -> float:
        """The middle of seven passes, each after one end; what it places in the room that is free then stays."""
        times: list[float] = []
        for id_ in list(self.running)[:7]:
            ran = self.running.pop(id_)
            nodes, devices = self._moved(ran.ranks, -1)
            began = time.process_time()
            self._tell(Changed(MARK, False, nodes, devices, gone=[id_]))
            self._pass()
            times.append(time.process_time() - began)
            while self._pass():
                pass
        return sorted(times)[3]

    def snapshot(self, waiting: Sequence[Waiting]) -> Snapshot:
        return replace(self._around, nodes=list(self._nodes.values()), devices=self._devices, waiting=waiting)

    def _pass(self) -> int:
        picture = self._picture
        line, last_read = picture.line(self._around.groups)
        seen = replace(
            self._around, nodes=picture.nodes, devices=picture.devices, waiting=line, last_read=last_read, expected={}
        )
        plan = cycle(seen, fleet=picture.fleet)
        started = [_started(placed) for placed in plan.placements]
        self.running.update((one.id, one) for one in started)
        nodes, devices = self._moved([rank for one in started for rank in one.ranks], 1)
        self._tell(Changed(MARK, False, nodes, devices, running=started))
        return len(started)

    def _tell(self, changed: Changed) -> None:
        self._picture.merge(changed, NOW)

    def _moved(self, ranks: Sequence[RankPlace], sign: int) -> tuple[list[Node], list[Device]]:
        for rank in ranks:
            node = self._nodes[rank.node]
            cpu, memory = sign * rank.cpu_milli, sign * rank.memory_mib
            self._nodes[rank.node] = replace(
                node, cpu_used_milli=node.cpu_used_milli + cpu, memory_used_mib=node.memory_used_mib + memory
            )
            for grant in rank.grants:
                ones = self._devices[rank.node]
                index = next(index for index, one in enumerate(ones) if one.uuid == grant.uuid)
                ones[index] = replace(
                    ones[index],
                    used_milli=ones[index].used_milli + sign * grant.share_milli,
                    used_mib=ones[index].used_mib + sign * grant.vram_mib,
                )
        names = dict.fromkeys(rank.node for rank in ranks)
        return [self._nodes[name] for name in names], [one for name in names for one in self._devices[name]]


def _started(placed: Placed) -> Running:
    one = placed.session
    return Running(one.id, one.ordinal, 1, 2, GROUP, one.owner, one.project, 0, one.shape, placed.ranks, NOW)


def _timed(snapshot: Snapshot) -> tuple[float, Plan]:
    began = time.process_time()
    plan = cycle(snapshot, max_placements=10**9)
    return time.process_time() - began, plan


def fleet_of(count: int, gpus: int, cpus: int = 96, memory_mib: int = 786_432) -> Machines:
    nodes = [
        Node(f"n{number:05}", GROUP, NodeState.UP, True, 1, "", "", "", "", "", "", 1000 * cpus, memory_mib)
        for number in range(count)
    ]
    devices = {
        node.name: [Device(node.name, f"{node.name}/{index}", index, "A100", "sm_80", GPU_MIB) for index in range(gpus)]
        for node in nodes
    }
    return nodes, devices


def fractional(count: int, seed: int) -> list[Shape]:
    """Distinct requests for part of a GPU, with some CPUs and memory."""
    chance = random.Random(seed)
    shapes: dict[Shape, None] = {}
    while len(shapes) < count:
        gpu = GpuRequest(share_milli=chance.randrange(50, 1000, 10))
        resources = Resources(chance.choice((500, 1000, 2000, 4000)), chance.choice((2048, 4096, 8192, 16_384)), gpu)
        shapes[Shape(GROUP, resources, 1, 1, False, (), (), (), "process")] = None
    return list(shapes)
