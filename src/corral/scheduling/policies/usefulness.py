"""What free GPUs are worth: how many thousandths of them the sessions to be expected will fill.

A GPU with `free` left is offered expected sessions one after another, drawn by how often they come, and takes one
whenever that leaves it better off: the value of `free` is what it has taken after `OFFERS` offers, a small stochastic
knapsack. So 190 left over are worth little where hardly anything of 160 comes, and much where many come. GPUs idle
together are worth more by what needs several at once. Two prices go on top: of a kind that much is asked of, and of
GPUs on a node whose CPUs or memory will run out before them.

All of it hangs on a node's kind, which demands its CPUs and memory can still meet, and how free each GPU is. So it is
tabulated once per demand, and a node's value is a sum of table entries.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from corral.model.resources import WHOLE_GPU_MILLI
from corral.scheduling.engine.pool import DEVICES, NO_DEVICE, Flags, Floats, Ints, Pool, number
from corral.scheduling.engine.standing import UNBOUNDED, need_of
from corral.scheduling.snapshot import Shape

STEP_MILLI = 10  # shares are told apart to this; a GPU has so many steps:
STEPS = WHOLE_GPU_MILLI // STEP_MILLI
LEVELS = 12  # demands of CPU and of memory told apart; beyond that neighbours count as the larger one
OFFERS = 60  # looking further ahead changes little; much less takes poor pairs too early
HEADROOM = 1.5  # CPUs and memory per free GPU, in what a session asks for, at which most of the GPU still counts
Index = NDArray[np.intp]
A_STEP, ONE = number(STEP_MILLI), np.array(1.0)


class Expected(NamedTuple):
    """One shape's demand on one node, and how often it comes."""

    weight: float
    cpu_milli: int
    memory_mib: int
    gpus: int  # whole ones; 0 for a share
    steps: Ints  # of one GPU, by kind; UNBOUNDED where unsuitable

    @property
    def asked(self) -> float:
        """GPUs, on the kind where it is least."""
        return float(self.gpus or self.steps.min() / STEPS)


class Usefulness:
    """The value of every state that a node of the pool can be in, in thousandths of a GPU."""

    def __init__(self, pool: Pool, demand: Mapping[Shape, float]) -> None:
        expected = expected_in(pool, demand)
        self._width = pool.width
        self.kind = _main_kind(pool)
        self._cpus = _levels(one.cpu_milli for one in expected)
        self._memories = _levels(one.memory_mib for one in expected)
        self._sites = (len(pool.kinds), len(self._cpus) + 1, len(self._memories) + 1)
        price = _prices(pool, expected)
        single = sum(one.weight for one in expected if one.gpus <= 1) or 1.0
        of_free = _filled(self._offers(expected, single)).reshape(len(pool.kinds), -1)
        self._of_free: Floats = (price[:, None] * of_free).reshape(-1)
        together = self._together(expected, single).reshape(len(pool.kinds), -1)
        self._of_idle: Floats = (price[:, None] * together).reshape(-1)
        lasting = HEADROOM * WHOLE_GPU_MILLI / np.maximum(_per_gpu(expected), 1e-6)
        self._cpu_lasts, self._memory_lasts = lasting.tolist()
        self._cpu_ends, self._memory_ends = np.array(-self._cpu_lasts), np.array(-self._memory_lasts)
        self._row_of_free, self._row_of_idle = number(STEPS + 1), number(self._width + 1)
        self._row_of_cpu = number(self._sites[2])
        self._cpu_list, self._memory_list = self._cpus.tolist(), self._memories.tolist()
        _, cpus, memories = self._sites
        self._memory_sites = memories
        self._values_of_free = _Rows(self._of_free, STEPS + 1)
        self._values_of_idle = _Rows(self._of_idle, self._width + 1)
        self._with_taken: dict[int, Floats] = {0: self._of_idle}
        self.base: Index = self.kind * (cpus * memories)

    def _offers(self, expected: Iterable[Expected], total: float) -> Floats:
        """By site: how likely one offer is of each number of steps of one GPU, whole ones among them."""
        offers = np.zeros((*self._sites, STEPS + 1))
        for one in expected:
            if one.gpus <= 1:
                for kind in np.flatnonzero(one.steps < UNBOUNDED).tolist():
                    steps = STEPS if one.gpus else int(one.steps[kind])
                    offers[(kind, *self._levels_of(one), steps)] += one.weight / total
        return offers.cumsum(axis=1).cumsum(axis=2).reshape(-1, STEPS + 1)

    def _together(self, expected: Iterable[Expected], total: float) -> Floats:
        """By site: the value of so many idle GPUs to sessions that need several at once."""
        wanted = np.zeros((*self._sites, self._width + 1))
        for one in expected:
            if 1 < one.gpus <= self._width:
                for kind in np.flatnonzero(one.steps < UNBOUNDED).tolist():
                    wanted[(kind, *self._levels_of(one), one.gpus)] += one.weight * one.gpus / total
        wanted = wanted.cumsum(axis=1).cumsum(axis=2).cumsum(axis=3)
        worth: Floats = wanted * np.arange(0.0, WHOLE_GPU_MILLI * (self._width + 1), WHOLE_GPU_MILLI)
        return worth.reshape(-1, self._width + 1)

    def _levels_of(self, one: Expected) -> tuple[int, int]:
        cpu, memory = np.searchsorted(self._cpus, one.cpu_milli), np.searchsorted(self._memories, one.memory_mib)
        return int(cpu) + 1, int(memory) + 1

    def site(self, base: Index, free_cpu: Ints, free_memory: Ints) -> Index:
        """The number of each node's kind together with the demands that so much free can meet."""
        cpu = self._cpus.searchsorted(free_cpu, "right")
        memory = self._memories.searchsorted(free_memory, "right")
        cpu *= self._row_of_cpu
        cpu += memory
        cpu += base
        return cpu

    def worth(self, base: int, cpu: int, memory: int, free: Sequence[int], idle: int, total: int) -> float:
        """Of one node as it is, with all that counts: `free` thousandths of each GPU, `total` of all, `idle` of them
        whole."""
        cpu, memory = max(cpu, 0), max(memory, 0)
        alone, together = self.values(base, cpu, memory)
        use = together[idle]
        for one in free:
            use += alone[one // STEP_MILLI]
        lasting, other = cpu * self._cpu_lasts, memory * self._memory_lasts
        return use * (1 - math.exp(-(lasting if lasting < other else other) / (total or 1)))

    def values(self, base: int, cpu: int, memory: int) -> tuple[Sequence[float], Sequence[float]]:
        """On one node with so much free: of a GPU on its own, by steps free, and of so many idle ones beyond that."""
        cpus, memories = bisect_right(self._cpu_list, cpu), bisect_right(self._memory_list, memory)
        site = base + cpus * self._memory_sites + memories
        return self._values_of_free[site], self._values_of_idle[site]

    def of_free(self, site: Index, free: Ints) -> Floats:
        """Of each GPU so free, on its own."""
        steps = free // A_STEP
        steps += site * self._row_of_free
        return self._of_free.take(steps)

    def of_share(self, site: Index, free: Ints, share_milli: int) -> tuple[Floats, Floats]:
        """Of each GPU so free, and with so much less; where it has not so much, something or other."""
        begin = site * self._row_of_free
        steps = free // A_STEP
        steps += begin
        each = self._of_free.take(steps)
        if share_milli % STEP_MILLI:
            steps = (free - share_milli) // A_STEP
            steps += begin
        else:
            steps -= share_milli // STEP_MILLI
        return each, self._of_free.take(steps, mode="clip")

    def of_idle(self, site: Index, idle: Ints, taken: int = 0) -> Floats:
        """What so many idle GPUs are worth beyond each on its own, less what those of them were that are taken."""
        table = self._with_taken.get(taken)
        if table is None:
            table = self._with_taken[taken] = self._without(taken)
        at = site * self._row_of_idle
        at += idle
        return table.take(at)

    def of_idle_but(self, site: Index, idle: Ints, one: Flags) -> Floats:
        """Likewise, with one less where there is one."""
        at = site * self._row_of_idle
        at += idle
        return self._of_idle.take(at - one)

    def _without(self, count: int) -> Floats:
        """`of_idle` for each number of idle GPUs, with so many of them taken."""
        idle = np.arange(self._width + 1)
        taken = np.minimum(idle, count)
        of_whole = self._of_free.reshape(-1, STEPS + 1)[:, STEPS:]
        found: Floats = self._of_idle.reshape(-1, self._width + 1)[:, idle - taken] - taken * of_whole
        return found.reshape(-1)

    def usable_part(self, cpu: Ints, memory: Ints, free: Floats) -> Floats:
        """How much of `free` (thousandths on each node) counts: next to all while CPUs and memory are plenty, and less
        the sooner they run out."""
        lasting = memory.astype(np.float64)
        lasting *= self._memory_ends
        part = cpu.astype(np.float64)
        part *= self._cpu_ends
        np.maximum(part, lasting, out=part)
        part /= np.maximum(free, ONE)
        np.exp(part, out=part)
        return np.subtract(ONE, part, out=part)


def expected_in(pool: Pool, demand: Mapping[Shape, float]) -> list[Expected]:
    """The shapes with GPUs that may come to this pool's group."""
    found: list[Expected] = []
    group = pool.nodes[0].group if pool.nodes else None
    capacity = np.array([max(kind.capacity_mib, 1) for kind in pool.kinds], np.int64)
    for shape, times in demand.items():
        need, ranks = need_of(shape, pool), shape.ranks_per_node
        suited = need.vram_mib < UNBOUNDED if need.gpus >= 0 else np.zeros(0, bool)
        if shape.group not in (None, group) or not suited.any():
            continue
        by_memory = -(-np.where(suited, need.vram_mib, 0) * WHOLE_GPU_MILLI // capacity)
        steps = -(-np.maximum(max(need.share_milli, 1), by_memory) // STEP_MILLI)
        steps = np.where(suited, np.minimum(steps, STEPS), UNBOUNDED)
        found.append(
            Expected(times * shape.nodes, ranks * need.cpu_milli, ranks * need.memory_mib, ranks * need.gpus, steps)
        )
    return found + _unheard_of(pool, found)


class _Rows(dict[int, list[float]]):
    """Rows of a table as plain numbers, each made when it is first asked for."""

    def __init__(self, table: Floats, width: int) -> None:
        super().__init__()
        self._table = table
        self._width = width

    def __missing__(self, row: int) -> list[float]:
        found = self[row] = self._table[row * self._width : (row + 1) * self._width].tolist()
        return found


def _unheard_of(pool: Pool, known: Sequence[Expected]) -> list[Expected]:
    """One more session that nobody has asked for yet, for 1, 2, 4, … whole GPUs with equal odds: so that GPUs and nodes
    stay whole where little or nothing is known of what will come."""
    sizes = [2**power for power in range(pool.width.bit_length())]
    steps = np.full(len(pool.kinds), STEPS, np.int64)
    steps[NO_DEVICE] = UNBOUNDED
    cpu_milli = min((one.cpu_milli for one in known), default=0)
    memory_mib = min((one.memory_mib for one in known), default=0)
    return [Expected(1 / len(sizes), cpu_milli, memory_mib, size, steps) for size in sizes]


def _filled(offers: Floats) -> Floats:
    """For each row of offers: the thousandths that a GPU with 0, 1, … STEPS steps free will fill."""
    numbers: dict[bytes, int] = {}
    which = np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in offers], np.intp)
    distinct = np.array([np.frombuffer(row) for row in numbers]).reshape(len(numbers), STEPS + 1)
    sizes = np.flatnonzero(distinct.any(axis=0)).tolist()
    odds = np.ascontiguousarray(distinct.T)
    value = np.zeros_like(odds)
    gains = np.empty_like(odds)
    for _ in range(OFFERS):
        better = value.copy()
        for size in sizes:
            gain = np.subtract(value[: STEPS + 1 - size], value[size:], out=gains[size:])
            gain += size * STEP_MILLI
            np.maximum(gain, 0, out=gain)
            gain *= odds[size]
            better[size:] += gain
        value = better
    return value.T[which]


def _prices(pool: Pool, expected: Iterable[Expected]) -> Floats:
    """By kind: how much is asked of it for what there is of it, the least asked of at 1. A shape asks of every kind
    that suits it in proportion to how many GPUs of the kind there are."""
    there = np.bincount(pool.kind.reshape(-1), minlength=len(pool.kinds)).astype(np.float64)
    there[NO_DEVICE] = 0
    asked = np.zeros(len(there))
    for one in expected:
        suited = np.where(one.steps < UNBOUNDED, there, 0)
        if suited.any():
            asked += one.weight * one.asked * suited / suited.sum()
    pressure = np.divide(asked, there, out=np.zeros(len(there)), where=there > 0)
    least = pressure[pressure > 0].min(initial=np.inf)
    return np.maximum(pressure / least, 1.0)


def _per_gpu(expected: Iterable[Expected]) -> Floats:
    """CPU and memory that a session asks for with one GPU, on average over the GPUs asked for."""
    totals = np.zeros(3)
    for one in expected:
        totals += one.weight * np.array([one.cpu_milli, one.memory_mib, one.asked])
    return totals[:DEVICES] / (totals[DEVICES] or 1.0)


def _levels(amounts: Iterable[int]) -> Ints:
    """Distinct amounts, ascending; thinned to LEVELS, the largest kept."""
    distinct = np.unique(np.fromiter(amounts, np.int64))
    if len(distinct) <= LEVELS:
        return distinct
    return distinct[np.linspace(0, len(distinct) - 1, LEVELS).round().astype(int)]


def _main_kind(pool: Pool) -> Index:
    """The kind that most devices of each node are of."""
    numbers = np.stack([(pool.kind == kind).sum(axis=1) for kind in range(len(pool.kinds))])
    numbers[NO_DEVICE] = 0
    return numbers.argmax(axis=0)
