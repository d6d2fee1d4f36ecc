"""A claim from what others took: sessions of one size that were submitted side by side run alike.

How long a session still takes is not known. What is known is how long its neighbours ran, or have run so far, and how
long all of its size did. From these comes a chance to end within each stretch of time, given what it has had already;
its claim is the best ratio of that chance to the time it takes to find out (Gittins' index), the better the fewer GPUs
it holds meanwhile. One that runs counts as if it had so much less to go (`stays`), so that nobody stops for little.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from corral.scheduling.claiming.claims import LEAST_WEIGHT, Key, Served

GRID_S = tuple(30.0 * 2**power for power in range(17))  # run times of which none is known are as likely in each
LOOK_S, LOOK_PART = 120.0, 0.1
NOBODY_KNOWS = 1e12


class Seen(Protocol):
    """One session as it comes and goes."""

    @property
    def ordinal(self) -> int: ...

    @property
    def size(self) -> float: ...

    @property
    def is_over(self) -> bool: ...

    def attained_at(self, now_s: float) -> float: ...


@dataclass(slots=True)
class _Row:
    """All of one size, in submit order; how many of those that ended took so long, by `GRID_S`."""

    members: list[Seen] = field(default_factory=list[Seen])
    ended: list[int] = field(default_factory=lambda: [0] * len(GRID_S))
    count: int = 0


class Learning:
    """`reach` neighbours on each side are looked at; the next one counts 1, the one behind it 1/e to the power of
    1/`fades`, and so on. All that ended together count `history`, what nobody knows `doubt` for each run time of the
    grid. `late`: one that ended so much earlier than this one has run still says something. `first_s` is what a stretch
    costs beside its time. The GPUs count to the power of `width`."""

    knows_run_times = False

    def __init__(
        self,
        *,
        reach: int = 16,
        fades: float = 1.0,
        history: float = 0.3,
        doubt: float = 0.03 / 8,
        late: float = 0.6,
        first_s: float = 60.0,
        width: float = 0.5,
        stays: float = 0.5,
    ) -> None:
        self.now_s = 0.0
        self._reach = reach
        self._weights = [math.exp(-distance / fades) for distance in range(reach)]
        self._history = history
        self._doubt = doubt
        self._late = late
        self._first_s = first_s
        self._width = width
        self._stays = stays
        self._rows: dict[float, _Row] = {}

    def came(self, one: Seen) -> None:
        """It was submitted, later than all before it; or it waits again."""
        members = self._rows.setdefault(one.size, _Row()).members
        if not members or members[-1].ordinal < one.ordinal:
            members.append(one)

    def ended(self, one: Seen, now_s: float) -> Sequence[Seen]:
        """It is over: those of whom something else is to be thought now."""
        row = self._rows[one.size]
        row.ended[min(len(GRID_S) - 1, bisect_left(GRID_S, one.attained_at(now_s)))] += 1
        row.count += 1
        place = _place_of(row, one.ordinal)
        near = row.members[max(0, place - self._reach) : place + self._reach + 1]
        return [other for other in near if not other.is_over and other is not one]

    def key(self, one: Served) -> Key:
        if one.overdue:
            return (0.0, one.ordinal)
        weight = max(one.weight, LEAST_WEIGHT) ** self._width
        cost = self._cost(one) * weight * (self._stays if one.running else 1.0)
        return (cost, -one.ordinal)

    def weaker_after_s(self, one: Served) -> float:
        """What is thought of it changes as it goes on, in either direction; it is looked at again after a while."""
        return max(LOOK_S, LOOK_PART * one.attained_s)

    def _cost(self, one: Served) -> float:
        """Seconds that it takes on average until one like it has ended, in the stretch of time where that is least."""
        points = self._points(one)
        points.sort()
        at_risk = sum(weight for _, weight, _ in points)
        going_on, spent_s, before_s, best = 1.0, 0.0, 0.0, 0.0
        for after_s, weight, ends in points:
            spent_s += going_on * (after_s - before_s)
            before_s = after_s
            if ends and at_risk > 0:
                going_on *= max(0.0, 1.0 - weight / at_risk)
            at_risk -= weight
            best = max(best, (1.0 - going_on) / (spent_s + self._first_s))
        return 1.0 / best if best > 0 else NOBODY_KNOWS

    def _points(self, one: Served) -> list[tuple[float, float, bool]]:
        """After how much more time one like it ended, or was still going on; and how much that counts."""
        row = self._rows[one.weight]
        had_s, place = one.attained_s, _place_of(row, one.ordinal)
        points: list[tuple[float, float, bool]] = []
        for distance, weight in enumerate(self._weights, 1):
            for other in (place - distance, place + distance):
                if 0 <= other < len(row.members):
                    self._add(points, row.members[other], weight, had_s)
        for number, run_s in enumerate(GRID_S):
            if run_s > had_s:
                known = self._history * row.ended[number] / row.count if row.count else 0.0
                points.append((run_s - had_s, self._doubt + known, True))
        return points

    def _add(self, points: list[tuple[float, float, bool]], other: Seen, weight: float, had_s: float) -> None:
        run_s = other.attained_at(self.now_s)
        if other.is_over:
            if run_s > had_s:
                points.append((run_s - had_s, weight, True))
            elif self._late and run_s > had_s / (1.0 + self._late):
                points.append((max(60.0, had_s * self._late), weight, True))
        elif run_s > had_s + 1.0:
            points.append((run_s - had_s, weight, False))


def _place_of(row: _Row, ordinal: int) -> int:
    return bisect_left(row.members, ordinal, key=_ordinal)


def _ordinal(one: Seen) -> int:
    return one.ordinal
