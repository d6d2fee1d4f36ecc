"""`least-fragmentation`: where the session takes least of what those to be expected could still use.

The idea is that of fragmentation gradient descent (Weng et al., "Beware of Fragmentation", USENIX ATC '23): try every
node, and take the one whose free GPUs lose least of their use. What use is, is said in `usefulness`, with all shapes
that are expected.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from corral.model.resources import WHOLE_GPU_MILLI
from corral.scheduling.engine.pool import CPU, DEVICES, MEMORY, Floats, Ints, Pool, Rows, number
from corral.scheduling.engine.standing import Need, need_of
from corral.scheduling.policies.scorer import Demand, Scorer, fullness
from corral.scheduling.policies.usefulness import STEP_MILLI, Usefulness
from corral.scheduling.snapshot import Shape

TIE = 1e-6  # per free thousandth: far below any difference in use
CPU_TIE = 1e-12  # per free milli-CPU: below that
UNUSABLE = -1e15  # finite, as scores must be
MOST_MET = 100_000  # shapes remembered
NOTHING, WHOLE, A_TIE = number(0), number(WHOLE_GPU_MILLI), np.array(TIE)


class LeastFragmentation(Scorer):
    """The node, and on it the GPU, that loses least use. Of equals the node with least GPU free, then with the fewest
    CPUs free; on it the tightest GPU. Where there are no GPUs it is `pack`."""

    by_shape: ClassVar[bool] = True
    looks_ahead: ClassVar[bool] = True

    def __init__(self, pool: Pool, demand: Demand) -> None:
        super().__init__(pool, demand)
        self._useful = Usefulness(pool, demand)
        self._met: dict[Shape, _Met] = {}
        self._last: tuple[Shape, _Met] | None = None
        self._bases: list[int] = self._useful.base.tolist()
        self._whole: Ints = np.zeros(len(pool), np.int64)
        self._total: Floats = np.zeros(len(pool))
        self._before: Floats = np.zeros(len(pool))
        self._cells: Any = (self._whole.data, self._total.data, self._before.data)  # faster one by one
        self._known_at = -1

    def score(self, rows: Rows | slice, shape: Shape) -> Floats:
        if not self.pool.width:
            return fullness(self.pool, rows)
        self._look_again()
        if isinstance(rows, slice):
            rows = np.arange(len(self.pool))[rows]
        useful, met = self._useful, self._meet(shape)
        if shape.exclusive:
            return -self._before[rows]
        need, before = met.need, self._before.take(rows)
        whole, total = self._whole.take(rows), self._total.take(rows)
        room, free, vram = self.pool.columns(rows)
        cpu, memory = room[CPU] - met.cpu_milli, room[MEMORY] - met.memory_mib
        np.maximum(cpu, NOTHING, out=cpu)
        np.maximum(memory, NOTHING, out=memory)
        site = useful.site(useful.base.take(rows), cpu, memory)
        total -= met.asked_milli
        if need.gpus:
            use: Floats = _sums(useful.of_free(site, free))
            use += useful.of_idle(site, whole, met.taken)
        else:
            each, change = useful.of_share(site, free, need.share_milli)
            use = _sums(each)
            ties = free.astype(np.float64)
            ties *= A_TIE
            change -= ties
            change -= each
            change += useful.of_idle_but(site, whole, free == WHOLE)
            unusable = vram < need.vram_on(self.pool, rows)
            unusable |= free < met.share_milli
            np.putmask(change, unusable, UNUSABLE)
            use += np.maximum.reduce(change, axis=0)
        use *= useful.usable_part(cpu, memory, total)
        use -= before
        return use

    def _look_again(self) -> None:
        """At each node that changed, in plain Python, so that equal nodes are worth the same to the last bit."""
        pool = self.pool
        if self._known_at == pool.stamp:
            return
        end, worth = DEVICES + pool.width, self._useful.worth
        wholes, totals, before = self._cells
        for row in pool.changes.each_since(self._known_at):
            room = pool.room_of(row)
            free, cpu, base = room[DEVICES:end], room[CPU], self._bases[row]
            wholes[row] = whole = free.count(WHOLE_GPU_MILLI)
            totals[row] = total = sum(free)
            before[row] = worth(base, cpu, room[MEMORY], free, whole, total) + TIE * total + CPU_TIE * cpu
        self._known_at = pool.stamp

    def _meet(self, shape: Shape) -> _Met:
        if self._last is not None and self._last[0] is shape:
            return self._last[1]
        met = self._met.get(shape)
        if met is None:
            while len(self._met) >= MOST_MET:
                del self._met[next(iter(self._met))]
            need, ranks = need_of(shape, self.pool), shape.ranks_per_node
            cpu, memory = number(ranks * need.cpu_milli), number(ranks * need.memory_mib)
            taken = ranks * max(need.gpus, 0)
            asked = taken * WHOLE_GPU_MILLI or ranks * need.share_milli
            met = self._met[shape] = _Met(need, cpu, memory, taken, np.array(float(asked)), number(need.share_milli))
        self._last = (shape, met)
        return met

    def device(self, row: int, columns: Sequence[int], shape: Shape) -> int:
        """The GPU with which this rank's share loses least, as it was scored; of equals the first."""
        need, room, share = self._meet(shape).need, self.pool.room_of(row), self.pool.share_of(row)
        cpu, memory = max(room[CPU] - need.cpu_milli, 0), max(room[MEMORY] - need.memory_mib, 0)
        alone, together = self._useful.values(self._bases[row], cpu, memory)
        idle = share.count(WHOLE_GPU_MILLI)

        def change(column: int) -> float:
            free = share[column]
            left = alone[(free - need.share_milli) // STEP_MILLI]
            return left - TIE * free - alone[free // STEP_MILLI] + together[idle - (free == WHOLE_GPU_MILLI)]

        return max(columns, key=change)


def _sums(columns: Floats) -> Floats:
    """Row by row; added up node by node, and so alike for all."""
    return np.add.reduce(columns.T.copy(), axis=1)


class _Met(NamedTuple):
    """A rank's demand here; all ranks' CPU and memory, idle GPUs, and thousandths of GPUs; and a rank's of one."""

    need: Need
    cpu_milli: Ints
    memory_mib: Ints
    taken: int
    asked_milli: Floats
    share_milli: Ints
