"""Whatever may let somebody start wakes the managers, whose turns come every five minutes here; and where no hint ever
arrives, the turns do it alone (A2)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from corral.clock import SystemClock, SystemIds
from corral.model.lifecycle import Phase
from corral.model.quota import Quota
from corral.ports import Store
from corral.reconcile import groups, intents, quotas
from corral.store import open_store
from corral.testing.builders import Play, ready, spec, whole_run
from tests.store.test_due_wakes import left_at, managers

pytestmark = pytest.mark.timeout(90)
ADMIN = "user:root"
UNSEEN = "UPDATE session SET wanted = 'run', changed = @change(session) WHERE id = :id"
SOON_S = 3.0  # of real time, on a machine that does other things too


async def submitted(store: Store, play: Play) -> str:
    await play.join("n1")
    return (await play.submit(spec()))[0]


async def ended(store: Store, play: Play) -> str:
    await play.join("n1", cpus=1)
    first, waits = await play.submit(spec(cpus=1), spec(cpus=1))
    await left_at(store, first, Phase.PENDING, SOON_S)
    (token,) = await play.tokens([first])
    await play.exchange("n1")
    await play.exchange("n1", ready(token))
    await play.exchange("n1", *whole_run(token))
    return waits


async def node_joined(store: Store, play: Play) -> str:
    await play.join("n1", cpus=1)
    (waits,) = await play.submit(spec(cpus=2))
    await play.join("n2", cpus=4)
    return waits


async def node_changed(store: Store, play: Play) -> str:
    await play.join("n1", cpus=1)
    (waits,) = await play.submit(spec(cpus=2))
    await play.join("n1", cpus=4, incarnation="agent-2")
    return waits


async def quota_changed(store: Store, play: Play) -> str:
    await play.join("n1")
    none = Quota("none", group="default", limits={"sessions": 0})
    await store.tx("put quota", lambda tx: quotas.put(tx, none, ADMIN))
    (waits,) = await play.submit(spec())
    some = Quota("none", group="default", limits={"sessions": 1})
    await store.tx("put quota", lambda tx: quotas.put(tx, some, ADMIN))
    return waits


async def quota_deleted(store: Store, play: Play) -> str:
    await play.join("n1")
    none = Quota("none", group="default", limits={"sessions": 0})
    await store.tx("put quota", lambda tx: quotas.put(tx, none, ADMIN))
    (waits,) = await play.submit(spec())
    await store.tx("delete quota", lambda tx: quotas.delete(tx, "none", ADMIN))
    return waits


async def group_resumed(store: Store, play: Play) -> str:
    await play.join("n1")
    await store.tx("pause group", lambda tx: groups.pause(tx, "default", ADMIN))
    (waits,) = await play.submit(spec())
    await store.tx("resume group", lambda tx: groups.resume(tx, "default", ADMIN))
    return waits


async def group_changed(store: Store, play: Play) -> str:
    """Backfill let nobody by."""
    await play.join("n1", cpus=2)
    runs, _, waits = await play.submit(spec(cpus=1, time_limit_s=600), spec(cpus=2, time_limit_s=600), spec(cpus=1))
    await left_at(store, runs, Phase.PENDING, SOON_S)
    change = groups.GroupChange(options={"backfill": "none"})
    await store.tx("set group", lambda tx: groups.change(tx, "default", change, ADMIN))
    return waits


async def moved_to_another_group(store: Store, play: Play) -> str:
    await play.join("n1", cpus=1)
    await play.join("n2", cpus=4, group="large")
    (waits,) = await play.submit(spec(cpus=1, group="default", hold=False, on_nodes=["n2"]))
    await store.tx("update", lambda tx: intents.update(tx, waits, "user:ann", group="large"))
    return waits


async def released(store: Store, play: Play) -> str:
    await play.join("n1")
    (waits,) = await play.submit(spec(hold=True))
    await store.tx("release", lambda tx: intents.release(tx, waits, "user:ann"))
    return waits


async def cancelled(store: Store, play: Play) -> str:
    """The first in line held what it was promised."""
    await play.join("n1", cpus=2)
    runs, first, waits = await play.submit(spec(cpus=1, time_limit_s=600), spec(cpus=2), spec(cpus=1))
    await left_at(store, runs, Phase.PENDING, SOON_S)
    await play.cancel(first)
    return waits


WHAT: list[Callable[[Store, Play], Awaitable[str]]] = [
    submitted, ended, node_joined, node_changed, quota_changed, quota_deleted, group_resumed, group_changed,
    moved_to_another_group, released, cancelled,
]  # fmt: skip


@pytest.mark.parametrize("what", WHAT, ids=[one.__name__ for one in WHAT])
def test_it_wakes_managers_that_share_a_database(postgres_url_migrated: str, what) -> None:
    asyncio.run(_happens(postgres_url_migrated, 2, what))


@pytest.mark.parametrize("what", WHAT, ids=[one.__name__ for one in WHAT])
def test_it_wakes_a_manager_on_sqlite(sqlite_url: str, what) -> None:
    asyncio.run(_happens(sqlite_url, 1, what))


async def all_asleep(store: Store, play: Play, count: int) -> None:
    """Every manager has begun and is known to the others, and what came of that is over."""
    async with asyncio.timeout(10):
        while len(await store.read("members", lambda reads: reads.members())) < count:
            await asyncio.sleep(0.01)
    await play.join("n0", cpus=1, group="other")
    for one in await play.submit(*[spec(cpus=1, group="other", time_limit_s=60)] * 2):
        await left_at(store, one, Phase.PENDING, SOON_S)
        (token,) = await play.tokens([one])
        await play.exchange("n0")
        await play.exchange("n0", *whole_run(token))


async def _happens(url: str, count: int, what: Callable[[Store, Play], Awaitable[str]]) -> None:
    async with managers(url, count) as store:
        play = Play(store)
        await all_asleep(store, play, count)
        waits = await what(store, play)
        await left_at(store, waits, Phase.PENDING, SOON_S)


def test_whoever_asks_wakes_them(postgres_url_migrated: str) -> None:
    """Written past all that would have told them."""

    async def body() -> None:
        async with managers(postgres_url_migrated, 2) as store:
            play = Play(store)
            await all_asleep(store, play, 2)
            await play.join("n1")
            (waits,) = await play.submit(spec(hold=True))
            await store.tx("unseen", lambda tx: tx._run(UNSEEN, id=waits))  # type: ignore[attr-defined]
            before = (await play.session(waits)).phase
            await store.tx("schedule", lambda tx: groups.schedule(tx, "default"))
            await left_at(store, waits, Phase.PENDING, SOON_S)
            assert before is Phase.PENDING

    asyncio.run(body())


def test_where_no_hint_arrives_the_turns_do_it(postgres_url_migrated: str) -> None:
    """Nobody listens to the database, and the sessions come from elsewhere."""

    async def body() -> None:
        elsewhere = open_store(postgres_url_migrated, SystemClock(), SystemIds())
        async with managers(postgres_url_migrated, 2, turn_s=2.0, listening=False):
            play = Play(elsewhere)
            await play.join("n1")
            for _ in range(3):
                (one,) = await play.submit(spec(cpus=1))
                await left_at(elsewhere, one, Phase.PENDING, 2.0 + SOON_S)
        elsewhere.close()

    asyncio.run(body())
