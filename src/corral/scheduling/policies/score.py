"""The placement policies by name. Each is a `scorer.Scorer`; docs/scheduling.md describes them for users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from corral.scheduling.engine.pool import Floats, Pool, Rows
from corral.scheduling.policies.fragmentation import LeastFragmentation
from corral.scheduling.policies.scorer import Demand, PlacementPolicy, Scorer, fullness
from corral.scheduling.policies.topology import Topology
from corral.scheduling.snapshot import Shape

__all__ = ["PLACEMENTS", "Demand", "Pack", "PlacementPolicy", "RoundRobin", "Scorer", "Spread"]


class Pack(Scorer):
    """The fullest node first, judged by its scarcest resource, so that whole nodes stay free for large requests."""

    def score(self, rows: Rows | slice, shape: Shape) -> Floats:
        return fullness(self.pool, rows)


class Spread(Scorer):
    """The emptiest node first, judged by its scarcest resource, and the emptiest GPU for a share."""

    def score(self, rows: Rows | slice, shape: Shape) -> Floats:
        return -fullness(self.pool, rows)

    def device(self, row: int, columns: Sequence[int], shape: Shape) -> int:
        share, devices = self.pool.share_of(row), self.pool.devices[row]
        return min(columns, key=lambda column: (-share[column], devices[column].index))


class RoundRobin(Scorer):
    """Each node in turn, in name order, from the one after the last that was given a session, by whatever pass."""

    def __init__(self, pool: Pool, demand: Demand) -> None:
        super().__init__(pool, demand)
        self.begin()

    def begin(self) -> None:
        self.next_row: int | None = None

    def score(self, rows: Rows | slice, shape: Shape) -> Floats:
        return np.zeros(len(self.pool.room[rows]))

    def choose(self, scores: Floats, count: int) -> Sequence[int]:
        fitting = np.flatnonzero(scores > -np.inf)
        turn = int(np.searchsorted(fitting, self.pool.turn if self.next_row is None else self.next_row))
        chosen = np.roll(fitting, -turn)[:count].tolist()
        if len(chosen) == count:
            self.next_row = chosen[-1] + 1
        return chosen


PLACEMENTS: Mapping[str, PlacementPolicy] = {
    "pack": Pack,
    "spread": Spread,
    "round-robin": RoundRobin,
    "least-fragmentation": LeastFragmentation,
    "topology": Topology,
}
