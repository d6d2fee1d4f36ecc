"""What places hold of a pool, as arrays, kept while these very places are asked about again.

It never looks at what is free. A session that runs holds the same as long as it does, so a pass that asks about all of
them looks only those up that are new to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from corral.scheduling.places import RankPlace

MORE_KEPT = 2**16  # of those that were asked about once, beyond twice as many as are
Ints = NDArray[np.int64]
Rows = NDArray[np.intp]
Places = tuple[RankPlace, ...]


class Cells:
    """`look` says it of some places: positions in the flattened `Pool.room`, and amounts."""

    def __init__(self, look: Callable[[Iterable[RankPlace]], Iterable[tuple[int, int]]]) -> None:
        self._look = look
        self._forget()

    def _forget(self) -> None:
        self._numbers: dict[int, int] = {}  # by identity, which stays theirs as long as they are here:
        self._places: list[Places] = []
        self._begins: Ints = np.zeros(1, np.int64)  # of each one's in those that follow; the last is where they end
        self._at: Rows = np.zeros(0, np.intp)
        self._amounts: Ints = np.zeros(0, np.int64)

    def begin(self, many: int) -> None:
        """No number that was given so far is asked about any more, and so many are to come."""
        if len(self._places) > 2 * many + MORE_KEPT:
            self._forget()

    def numbers(self, many: Sequence[Places]) -> Rows:
        """A number for each of these, to ask by."""
        known = list(map(self._numbers.get, map(id, many)))
        if None in known:
            self._learn(many)
            known = list(map(self._numbers.get, map(id, many)))
        return np.array(known, np.intp)

    def of(self, numbers: Rows) -> tuple[Ints, Rows, Ints]:
        """How many cells each of these has; and the positions and the amounts of all those, one after another."""
        begins = self._begins.take(numbers)
        lengths = self._begins.take(numbers + 1) - begins
        before = lengths.cumsum() - lengths
        which: Rows = np.repeat(begins - before, lengths)
        which += np.arange(len(which))
        return lengths, self._at.take(which), self._amounts.take(which)

    def _learn(self, many: Sequence[Places]) -> None:
        found: list[tuple[int, int]] = []
        ends: list[int] = []
        for places in many:
            if id(places) not in self._numbers:
                self._numbers[id(places)] = len(self._places)
                self._places.append(places)
                found += self._look(places)
                ends.append(len(found))
        new = np.array(found, np.int64).reshape(-1, 2)
        self._begins = np.concatenate((self._begins, self._begins[-1] + np.array(ends, np.int64)))
        self._at = np.concatenate((self._at, new[:, 0]))
        self._amounts = np.concatenate((self._amounts, new[:, 1]))
