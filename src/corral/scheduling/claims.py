"""Preemptive orders: how strong a session's claim to run is, from what it has had and, if one knows it, what is left.

A claim's `rank` is the same for all sessions of one size and level of attained service, and may change as the claim
learns; its `key` orders sessions of one rank. The smallest is the best claim. By running on a session reaches the next
level, and nobody needs to look before. `contention` turns claims into stops and starts.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

Key = tuple[float, ...]
SOON_S = 1e-6  # a level that is so near is reached: sums of times are not exact


class Served(NamedTuple):
    """One session as a claim sees it. `attained_s` is the time it held its GPUs, `left_s` what is left of its known
    run time (infinity: nobody knows), `weight` its GPUs."""

    ordinal: int
    weight: float
    attained_s: float
    left_s: float
    running: bool


class Claim(Protocol):
    @property
    def knows_run_times(self) -> bool: ...

    def level(self, one: Served) -> int: ...

    def rank(self, weight: float, family: int, level: int, running: bool) -> float: ...

    def key(self, one: Served) -> Key: ...

    def next_level_s(self, one: Served) -> float:
        """Seconds of running until its level changes; infinity if it never does."""
        ...

    def left_level(self, weight: float, family: int, level: int, ended: bool) -> None:
        """A session ended on this level, or went on to the next: something to learn from."""
        ...


@dataclass(frozen=True, slots=True)
class ShortestRemaining:
    """The least time left first (SRTF); `by_service` counts time x GPUs (SRSF)."""

    by_service: bool = False
    knows_run_times: bool = True

    def level(self, one: Served) -> int:
        return 0

    def rank(self, weight: float, family: int, level: int, running: bool) -> float:
        return 0.0

    def key(self, one: Served) -> Key:
        return (one.left_s * (one.weight if self.by_service else 1.0), not one.running, one.ordinal)

    def next_level_s(self, one: Served) -> float:
        return math.inf

    def left_level(self, weight: float, family: int, level: int, ended: bool) -> None:
        pass


@dataclass(frozen=True, slots=True)
class LeastAttained:
    """Queues by attained service in GPU-seconds; within one who runs stays, then the oldest. With the bounds of
    Tiresias (Gu et al., NSDI '19) this is its discretized two-dimensional LAS, which knows no run times."""

    bounds: Sequence[float] = (3250.0, 7200.0)
    knows_run_times: bool = False

    def level(self, one: Served) -> int:
        return bisect_right(self.bounds, (one.attained_s + SOON_S) * one.weight)

    def rank(self, weight: float, family: int, level: int, running: bool) -> float:
        return level

    def key(self, one: Served) -> Key:
        return (not one.running, one.ordinal)

    def next_level_s(self, one: Served) -> float:
        level = self.level(one)
        return math.inf if level == len(self.bounds) else self.bounds[level] / one.weight - one.attained_s

    def left_level(self, weight: float, family: int, level: int, ended: bool) -> None:
        pass


@dataclass(slots=True)
class Learned:
    """The best ratio of sessions ended to GPU-seconds spent, by what sessions like it did before: Gittins' index over
    distributions that are learned as it goes. Knows no run time of anybody who has not ended.

    Levels grow by `growth`, the first ends at `first_s`. Of each level it counts who ended on it and who went beyond:
    for all sessions, for those of one size, and for those of one family (equal requests submitted together, such as the
    members of a sweep). Each leans on the one before it as if on `trust` sessions, and the first on `prior`, the part
    of sessions that end before their run time doubles. One that runs keeps its place against claims less than `stay`
    times better. What was learned reaches everybody's rank after `forget_after` lessons at the latest.
    """

    first_s: float = 60.0
    growth: float = 2.0
    levels: int = 17
    prior: float = 0.3
    trust: Sequence[float] = (10.0, 10.0, 1.0)
    stay: float = 2.0
    power: float = 1.0
    forget_after: int = 20
    knows_run_times: bool = False
    _counts: dict[tuple[float, ...], list[tuple[float, float]]] = field(
        default_factory=dict[tuple[float, ...], list[tuple[float, float]]]
    )
    _ranks: dict[tuple[float, ...], list[float]] = field(default_factory=dict[tuple[float, ...], list[float]])
    _learned: int = 0

    def level(self, one: Served) -> int:
        if one.attained_s + SOON_S < self.first_s:
            return 0
        level = 1 + int(math.log((one.attained_s + SOON_S) / self.first_s, self.growth) + 1e-12)
        return min(level, self.levels - 1)

    def rank(self, weight: float, family: int, level: int, running: bool) -> float:
        found = self._ranks.get((weight, family))
        if found is None:
            found = self._ranks[weight, family] = self._ranks_of(weight, family)
        return found[level] / (self.stay if running else 1.0)

    def key(self, one: Served) -> Key:
        return (not one.running, one.ordinal)

    def next_level_s(self, one: Served) -> float:
        level = self.level(one)
        return math.inf if level == self.levels - 1 else self._bound(level) - one.attained_s

    def _bound(self, level: int) -> float:
        return self.first_s * self.growth**level

    def left_level(self, weight: float, family: int, level: int, ended: bool) -> None:
        for kin in kin_of(weight, family):
            row = self._counts.setdefault(kin, [(0.0, 0.0)] * self.levels)
            done, more = row[level]
            row[level] = (done + ended, more + (not ended))
        self._ranks.pop((weight, family), None)
        self._learned += 1
        if self._learned % self.forget_after == 0:
            self._ranks.clear()

    def _hazards(self, weight: float, family: int) -> list[float]:
        """Of those who reach each level, the part that ends on it."""
        nothing = [(0.0, 0.0)] * self.levels
        hazards = [1 - (1 - self.prior) ** math.log2(self.growth)] * self.levels
        for kin, trust in zip(kin_of(weight, family), self.trust, strict=True):
            counts = self._counts.get(kin, nothing)
            hazards = [
                (done + trust * before) / (done + more + trust)
                for (done, more), before in zip(counts, hazards, strict=True)
            ]
        return hazards

    def _ranks_of(self, weight: float, family: int) -> list[float]:
        hazards = self._hazards(weight, family)
        bounds = [0.0, *(self._bound(level) for level in range(self.levels))]
        ranks: list[float] = []
        for level in range(self.levels):
            alive, spent, ended, best = 1.0, 0.0, 0.0, 0.0
            for later in range(level, self.levels):
                spent += alive * (bounds[later + 1] - bounds[later]) * (1 - hazards[later] / 2)
                ended += alive * hazards[later]
                alive *= 1 - hazards[later]
                best = max(best, ended / spent)
            ranks.append(max(weight, 1e-3) ** self.power / max(best, 1e-12))
        return ranks


def kin_of(weight: float, family: int) -> tuple[tuple[float, ...], ...]:
    """Whom a session is like: from everybody to the nearest."""
    return (), (weight,), (weight, float(family))
