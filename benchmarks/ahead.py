"""(g) What looking ahead costs a scheduling pass, in seconds of one core's time: planned starts on 10,000 nodes of 8
GPUs, 76,000 of which are held, by sessions that end within a day.

A head of 64 whole nodes waits in front of 500 shapes. Either none of those fits, or each finds room, with a time limit
of its own: before the planned start, behind it, or without end. The fleet is kept from pass to pass as a manager does,
its shapes known to it by then; `new` is a pass that meets them for the first time. Beside it the same passes with
`backfill=none`.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.decisions import GPU_MIB, GROUP, NOW, Machines, fleet_of, fractional
from corral.model.node import ResourceGroup
from corral.model.resources import WHOLE_GPU_MILLI, GpuRequest, Resources
from corral.scheduling.cycle import cycle
from corral.scheduling.fleet import Fleet
from corral.scheduling.places import Grant, RankPlace
from corral.scheduling.snapshot import Running, Shape, Snapshot, Waiting

NODES, GPUS, HELD, SHAPES = 10_000, 8, 76_000, 500
DAY_S = 86_400
LIMITS_S = (600, 3600, 4 * 3600, 13 * 3600, DAY_S, None)
HEAD = Shape(GROUP, Resources(8000, 32_768, GpuRequest(count=GPUS)), 64, 1, False, (), (), (), "process")


def run() -> dict[str, float]:
    machines, running = _held(fleet_of(NODES, GPUS))
    around = Snapshot(NOW, machines[0], machines[1], (), running=running, expected={})
    small = fractional(SHAPES, seed=3)
    large = [replace(HEAD, resources=replace(HEAD.resources, cpu_milli=8001 + one), nodes=1) for one in range(SHAPES)]
    heads = [replace(HEAD, nodes=64 - one) for one in range(10)]
    found: dict[str, float] = {}
    for kind in ("none", "easy"):
        found |= _passes(f"{kind}_placing", around, _line([HEAD], small), backfill=kind)
        found |= _passes(f"{kind}_full", around, _line([HEAD], large), backfill=kind)
    return found | _passes("conservative", around, _line(heads, small), backfill="conservative", backfill_depth=10)


def _passes(name: str, around: Snapshot, line: Sequence[Waiting], **options: str | int) -> dict[str, float]:
    """The first pass that meets these shapes, who runs being known, and the quickest of five after it."""
    snapshot = replace(around, waiting=line, groups={GROUP: ResourceGroup(GROUP, options=options)})
    fleet = Fleet(around.nodes, around.devices, {}, NOW)
    _pass(replace(snapshot, waiting=line[:1]), fleet)
    first, *others = [_pass(snapshot, fleet) for _ in range(6)]
    return {f"{name}_new_s": first, f"{name}_s": min(others)}


def _pass(snapshot: Snapshot, fleet: Fleet) -> float:
    began = time.process_time()
    plan = cycle(snapshot, fleet=fleet)
    took = time.process_time() - began
    for placed in plan.placements:
        fleet.give_back(placed.ranks)
    return took


def _line(heads: Sequence[Shape], behind: Sequence[Shape]) -> list[Waiting]:
    chance = random.Random(6)
    asked: list[tuple[Shape, int | None]] = [(shape, 3600 * (number + 1)) for number, shape in enumerate(heads)]
    asked += [(shape, chance.choice(LIMITS_S)) for shape in behind]
    return [
        Waiting(f"w{number:04}", HELD + number, 1, 1, 0, "ann", "p", NOW - 10, shape, None, limit_s)
        for number, (shape, limit_s) in enumerate(asked)
    ]


def _held(machines: Machines) -> tuple[Machines, list[Running]]:
    """The same machines with whole GPUs held here and there, and by whom."""
    nodes, devices = machines
    chance = random.Random(5)
    shape = replace(HEAD, resources=Resources(1000, 4096, GpuRequest()), nodes=1)
    held = chance.sample([one for node in nodes for one in devices[node.name]], HELD)
    running = [
        Running(
            f"r{number:05}", number, 1, 2, GROUP, "ann", "p", 0, shape,
            (RankPlace(one.node, 1, "", 1000, 4096, (Grant(one.uuid, WHOLE_GPU_MILLI, GPU_MIB),)),),
            NOW - 100, ends_at=NOW + chance.uniform(60, DAY_S),
        )
        for number, one in enumerate(held)
    ]  # fmt: skip
    uuids, count = {one.uuid for one in held}, Counter(one.node for one in held)
    full = [
        replace(node, cpu_used_milli=1000 * count[node.name], memory_used_mib=4096 * count[node.name]) for node in nodes
    ]
    used = {
        name: [replace(one, used_milli=WHOLE_GPU_MILLI, used_mib=GPU_MIB) if one.uuid in uuids else one for one in ones]
        for name, ones in devices.items()
    }
    return (full, used), running
