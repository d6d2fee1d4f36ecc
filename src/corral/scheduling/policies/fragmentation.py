"""`least-fragmentation`: where the session takes least of what those to be expected could still use.

The idea is that of fragmentation gradient descent (Weng et al., "Beware of Fragmentation", USENIX ATC '23): try every
node, and take the one whose free GPUs lose least of their use. What use is, is said in `usefulness`, with all shapes
that are expected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from corral.model.resources import WHOLE_GPU_MILLI
from corral.scheduling.engine.pool import CPU, DEVICES, MEMORY, Floats, Ints, Pool, Rows
from corral.scheduling.engine.standing import Need, need_of
from corral.scheduling.policies.scorer import Demand, Scorer, fullness
from corral.scheduling.policies.usefulness import Index, Usefulness
from corral.scheduling.snapshot import Shape

TIE = 1e-6  # per free thousandth: far below any difference in use
CPU_TIE = 1e-12  # per free milli-CPU: below that
UNUSABLE = -1e15  # finite, as scores must be
MOST_BEST = 2**25  # GPUs remembered, of one node for one shape, in 2 bytes each
BASE, WHOLE, TOTAL = 0, 1, 2  # columns of what is known of each node


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
        self._known: Ints = np.zeros((len(pool), 3), np.int64)
        self._known[:, BASE] = self._useful.base
        self._bases: list[int] = self._useful.base.tolist()
        self._before: Floats = np.zeros(len(pool))
        self._known_at = -1

    def score(self, rows: Rows | slice, shape: Shape) -> Floats:
        if not self.pool.width:
            return fullness(self.pool, rows)
        self._look_again()
        useful, met, ranks = self._useful, self._meet(shape), shape.ranks_per_node
        need = met.need
        room, free, vram = self.pool.free(rows)
        known = self._known.take(rows, axis=0) if isinstance(rows, np.ndarray) else self._known[rows]
        if shape.exclusive:
            return -self._before[rows]
        left = np.subtract(room, met.room)
        np.maximum(left, 0, out=left)
        site = useful.site(known[:, BASE], left)
        if need.gpus:
            asked = ranks * need.gpus * WHOLE_GPU_MILLI if need.whole else 0
            use: Floats = useful.of_free(site, free).sum(axis=1)
            use += self._without_whole(site, known[:, WHOLE], max(need.gpus, 0) * ranks)
        else:
            asked = ranks * need.share_milli
            each, change = useful.of_share(site, free, need.share_milli)
            use = each.sum(axis=1)
            change -= TIE * free
            change -= each
            change += useful.of_idle(site[:, None], known[:, WHOLE, None] - (free == WHOLE_GPU_MILLI))
            unusable = vram < need.vram_mib.take(self.pool.kinds_of(rows))
            unusable |= free < need.share_milli
            np.putmask(change, unusable, UNUSABLE)
            met.best[rows] = best = change.argmax(axis=1)
            use += change[np.arange(len(best)), best]
        use *= useful.usable_part(left, known[:, TOTAL] - asked if asked else known[:, TOTAL])
        use -= self._before[rows]
        return use

    def _look_again(self) -> None:
        """At each node that changed, in plain Python, so that equal nodes are worth the same to the last bit."""
        pool = self.pool
        if self._known_at == pool.stamp:
            return
        end, worth = DEVICES + pool.width, self._useful.worth
        known, before = cast("Any", self._known.data), cast("Any", self._before.data)
        for row in pool.changes.each_since(self._known_at):
            room = pool.room_of(row)
            free, cpu, base = room[DEVICES:end], room[CPU], self._bases[row]
            known[row, WHOLE] = whole = free.count(WHOLE_GPU_MILLI)
            known[row, TOTAL] = total = sum(free)
            before[row] = worth(base, cpu, room[MEMORY], free, whole, total) + TIE * total + CPU_TIE * cpu
        self._known_at = pool.stamp

    def _without_whole(self, site: Index, idle: Ints, count: int) -> Floats:
        """What changes in use when so many idle GPUs are taken, beside what idle ones are worth together."""
        if not count:
            return self._useful.of_idle(site, idle)
        taken = np.minimum(idle, count)
        return self._useful.of_idle(site, idle - taken) - taken * self._useful.of_whole(site)

    def _meet(self, shape: Shape) -> _Met:
        if self._last is not None and self._last[0] is shape:
            return self._last[1]
        met = self._met.get(shape)
        if met is None:
            while len(self._met) >= max(1, MOST_BEST // max(len(self.pool), 1)):
                del self._met[next(iter(self._met))]
            need, ranks = need_of(shape, self.pool), shape.ranks_per_node
            room = np.array([ranks * need.cpu_milli, ranks * need.memory_mib], np.int64)
            met = self._met[shape] = _Met(need, room, np.full(len(self.pool), -1, np.int16))
        self._last = (shape, met)
        return met

    def device(self, row: int, columns: Sequence[int], shape: Shape) -> int:
        """As it was scored; ranks after the first find the node changed by those before, and what was forgotten since
        is looked for again."""
        if shape.ranks_per_node > 1 or shape.exclusive:
            shape = replace(shape, ranks_per_node=1, exclusive=False)
            self.score(np.array([row], np.intp), shape)
        elif self._meet(shape).best[row] < 0:
            self.score(np.array([row], np.intp), shape)
        best = int(self._meet(shape).best[row])
        return best if best in columns else super().device(row, columns, shape)


class _Met(NamedTuple):
    """A rank's demand here, all ranks' CPU and memory, and the GPU that each row was scored with; -1: it was not."""

    need: Need
    room: Ints
    best: NDArray[np.int16]
