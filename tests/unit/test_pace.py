"""Looking at those who wait for others takes a small part of a manager's time, and none is forgotten."""

import math
from typing import Any, cast

from corral.ports import Reads
from corral.reconcile.dependencies import DECIDED_LIMIT, PART, Pace


class World:
    """A clock, and a look that takes as long as it is told."""

    def __init__(self) -> None:
        self.now = 100.0
        self.takes_s = 0.0
        self.looks = 0
        self.decided = ["a"]

    def mono(self) -> float:
        return self.now

    def decided_dependents(self, limit: int) -> list[str]:
        assert limit == DECIDED_LIMIT
        self.looks += 1
        self.now += self.takes_s
        return self.decided


def look(pace: Pace, world: World) -> list[str]:
    return pace.look(cast(Reads, cast(Any, world)))


def test_quick_looks_are_made_each_time() -> None:
    world = World()
    pace = Pace(world.mono)
    world.takes_s = 0.004
    assert [look(pace, world) for _ in range(5)] == [["a"]] * 5
    assert pace.until_due() == math.inf


def test_a_look_that_took_long_is_not_made_again_at_once_and_asks_for_its_turn() -> None:
    world = World()
    pace = Pace(world.mono)
    world.takes_s = 0.3
    assert look(pace, world) == ["a"]
    assert pace.until_due() == math.inf, "nothing was put off"
    world.now += 1
    assert look(pace, world) == [] and world.looks == 1
    assert 0 < pace.until_due() <= 0.3 / PART - 1
    world.now += pace.until_due()
    assert look(pace, world) == ["a"] and world.looks == 2
    assert pace.until_due() == math.inf
    began, busy = world.now, world.looks * 0.3
    while world.now < began + 600:
        look(pace, world)
        world.now += 0.05
    assert world.looks * 0.3 - busy < (world.now - began) * PART * 1.1


def test_while_more_are_decided_than_one_look_shows_nothing_is_put_off() -> None:
    world = World()
    pace = Pace(world.mono)
    world.takes_s, world.decided = 0.3, ["a"] * DECIDED_LIMIT
    assert [len(look(pace, world)) for _ in range(3)] == [DECIDED_LIMIT] * 3
