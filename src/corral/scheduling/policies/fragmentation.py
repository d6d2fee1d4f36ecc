"""`least-fragmentation`: where the session takes least of what those to be expected could still use.

The idea is that of fragmentation gradient descent (Weng et al., "Beware of Fragmentation", USENIX ATC '23): try every
node, and take the one whose free GPUs lose least of their use. What use is, is said in `usefulness`, with all shapes
that are expected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from corral.model.resources import WHOLE_GPU_MILLI
from corral.scheduling.policies.scorer import Demand, Scorer, fullness
from corral.scheduling.policies.usefulness import Index, Usefulness
from corral.scheduling.pool import CPU, Flags, Floats, Ints, Pool, Rows
from corral.scheduling.snapshot import Shape
from corral.scheduling.standing import Need, need_of

TIE = 1e-6  # per free thousandth: far below any difference in use
CPU_TIE = 1e-12  # per free milli-CPU: below that
UNUSABLE = -1e15  # finite, as scores must be
BEFORE, AFTER = 0, 1


class LeastFragmentation(Scorer):
    """The node, and on it the GPU, that loses least use. Of equals the node with least GPU free, then with the fewest
    CPUs free; on it the tightest GPU. Where there are no GPUs it is `pack`."""

    by_shape: ClassVar[bool] = True

    def __init__(self, pool: Pool, demand: Demand) -> None:
        super().__init__(pool, demand)
        self._useful = Usefulness(pool, demand)
        self._met: dict[Shape, _Met] = {}

    def score(self, rows: Rows | slice, shape: Shape) -> Floats:
        if not self.pool.width:
            return fullness(self.pool, rows)
        useful, met, ranks = self._useful, self._meet(shape), shape.ranks_per_node
        need = met.need
        room, free, vram = self.pool.free(rows)
        idle = free == WHOLE_GPU_MILLI
        idle_count, total = idle.sum(axis=1), free.sum(axis=1)
        asked = ranks * (need.gpus * WHOLE_GPU_MILLI if need.whole else need.share_milli)
        rooms, totals = _before_and_after(room, met.room, total, asked)
        site = useful.site(useful.kind[rows], rooms)
        each = useful.of_free(site, free)
        use = each.sum(axis=2)
        use[BEFORE] += useful.of_idle(site[BEFORE], idle_count)
        if shape.exclusive:
            use[AFTER] = 0
        elif need.gpus:
            use[AFTER] += self._without_whole(site[AFTER], idle_count, max(need.gpus, 0) * ranks)
        else:
            together = useful.of_idle(site[AFTER][:, None], idle_count[:, None] - idle)
            usable = vram >= need.vram_mib.take(self.pool.kinds_of(rows))
            change = together - each[AFTER] + self._shared(site[AFTER], free, need.share_milli, usable)
            met.best[rows] = best = change.argmax(axis=1)
            use[AFTER] += change[np.arange(len(best)), best]
        use *= useful.usable_part(rooms, totals)
        return use[AFTER] - use[BEFORE] - TIE * total - CPU_TIE * room[:, CPU]

    def _without_whole(self, site: Index, idle: Ints, count: int) -> Floats:
        """What changes in use when so many idle GPUs are taken, beside what idle ones are worth together."""
        taken = np.minimum(idle, count)
        left = self._useful.of_idle(site, idle - taken)
        if not count:
            return left
        return left - taken * self._useful.of_whole(site)

    def _shared(self, site: Index, free: Ints, share_milli: int, usable: Flags) -> Floats:
        """What is left of each GPU is worth if the share goes there; of equals the tightest is best."""
        left = free - share_milli
        worth = self._useful.of_free(site, np.maximum(left, 0)) - TIE * free
        return np.where(usable & (left >= 0), worth, UNUSABLE)

    def _meet(self, shape: Shape) -> _Met:
        met = self._met.get(shape)
        if met is None:
            need, ranks = need_of(shape, self.pool), shape.ranks_per_node
            room = np.array([ranks * need.cpu_milli, ranks * need.memory_mib], np.int64)
            met = self._met[shape] = _Met(need, room, np.zeros(len(self.pool), np.intp))
        return met

    def device(self, row: int, columns: Sequence[int], shape: Shape) -> int:
        """As it was scored; ranks after the first find the node changed by those before."""
        if shape.ranks_per_node > 1 or shape.exclusive:
            shape = replace(shape, ranks_per_node=1, exclusive=False)
            self.score(np.array([row], np.intp), shape)
        best = int(self._meet(shape).best[row])
        return best if best in columns else super().device(row, columns, shape)


class _Met(NamedTuple):
    """A rank's demand here, all ranks' CPU and memory, and the GPU that each row was scored with."""

    need: Need
    room: Ints
    best: NDArray[np.intp]


def _before_and_after(room: Ints, wanted: Ints, total: Ints, asked: int) -> tuple[Ints, Ints]:
    """CPU and memory, and all GPUs' free thousandths, of each node as it is and with the ranks on it."""
    rooms = np.empty((2, *room.shape), np.int64)
    rooms[BEFORE] = room
    np.subtract(room, wanted, out=rooms[AFTER])
    totals = np.empty((2, len(total)), np.int64)
    totals[BEFORE] = total
    np.subtract(total, asked, out=totals[AFTER])
    return np.maximum(rooms, 0, out=rooms), totals
