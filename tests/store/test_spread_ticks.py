"""Three managers on one PostgreSQL take turns, and two go on in even turns when one is gone (A3)."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from itertools import pairwise
from statistics import median

import pytest

from corral.clock import SystemClock, SystemIds
from corral.reconcile.loop import Loop, Loops
from corral.reconcile.loops import manager_loops
from corral.reconcile.spread import BEAT_ALONE_S, BEAT_S, DEAD_AFTER_S
from corral.store import PostgresStore

INTERVAL_S = 2.0
LOOK_S = 4 * INTERVAL_S


class SkewedClock(SystemClock):
    """A local clock that is hours off and a monotonic one that began elsewhere."""

    def __init__(self, off_s: float) -> None:
        self._off_s = off_s

    def seconds(self) -> float:
        return super().seconds() + self._off_s

    def mono(self) -> float:
        return super().mono() + self._off_s


def recorded(loop: Loop, ticks: list[float]) -> Loop:
    async def run() -> object:
        ticks.append(time.monotonic())
        return await loop.run()

    return replace(loop, run=run) if loop.name == "placement" else loop


@pytest.mark.timeout(120)
def test_managers_take_turns_and_close_up_when_one_is_gone(postgres_url_migrated: str) -> None:
    ticks: list[float] = []

    async def manager(number: int) -> None:
        clock = SkewedClock(number * 3_700.3)
        store = PostgresStore(postgres_url_migrated, clock, SystemIds(), connections=2)
        loops = manager_loops(store, f"m{number}", "", clock, interval_s=INTERVAL_S)
        listening = asyncio.ensure_future(store.listen())
        try:
            await Loops([recorded(loop, ticks) for loop in loops], store.wakeups, clock, lambda *_: None).run()
        finally:
            listening.cancel()
            store.close()

    async def gaps() -> list[float]:
        ticks.clear()
        await asyncio.sleep(LOOK_S)
        return [after - before for before, after in pairwise(ticks)]

    async def body() -> tuple[list[float], list[float]]:
        managers = [asyncio.ensure_future(manager(number)) for number in range(3)]
        await asyncio.sleep(BEAT_ALONE_S + BEAT_S)
        three = await gaps()
        managers[1].cancel()
        await asyncio.sleep(DEAD_AFTER_S + BEAT_S)
        two = await gaps()
        for one in managers:
            one.cancel()
        await asyncio.gather(*managers, return_exceptions=True)
        return three, two

    three, two = asyncio.run(body())
    assert len(three) >= 9, three
    assert median(three) == pytest.approx(INTERVAL_S / 3, rel=0.4), three
    assert 5 <= len(two) <= 9, two
    assert median(two) == pytest.approx(INTERVAL_S / 2, rel=0.3), two
