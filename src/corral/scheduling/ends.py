"""When those who run give their room back, as arrays: what will be free again of one pool of nodes by a given time.

Only ends that are known are in it. They are turned into arrays as far as they are asked for, soonest first, so that a
look at the next hour costs what ends in it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from corral.scheduling.places import RankPlace
from corral.scheduling.pool import Ints, Pool

CHUNK = 256


class End(NamedTuple):
    at_s: float
    number: int
    ranks: tuple[RankPlace, ...]


class Ends:
    """The known ends in one pool, by time."""

    def __init__(self, pool: Pool, ends: Iterable[tuple[float, tuple[RankPlace, ...]]]) -> None:
        self._pool = pool
        self._ends = sorted(End(at_s, number, ranks) for number, (at_s, ranks) in enumerate(ends))
        self._begin()

    def _begin(self) -> None:
        self._upto = [0]  # how many cells the first so many ends have
        self._cells: NDArray[np.intp] = np.zeros(0, np.intp)
        self._amounts: Ints = np.zeros(0, np.int64)

    def add(self, at_s: float, ranks: tuple[RankPlace, ...]) -> None:
        """One more, which was not known before."""
        insort(self._ends, End(at_s, len(self._ends), ranks))
        self._begin()

    def __len__(self) -> int:
        return len(self._ends)

    def at(self, index: int) -> float:
        return self._ends[index].at_s

    def count_by(self, at_s: float) -> int:
        """How many have ended by then."""
        return bisect_right(self._ends, at_s, key=_time_of)

    def count_before(self, at_s: float) -> int:
        return bisect_left(self._ends, at_s, key=_time_of)

    def freed(self, first: int, last: int) -> Ints:
        """What the ends from `first` up to `last` (not with it) give back, like `Pool.room`."""
        self._make(last)
        cells = slice(self._upto[first], self._upto[last])
        room = self._pool.room
        sums = np.bincount(self._cells[cells], self._amounts[cells], minlength=room.size)
        return sums.astype(np.int64).reshape(room.shape)

    def _make(self, count: int) -> None:
        made = len(self._upto) - 1
        if made >= count:
            return
        cells: list[int] = []
        amounts: list[int] = []
        before = self._upto[-1]
        for end in self._ends[made : max(count, made + CHUNK)]:
            for cell, amount in self._pool.cells(end.ranks):
                cells.append(cell)
                amounts.append(amount)
            self._upto.append(before + len(cells))
        self._cells = np.concatenate((self._cells, np.array(cells, np.intp)))
        self._amounts = np.concatenate((self._amounts, np.array(amounts, np.int64)))


def _time_of(end: End) -> float:
    return end.at_s
