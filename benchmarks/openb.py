"""(f) How well GPUs are filled: the openb workloads, beside the published results on the same orders of arrival.

The protocol is that of the paper (benchmarks/data/openb/README.md): arrivals only, one at a time, until 130 % of all
GPUs have been asked for; what does not fit is dropped. Measured is the part of all GPUs that is allocated then, and
when 100 % had been asked for. The shapes of the whole list are known beforehand, as they are to FGD.
"""

from __future__ import annotations

import csv
import gzip
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from corral.model.node import Device, Node, NodeState
from corral.model.resources import WHOLE_GPU_MILLI, GpuRequest, Resources
from corral.scheduling.fleet import Fleet
from corral.scheduling.places import RankPlace
from corral.scheduling.policies.score import PLACEMENTS
from corral.scheduling.snapshot import Shape

DATA = Path(__file__).parent / "data" / "openb"
GROUP = "openb"
GPU_MIB = 16_000  # any will do: a share of a GPU is the same share of its memory
PUBLISHED = {  # per cent allocated at 130 % asked for (and at 100 %): Random, BestFit, FGD
    "default": ((87.59, 86.46), (93.16, 92.95), (95.40, 95.24)),
    "cpu050": ((91.29, 89.16), (93.79, 93.58), (95.18, 94.98)),
    "cpu250": ((80.49, 80.05), (91.44, 91.20), (93.47, 93.27)),
    "gpushare40": ((85.92, 84.76), (91.62, 91.40), (94.12, 93.94)),
    "gpushare60": ((83.65, 82.77), (89.49, 89.17), (91.46, 91.31)),
    "multigpu20": ((88.79, 86.98), (93.88, 93.68), (95.66, 95.55)),
    "multigpu50": ((90.23, 81.08), (95.63, 95.52), (97.20, 97.11)),
    "gpuspec10": ((87.50, 86.37), (93.44, 93.25), (94.96, 94.67)),
    "gpuspec33": ((86.45, 83.84), (93.11, 80.37), (94.54, 87.89)),
}


class Filled(NamedTuple):
    """Per cent of all GPUs allocated, and how fast it went, in seconds of one core's time."""

    at_130: float
    at_100: float
    decisions: int
    seconds: float


def run(placement: str = "least-fragmentation") -> dict[str, float]:
    """Prints the table; per cent, mean of five orders, and decisions per second over all of it."""
    nodes, devices = gpu_nodes()
    print(f"{'workload':<12}{'Random':>16}{'BestFit':>16}{'FGD':>16}{placement:>24}   (% at 130 %, at 100 % asked for)")
    found: dict[str, float] = {}
    decisions = seconds = 0.0
    for workload, published in PUBLISHED.items():
        shapes = shapes_of(workload)
        runs = [replay(shapes, order, placement, nodes, devices) for _, order in orders(workload)]
        at_130, at_100 = statistics.fmean(one.at_130 for one in runs), statistics.fmean(one.at_100 for one in runs)
        columns = "".join(f"{full:>8.2f} ({half:.2f})" for full, half in published)
        print(f"{workload:<12}{columns}{at_130:>16.2f} ({at_100:.2f})", flush=True)
        found[workload] = at_130
        found[f"{workload}_at_100"] = at_100
        decisions += sum(one.decisions for one in runs)
        seconds += sum(one.seconds for one in runs)
    return found | {"decisions_per_s": decisions / seconds}


def replay(
    shapes: Sequence[Shape],
    order: Sequence[int],
    placement: str,
    nodes: Sequence[Node],
    devices: dict[str, list[Device]],
) -> Filled:
    """One order of arrivals. A shape that found no place finds none later, since nothing ends: it is not tried again,
    and not counted as a decision."""
    everything = WHOLE_GPU_MILLI * sum(len(ones) for ones in devices.values())
    demand = Counter(shapes)
    began = time.process_time()
    fleet = Fleet(nodes, devices, {GROUP: PLACEMENTS[placement]}, 0.0, demand)
    asked = allocated = at_100 = decisions = 0
    hopeless: set[Shape] = set()
    placed: list[tuple[Shape, RankPlace]] = []
    for row in order:
        shape = shapes[row]
        asked += gpu_milli(shape)
        if asked <= everything:
            at_100 = allocated
        if shape in hopeless:
            continue
        decisions += 1
        found = fleet.place(shape)
        if found is None:
            hopeless.add(shape)
        else:
            placed.append((shape, found.ranks[0]))
            allocated += gpu_milli(shape)
            at_100 = allocated if asked <= everything else at_100
    seconds = time.process_time() - began
    hold_to_account(placed, nodes, devices)
    return Filled(100 * allocated / everything, 100 * at_100 / everything, decisions, seconds)


def hold_to_account(
    placed: Sequence[tuple[Shape, RankPlace]], nodes: Sequence[Node], devices: dict[str, list[Device]]
) -> None:
    """Every pod got what it asked for, of a model that will do, and nothing is given away twice: added up here, without
    the engine."""
    models = {one.uuid: one.model for ones in devices.values() for one in ones}
    share, cpu, memory = Counter[str](), Counter[str](), Counter[str]()
    for shape, rank in placed:
        gpu = shape.resources.gpu
        uuids = {grant.uuid for grant in rank.grants}
        assert len(uuids) == len(rank.grants) == (gpu.count if gpu else 0)
        assert uuids <= {one.uuid for one in devices[rank.node]}
        assert gpu is None or gpu.model is None or {models[uuid] for uuid in uuids} <= set(gpu.model.split("|"))
        for grant in rank.grants:
            share[grant.uuid] += gpu.share_milli if gpu else 0
        cpu[rank.node] += shape.resources.cpu_milli
        memory[rank.node] += shape.resources.memory_mib
    assert max(share.values()) <= WHOLE_GPU_MILLI
    assert all(cpu[node.name] <= node.cpu_milli and memory[node.name] <= node.memory_mib for node in nodes)


def gpu_milli(shape: Shape) -> int:
    gpu = shape.resources.gpu
    return gpu.count * gpu.share_milli if gpu else 0


def gpu_nodes() -> tuple[list[Node], dict[str, list[Device]]]:
    nodes: list[Node] = []
    devices: dict[str, list[Device]] = {}
    for row in _rows("openb_node_list_gpu_node"):
        name, cpu_milli, memory_mib = row["sn"], int(row["cpu_milli"]), int(row["memory_mib"])
        nodes.append(Node(name, GROUP, NodeState.UP, True, 1, "", "", "", "", "", "", cpu_milli, memory_mib))
        devices[name] = [
            Device(name, f"{name}/{index}", index, row["model"], None, GPU_MIB) for index in range(int(row["gpu"]))
        ]
    return nodes, devices


def shapes_of(workload: str) -> list[Shape]:
    """One per pod of the list."""
    return [_shape(row) for row in _rows(f"openb_pod_list_{workload}")]


def _shape(row: dict[str, str]) -> Shape:
    count, share = int(row["num_gpu"]), int(row["gpu_milli"])
    gpu = GpuRequest(count=count, share_milli=share, model=row.get("gpu_spec") or None) if count else None
    resources = Resources(int(row["cpu_milli"]), int(row["memory_mib"]), gpu)
    return Shape(GROUP, resources, 1, 1, False, (), (), (), "process")


def orders(workload: str) -> Iterator[tuple[int, list[int]]]:
    """Seeds, and the rows of the list as they arrive."""
    with gzip.open(DATA / f"openb_pod_list_{workload}.order.csv.gz", "rt") as lines:
        for line in lines:
            seed, *rows = map(int, line.split(","))
            yield seed, rows


def _rows(name: str) -> list[dict[str, str]]:
    with gzip.open(DATA / f"{name}.csv.gz", "rt", newline="") as lines:
        return list(csv.DictReader(lines))
