"""(g) How fast the engine decides, in seconds of one core's time, so that what else the machine does matters little.

- `pack` on 5,000 nodes of 8 GPUs, fractional requests of 100 shapes until nothing fits; beside it a full scan: the same
  requests, every node looked at for every decision, in numpy.
- `least-fragmentation` on the 1,213 nodes of openb, its default workload, one order.
- Growth: waiting sessions of 500 shapes on 10,000 nodes. `fill_s`: a whole pass over 100,000 that fills the fleet. Then
  one session ends, while 1,000, 10,000 or 100,000 wait. `pass_ms`: a whole new pass from a snapshot; `event_ms`: the
  same decision where the fleet is kept, one try for each shape that waits.
"""

from __future__ import annotations

import random
import resource
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from benchmarks import openb
from corral.model.node import Device, Node, NodeState, ResourceGroup
from corral.model.resources import WHOLE_GPU_MILLI, GpuRequest, Resources
from corral.scheduling.cycle import cycle
from corral.scheduling.fleet import Fleet
from corral.scheduling.plan import Plan
from corral.scheduling.policies.score import PLACEMENTS
from corral.scheduling.snapshot import Shape, Snapshot, Waiting

GROUP = "default"
NOW = 1000.0
GPU_MIB = 80_000
Machines = tuple[list[Node], dict[str, list[Device]]]


def run() -> dict[str, float]:
    machines = fleet_of(5000, 8)
    shapes = fractional(100, seed=1)
    found = {"pack_per_s": fill(machines, shapes), "full_scan_per_s": full_scan(5000, 8, shapes)}
    nodes, devices = openb.gpu_nodes()
    shapes_of_pods, (_, order) = openb.shapes_of("default"), next(openb.orders("default"))
    filled = openb.replay(shapes_of_pods, order, "least-fragmentation", nodes, devices)
    found["least_fragmentation_per_s"] = filled.decisions / filled.seconds
    return found | growth() | {"peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


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
    placed = {one.session.id for one in plan.placements}
    still = [one for one in rows if one.id not in placed]
    found = {"fill_s": fill_s, "fill_placed": float(len(placed))}
    for count in (1_000, 10_000, 100_000):
        waiting = still[:count]
        found[f"pass_ms_{count}"] = 1000 * _timed(_after_one_end(empty, plan, waiting))[0]
        found[f"event_ms_{count}"] = 1000 * event_s(empty, plan, waiting)
    return found


def event_s(snapshot: Snapshot, plan: Plan, still: Sequence[Waiting]) -> float:
    """One session ends in a fleet that is kept: how long until every shape that waits was tried again."""
    fleet = Fleet(snapshot.nodes, snapshot.devices, {GROUP: PLACEMENTS["pack"]}, NOW)
    for placed in plan.placements:
        fleet.take(placed.ranks)
    heads = list(dict.fromkeys(one.shape for one in still))
    for shape in heads:
        fleet.place(shape)
    fleet.give_back(plan.placements[0].ranks)
    began = time.process_time()
    for shape in heads:
        fleet.place(shape)
    return time.process_time() - began


def _timed(snapshot: Snapshot) -> tuple[float, Plan]:
    began = time.process_time()
    plan = cycle(snapshot, max_placements=10**9)
    return time.process_time() - began, plan


def _after_one_end(snapshot: Snapshot, plan: Plan, still: Sequence[Waiting]) -> Snapshot:
    """The snapshot of the next pass: all that was placed holds its room, but for the first."""
    cpu, memory, share, vram = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    for placed in plan.placements[1:]:
        for rank in placed.ranks:
            cpu[rank.node] += rank.cpu_milli
            memory[rank.node] += rank.memory_mib
            for grant in rank.grants:
                share[grant.uuid] += grant.share_milli
                vram[grant.uuid] += grant.vram_mib
    nodes = [replace(node, cpu_used_milli=cpu[node.name], memory_used_mib=memory[node.name]) for node in snapshot.nodes]
    devices = {
        name: [replace(one, used_milli=share[one.uuid], used_mib=vram[one.uuid]) for one in ones]
        for name, ones in snapshot.devices.items()
    }
    return replace(snapshot, nodes=nodes, devices=devices, waiting=still)


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
