"""`topology`: ranks close to one another. Those of one node are together anyway; here it is which nodes and which GPUs.

Of links between GPUs nodes report nothing: those with neighbouring indices are taken for linked, in pairs, fours and
eights that begin at a multiple of their size, as boards and switches number them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

import numpy as np

from corral.scheduling.engine.pool import Floats, Pool, Rows
from corral.scheduling.policies.options import Kind, Option, Options
from corral.scheduling.policies.scorer import Demand, Scorer, best_of, fullness
from corral.scheduling.snapshot import Shape

RACK = "rack"
LARGEST_BLOCK = 64


class Topology(Scorer):
    """A session on several nodes gets nodes with one value of the label `rack`: of the racks with room for all of it,
    the one with the fewest nodes to spare; where no rack has, as few racks as will do. In a rack, and for a session on
    one node, the fullest node first. A node without the label is a rack of its own. Of several labels the nearest
    stands first: what fits into no rack is kept within one room, and so on. Several GPUs of one node are neighbours by
    index, and break up as few groups of neighbours as they can."""

    options: ClassVar[Options] = {
        "label": Option(Kind.LABELS, RACK, "labels whose equal values make nodes near; of several the nearest first")
    }

    def __init__(self, pool: Pool, demand: Demand, label: str = RACK) -> None:
        super().__init__(pool, demand)
        self._levels = label.split(",")

    def score(self, rows: Rows | slice, shape: Shape) -> Floats:
        return fullness(self.pool, rows)

    def choose(self, scores: Floats, count: int) -> Sequence[int]:
        if count == 1:
            return super().choose(scores, count)
        return self._near(best_of(scores, int((scores > -np.inf).sum())), count, self._levels)

    def _near(self, rows: Sequence[int], count: int, levels: Sequence[str]) -> list[int]:
        """So many of these rows, or all where there are fewer, from as few places of the farthest level as will do."""
        if not levels:
            return list(rows[:count])
        for depth, level in enumerate(levels):
            enough = [place for place in self._places(rows, level) if len(place) >= count]
            if enough:
                return self._near(min(enough, key=len), count, levels[:depth])
        chosen: list[int] = []
        places = self._places(rows, levels[-1])
        while places and len(chosen) < count:
            wanted = count - len(chosen)
            enough = [place for place in places if len(place) >= wanted]
            place = min(enough, key=len) if enough else max(places, key=len)
            places.remove(place)
            chosen += self._near(place, wanted, levels[:-1])
        return chosen

    def _places(self, rows: Sequence[int], level: str) -> list[list[int]]:
        """Rows by their value of a label, both in the order in which they come."""
        places: dict[str, list[int]] = {}
        for row in rows:
            node = self.pool.nodes[row]
            value = node.labels.get(level)
            places.setdefault(f"node {node.name}" if value is None else f"at {value}", []).append(row)
        return list(places.values())

    def devices(self, row: int, columns: Sequence[int], count: int) -> Sequence[int]:
        at = {self.pool.devices[row][column].index: column for column in columns}
        size = 1
        while size < count:
            size *= 2
        while size <= LARGEST_BLOCK:
            blocks: dict[int, list[int]] = {}
            for index in sorted(at):
                blocks.setdefault(index // size, []).append(index)
            enough = [block for block in blocks.values() if len(block) >= count]
            if enough:
                block = min(enough, key=lambda block: _broken_up(block[0], at, size))
                return [at[index] for index in _run(block, count)]
            size *= 2
        return columns[:count]


def _broken_up(first: int, idle: Iterable[int], size: int) -> tuple[int, ...]:
    """How many are idle in the group of this size that `first` is in, and in the larger ones around it."""
    sizes = [size]
    while sizes[-1] < LARGEST_BLOCK:
        sizes.append(2 * sizes[-1])
    return (*(sum(one // each == first // each for one in idle) for each in sizes), first)


def _run(indices: Sequence[int], count: int) -> Sequence[int]:
    """So many of these ascending indices, as near to one another as there are."""
    runs = [indices[start : start + count] for start in range(len(indices) - count + 1)]
    return min(runs, key=lambda run: run[-1] - run[0])
