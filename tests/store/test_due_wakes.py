"""Managers, whose turns come every five minutes here, wake at the moment at which something comes due (A2)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from corral.clock import SystemIds
from corral.model.faults import Unavailable
from corral.model.lifecycle import Phase
from corral.model.reservation import AskedReservation
from corral.ports import Store
from corral.reconcile import reserving
from corral.reconcile.loop import Loops
from corral.reconcile.loops import manager_loops
from corral.store import PostgresStore, open_store
from corral.testing.builders import Play, spec
from tests.store.test_spread_ticks import SkewedClock

TURN_S = 300.0
SOON_S = 1.5  # after the moment
pytestmark = pytest.mark.timeout(90)


@asynccontextmanager
async def managers(url: str, count: int, *, turn_s: float = TURN_S, listening: bool = True) -> AsyncIterator[Store]:
    """So many, with local clocks that are hours off; the first one's store. Not `listening`, they hear no hint."""
    clocks = [SkewedClock(-number * 3_700.3) for number in range(count)]
    stores = [open_store(url, clock, SystemIds()) for clock in clocks]
    tasks: list[asyncio.Future[Any]] = []
    for number, (store, clock) in enumerate(zip(stores, clocks, strict=True)):
        if listening and isinstance(store, PostgresStore):
            tasks.append(asyncio.ensure_future(store.listen()))
        loops = manager_loops(store, f"m{number}", "", clock, interval_s=turn_s)
        tasks.append(asyncio.ensure_future(Loops(loops, store.wakeups, clock, lambda *_: None).run()))
    try:
        yield stores[0]
    finally:
        for one in tasks:
            one.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for store in stores:
            store.close()


async def left_at(store: Store, id_: str, phase: Phase, within_s: float) -> float:
    """When it left this phase, in seconds of the database's time."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            rows = await store.read("history", lambda reads: reads.history(id_))
        except Unavailable:
            continue
        for row in rows:
            if row.entry.source is phase and row.entry.target is not phase:
                return row.at
        await asyncio.sleep(0.02)
    raise AssertionError(f"it is still {phase} after {within_s} s")


@pytest.fixture(params=["one on sqlite", "two on postgresql"])
def place(request: pytest.FixtureRequest) -> tuple[str, int]:
    name, count = ("sqlite_url", 1) if request.param == "one on sqlite" else ("postgres_url_migrated", 2)
    return request.getfixturevalue(name), count


def test_whoever_waits_for_a_reservation_starts_when_it_ends(place: tuple[str, int]) -> None:
    async def body() -> tuple[float, float]:
        async with managers(*place) as store:
            play = Play(store)
            await play.join("n1")
            asked = AskedReservation("maint", nodes=("n1",), begins="now", length="3s")
            made = await store.tx("create reservation", lambda tx: reserving.create(tx, asked, "user:root"))
            (id_,) = await play.submit(spec())
            return made.ends_at, await left_at(store, id_, Phase.PENDING, 30)

    ends_at, started_at = asyncio.run(body())
    assert 0 <= started_at - ends_at < SOON_S


def test_one_that_would_run_into_a_reservation_starts_after_it(place: tuple[str, int]) -> None:
    """It is asleep when the reservation begins, and wakes at that moment and at its end."""

    async def body() -> tuple[float, float]:
        async with managers(*place) as store:
            play = Play(store)
            await play.join("n1")
            asked = AskedReservation("maint", nodes=("n1",), begins="+1s", length="2s")
            made = await store.tx("create reservation", lambda tx: reserving.create(tx, asked, "user:root"))
            (id_,) = await play.submit(spec(time_limit_s=600))
            return made.ends_at, await left_at(store, id_, Phase.PENDING, 30)

    ends_at, started_at = asyncio.run(body())
    assert 0 <= started_at - ends_at < SOON_S


def test_whose_time_to_begin_comes_begins(place: tuple[str, int]) -> None:
    async def body() -> tuple[float, float]:
        async with managers(*place) as store:
            play = Play(store)
            await play.join("n1")
            (id_,) = await play.submit(spec(begin="+2s"))
            begins_at = (await play.session(id_)).not_before
            return begins_at, await left_at(store, id_, Phase.PENDING, 30)

    begins_at, started_at = asyncio.run(body())
    assert 0 <= started_at - begins_at < SOON_S
