"""The room to come of one resource group: what is free now, what those who run give back, and what is promised.

`earliest` finds the first moment from which on a shape fits for as long as it may run; `promise` holds that room for
it. `left_until` is what a session that starts now may use so that no promise is broken and no reservation is run into.
It says what is possible; who is asked first and how much is promised is `heads`'.

Whatever changes what fits later is an end (more from then on) or a window (less from its start to its end). Between the
moments at which a window begins or ends to matter, what fits only grows: so each such segment is searched by halving.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from corral.model.resources import WHOLE_GPU_MILLI
from corral.scheduling.ahead.ends import Ends
from corral.scheduling.engine.pool import CPU, DEVICES, Flags, Ints, Pool, Rows
from corral.scheduling.engine.room import amounts_of
from corral.scheduling.engine.standing import Codes, Standing
from corral.scheduling.places import Grant, RankPlace


@dataclass(slots=True)
class Window:
    """Room of these rows that is not for everybody from then till then. `amounts` is like `Pool.room`; None: all of it.
    `freed` is what those rows get back by the start. `owner` is a session's id, or a reservation's."""

    owner: str
    starts_s: float
    ends_s: float
    rows: Rows
    amounts: Ints | None = None
    freed: Ints | None = None

    @property
    def whole(self) -> bool:
        return self.amounts is None


class Start(NamedTuple):
    """From when on it fits, and the ranks as they would be."""

    at_s: float
    ranks: tuple[RankPlace, ...]


class Outlook:
    """One pool's. Reads `pool.room` as it is now; a session that starts is told to `started`."""

    def __init__(self, pool: Pool, now_s: float, ends: Ends, windows: Iterable[Window] = ()) -> None:
        self.pool = pool
        self.now_s = now_s
        self.ends = ends
        self.windows = sorted(windows, key=lambda one: one.starts_s)

    def started(self, ranks: tuple[RankPlace, ...], ends_s: float) -> None:
        """It holds its room already; if its end is known, the room is free again then."""
        mine = tuple(rank for rank in ranks if rank.node in self.pool.row_of)
        if not mine or math.isinf(ends_s):
            return
        self.ends.add(ends_s, mine)
        later = [one for one in self.windows if one.starts_s >= ends_s]
        if not later:
            return
        rows, amounts = self._matrix(mine)
        for window in later:
            for row, amount in zip(rows.tolist(), amounts, strict=True):
                if window.freed is not None:
                    window.freed[window.rows == row] += amount

    def promise(self, owner: str, start: Start, length_s: float) -> None:
        """The room of a planned start is that session's from then on."""
        rows, amounts = self._matrix(start.ranks)
        freed = self.ends.freed(0, self.ends.count_by(start.at_s))[rows]
        self._add(Window(owner, start.at_s, start.at_s + length_s, rows, amounts, freed))

    def keep(self, owner: str, rows: Rows) -> None:
        """Nobody else starts on these nodes any more."""
        self._add(Window(owner, -math.inf, math.inf, rows))

    def forget(self, owner: str) -> None:
        """Nothing is promised to that one any more."""
        self.windows = [one for one in self.windows if one.owner != owner]

    def _add(self, window: Window) -> None:
        self.windows = sorted([*self.windows, window], key=lambda one: one.starts_s)

    def _matrix(self, ranks: Iterable[RankPlace]) -> tuple[Rows, Ints]:
        """The rows these are on, each once, and what they hold of each."""
        columns = self.pool.room.shape[1]
        held: dict[int, Ints] = {}
        for cell, amount in self.pool.cells(ranks):
            row, column = divmod(cell, columns)
            if row not in held:
                held[row] = np.zeros(columns, np.int64)
            held[row][column] += amount
        rows = np.array(sorted(held), np.intp)
        return rows, np.array([held[row] for row in sorted(held)], np.int64).reshape(len(rows), columns)

    # what somebody who starts now may use

    def left_until(self, ends_s: float, mine: Collection[str] = ()) -> tuple[Rows, Ints]:
        """The rows on which a session that starts now and ends then may not use all that is free, and how much less it
        may use. `mine` are windows that are for it."""
        met = [
            one for one in self.windows if one.starts_s < ends_s and one.ends_s > self.now_s and one.owner not in mine
        ]
        if not met:
            return np.zeros(0, np.intp), np.zeros((0, 0), np.int64)
        rows: Rows = np.unique(np.concatenate([one.rows for one in met]))
        place = self._places(rows)
        now = self.pool.room[rows]
        left = now.copy()
        for window in met:
            at = place[window.rows]
            left[at] = np.minimum(left[at], self.free_at_start(window, met))
        by = np.maximum(left, 0) - now
        less = by.any(axis=1)
        return rows[less], by[less]

    def judged(self, standing: Standing, rows: Rows, by: Ints) -> tuple[Codes, Codes]:
        """What a shape is answered on rows that show so much less than they have, and what it would be on all of it."""
        shown = standing.judge(rows.copy())
        self.pool.room[rows] -= by  # and back: nobody is told, since nothing changes
        try:
            return shown, standing.judge(rows.copy())
        finally:
            self.pool.room[rows] += by

    def blockers(self, rows: Rows, ends_s: float, mine: Collection[str] = ()) -> list[Window]:
        """The windows that are in the way of a session on these rows."""
        return [
            one
            for one in self.windows
            if one.starts_s < ends_s
            and one.ends_s > self.now_s
            and one.owner not in mine
            and np.isin(one.rows, rows).any()
        ]

    def _places(self, rows: Rows) -> Rows:
        place: Rows = np.full(len(self.pool), -1, np.intp)
        place[rows] = np.arange(len(rows))
        return place

    def free_at_start(self, window: Window, all_: Sequence[Window]) -> Ints:
        """What is free of a window's rows when it begins, beside everything that is promised then."""
        if window.whole or window.freed is None:
            return np.zeros((len(window.rows), self.pool.room.shape[1]), np.int64)
        free = self.pool.room[window.rows] + window.freed
        place = self._places(window.rows)
        for other in all_:
            if other.starts_s <= window.starts_s < other.ends_s:
                _subtract(free, place[other.rows], other)
        return free

    # when somebody who waits can start

    def earliest(
        self, standing: Standing, length_s: float, mine: Collection[str] = (), by_s: float = math.inf
    ) -> Start | None:
        """The first moment from which on all ranks fit for so long, by the ends that are known; None: there is none, or
        none `by_s`, after which nobody looks closely."""
        windows = [one for one in self.windows if one.owner not in mine and one.ends_s > self.now_s]
        free: dict[int, Ints] = {}
        for begin_s, end_s in _segments(self.now_s, windows, length_s):
            if begin_s > by_s:
                break
            low = self.ends.count_by(begin_s)
            base = self.ends.freed(0, low)
            at_once = _Segment(self, windows, begin_s, begin_s + length_s, free)
            if (start := self._start(standing, at_once.room(base), begin_s)) is not None:
                return start
            after = _Segment(self, windows, begin_s, math.nextafter(begin_s + length_s, math.inf), free)
            found = self._within(standing, after, base, low, self.ends.count_before(end_s))
            if found is not None:
                return found
        return None

    def holds(self, standing: Standing, start: Start, length_s: float, mine: Collection[str] = ()) -> bool:
        """Whether it can start there and then for so long, on the very same room."""
        rows, amounts = self._matrix(start.ranks)
        if len(rows) < len({rank.node for rank in start.ranks}) or not standing.bars.open[rows].all():
            return False
        windows = [one for one in self.windows if one.owner not in mine and one.ends_s > self.now_s]
        room = _Segment(self, windows, start.at_s, start.at_s + length_s, {}).room(
            self.ends.freed(0, self.ends.count_by(start.at_s))
        )
        return bool((room[rows] >= amounts).all())

    def _within(self, standing: Standing, segment: _Segment, base: Ints, low: int, high: int) -> Start | None:
        """The first of these ends with which it is enough, if it is with all of them."""
        if low == high or not self._enough(standing, segment.room(base + self.ends.freed(low, high))):
            return None
        while high - low > 1:
            middle = (low + high) // 2
            more = base + self.ends.freed(low, middle)
            if self._enough(standing, segment.room(more)):
                high = middle
            else:
                low, base = middle, more
        at_s = self.ends.at(high - 1)
        together = self.ends.count_by(at_s)
        return self._start(standing, segment.room(base + self.ends.freed(low, together)), at_s)

    def _fits(self, standing: Standing, room: Ints) -> Flags:
        return Standing(self.pool.with_room(room), standing.shape, standing.bars).fits(slice(None))

    def _enough(self, standing: Standing, room: Ints) -> bool:
        return int(self._fits(standing, room).sum()) >= standing.shape.nodes

    def _start(self, standing: Standing, room: Ints, at_s: float) -> Start | None:
        """On the nodes that have least free now, so that what is free is left to others."""
        rows = np.flatnonzero(self._fits(standing, room))
        if len(rows) < standing.shape.nodes:
            return None
        now = self.pool.room[rows]
        share = now[:, DEVICES : DEVICES + self.pool.width].sum(axis=1)
        chosen = rows[np.lexsort((rows, now[:, CPU], share))[: standing.shape.nodes]]
        trial = Standing(self.pool.with_room(room.copy()), standing.shape, standing.bars)
        return Start(at_s, tuple(rank for row in sorted(chosen.tolist()) for rank in self._ranks(trial, row)))

    def _ranks(self, trial: Standing, row: int) -> Iterator[RankPlace]:
        node, shape = self.pool.nodes[row], trial.shape
        for number in range(shape.ranks_per_node):
            grants = self._grants(trial, row)
            rank = RankPlace(node.name, node.epoch, node.run_id, *amounts_of(shape, node, number), grants)
            trial.pool.move((rank,), 1)
            yield rank

    def _grants(self, trial: Standing, row: int) -> tuple[Grant, ...]:
        """Devices that are least free now, for the same reason."""
        need, devices = trial.need, self.pool.devices[row]
        if need.gpus < 0:
            return ()
        free = self.pool.share_of(row)
        columns = sorted(trial.usable(row), key=lambda column: (free[column], column))
        if need.whole:
            return tuple(
                Grant(devices[column].uuid, WHOLE_GPU_MILLI, devices[column].capacity_mib)
                for column in columns[: need.gpus]
            )
        vram = int(need.vram_mib[self.pool.kind[row, columns[0]]])
        return (Grant(devices[columns[0]].uuid, need.share_milli, vram),)

    # where no end is known

    def could_ever(self, standing: Standing) -> bool:
        """Whether it would fit if nobody else were there."""
        return self._enough(standing, self.pool.full_room())

    def best_kept(self, standing: Standing, mine: Collection[str] = ()) -> Rows | None:
        """The nodes on which a shape would fit if they were empty, as many as it needs, those that are nearest to it
        first; None if there are not so many."""
        full = self.pool.full_room()
        for one in self.windows:
            if one.whole and one.owner not in mine:
                full[one.rows] = 0
        rows = np.flatnonzero(self._fits(standing, full))
        if len(rows) < standing.shape.nodes:
            return None
        near = _nearness(standing, rows)
        return np.sort(rows[np.lexsort((rows, -near))[: standing.shape.nodes]])


def _nearness(standing: Standing, rows: Rows) -> NDArray[np.float64]:
    """How much of what the shape needs on a node is free there, by the scarcest; it grows with every end there."""
    pool, need, shape = standing.pool, standing.need, standing.shape
    room, ranks = pool.room[rows], shape.ranks_per_node
    size = pool.size[rows]
    wanted = size if shape.exclusive else np.array([[need.cpu_milli * ranks, need.memory_mib * ranks]])
    near = (room[:, :DEVICES] / np.maximum(wanted, 1)).clip(0, 1).min(axis=1, where=wanted > 0, initial=1.0)
    if need.gpus < 0:
        return near
    _, share, vram = pool.columns(rows)
    suited = need.vram_mib[pool.kinds_of(rows)] < np.iinfo(np.int64).max // 4
    usable = (suited & (share >= need.share_milli) & (vram >= need.vram_mib[pool.kinds_of(rows)])).sum(axis=0)
    return np.minimum(near, (usable / (max(need.gpus, 1) * ranks)).clip(0, 1))


class _Segment:
    """A stretch of time in which the same windows are in the way of a start, whenever in it that is; `until_s` is when
    one that starts at its begin has ended. After its begin the same holds but for a window that begins just then.
    `free` remembers what is free at the start of each of these windows, from one stretch to the next."""

    def __init__(
        self, outlook: Outlook, windows: Sequence[Window], begin_s: float, until_s: float, free: dict[int, Ints]
    ) -> None:
        self._pool = outlook.pool
        self._held = [one for one in windows if one.starts_s <= begin_s < one.ends_s]
        later = [one for one in windows if begin_s < one.starts_s < until_s]
        for one in later:
            if id(one) not in free:
                free[id(one)] = outlook.free_at_start(one, windows)
        self._later = [(one.rows, free[id(one)]) for one in later]

    def room(self, freed: Ints) -> Ints:
        """What is free all the time of a session that starts when this is given back."""
        room = self._pool.room + freed
        for window in self._held:
            _subtract(room, window.rows, window)
        for rows, free in self._later:
            room[rows] = np.minimum(room[rows], free)
        return np.maximum(room, 0, out=room)


def _subtract(room: Ints, at: Rows, window: Window) -> None:
    """Take what a window holds from the rows at these places; -1 is none."""
    there = at >= 0
    if not there.any():
        return
    if window.amounts is None:
        room[at[there]] = 0
    else:
        room[at[there]] -= window.amounts[there]


def _segments(now_s: float, windows: Sequence[Window], length_s: float) -> Iterator[tuple[float, float]]:
    """From now on without end, cut wherever a window begins or ends to be in the way."""
    cuts = {now_s}
    for one in windows:
        cuts.update(at_s for at_s in (one.starts_s, one.ends_s, one.starts_s - length_s) if now_s < at_s < math.inf)
    ordered = sorted(cuts)
    yield from zip(ordered, [*ordered[1:], math.inf], strict=True)
