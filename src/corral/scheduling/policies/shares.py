"""Order by shares: dominant resource fairness, and fair share with a memory that fades.

Both fill progressively: whose share is smallest goes next, and each pick raises its claimant's share at once. A heap
over claimants, each with a queue of its own: a pick costs the logarithm of their number, never a new sort. Among
claimants of equal shares the one whose session was submitted first goes first.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from corral.model.node import ResourceGroup
from corral.model.resources import WHOLE_GPU_MILLI
from corral.scheduling.policies.options import Kind, Option
from corral.scheduling.policies.order import DAY_S, HOUR_S, Capacity, Need, OrderPolicy, OrderView, Turns
from corral.scheduling.policies.tree import Queue, Share, Tree, tree_shares
from corral.scheduling.snapshot import Shape, Usage, Waiting

HALF_LIFE_S = 7 * DAY_S
SHORTEST_HALF_LIFE_S = 60.0
FAIR_SHARE = "fair-share"
DRF = "drf"

Vector = tuple[float, float, float]  # CPUs, memory, GPUs


_Entry = tuple[float, int, Queue]  # no two sessions have one ordinal, so queues are never compared


def _entry(level: float, queue: Queue) -> _Entry:
    return level, queue.ordinal, queue


def _put_back(heap: list[_Entry], level: float, queue: Queue) -> None:
    """Put the queue on top, one of whose sessions was tried, in its place again, or out when it was the last."""
    if queue.empty:
        heapq.heappop(heap)
    else:
        heapq.heapreplace(heap, _entry(level, queue))


# --- dominant resource fairness


def drf(view: OrderView) -> Turns:
    """Progressive filling by weighted dominant share (Ghodsi et al., NSDI '11)."""
    by, weights = view.options["by"], view.options["weights"]
    held: defaultdict[str, Vector] = defaultdict(lambda: (0.0, 0.0, 0.0))
    for one in view.usage:
        held[_claimant(by, one)] = _sum(held[_claimant(by, one)], _held(one))
    members: defaultdict[str, list[Waiting]] = defaultdict(list)
    for waiting in view.waiting:
        members[_claimant(by, waiting)].append(waiting)

    def level(name: str) -> float:
        return dominant(held[name], view.capacity) / weights.get(name, 1.0)

    heap = [_entry(level(name), Queue(name, line)) for name, line in members.items()]
    heapq.heapify(heap)
    while heap:
        queue = heap[0][2]
        head = queue.take()
        if (yield head):
            held[queue.name] = _sum(held[queue.name], demand(head.shape, view.capacity))
        _put_back(heap, level(queue.name), queue)


def dominant(held: Vector, capacity: Capacity) -> float:
    """The largest of the shares held; of what the group has none, none is held."""
    whole = (capacity.cpu_milli, capacity.memory_mib, capacity.gpu_milli)
    return max((part / all_ for part, all_ in zip(held, whole, strict=True) if all_), default=0.0)


def demand(shape: Shape, capacity: Capacity) -> Vector:
    """What all ranks of a session take together; of an exclusive one whole nodes, as large as they are on average."""
    ranks, request = shape.nodes * shape.ranks_per_node, shape.resources.gpu
    gpu_milli = 0.0
    if request is not None:
        gpu_milli = request.count * WHOLE_GPU_MILLI if request.whole else request.share_milli
        if not request.whole and capacity.vram_mib:
            gpu_milli = max(gpu_milli, request.vram_mib / capacity.vram_mib * WHOLE_GPU_MILLI)
    asked = (shape.resources.cpu_milli * ranks, shape.resources.memory_mib * ranks, gpu_milli * ranks)
    if not shape.exclusive or not capacity.nodes:
        return asked
    part = shape.nodes / capacity.nodes
    return (
        max(asked[0], capacity.cpu_milli * part),
        max(asked[1], capacity.memory_mib * part),
        max(asked[2], capacity.gpu_milli * part),
    )


def drf_shares(usage: Iterable[Usage], capacity: Capacity, options: Mapping[str, Any]) -> list[Share]:
    by, weights = options["by"], options["weights"]
    held: defaultdict[str, Vector] = defaultdict(lambda: (0.0, 0.0, 0.0))
    for one in usage:
        held[_claimant(by, one)] = _sum(held[_claimant(by, one)], _held(one))
    total = sum(weights.get(name, 1.0) for name in held)
    shares: list[Share] = []
    for name, vector in sorted(held.items()):
        weight, used = weights.get(name, 1.0), dominant(vector, capacity)
        project, owner = (name, None) if by == "project" else (None, name)
        shares.append(Share(project, owner, weight, weight / total, used, used / weight))
    return sorted(shares, key=lambda share: share.level)


def _claimant(by: str, one: Usage | Waiting) -> str:
    return one.project if by == "project" else one.owner


def _held(one: Usage) -> Vector:
    return (one.cpu_milli, one.memory_mib, one.gpu_milli)


def _sum(one: Vector, other: Vector) -> Vector:
    return (one[0] + other[0], one[1] + other[1], one[2] + other[2])


# --- fair share


def fair_share(view: OrderView) -> Turns:
    """The project that has used least of what its weight entitles it to, then within it the project or the owner, and
    so on. A pick is charged at once with what it will use: for its time limit, but no longer than `expected`."""
    options = view.options
    tree = Tree(view.waiting, _used(view.usage, options), options["project_weights"], options["owner_weights"])
    while not tree.empty:
        head = tree.take()
        got_room = yield head
        tree.count(charge(head, view.capacity, options) if got_room else 0.0)


def charge(waiting: Waiting, capacity: Capacity, options: Mapping[str, Any]) -> float:
    """What a pick is taken to use, in GPU-seconds."""
    cpu_milli, _, gpu_milli = demand(waiting.shape, capacity)
    seconds = min(options["expected"], math.inf if waiting.time_limit_s is None else waiting.time_limit_s)
    return seconds * (gpu_milli / 1000 * options["gpu_cost"] + cpu_milli / 1000 * options["cpu_cost"])


def half_life_of(group: ResourceGroup) -> float:
    """The half-life in seconds of what was used in a group, whatever its order: it may be asked for later."""
    value = group.order_options.get("half_life")
    return float(value) if isinstance(value, int | float) and value >= SHORTEST_HALF_LIFE_S else HALF_LIFE_S


def _used(usage: Iterable[Usage], options: Mapping[str, Any]) -> defaultdict[tuple[str, str], float]:
    found: defaultdict[tuple[str, str], float] = defaultdict(float)
    for one in usage:
        found[one.project, one.owner] += one.gpu_s * options["gpu_cost"] + one.cpu_s * options["cpu_cost"]
    return found


def fair_shares(usage: Iterable[Usage], options: Mapping[str, Any]) -> list[Share]:
    """Every owner that used something, and every project that others are in."""
    return tree_shares(_used(usage, options), options["project_weights"], options["owner_weights"])


def _weights(whose: str, *, personal: bool = True) -> Option:
    return Option(Kind.WEIGHTS, {}, f"weights of {whose}; 1 for those not named", personal=personal)


SHARES = (
    OrderPolicy(
        DRF,
        drf,
        "Dominant resource fairness: who holds the smallest dominant share goes next.",
        {
            "by": Option(Kind.CHOICE, "owner", "whose share it is", choices=("owner", "project")),
            "weights": _weights("owners or projects"),
        },
        frozenset({Need.OWNER, Need.PROJECT, Need.PRIORITY, Need.HELD}),
    ),
    OrderPolicy(
        FAIR_SHARE,
        fair_share,
        "Who has used least of its due goes next: projects, those in them, owners; what was used fades by half-lives.",
        {
            "half_life": Option(Kind.DURATION, HALF_LIFE_S, "after this long what was used counts half",
                                SHORTEST_HALF_LIFE_S, 3650 * DAY_S),
            "expected": Option(Kind.DURATION, HOUR_S, "what a start is charged at once, at most", 0.0, 365 * DAY_S),
            "project_weights": _weights("projects, each beside those in the same one", personal=False),
            "owner_weights": _weights("owners within their project"),
            "gpu_cost": Option(Kind.NUMBER, 1.0, "what a GPU-second counts"),
            "cpu_cost": Option(Kind.NUMBER, 0.05, "what a CPU-second counts"),
        },
        frozenset({Need.OWNER, Need.PROJECT, Need.PRIORITY, Need.USED}),
    ),
)  # fmt: skip
