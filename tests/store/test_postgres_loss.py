"""PostgreSQL that goes away: lost answers, cut connections, a server that is stopped, started, or silent."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest

from corral.clock import SystemClock, SystemIds
from corral.model.faults import Unavailable
from corral.ports import PLACE, Tx
from corral.store import PostgresStore, upgrade
from corral.store.postgres_link import OF_CORRAL
from corral.testing.builders import Play, new_session
from tests.services.absence import absent
from tests.services.postgres import find_binaries
from tests.services.proxy import Proxy, proxy_to
from tests.store.restartable import RestartableServer, restartable_server

LOST_ANSWERS = 50


def opened(url: str, **settings: float) -> PostgresStore:
    return PostgresStore(url, SystemClock(), SystemIds(), connections=3, **settings)  # pyright: ignore[reportArgumentType]


@pytest.fixture
def proxy(postgres_url_migrated: str) -> Iterator[Proxy]:
    with proxy_to(postgres_url_migrated) as running:
        yield running


@pytest.fixture
def store(proxy: Proxy, postgres_url_migrated: str) -> Iterator[PostgresStore]:
    store = opened(proxy.url(postgres_url_migrated))
    yield store
    store.close()


def rows(url: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url) as direct:
        return direct.execute(statement.encode()).fetchall()


async def submit(store: PostgresStore, runs: list[str] | None = None) -> str:
    new = new_session()

    def body(tx: Tx) -> str:
        if runs is not None:
            runs.append(new.id)
        return tx.submit([new])[0].id

    return await store.tx("submit", body)


def test_a_commit_whose_answer_was_lost_is_neither_doubled_nor_lost(
    store: PostgresStore, proxy: Proxy, postgres_url_migrated: str
) -> None:
    runs: list[str] = []

    async def body() -> list[str]:
        made: list[str] = []
        for _ in range(LOST_ANSWERS):
            proxy.lose_answer()
            made.append(await submit(store, runs))
        return made

    made = asyncio.run(body())
    assert proxy.lost_answers == LOST_ANSWERS
    assert runs == made, "no body ran twice: each commit stood"
    assert sorted(rows(postgres_url_migrated, "SELECT id FROM session")) == sorted((id_,) for id_ in made)
    assert rows(postgres_url_migrated, "SELECT count(*) FROM event") == [(LOST_ANSWERS,)]
    assert rows(postgres_url_migrated, "SELECT count(*) FROM operation") == [(LOST_ANSWERS,)]


def test_a_commit_that_never_arrived_is_made_again_once(
    store: PostgresStore, proxy: Proxy, postgres_url_migrated: str
) -> None:
    runs: list[str] = []

    async def body() -> None:
        for _ in range(10):
            proxy.stop_command("SELECT PG_NOTIFY")  # the hints travel with the COMMIT
            await submit(store, runs)

    asyncio.run(body())
    assert proxy.stopped_commands == 10
    assert len(runs) == 20
    assert rows(postgres_url_migrated, "SELECT count(*) FROM session") == [(10,)]
    assert rows(postgres_url_migrated, "SELECT count(*) FROM event") == [(10,)]


@pytest.mark.parametrize("command", ["BEGIN", "INSERT INTO SESSION", "INSERT INTO EVENT"])
def test_a_connection_cut_before_the_commit_is_no_error(
    store: PostgresStore, proxy: Proxy, postgres_url_migrated: str, command: str
) -> None:
    async def body() -> None:
        proxy.stop_command(command)
        for _ in range(3):
            await submit(store)

    asyncio.run(body())
    assert proxy.stopped_commands == 1
    assert rows(postgres_url_migrated, "SELECT count(*) FROM session") == [(3,)]
    assert rows(postgres_url_migrated, "SELECT count(*) FROM event") == [(3,)]


def test_a_read_survives_a_cut_connection(store: PostgresStore, proxy: Proxy) -> None:
    async def body() -> None:
        id_ = await submit(store)
        for _ in range(5):
            proxy.cut()
            assert id_ in await store.read("look", lambda reads: reads.sessions([id_]))

    asyncio.run(body())


def test_an_unreachable_database_is_unavailable_soon_and_work_goes_on_afterwards(
    proxy: Proxy, postgres_url_migrated: str
) -> None:
    store = opened(proxy.url(postgres_url_migrated), patience_s=1.0)

    async def body() -> None:
        await submit(store)
        proxy.cut(refuse=True)
        began = time.monotonic()
        for call in (submit(store), store.read("look", lambda reads: reads.count_sessions())):
            with pytest.raises(Unavailable) as failed:
                await call
            assert failed.value.code == "database_unreachable"
        assert time.monotonic() - began < 20
        proxy.release()
        await submit(store)
        assert await store.read("look", lambda reads: reads.count_sessions()) == {"pending": 2}

    try:
        asyncio.run(body())
    finally:
        store.close()


def test_when_nobody_can_tell_whether_a_commit_stands_it_says_so(
    proxy: Proxy, postgres_url_migrated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("corral.store.postgres.RESOLVE_S", 1.0)
    store = opened(proxy.url(postgres_url_migrated))
    stands = PostgresStore._stands

    def cut_off(self: PostgresStore, *arguments: object) -> bool:
        proxy.cut(refuse=True)
        return stands(self, *arguments)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(PostgresStore, "_stands", cut_off)

    async def body() -> None:
        proxy.lose_answer()
        with pytest.raises(Unavailable) as unknown:
            await submit(store)
        assert unknown.value.code == "commit_unknown"
        proxy.release()
        assert await store.read("look", lambda reads: reads.count_sessions()) == {"pending": 1}

    try:
        asyncio.run(body())
    finally:
        store.close()


def test_the_outcome_waits_for_a_lost_transaction_that_still_runs(
    store: PostgresStore, postgres_url_migrated: str
) -> None:
    """The server has not yet noticed that its client is gone: only its end says whether the change stands."""
    for ending, stands in (("COMMIT", True), ("ROLLBACK", False)):
        with psycopg.connect(postgres_url_migrated, autocommit=True) as ghost:
            ghost.execute("BEGIN")
            ghost.execute("INSERT INTO operation (id, at) VALUES (%s, 0)", [f"op-{ending}"])

            async def body(ending: str = ending, ghost: "psycopg.Connection[object]" = ghost) -> bool:
                lost = psycopg.connect(postgres_url_migrated)
                asking = asyncio.get_running_loop().run_in_executor(None, store._stands, f"op-{ending}", lost)
                await until(lambda: bool(rows(postgres_url_migrated, WAITING)))
                assert not asking.done()
                ghost.execute(ending.encode())
                return await asking

            assert asyncio.run(body()) is stands


WAITING = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


async def until(condition: Callable[[], bool], within_s: float = 20) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.02)


def test_hints_reach_another_manager_and_a_lost_listener_wakes_everyone(
    store: PostgresStore, proxy: Proxy, postgres_url_migrated: str
) -> None:
    other = opened(postgres_url_migrated)

    async def body() -> None:
        listening = asyncio.create_task(store.listen())
        watch = store.wakeups.watch(PLACE)
        assert await watch.wait(20), "a new listener wakes everyone"
        await other.tx("hint", lambda tx: tx.hint(PLACE, *(f"session:{n:010d}" for n in range(2000))))
        assert await watch.wait(20)
        proxy.cut()
        assert await watch.wait(20), "hints may have been missed meanwhile"
        await other.tx("hint", lambda tx: tx.hint(PLACE))
        assert await watch.wait(20)
        listening.cancel()

    try:
        asyncio.run(body())
    finally:
        other.close()


def test_a_manager_is_not_woken_twice_by_its_own_hints(store: PostgresStore, postgres_url_migrated: str) -> None:
    other = opened(postgres_url_migrated)

    async def body() -> None:
        listening = asyncio.create_task(store.listen())
        own, foreign = store.wakeups.watch("own"), store.wakeups.watch("foreign")
        assert await own.wait(20)
        await store.tx("hint", lambda tx: tx.hint("own"))
        assert await own.wait(0)
        await other.tx("hint", lambda tx: tx.hint("foreign"))
        assert await foreign.wait(20)
        assert not await own.wait(0), "its own notification, which came before the foreign one, woke it again"
        listening.cancel()

    try:
        asyncio.run(body())
    finally:
        other.close()


@pytest.mark.parametrize("silent_in", ["a transaction", "a pipeline"])
def test_what_a_frozen_manager_left_open_is_cut_and_a_stranger_is_left_alone(
    store: PostgresStore, postgres_url_migrated: str, silent_in: str
) -> None:
    """Within a pipeline the server's own time-out for idle transactions does not run."""

    async def body() -> None:
        id_ = await submit(store)
        with (
            psycopg.connect(postgres_url_migrated, autocommit=True, application_name="psql") as stranger,
            contextlib.closing(psycopg.connect(postgres_url_migrated, autocommit=True, **OF_CORRAL)) as frozen,
        ):
            stranger.execute("BEGIN; SELECT 1")
            frozen.execute("BEGIN; SET LOCAL idle_in_transaction_session_timeout = 0")
            frozen.execute("SELECT id FROM session WHERE id = %s FOR UPDATE", [id_])
            if silent_in == "a pipeline":
                frozen.pgconn.enter_pipeline_mode()
                frozen.pgconn.send_query_params(b"SELECT 1", [])
                frozen.pgconn.flush()
            told: list[str] = []
            cutting = asyncio.create_task(store.cut_frozen(told.append))
            began = time.monotonic()
            await store.tx("lock", lambda tx: tx.lock([], [id_]))
            assert time.monotonic() - began < 9
            cutting.cancel()
            assert [f"backend {frozen.info.backend_pid} of a manager on" in what for what in told] == [True]
            assert stranger.execute("SELECT 1").fetchone() == (1,)

    asyncio.run(body())


@pytest.fixture
def own_server() -> Iterator[RestartableServer]:
    binaries = find_binaries()
    if binaries is None:
        absent("PostgreSQL", "no initdb and postgres found; the Debian package is postgresql")
    with restartable_server(binaries) as server:
        upgrade(server.url)
        yield server


def test_a_stopped_server_is_unavailable_within_bounds_and_a_started_one_serves_again(
    own_server: RestartableServer,
) -> None:
    store = opened(own_server.url, patience_s=1.0)

    async def body() -> None:
        await asyncio.gather(*(submit(store) for _ in range(6)))  # every thread has a connection
        own_server.stop()
        began = time.monotonic()
        with pytest.raises(Unavailable):
            await submit(store)
        assert time.monotonic() - began < 20
        own_server.start()
        await asyncio.gather(*(submit(store) for _ in range(6)))
        assert await store.read("count", lambda reads: reads.count_sessions()) == {"pending": 12}

    try:
        asyncio.run(body())
    finally:
        store.close()


def test_a_restart_within_its_patience_goes_unnoticed(own_server: RestartableServer) -> None:
    store = opened(own_server.url, patience_s=60.0)

    async def body() -> None:
        await asyncio.gather(*(submit(store) for _ in range(6)))
        own_server.stop()
        waiting = [asyncio.ensure_future(submit(store)) for _ in range(6)]
        await asyncio.sleep(0.1)
        own_server.start()
        await asyncio.gather(*waiting)
        assert await store.read("count", lambda reads: reads.count_sessions()) == {"pending": 12}

    try:
        asyncio.run(body())
    finally:
        store.close()


def test_a_server_that_falls_silent_is_unavailable_within_bounds(own_server: RestartableServer) -> None:
    store = opened(own_server.url, patience_s=1.0, silence_s=1.5)

    async def body() -> None:
        await asyncio.gather(*(submit(store) for _ in range(6)))
        with own_server.frozen():
            began = time.monotonic()
            answers = await asyncio.gather(*(submit(store) for _ in range(3)), return_exceptions=True)
            assert [type(answer) for answer in answers] == [Unavailable] * 3
            assert time.monotonic() - began < 40
        made = await submit(store)
        found = await store.read("look", lambda reads: reads.sessions([made]))
        assert list(found) == [made]
        assert await Play(store).violations() == []

    try:
        asyncio.run(body())
    finally:
        store.close()
