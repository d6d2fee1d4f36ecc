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
from corral.scheduling.engine.pool import CPU, DEVICES, FEW, MEMORY, NO_DEVICE, Flags, Floats, Ints, Pool, Rows, number
from corral.scheduling.engine.room import MESSAGES, excluded
from corral.scheduling.snapshot import Shape

FITS = ""
CODES = (FITS, *MESSAGES)
CODE_OF = {code: number for number, code in enumerate(CODES)}
UNBOUNDED = 2**62  # more than any amount or number of ranks
Codes = NDArray[np.int8]


class Need(NamedTuple):
    """One rank's demand in a pool. `vram_mib` is what a device of each kind must have free; UNBOUNDED if unsuitable.
    `any_vram_mib` is the same where it is one amount for all kinds, and what is no device is told by its share."""

    cpu_milli: int
    memory_mib: int
    share_milli: int
    vram_mib: Ints
    gpus: int  # whole ones; 0 for a share; -1 for none
    any_vram_mib: Ints | None

    def vram_on(self, pool: Pool, rows: Rows | slice) -> Ints:
        """What each of these rows' devices must have free."""
        return self.vram_mib.take(pool.kinds_of(rows)) if self.any_vram_mib is None else self.any_vram_mib

    @property
    def whole(self) -> bool:
        return self.gpus > 0


def need_of(shape: Shape, pool: Pool) -> Need:
    gpu, cpu_milli, memory_mib = shape.resources.gpu, max(1, shape.resources.cpu_milli), shape.resources.memory_mib
    if gpu is None:
        return Need(cpu_milli, memory_mib, 0, np.zeros(0, np.int64), -1, None)
    vram = [vram_needed(gpu, model, arch, capacity) for model, arch, capacity in pool.kinds]
    vram[NO_DEVICE] = UNBOUNDED
    count = gpu.count if gpu.whole else 0
    amounts = set(vram[NO_DEVICE + 1 :])
    any_vram_mib = number(amounts.pop()) if len(amounts) == 1 and gpu.share_milli > 0 else None
    return Need(cpu_milli, memory_mib, gpu.share_milli, np.array(vram, np.int64), count, any_vram_mib)


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
        self._open()
        self._at = pool.bar_changes.stamp

    def _open(self) -> None:
        self.open: Flags = self.codes == 0
        self.all_open = bool(self.open.all())

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
        self._open()
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
        self._cpu, self._memory = number(self.need.cpu_milli), number(self.need.memory_mib)
        self._share = number(self.need.share_milli)
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
        return self.changed_and_fitting(stamp)[1]

    def changed_and_fitting(self, stamp: int) -> tuple[Rows | slice, Rows]:
        """The rows that changed since then, and those of them that fit; one and the same array if all do."""
        rows = self.pool.changed_since(stamp)
        if isinstance(rows, slice):
            return rows, np.flatnonzero(self.fits(rows))
        if self._simple and len(rows) <= FEW:
            changed: list[int] = rows.tolist()
            fitting = np.array([row for row in changed if self._code_of(row) == 0], np.intp)
        else:
            fitting = rows[self.fits(rows)]
        return rows, rows if len(fitting) == len(rows) else fitting

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
        room = self.pool.columns(rows)[0]
        fits = room[CPU] >= self._cpu
        fits &= room[MEMORY] >= self._memory
        if need.gpus >= 0:
            fits &= self._gpus_fit(rows)
        if not self.bars.all_open:
            fits &= self.bars.open[rows]
        return fits

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
        _, share, vram = pool.columns(rows)
        usable = share >= self._share
        usable &= vram >= need.vram_on(pool, rows)
        return np.logical_or.reduce(usable, axis=0) if need.gpus <= 1 else usable.sum(axis=0) >= need.gpus

    def vram_on(self, row: int, column: int) -> int:
        """What a rank holds of the memory of one device."""
        return self._vram[self.pool.kinds_on(row)[column]]

    def usable(self, row: int) -> list[int]:
        """The columns of one node with room enough for a rank's share, or for one of its whole GPUs."""
        pool, least, needed = self.pool, self.need.share_milli, self._vram
        room, memory = pool.room_of(row), DEVICES + pool.width
        free = zip(room[DEVICES:memory], room[memory:], pool.kinds_on(row), strict=True)
        return [column for column, (share, vram, kind) in enumerate(free) if share >= least and vram >= needed[kind]]

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
        need, room = self.need, self.pool.columns(rows)[0]
        codes = np.zeros(room.shape[1], np.int8)
        if need.gpus >= 0:
            codes[:] = np.where(self._gpus_fit(rows), 0, self._gpu_codes(rows))
        codes[room[MEMORY] < need.memory_mib] = CODE_OF["not_enough_memory"]
        codes[room[CPU] < need.cpu_milli] = CODE_OF["not_enough_cpus"]
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
        _, share, vram = pool.columns(rows)
        needed = need.vram_mib[pool.kinds_of(rows)]
        if need.whole:
            return ((share >= need.share_milli) & (vram >= needed)).sum(axis=0) // need.gpus
        each = np.minimum(times(share, need.share_milli), times(vram, needed))
        return np.minimum(each, self.shape.ranks_per_node).sum(axis=0)

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
