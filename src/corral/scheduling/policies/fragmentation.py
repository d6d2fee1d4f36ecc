"""`least-fragmentation`: where the session takes least of what those to be expected could still use.

The idea is that of fragmentation gradient descent (Weng et al., "Beware of Fragmentation", USENIX ATC '23): try every
node, and take the one whose free GPUs lose least of their use. What use is, is said in `usefulness`, with all shapes
that are expected.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from corral.model.resources import WHOLE_GPU_MILLI
from corral.scheduling.policies.scorer import Demand, Scorer, fullness
from corral.scheduling.policies.usefulness import Index, Usefulness
from corral.scheduling.pool import DEVICES, Floats, Ints, Pool, Rows
from corral.scheduling.snapshot import Shape
from corral.scheduling.standing import Need, need_of

TIE = 1e-6  # per free thousandth: far below any difference in use
UNUSABLE = -1e15  # finite, as scores must be


class LeastFragmentation(Scorer):
    """The node, and on it the GPU, that loses least use. Of equals the node with least GPU free, then the fullest; on
    it the tightest GPU."""

    by_shape: ClassVar[bool] = True

    def __init__(self, pool: Pool, demand: Demand) -> None:
        super().__init__(pool, demand)
        self._useful = Usefulness(pool, demand)
        self._needs: dict[Shape, Need] = {}
        self._best: dict[Shape, NDArray[np.intp]] = {}  # the GPU that each row was scored with
        self._before: Floats = np.zeros(len(pool))
        self._before_at = -1

    def score(self, rows: Rows | slice, shape: Shape) -> Floats:
        before = self._use_before(rows)
        if shape.exclusive or not self.pool.width:
            return -before
        free = self.pool.share(rows)
        need, ranks = self._need(shape), shape.ranks_per_node
        room = np.maximum(self.pool.room[rows, :DEVICES] - (ranks * need.cpu_milli, ranks * need.memory_mib), 0)
        site = self._useful.site(rows, *room.T)
        total = free.sum(axis=1)
        asked = ranks * (need.gpus * WHOLE_GPU_MILLI if need.whole else need.share_milli)
        left = self._left(rows, site, free, shape)
        return left * self._useful.usable_part(room, np.maximum(total - asked, 0)) - before

    def _left(self, rows: Rows | slice, site: Index, free: Ints, shape: Shape) -> Floats:
        """What the node's GPUs are worth once the ranks hold theirs, were CPUs and memory plenty."""
        useful, need = self._useful, self._need(shape)
        each = useful.of_free(site, free)
        idle = (free == WHOLE_GPU_MILLI).sum(axis=1)
        if need.gpus < 0:
            return each.sum(axis=1) + useful.of_idle(site, idle)
        if need.whole:
            taken = np.minimum(idle, need.gpus * shape.ranks_per_node)
            whole = useful.of_free(site, np.full((len(site), 1), WHOLE_GPU_MILLI))[:, 0]
            return each.sum(axis=1) - taken * whole + useful.of_idle(site, idle - taken)
        by_device = self._by_device(rows, site, free, need)
        best = by_device.argmax(axis=1)
        self._best.setdefault(shape, np.zeros(len(self.pool), np.intp))[rows] = best
        return by_device[np.arange(len(best)), best]

    def _by_device(self, rows: Rows | slice, site: Index, free: Ints, need: Need) -> Floats:
        """The same for each GPU that one share may go to, the tightest first among equals."""
        useful, pool = self._useful, self.pool
        left = free - need.share_milli
        usable = (left >= 0) & (pool.vram(rows) >= need.vram_mib[pool.kind[rows]])
        each = useful.of_free(site, free)
        idle = free == WHOLE_GPU_MILLI
        after = useful.of_free(site, np.maximum(left, 0)) - each + each.sum(axis=1)[:, None]
        after += useful.of_idle(site, idle.sum(axis=1)[:, None] - idle)
        return np.where(usable, after - TIE * free, UNUSABLE)

    def _use_before(self, rows: Rows | slice) -> Floats:
        """What the node's GPUs are worth as it is, and a trifle that decides between equals."""
        pool, useful = self.pool, self._useful
        if self._before_at != pool.stamp:
            stale = pool.changed_since(self._before_at)
            room, free = pool.room[stale, :DEVICES], pool.share(stale)
            site = useful.site(stale, *room.T)
            idle = (free == WHOLE_GPU_MILLI).sum(axis=1)
            use = useful.of_free(site, free).sum(axis=1) + useful.of_idle(site, idle)
            total = free.sum(axis=1)
            tie = TIE * (total - fullness(pool, stale))
            self._before[stale] = use * useful.usable_part(room, total) + tie
            self._before_at = pool.stamp
        return self._before[rows]

    def _need(self, shape: Shape) -> Need:
        if shape not in self._needs:
            self._needs[shape] = need_of(shape, self.pool)
        return self._needs[shape]

    def device(self, row: int, columns: Sequence[int], shape: Shape) -> int:
        known = self._best.get(shape)  # there is none of a shape that takes whole nodes
        if known is not None and known[row] in columns and shape.ranks_per_node == 1:
            return int(known[row])
        rows, need = slice(row, row + 1), self._need(shape)
        room, free = self.pool.room[rows, :DEVICES], self.pool.share(rows)
        site = self._useful.site(rows, *(room - (need.cpu_milli, need.memory_mib)).T)
        after = self._by_device(rows, site, free, need)[0]
        return max(columns, key=lambda column: (after[column], -self.pool.devices[row][column].index))
