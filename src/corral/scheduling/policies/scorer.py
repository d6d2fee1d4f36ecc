"""What a placement policy is: it ranks the nodes that fit. One class each, bound to one pool of nodes.

To write one, subclass `Scorer` and say `score`; the policy is the class itself (or anything else that makes a `Scorer`
of a pool and the demand on it). It ranks, it never refuses: what does not fit has been sorted out before.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import numpy as np

from corral.model.resources import WHOLE_GPU_MILLI
from corral.scheduling.engine.pool import FEW, Floats, Pool, Rows
from corral.scheduling.snapshot import Shape

Demand = Mapping[Shape, float]


class Scorer(ABC):
    """A placement policy at work on one pool.

    `score` is asked for the rows that changed since it was last asked, so a row's score may hang on nothing but that
    row's own room and the shape; on the shape only where `by_shape` says so. Scores must be finite; of equal scores the
    node first by name wins, unless `choose` says otherwise. `demand` is how much each shape counts among those that
    are to be expected.
    """

    by_shape: ClassVar[bool] = False
    looks_ahead: ClassVar[bool] = False  # at the demand
    may_fail: ClassVar[bool] = False  # and then scores nothing, whatever fits

    def __init__(self, pool: Pool, demand: Demand) -> None:
        self.pool = pool

    def begin(self) -> None:
        """A pass begins: of a manager's own policies one scorer goes on from pass to pass."""
        return

    @abstractmethod
    def score(self, rows: Rows | slice, shape: Shape) -> Floats:
        """How good each of these rows is for the shape, as its room is now; higher is better."""

    def choose(self, scores: Floats, count: int) -> Sequence[int]:
        """The `count` rows to take, best first; fewer where fewer fit (-inf does not fit). Where some nodes are
        preferred it is asked about these first, and then about the others for what is left."""
        if count == 1:
            best = int(scores.argmax())
            return (best,) if scores[best] > -np.inf else ()
        return best_of(scores, count)

    def device(self, row: int, columns: Sequence[int], shape: Shape) -> int:
        """Which of the devices (columns) with room for a share gets it."""
        return tightest(self.pool, row, columns)

    def devices(self, row: int, columns: Sequence[int], count: int) -> Sequence[int]:
        """Which of the idle devices (columns) a rank gets that asks for so many."""
        return columns[:count]


PlacementPolicy = Callable[[Pool, Demand], Scorer]


def best_of(scores: Floats, count: int) -> list[int]:
    fitting = np.flatnonzero(scores > -np.inf)
    return fitting[np.argsort(-scores[fitting], kind="stable")[:count]].tolist()


def tightest(pool: Pool, row: int, columns: Sequence[int]) -> int:
    """The device with the least share left that has enough, so that whole devices stay whole; of equals the lowest
    index."""
    share, devices = pool.share_of(row), pool.devices[row]
    return min(columns, key=lambda column: (share[column], devices[column].index))


def fullness(pool: Pool, rows: Rows | slice) -> Floats:
    """The used fraction of each node's scarcest resource: CPUs, memory, or its GPUs together."""
    if isinstance(rows, np.ndarray) and len(rows) <= FEW:
        return np.array([_fullness_of(pool, row) for row in rows.tolist()], np.float64)
    room, share, _ = pool.columns(rows)
    size = pool.size[rows].T
    full = (1 - np.divide(room, size, out=np.zeros(size.shape), where=size != 0)).max(axis=0)
    whole = WHOLE_GPU_MILLI * pool.count[rows]
    shares = np.divide(whole - share.sum(axis=0), whole, out=np.zeros(len(full)), where=whole != 0)
    return np.where(whole != 0, np.maximum(full, shares), full)


def _fullness_of(pool: Pool, row: int) -> float:
    """The same of one node: arrays do not pay for so few."""
    cpu_free, memory_free, *rest = pool.room_of(row)
    cpu, memory = pool.size[row].tolist()
    full = max(1 - cpu_free / cpu if cpu else 1.0, 1 - memory_free / memory if memory else 1.0)
    whole = WHOLE_GPU_MILLI * len(pool.devices[row])
    return max(full, (whole - sum(rest[: pool.width])) / whole) if whole else full
