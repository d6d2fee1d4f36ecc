"""What the parts of one simulated world share: the loop, the network, the database, the truth, and how processes begin.

It knows no rule and no fault. Next: `world.py` makes it; nodes, managers and users stand on it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from corral.testing.checkers import Checkers
from corral.testing.faults import Faults
from corral.testing.network import SimNetwork
from corral.testing.process import HostClock, SimProcess
from corral.testing.sim_store import SimDatabase
from corral.testing.simloop import SimLoop
from corral.testing.trees import GroundTruth


@dataclass(frozen=True, slots=True)
class Focus:
    """What to look at instead of what a seed draws: these kinds of the nemesis, faults at these rates, for so long."""

    kinds: tuple[str, ...] = ()
    rates: tuple[tuple[str, float], ...] = ()
    chaos_s: float | None = None
    pace_s: float | None = None
    nodes: int | None = None
    jobs_last_s: float | None = None
    jobs_die_in_s: float | None = None  # when they are killed; they heed nothing else
    sessions: int | None = None
    preempting: bool | None = None  # None: as the seed has it
    limited: bool | None = None  # by quotas that change
    reserved: bool | None = None  # now and then, all nodes or one
    moving: bool | None = None  # by an operator who defragments, where sessions may be stopped for others; True: much
    steered: bool | None = None  # by an operator who changes, pauses, makes and deletes groups


@dataclass(frozen=True, slots=True)
class Size:
    """How large one seed's world is, and for how long it suffers."""

    managers: int
    nodes: int
    users: int
    sessions: int
    chaos_s: float
    disk_step_s: float
    store_step_s: float
    skew_s: float

    @classmethod
    def draw(cls, chance: random.Random) -> Size:
        return cls(
            managers=chance.choice((1, 2, 2, 3)),
            nodes=chance.choice((1, 2, 2, 3, 4)),
            users=chance.choice((1, 2)),
            sessions=chance.choice((1, 2, 4, 6)),
            chaos_s=chance.choice((15.0, 30.0, 30.0, 60.0)),
            disk_step_s=chance.choice((0.0, 0.005, 0.02)),
            store_step_s=chance.choice((0.002, 0.01, 0.05)),
            skew_s=chance.choice((0.0, 0.0, 3600.0)),
        )


class Site:
    def __init__(
        self, seed: int, size: Size, focus: Focus, chance: random.Random, loop: SimLoop, faults: Faults
    ) -> None:
        self.seed = seed
        self.size = size
        self.focus = focus
        self.chance = chance
        self.loop = loop
        self.faults = faults
        self.network = SimNetwork(loop, faults)
        self.truth = GroundTruth(loop)
        self.database = SimDatabase(loop, faults, size.store_step_s)
        self.checkers = Checkers(loop, self.database, self.truth, seed)
        self.manager_names: list[str] = [f"m{number}" for number in range(size.managers)]
        self.preempting = random.Random(f"{seed}:preempting").random() < 0.4
        if focus.preempting is not None:
            self.preempting = focus.preempting
        self._incarnations: Counter[str] = Counter()
        self._clocks: dict[str, HostClock] = {}

    def options(self) -> dict[str, Any]:
        """Those of the nodes' group: sessions may be stopped for others soon and more than once."""
        chance = random.Random(f"{self.seed}:options")
        return {
            "backfill": chance.choice(("none", "easy")),
            "preemption": chance.choice(("priority", "priority", "fair-share")),
            "preemption_min_runtime": chance.choice((0.0, 0.5, 5.0)),
            "preemption_budget": chance.choice((1, 2, 5)),
        }

    def process(self, name: str, clock: HostClock | None = None) -> SimProcess:
        """The next incarnation of a process, on its machine's clock."""
        self._incarnations[name] += 1
        if clock is None:
            clock = self._clocks.get(name)
        if clock is None:
            clock = self._clocks[name] = self.clock()
        return SimProcess(self.loop, self.faults, name, self._incarnations[name], clock)

    def clock(self) -> HostClock:
        """A machine's clocks: a wall clock that may be hours wrong, a monotonic one that drifts by a little."""
        skew_s = self.size.skew_s * (2 * self.chance.random() - 1)
        return HostClock(self.loop, skew_s, 1.0 + 0.01 * (2 * self.chance.random() - 1))

    def later(self, longest_s: float, act: Callable[[], object]) -> None:
        """A timer of the world, mostly soon."""
        self.loop.at(0.05 + longest_s * self.chance.random() ** 2, act)

    async def sleep(self, seconds: float) -> None:
        """For the world's own coroutines."""
        done = self.loop.create_future()
        self.loop.at(seconds, done.set_result, None)
        await done
