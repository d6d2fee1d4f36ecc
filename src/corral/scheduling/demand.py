"""What is to be expected: those that wait, those that hold room, and those that did lately, by shape.

Policies that look ahead are told it anew only once it has become something else, since every score hangs on it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from corral.scheduling.snapshot import Running, Shape, Waiting

HALF_LIFE_S = 3600.0  # who gave its room back so long ago counts half
DRIFT = 0.1  # the part of the demand that may be of other shapes than what was told
LEAST = 0.01  # what has faded to less is forgotten
MOST_PAST = 4096  # shapes that are remembered of those that ran


def demand_of(waiting: Iterable[Waiting], running: Iterable[Running] = ()) -> Mapping[Shape, float]:
    """All that is known at one moment."""
    found = Counter(one.shape for one in waiting)
    found.update(one.shape for one in running)
    return dict(found)


class Expected:
    """Kept from pass to pass."""

    def __init__(self) -> None:
        self._holding: Counter[Shape] = Counter()
        self._past: dict[Shape, float] = {}
        self._faded_at = 0.0
        self._told: Mapping[Shape, float] = {}

    def holds_room(self, shape: Shape) -> None:
        self._holding[shape] += 1

    def gave_room_back(self, shape: Shape, *, is_over: bool) -> None:
        """`is_over`: it ended, or waits again; else it is only read again."""
        self._holding[shape] -= 1
        if not self._holding[shape]:
            del self._holding[shape]
        if is_over:
            self._past[shape] = self._past.get(shape, 0.0) + 1.0

    def of(self, waiting: Mapping[Shape, int], now: float) -> Mapping[Shape, float]:
        """The object that was given last time, unless what is to be expected has changed by more than `DRIFT`."""
        self._fade(now)
        found: dict[Shape, float] = dict(self._past)
        for counts in (self._holding, waiting):
            for shape, count in counts.items():
                found[shape] = found.get(shape, 0.0) + count
        if _apart(found, self._told) > DRIFT:
            self._told = found
        return self._told

    def _fade(self, now: float) -> None:
        kept = 2.0 ** -max(0.0, (now - self._faded_at) / HALF_LIFE_S) if self._past else 0.0
        faded = sorted(self._past.items(), key=lambda item: -item[1])[:MOST_PAST] if kept < 1.0 else self._past.items()
        self._past = {shape: weight * kept for shape, weight in faded if weight * kept >= LEAST}
        self._faded_at = now


def _apart(one: Mapping[Shape, float], other: Mapping[Shape, float]) -> float:
    """Which part of the one is of other shapes than the other is; 1 where one is empty and the other is not."""
    whole, whole_other = sum(one.values()), sum(other.values())
    if not whole or not whole_other:
        return float(whole != whole_other)
    gone = sum(abs(count / whole - other.get(shape, 0.0) / whole_other) for shape, count in one.items())
    gone += sum(count / whole_other for shape, count in other.items() if shape not in one)
    return gone / 2
