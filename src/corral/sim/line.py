"""Everybody who waits: equal requests in one row, each row best first, read together in order or row by row."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field

from corral.scheduling.snapshot import Shape
from corral.sim.state import Run

Entry = tuple[tuple[float, ...], int, Run]
RowName = tuple[Shape, tuple[int, ...]]


@dataclass(slots=True)
class Line:
    """Rows by shape and, where a claim groups them, by that. A row is never empty."""

    rows: dict[RowName, list[Entry]] = field(default_factory=dict[RowName, list[Entry]])
    count: int = 0

    def add(self, key: tuple[float, ...], run: Run, group: tuple[int, ...] = ()) -> None:
        insort(self.rows.setdefault((run.job.shape, group), []), (key, run.ordinal, run))
        self.count += 1

    def remove(self, key: tuple[float, ...], run: Run, group: tuple[int, ...] = ()) -> None:
        name = run.job.shape, group
        row = self.rows[name]
        del row[bisect_left(row, (key, run.ordinal))]  # pyright: ignore[reportArgumentType]
        if not row:
            del self.rows[name]
        self.count -= 1

    def in_order(self) -> Iterator[Entry]:
        """Everybody, best first."""
        return heapq.merge(*self.rows.values())
