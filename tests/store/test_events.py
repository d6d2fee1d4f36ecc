"""Watchers read in commit order (docs/protocol.md 17): nothing is missed, nothing comes late, whoever commits when."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from corral.clock import SystemClock, SystemIds
from corral.ports import Tx
from corral.store import PostgresStore
from corral.testing.builders import new_session

READ_WITHIN_S = 30


@pytest.fixture
def store_pair(postgres_url_migrated: str):
    stores = [PostgresStore(postgres_url_migrated, SystemClock(), SystemIds(), connections=4) for _ in range(2)]
    yield stores
    for store in stores:
        store.close()


def test_nothing_above_an_open_transaction_is_served(store_pair: list[PostgresStore]) -> None:
    early, late = store_pair
    entered, finish = threading.Event(), threading.Event()
    first, second = new_session(), new_session()

    def slow(tx: Tx) -> None:
        tx.submit([first])
        entered.set()
        assert finish.wait(READ_WITHIN_S)

    async def body() -> None:
        before = await early.read("last", lambda reads: reads.last_event())
        open_one = asyncio.ensure_future(early.tx("slow", slow))
        await asyncio.get_running_loop().run_in_executor(None, entered.wait, READ_WITHIN_S)
        await late.tx("quick", lambda tx: tx.submit([second]))

        assert (await late.read("phase", lambda reads: reads.sessions([second.id])))[second.id].seq == 1
        assert await late.read("events", lambda reads: reads.events(before)) == []
        assert await late.read("last", lambda reads: reads.last_event()) == before

        finish.set()
        await open_one
        events = await late.read("events", lambda reads: reads.events(before))
        assert [row.session for row in events] == [first.id, second.id]
        resumed = await late.read("events", lambda reads: reads.events(events[0].id))
        assert resumed == events[1:]

    try:
        asyncio.run(body())
    finally:
        finish.set()


def test_an_open_transaction_that_writes_no_event_holds_back_only_while_it_is_open(
    store_pair: list[PostgresStore], postgres_url_migrated: str
) -> None:
    store = store_pair[0]

    async def body() -> None:
        with psycopg.connect(postgres_url_migrated) as other:
            other.execute("CREATE TEMPORARY TABLE mine (n int)")
            await store.tx("submit", lambda tx: tx.submit([new_session()]))
            assert await store.read("events", lambda reads: reads.events(0)) == []
            other.rollback()
            assert len(await store.read("events", lambda reads: reads.events(0))) == 1

    asyncio.run(body())


def test_a_watcher_that_follows_many_writers_misses_nothing(store_pair: list[PostgresStore]) -> None:
    """Writers on two stores; a watcher resumes from its last id all the time, as a reader of the stream does."""
    writers, rounds = 6, 25
    done = threading.Event()
    seen: list[tuple[int, str | None, int]] = []

    def write(index: int) -> None:
        async def body() -> None:
            for _ in range(rounds):
                await store_pair[index % 2].tx("submit", lambda tx: tx.submit([new_session(), new_session()]))

        asyncio.run(body())

    def watch() -> None:
        async def body() -> None:
            last, finished = 0, False
            while True:
                events = await store_pair[0].read("events", lambda reads, last=last: reads.events(last, limit=7))
                seen.extend((row.id, row.session, row.seq) for row in events)
                last = events[-1].id if events else last
                if finished and not events:
                    return
                finished = done.is_set()

        asyncio.run(body())

    with ThreadPoolExecutor(writers + 1) as threads:
        watching = threads.submit(watch)
        writing = [threads.submit(write, index) for index in range(writers)]
        for one in writing:
            one.result(60)
        done.set()
        watching.result(60)
    ids = [id_ for id_, _, _ in seen]
    assert ids == sorted(set(ids))
    assert len(seen) == writers * rounds * 2
    assert len({session for _, session, _ in seen}) == len(seen)
