"""Preemptive orders: how strong a session's claim to run is, from what it has had and, if one knows it, what is left.

The smallest key is the best claim. A waiting session's key stays as it is; by running on a session may reach a weaker
one, and nobody needs to look before. `contention` turns claims into stops and starts.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

Key = tuple[float, ...]
SOON_S = 1e-6  # a bound that is so near is reached: sums of times are not exact
LEAST_WEIGHT = 1e-3


class Served(NamedTuple):
    """One session as a claim sees it. `attained_s` is the time it held its GPUs, `left_s` what is left of its run time
    (infinity: nobody knows), `weight` its GPUs; `overdue`: it has waited longer than anybody should."""

    ordinal: int
    weight: float
    attained_s: float
    left_s: float
    running: bool
    overdue: bool = False


class Claim(Protocol):
    @property
    def knows_run_times(self) -> bool: ...

    def key(self, one: Served) -> Key: ...

    def weaker_after_s(self, one: Served) -> float:
        """Seconds of running until its claim is weaker; infinity if it never is."""
        ...


@dataclass(frozen=True, slots=True)
class ShortestRemaining:
    """The least time left first (SRTF); `by_service` counts time x GPUs (SRSF)."""

    by_service: bool = False
    knows_run_times: bool = True

    def key(self, one: Served) -> Key:
        return (one.left_s * (one.weight if self.by_service else 1.0), not one.running, one.ordinal)

    def weaker_after_s(self, one: Served) -> float:
        return math.inf


@dataclass(frozen=True, slots=True)
class LeastAttained:
    """Queues by attained service in GPU-seconds; within one who runs stays, then the oldest, or the newest. With the
    bounds below and the oldest first it is Tiresias' discretized two-dimensional LAS (Gu et al., NSDI '19).

    The newest first is better on average where run times are spread widely and what is submitted together runs alike:
    who is next to finish is rarely among those that wait for long. So that nobody waits for ever, who is overdue is
    the first of its queue, the oldest of them foremost.
    """

    bounds: Sequence[float] = (3250.0, 7200.0)
    newest_first: bool = False
    knows_run_times: bool = False

    def key(self, one: Served) -> Key:
        newest = self.newest_first and not one.overdue
        return (self._queue(one), not one.overdue, not one.running, -one.ordinal if newest else one.ordinal)

    def _queue(self, one: Served) -> int:
        return bisect_right(self.bounds, (one.attained_s + SOON_S) * max(one.weight, LEAST_WEIGHT))

    def weaker_after_s(self, one: Served) -> float:
        queue = self._queue(one)
        if queue == len(self.bounds):
            return math.inf
        return self.bounds[queue] / max(one.weight, LEAST_WEIGHT) - one.attained_s
