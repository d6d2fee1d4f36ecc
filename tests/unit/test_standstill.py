"""A policy that keeps the manager is named, by a thread beside it."""

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from corral.model.node import ResourceGroup
from corral.scheduling.cycle import cycle
from corral.scheduling.policies.atwork import AT_WORK
from corral.scheduling.policies.order import OrderPolicy, OrderView, Turns
from corral.scheduling.policies.registry import PolicyKind, offer, withdraw
from corral.scheduling.policies.score import Pack
from corral.scheduling.snapshot import Snapshot
from corral.standstill import PolicyWatch
from tests.unit.test_order import a_snapshot, one

seen: list[str | None] = []


def noting(view: OrderView) -> Turns:
    seen.append(AT_WORK.name)
    for waiting in view.waiting:
        seen.append(AT_WORK.name)
        yield waiting


class Noting(Pack):
    def choose(self, scores, count):
        seen.append(AT_WORK.name)
        return super().choose(scores, count)


@pytest.fixture
def strangers() -> Iterator[Snapshot]:
    offer(PolicyKind.ORDER, "noting", lambda: OrderPolicy("noting", noting, "Notes who is at work."))
    offer(PolicyKind.PLACEMENT, "noting", lambda: Noting)
    seen.clear()
    snapshot = a_snapshot([one(1), one(2)], ResourceGroup("default", "noting", "noting"))
    yield snapshot
    withdraw(PolicyKind.ORDER, "noting")
    withdraw(PolicyKind.PLACEMENT, "noting")


def test_whoever_has_the_word_is_named_and_corrals_own_are_not(strangers: Snapshot) -> None:
    assert len(cycle(strangers).placements) == 2
    assert set(seen) == {"order policy noting of group default", "placement policy noting of group default"}
    assert AT_WORK.name is None
    cycle(replace(strangers, groups={"default": ResourceGroup("default", "fifo", "noting")}))
    assert AT_WORK.name is None


def test_what_lasts_is_told_once_and_when_it_has_doubled() -> None:
    now, told = [0.0], list[tuple[str, float]]()
    watch = PolicyWatch(lambda: now[0], lambda name, seconds: told.append((name, seconds)))
    AT_WORK.passes += 1
    for second in range(30):
        now[0] = float(second)
        AT_WORK.name = None if second % 7 == 3 else "mine"  # it answered meanwhile, in the same pass
        watch.look()
    assert told == [("mine", 5.0), ("mine", 11.0), ("mine", 22.0)]
    assert watch.slowest == {"mine": 29.0}
    AT_WORK.passes += 1
    for second in range(30, 35):
        now[0], AT_WORK.name = float(second), "mine"
        watch.look()
    AT_WORK.name = None
    assert len(told) == 3, "a pass of its own is no standstill"


def test_a_loop_that_gives_nothing_back_is_named_while_it_goes_on() -> None:
    told: list[str] = []
    watch = PolicyWatch(time.monotonic, lambda name, seconds: told.append(name), slow_s=0.05)

    def endless(view: OrderView) -> Turns:
        until = time.monotonic() + 20
        while not told and time.monotonic() < until:
            pass
        yield from ()

    offer(PolicyKind.ORDER, "endless", lambda: OrderPolicy("endless", endless, "Never yields."))
    watch.start()
    try:
        cycle(a_snapshot([one(1)], ResourceGroup("default", "endless")))
    finally:
        watch.stop()
        withdraw(PolicyKind.ORDER, "endless")
    assert told == ["order policy endless of group default"]
