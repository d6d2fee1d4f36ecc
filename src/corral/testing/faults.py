"""What goes wrong in one seed, how often, and what did.

Swarm testing: each kind of fault is off in about a quarter of the seeds and has an intensity of its own in the others,
so that seeds differ in kind: one kind at its worst often finds what all of them together hide. It decides and counts;
it never carries a fault out. Next: `network.py`, `disk.py`, `trees.py` and the world's nemesis ask it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping

# The chance of each kind at intensity 1, per opportunity.
BASE_RATES: Mapping[str, float] = {
    "network.slow": 0.05,
    "network.late": 0.01,
    "network.drop_request": 0.04,
    "network.drop_reply": 0.04,
    "network.duplicate": 0.05,
    "network.reset": 0.02,
    "disk.slow": 0.01,
    "disk.full": 0.002,
    "disk.sync_error": 0.01,
    "process.crash_point": 1.0,
    "process.pause_at_point": 0.002,
    "tree.slow_death": 0.1,
}


class Faults:
    """`rates` adds kinds of the world's own to the table above, or changes a rate. `note`, when set, hears of each hit:
    give it `SimLoop.world_note` to have them in the trace."""

    OFF_IN = 0.25
    POINT_IS_HOT_IN = 0.3

    def __init__(self, seed: int | str, rates: Mapping[str, float] | None = None) -> None:
        self.seed = seed
        self.chance = random.Random(f"{seed}:faults")
        self.counts: Counter[str] = Counter()
        self.passes: Counter[str] = Counter()
        self.crashes: Counter[str] = Counter()
        self.reached: Counter[str] = Counter()
        self.note: Callable[[str], object] | None = None
        self.is_quiet = False
        self._point_rates: dict[str, float] = {}
        self._planned: dict[str, set[int]] = {}
        swarm = random.Random(f"{seed}:swarm")
        bases = {**BASE_RATES, **(rates or {})}
        self.rates = {kind: base * _intensity(swarm, self.OFF_IN) for kind, base in bases.items()}

    @classmethod
    def none(cls, seed: int | str = 0) -> Faults:
        """Nothing goes wrong but what is planned: for tests of one thing."""
        faults = cls(seed)
        faults.rates = dict.fromkeys(faults.rates, 0.0)
        return faults

    def hit(self, kind: str) -> bool:
        """Does this kind happen here? Counted when it does."""
        rate = self.rates[kind]
        if self.is_quiet or rate == 0.0 or self.chance.random() >= rate:
            return False
        self.counts[kind] += 1
        if self.note is not None:
            self.note(f"fault {kind}")
        return True

    def always(self, *kinds: str) -> None:
        for kind in kinds:
            self._known(kind)
            self.rates[kind] = 1.0

    def never(self, *kinds: str) -> None:
        for kind in kinds:
            self._known(kind)
            self.rates[kind] = 0.0

    def _known(self, kind: str) -> None:
        if kind not in self.rates:
            raise KeyError(f"no fault kind {kind!r}; there are {', '.join(sorted(self.rates))}")

    def span_s(self, longest_s: float) -> float:
        """How long a fault lasts: anything up to `longest_s`, mostly short."""
        return longest_s * self.chance.random() ** 2

    def quiet(self) -> None:
        """The heal phase: from here on nothing goes wrong by itself."""
        self.is_quiet = True

    # --- crash points

    def plan_crash(self, point: str, count: int = 1) -> None:
        """Die at the count-th pass of this point from now, as CORRAL_CRASH=point:count does in a real process."""
        self._planned.setdefault(point, set()).add(self.passes[point] + count)

    def crash(self, point: str) -> bool:
        """Does the process die at this pass? A seed makes some points hot and leaves the others alone."""
        self.passes[point] = passed = self.passes[point] + 1
        planned = self._planned.get(point)
        dies = planned is not None and passed in planned
        if not dies and not self.is_quiet:
            rate = self._point_rates.get(point)
            if rate is None:
                rate = self._point_rates[point] = self._draw_point_rate()
            dies = rate > 0.0 and self.chance.random() < rate
        if dies:
            self.crashes[point] += 1
            self.counts["process.crash_point"] += 1
        return dies

    def _draw_point_rate(self) -> float:
        overall = self.rates["process.crash_point"]
        if overall == 0.0 or self.chance.random() >= self.POINT_IS_HOT_IN:
            return 0.0
        return min(0.5, overall * self.chance.choice((0.003, 0.02, 0.1)))


def _intensity(swarm: random.Random, off_in: float) -> float:
    if swarm.random() < off_in:
        return 0.0
    return swarm.choice((0.3, 1.0, 3.0))
