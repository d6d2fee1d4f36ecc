"""How one shape stands with every node of a pool: does it fit, and if not why, kept up to date row by row.

`Standing.codes` are positions in `CODES`; position 0 means that it fits. The rules and their order are those of
`room.excluded` and `room.NodeRoom.place`, and a property test holds the two together.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from corral.model.resources import WHOLE_GPU_MILLI, GpuRequest
from corral.scheduling.engine.pool import CPU, DEVICES, MEMORY, NO_DEVICE, Flags, Floats, Ints, Pool, Rows
from corral.scheduling.engine.room import MESSAGES, excluded
from corral.scheduling.snapshot import Shape

FITS = ""
CODES = (FITS, *MESSAGES)
CODE_OF = {code: number for number, code in enumerate(CODES)}
UNBOUNDED = 2**62  # more than any amount or number of ranks
Codes = NDArray[np.int8]


class Need(NamedTuple):
    """One rank's demand in a pool. `vram_mib` is what a device of each kind must have free; UNBOUNDED if unsuitable."""

    cpu_milli: int
    memory_mib: int
    share_milli: int
    vram_mib: Ints
    gpus: int  # whole ones; 0 for a share; -1 for none

    @property
    def whole(self) -> bool:
        return self.gpus > 0


def need_of(shape: Shape, pool: Pool) -> Need:
    gpu, cpu_milli, memory_mib = shape.resources.gpu, max(1, shape.resources.cpu_milli), shape.resources.memory_mib
    if gpu is None:
        return Need(cpu_milli, memory_mib, 0, np.zeros(0, np.int64), -1)
    vram = [vram_needed(gpu, model, arch, capacity) for model, arch, capacity in pool.kinds]
    vram[NO_DEVICE] = UNBOUNDED
    count = gpu.count if gpu.whole else 0
    return Need(cpu_milli, memory_mib, gpu.share_milli, np.array(vram, np.int64), count)


def vram_needed(gpu: GpuRequest, model: str, arch: str | None, capacity_mib: int) -> int:
    """Free memory that a device of this kind must have; UNBOUNDED if it is not what was asked for."""
    if gpu.model is not None and model not in gpu.model.lower().split("|"):
        return UNBOUNDED
    if (gpu.arch is not None and gpu.arch != arch) or gpu.vram_mib > capacity_mib:
        return UNBOUNDED
    if gpu.whole:
        return capacity_mib
    return gpu.vram_mib or capacity_mib * gpu.share_milli // WHOLE_GPU_MILLI


class Bars:
    """Why each node is out of the question whatever its room, 0 where it is not: one for all shapes that ask for the
    same labels, nodes and runtime."""

    def __init__(self, pool: Pool, shape: Shape, now: float) -> None:
        self._pool = pool
        self._shape = shape
        self.codes = barred(pool, shape, now)
        self.open: Flags = self.codes == 0
        self._at = pool.bar_changes.stamp

    def refresh(self, now: float) -> None:
        log = self._pool.bar_changes
        if self._at == log.stamp:
            return
        rows = log.since(self._at)
        if isinstance(rows, slice):
            self.codes = barred(self._pool, self._shape, now)
        else:
            changed: list[int] = rows.tolist()
            for row in changed:
                why = excluded(self._pool.nodes[row], self._shape, now)
                self.codes[row] = 0 if why is None else CODE_OF[why]
        self.open = self.codes == 0
        self._at = log.stamp


class Standing:
    """One shape in one pool: who has room for it and what a policy makes of them, or that nobody has; and why not.

    `scores` is the group's to fill: -inf where it does not fit. They are dropped once the shape fits nowhere: from then
    on `nowhere_at` is when that was last true, and only rows that changed since can have room.
    """

    def __init__(self, pool: Pool, shape: Shape, bars: Bars) -> None:
        self.pool = pool
        self.shape = shape
        self.need = need_of(shape, pool)
        self.bars = bars
        self.scores: Floats | None = None
        self.scored_at = -1
        self.nowhere_at = -1
        self._vram: list[int] = self.need.vram_mib.tolist()
        self._codes: Codes = np.zeros(0, np.int8)
        self._coded_at = -1
        self._counts: list[int] = []
        self._simple = shape.ranks_per_node == 1 and not shape.exclusive

    def begin_scores(self) -> Floats:
        """Room for them: as they were when it fitted nowhere, or to be made for every row."""
        self.scores = np.full(len(self.pool), -np.inf)
        self.scored_at, self.nowhere_at = self.nowhere_at, -1
        return self.scores

    def forget_scores(self) -> None:
        self.scores, self.scored_at = None, -1

    def fits_nowhere_now(self) -> None:
        self.forget_scores()
        self.nowhere_at = self.pool.stamp

    def fitting_since(self, stamp: int) -> Rows:
        """Of the rows that changed since then, those that fit."""
        few = self.pool.changes.few_since(stamp) if self._simple else None
        if few is not None:
            return np.array([row for row in few if self._code_of(row) == 0], np.intp)
        rows = self.pool.changed_since(stamp)
        fitting = np.flatnonzero(self.fits(rows))
        return rows[fitting] if isinstance(rows, np.ndarray) else fitting

    def most_on(self, row: int) -> int:
        """No more sessions than this find their ranks for one node here."""
        if self.shape.exclusive:
            return 1
        need, room = self.need, self.pool.room_of(row)
        most = room[CPU] // need.cpu_milli
        if need.memory_mib:
            most = min(most, room[MEMORY] // need.memory_mib)
        if need.share_milli > 0:
            shares = room[DEVICES : DEVICES + self.pool.width]
            most = min(most, sum(free // need.share_milli for free in shares) // max(need.gpus, 1))
        return max(most, 1)

    def fits(self, rows: Rows | slice) -> Flags:
        if not self._simple:
            return self._judge(rows) == 0
        need = self.need
        room = self.pool.free(rows)[0]
        fits = self.bars.open[rows] & (room[:, CPU] >= need.cpu_milli) & (room[:, MEMORY] >= need.memory_mib)
        return fits if need.gpus < 0 else fits & self._gpus_fit(rows)

    def _code_of(self, row: int) -> int:
        """`_judge_one` of a single row, in plain Python."""
        code = int(self.bars.codes[row])
        if code:
            return code
        need, room = self.need, self.pool.room_of(row)
        if room[CPU] < need.cpu_milli:
            return CODE_OF["not_enough_cpus"]
        if room[MEMORY] < need.memory_mib:
            return CODE_OF["not_enough_memory"]
        if need.gpus < 0 or len(self.usable(row)) >= max(need.gpus, 1):
            return 0
        if any(self._vram[kind] < UNBOUNDED for kind in self.pool.kinds_on(row)):
            return CODE_OF["not_enough_gpus" if need.whole else "not_enough_gpu_share"]
        return CODE_OF["no_such_gpu" if self.pool.devices[row] else "no_gpus"]

    def _gpus_fit(self, rows: Rows | slice) -> Flags:
        """Whether one rank finds its GPUs."""
        need, pool = self.need, self.pool
        _, share, vram = pool.free(rows)
        usable = (share >= need.share_milli) & (vram >= need.vram_mib.take(pool.kinds_of(rows)))
        return usable.sum(axis=1) >= max(need.gpus, 1)

    def usable(self, row: int) -> list[int]:
        """The columns of one node with room enough for a rank's share, or for one of its whole GPUs."""
        need, pool = self.need, self.pool
        room, width = pool.room_of(row), pool.width
        columns: list[int] = []
        for column, kind in enumerate(pool.kinds_on(row)):
            share, vram = room[DEVICES + column], room[DEVICES + width + column]
            if share >= need.share_milli and vram >= self._vram[kind]:
                columns.append(column)
        return columns

    def reasons(self) -> Counter[str]:
        """How many nodes give each answer, FITS among them."""
        if self._coded_at != self.pool.stamp:
            self._code()
        return Counter({CODES[number]: count for number, count in enumerate(self._counts) if count})

    def _code(self) -> None:
        """Bring every row's answer up to date."""
        known = len(self._codes) > 0
        few = self.pool.changes.few_since(self._coded_at) if known and self._simple else None
        if few is not None:
            for row in few:
                self._counts[self._codes[row]] -= 1
                self._codes[row] = code = self._code_of(row)
                self._counts[code] += 1
        else:
            rows = self.pool.changed_since(self._coded_at) if known else slice(None)
            if not known:
                self._codes = np.zeros(len(self.pool), np.int8)
            self._codes[rows] = self._judge_one(rows) if self._simple else self._judge(rows)
            self._counts = np.bincount(self._codes, minlength=len(CODES)).tolist()
        self._coded_at = self.pool.stamp

    def forget_reasons(self) -> None:
        """They take a byte for each node, and are made again when they are asked for."""
        self._codes, self._coded_at = np.zeros(0, np.int8), -1

    def reasons_whatever_the_room(self) -> Counter[str]:
        counts = np.bincount(self.bars.codes).tolist()
        return Counter({CODES[number]: count for number, count in enumerate(counts) if count})

    def judge(self, rows: Rows | slice) -> Codes:
        """These rows' answers as positions in CODES, made anew."""
        return self._judge_one(rows) if self._simple else self._judge(rows)

    def _judge_one(self, rows: Rows | slice) -> Codes:
        """The same as `_judge` for one rank, which may share the node: in fewer steps."""
        need, room = self.need, self.pool.free(rows)[0]
        codes = np.zeros(len(room), np.int8)
        if need.gpus >= 0:
            codes[:] = np.where(self._gpus_fit(rows), 0, self._gpu_codes(rows))
        codes[room[:, MEMORY] < need.memory_mib] = CODE_OF["not_enough_memory"]
        codes[room[:, CPU] < need.cpu_milli] = CODE_OF["not_enough_cpus"]
        barred = self.bars.codes[rows]
        return np.where(barred != 0, barred, codes)

    def _judge(self, rows: Rows | slice) -> Codes:
        """The first thing missing for the first rank that finds no room; 0 where all ranks do."""
        pool, shape = self.pool, self.shape
        room, need = pool.room[rows], self.need
        alone = self._alone(rows) if shape.exclusive else np.full(len(room), UNBOUNDED)
        cpus, memories = times(room[:, CPU], need.cpu_milli), times(room[:, MEMORY], need.memory_mib)
        limits = np.stack((alone, cpus, memories, self._gpu_ranks(rows)))
        first = limits.argmin(axis=0)  # the first of equals: the order in which NodeRoom asks
        short = limits.min(axis=0) < shape.ranks_per_node
        words = np.array([CODE_OF[code] for code in ("node_in_use", "not_enough_cpus", "not_enough_memory", FITS)])
        codes = np.where(first == 3, self._gpu_codes(rows), words[first])
        barred = self.bars.codes[rows]
        return np.where(barred != 0, barred, np.where(short, codes, 0)).astype(np.int8)

    def _alone(self, rows: Rows | slice) -> Ints:
        """Ranks that a session that wants nodes alone may put on each: none where somebody holds anything."""
        pool = self.pool
        share_used = (pool.share(rows) < WHOLE_GPU_MILLI) & (pool.kind[rows] != NO_DEVICE)
        idle = (pool.room[rows][:, :DEVICES] >= pool.size[rows]).all(axis=1) & ~share_used.any(axis=1)
        return np.where(idle, UNBOUNDED, 0)

    def _gpu_ranks(self, rows: Rows | slice) -> Ints:
        need, pool = self.need, self.pool
        if need.gpus < 0:
            return np.full(len(pool.room[rows]), UNBOUNDED)
        _, share, vram = pool.free(rows)
        needed = need.vram_mib[pool.kinds_of(rows)]
        if need.whole:
            return ((share >= need.share_milli) & (vram >= needed)).sum(axis=1) // need.gpus
        each = np.minimum(times(share, need.share_milli), times(vram, needed))
        return np.minimum(each, self.shape.ranks_per_node).sum(axis=1)

    def _gpu_codes(self, rows: Rows | slice) -> Codes:
        need, pool = self.need, self.pool
        if need.gpus < 0:
            return np.zeros(len(pool.room[rows]), np.int8)
        suited = (need.vram_mib[pool.kind[rows]] < UNBOUNDED).any(axis=1)
        lacking = CODE_OF["not_enough_gpus" if need.whole else "not_enough_gpu_share"]
        without = np.where(pool.count[rows] > 0, CODE_OF["no_such_gpu"], CODE_OF["no_gpus"])
        return np.where(suited, lacking, without).astype(np.int8)


def times(free: Ints, each: Ints | int) -> Ints:
    """How often `each` goes into `free`; without end where it is nothing."""
    return np.where(np.equal(each, 0), np.where(free >= 0, UNBOUNDED, 0), np.maximum(free // np.maximum(each, 1), 0))


def barred(pool: Pool, shape: Shape, now: float) -> Codes:
    """Why each node is out of the question whatever its room (`room.excluded`), 0 where it is not. The group is left
    out: one pool is one group."""
    codes = np.zeros(len(pool), np.int8)

    def bar(code: str, out: Flags) -> None:
        codes[(codes == 0) & out] = CODE_OF[code]

    names = [node.name for node in pool.nodes] if shape.on_nodes or shape.not_nodes else []
    if shape.on_nodes:
        bar("other_node_asked_for", ~np.isin(names, shape.on_nodes))
    if shape.not_nodes:
        bar("node_excluded", np.isin(names, shape.not_nodes))
    for key, value in shape.on_labels:
        bar("label_missing", ~pool.labelled(key, value))
    bar("no_such_runtime", ~pool.offers(shape.runtime))
    bar("node_unreachable", pool.unreachable)
    bar("node_not_schedulable", pool.closed)
    bar("node_backing_off", pool.backoff_until > now)
    return codes
