"""Everybody who waits: equal requests in one row, each row best first, read together in order or row by row."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field

from corral.scheduling.snapshot import Shape
from corral.sim.state import Run

Entry = tuple[tuple[float, ...], int, Run]


@dataclass(slots=True)
class Line:
    """Rows by shape. A row is never empty."""

    rows: dict[Shape, list[Entry]] = field(default_factory=dict[Shape, list[Entry]])
    count: int = 0

    def add(self, key: tuple[float, ...], run: Run) -> None:
        insort(self.rows.setdefault(run.job.shape, []), (key, run.ordinal, run))
        self.count += 1

    def remove(self, key: tuple[float, ...], run: Run) -> None:
        row = self.rows[run.job.shape]
        del row[bisect_left(row, (key, run.ordinal))]  # pyright: ignore[reportArgumentType]
        if not row:
            del self.rows[run.job.shape]
        self.count -= 1

    def in_order(self) -> Iterator[Entry]:
        """Everybody, best first."""
        return heapq.merge(*self.rows.values())
