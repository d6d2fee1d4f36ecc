"""When those who run give their room back, as arrays: what will be free again of one pool of nodes by a given time.

Only ends that are known are in it. They are turned into arrays as far as they are asked for, soonest first, so that a
look at the next hour costs what ends in it; and a pool that is kept remembers what of it each one holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from corral.scheduling.engine.pool import Floats, Ints, Pool, Rows
from corral.scheduling.places import RankPlace

CHUNK = 256


class End(NamedTuple):
    at_s: float
    ranks: tuple[RankPlace, ...]


class Ends:
    """The known ends in one pool, by time."""

    def __init__(self, pool: Pool, ends: Sequence[End]) -> None:
        self._pool = pool
        self._ends = list(ends)
        self._stale = False
        self._sort()

    def _sort(self) -> None:
        times: Floats = np.array([one.at_s for one in self._ends], np.float64)
        self._order: Rows = np.argsort(times, kind="stable")
        self._times = times[self._order]
        self._upto: list[int] = [0]  # how many cells the first so many ends have
        self._cells: Ints = np.zeros(0, np.int64)
        self._amounts: Ints = np.zeros(0, np.int64)

    def _fresh(self) -> None:
        if self._stale:
            self._stale = False
            self._sort()

    def add(self, at_s: float, ranks: tuple[RankPlace, ...]) -> None:
        """One more, which was not known before."""
        self._ends.append(End(at_s, ranks))
        self._stale = True

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
        self._make(last)
        cells = slice(self._upto[first], self._upto[last])
        room = self._pool.room
        sums = np.bincount(self._cells[cells], self._amounts[cells], minlength=room.size)
        return sums.astype(np.int64).reshape(room.shape)

    def _make(self, count: int) -> None:
        made = len(self._upto) - 1
        if made >= count:
            return
        following: list[int] = self._order[made : max(count, made + CHUNK)].tolist()
        held = [self._pool.cells_of(self._ends[index].ranks).held for index in following]
        lengths: Ints = np.array([len(one) for one in held], np.int64)
        self._upto += (self._upto[-1] + np.cumsum(lengths)).tolist()
        whole = np.concatenate(held)
        self._cells = np.concatenate((self._cells, whole[:, 0]))
        self._amounts = np.concatenate((self._amounts, whole[:, 1]))
