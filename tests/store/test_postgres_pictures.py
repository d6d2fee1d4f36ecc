"""A picture kept from pass to pass on PostgreSQL: what is committed late is read then, whoever began first."""

import asyncio
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from corral.clock import SystemClock, SystemIds
from corral.ports import Tx
from corral.scheduling.kept.picture import Picture
from corral.store import PostgresStore
from corral.testing.builders import Play, new_session, spec
from corral.testing.pictures import Doings, look

WITHIN_S = 30


@pytest.fixture
def stores(postgres_url_migrated: str) -> Iterator[list[PostgresStore]]:
    opened = [PostgresStore(postgres_url_migrated, SystemClock(), SystemIds(), connections=4) for _ in range(3)]
    yield opened
    for store in opened:
        store.close()


def seen(store: PostgresStore, picture: Picture) -> tuple[str, ...]:
    return asyncio.run(store.read("look", lambda reads: look(reads, picture))).wrong


def test_what_began_before_a_look_and_is_committed_after_it_is_seen(stores: list[PostgresStore]) -> None:
    early, late = stores[0], stores[1]
    play, picture = Play(late), Picture()
    asyncio.run(play.join("n1"))
    assert seen(late, picture) == ()
    for what in ("session", "node"):
        entered, finish = threading.Event(), threading.Event()
        slow_one, quick_one = new_session(), new_session()

        def slow(tx: Tx, what=what, entered=entered, finish=finish, slow_one=slow_one) -> None:
            if what == "session":
                tx.submit([slow_one])
            else:
                tx.back_off("n1", tx.now + 1000)
            entered.set()
            assert finish.wait(WITHIN_S)

        with ThreadPoolExecutor(1) as pool:
            open_one = pool.submit(lambda slow=slow: asyncio.run(early.tx("slow", slow)))
            try:
                assert entered.wait(WITHIN_S)
                for _ in range(3):  # later transactions are committed, and looked at, while it is open
                    asyncio.run(late.tx("quick", lambda tx, one=quick_one: tx.submit([one])))
                    quick_one = new_session()
                    assert seen(late, picture) == ()
                assert slow_one.id not in {one.id for one in picture.waiting}
            finally:
                finish.set()
            open_one.result(WITHIN_S)
        assert seen(late, picture) == ()
    assert picture.nodes[0].backoff_until > 0
    assert len(picture.waiting) == 7


def test_a_picture_among_many_writers_misses_nothing(stores: list[PostgresStore]) -> None:
    """Two managers place and end, users come and go, all at once; a third keeps a picture and looks all the time."""
    play, picture, done = Play(stores[0]), Picture(), threading.Event()
    for name in ("n1", "n2", "n3"):
        asyncio.run(play.join(name, cpus=4))
    asyncio.run(stores[0].tx("groups", lambda tx: None))

    def busy(number: int) -> None:
        doings = Doings(stores[number], random.Random(number).randrange)
        doings.play.share_nodes(play)

        async def work() -> None:
            for _ in range(60):
                await doings.step()

        asyncio.run(work())

    with ThreadPoolExecutor(3) as pool:
        writers = [pool.submit(busy, number) for number in (0, 1)]

        def watch() -> list[tuple[str, ...]]:
            found: list[tuple[str, ...]] = []
            while not done.is_set():
                if wrong := seen(stores[2], picture):
                    found.append(wrong)
            return found

        watching = pool.submit(watch)
        try:
            for writer in writers:
                writer.result(2 * WITHIN_S)
        finally:
            done.set()
        assert watching.result(WITHIN_S) == []
    assert seen(stores[2], picture) == ()
    asyncio.run(play.submit(spec()))
    assert seen(stores[2], picture) == ()
