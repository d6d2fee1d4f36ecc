"""`topology`: ranks close to one another. Those of one node are together anyway; here it is which nodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from corral.scheduling.policies.scorer import Demand, Scorer, best_of, fullness
from corral.scheduling.pool import Floats, Pool, Rows
from corral.scheduling.snapshot import Shape

RACK = "rack"


class Topology(Scorer):
    """A session on several nodes gets nodes with one value of the label `rack`: of the racks with room for all of it,
    the one with the fewest nodes to spare; where no rack has, as few racks as will do. In a rack, and for a session on
    one node, the fullest node first. A node without the label is a rack of its own."""

    def __init__(self, pool: Pool, demand: Demand, label: str = RACK) -> None:
        super().__init__(pool, demand)
        self._label = label

    def score(self, rows: Rows | slice, shape: Shape) -> Floats:
        return fullness(self.pool, rows)

    def choose(self, scores: Floats, count: int) -> Sequence[int]:
        if count == 1:
            return super().choose(scores, count)
        racks = self._racks(best_of(scores, int((scores > -np.inf).sum())))
        chosen: list[int] = []
        while racks and len(chosen) < count:
            wanted = count - len(chosen)
            enough = [rack for rack in racks if len(rack) >= wanted]
            rack = min(enough, key=len) if enough else max(racks, key=len)
            racks.remove(rack)
            chosen += rack[:wanted]
        return chosen

    def _racks(self, rows: Sequence[int]) -> list[list[int]]:
        """Rows by rack, both in the order in which they come."""
        racks: dict[str, list[int]] = {}
        for row in rows:
            node = self.pool.nodes[row]
            rack = node.labels.get(self._label)
            racks.setdefault(f"node {node.name}" if rack is None else f"rack {rack}", []).append(row)
        return list(racks.values())
