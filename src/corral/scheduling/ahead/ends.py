"""When those who run give their room back, as arrays: what will be free again of one pool of nodes by a given time.

Only ends that are known are in it. A pool that is kept remembers what of it each session holds (`engine.cells`), so
that a pass looks those up that are new, and has all the others in a few steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from corral.scheduling.engine.cells import Places
from corral.scheduling.engine.pool import Floats, Ints, Pool, Rows
from corral.scheduling.snapshot import Running

LATE_S = 60.0  # how long who has outlived its known end is given each time
TOO_LATE_S = 900.0  # who has outlived it by so much may never end: nothing is planned on that


def gives_back_at(one: Running, now_s: float) -> float | None:
    """When its room is free again, never in the past; None: nobody knows."""
    if one.ends_at is None or one.ends_at <= now_s - TOO_LATE_S:
        return None
    late_s = now_s - one.ends_at
    return one.ends_at if late_s < 0 else one.ends_at + LATE_S * (late_s // LATE_S + 1)


class Ends:
    """The known ends in one pool, by time."""

    def __init__(self, pool: Pool, running: Sequence[Running], now_s: float) -> None:
        pool.held.begin(len(running))
        times: Floats = np.array([one.ends_at for one in running], np.float64)  # one that nobody knows: not a number
        for index in np.flatnonzero(times <= now_s).tolist():
            times[index] = gives_back_at(running[index], now_s)
        known: Rows = np.flatnonzero(np.isfinite(times))
        self._pool = pool
        self._given: Floats = times[known]  # by the numbers of those who end then
        self._numbers: Rows = pool.held.numbers([one.ranks for one in running])[known]
        self._added: list[tuple[float, Places]] = []  # since all were put in order
        self._sort()

    def _sort(self) -> None:
        if self._added:
            times, held = zip(*self._added, strict=True)
            self._given = np.concatenate((self._given, times))
            self._numbers = np.concatenate((self._numbers, self._pool.held.numbers(held)))
            self._added.clear()
        order: Rows = np.argsort(self._given)  # in whatever order those of one moment
        self._times = self._given[order]
        lengths, self._cells, self._amounts = self._pool.held.of(self._numbers[order])
        self._upto = np.concatenate(([0], lengths.cumsum()))  # how many cells the first so many ends have

    def _fresh(self) -> None:
        if self._added:
            self._sort()

    def add(self, at_s: float, ranks: Places) -> None:
        """One more, which was not known before."""
        self._added.append((at_s, ranks))

    def at(self, index: int) -> float:
        return float(self._times[index])

    def count_by(self, at_s: float) -> int:
        """How many have ended by then."""
        self._fresh()
        return int(np.searchsorted(self._times, at_s, side="right"))

    def count_before(self, at_s: float) -> int:
        self._fresh()
        return int(np.searchsorted(self._times, at_s, side="left"))

    def freed(self, first: int, last: int) -> Ints:
        """What the ends from `first` up to `last` (not with it) give back, like `Pool.room`."""
        self._fresh()
        cells = slice(self._upto[first], self._upto[last])
        room = self._pool.room
        sums = np.bincount(self._cells[cells], self._amounts[cells], minlength=room.size)
        return sums.astype(np.int64).reshape(room.shape)
