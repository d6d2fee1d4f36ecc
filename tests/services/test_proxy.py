"""Each fault of the proxy, against a real PostgreSQL: what the client saw, and what stands in the database."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.services.proxy import Proxy, proxy_to


@pytest.fixture
def proxy(postgres_database: str) -> Iterator[Proxy]:
    with psycopg.connect(postgres_database, autocommit=True) as direct:
        direct.execute("CREATE TABLE mark (n int)")
    with proxy_to(postgres_database) as running:
        yield running


def marks(url: str) -> list[int]:
    with psycopg.connect(url) as direct:
        return [row[0] for row in direct.execute("SELECT n FROM mark ORDER BY n")]


def through(proxy: Proxy, url: str, autocommit: bool = False) -> "psycopg.Connection[tuple[object, ...]]":
    return psycopg.connect(proxy.url(url), autocommit=autocommit)


def test_without_a_fault_everything_passes(proxy: Proxy, postgres_database: str) -> None:
    with through(proxy, postgres_database) as connection:
        connection.execute("INSERT INTO mark SELECT generate_series(1, 50000)")
        rows = connection.execute("SELECT n FROM mark").fetchall()
    assert len(rows) == 50000
    assert len(marks(postgres_database)) == 50000


def test_the_answer_to_a_commit_is_lost_while_the_commit_stands(proxy: Proxy, postgres_database: str) -> None:
    for n in range(20):
        connection = through(proxy, postgres_database)
        connection.execute("INSERT INTO mark VALUES (%s)", (n,))
        proxy.lose_answer()
        with pytest.raises(psycopg.OperationalError):
            connection.commit()
        assert connection.closed
    assert proxy.lost_answers == 20
    assert marks(postgres_database) == list(range(20))


def test_the_answer_to_a_single_statement_is_lost_too(proxy: Proxy, postgres_database: str) -> None:
    connection = through(proxy, postgres_database, autocommit=True)
    proxy.lose_answer("INSERT")
    with pytest.raises(psycopg.OperationalError):
        connection.execute("INSERT INTO mark VALUES (%s)", (1,))
    assert marks(postgres_database) == [1]


def test_a_commit_that_never_arrived_did_not_happen(proxy: Proxy, postgres_database: str) -> None:
    connection = through(proxy, postgres_database)
    connection.execute("INSERT INTO mark VALUES (1)")
    proxy.stop_command()
    with pytest.raises(psycopg.OperationalError):
        connection.commit()
    assert (proxy.stopped_commands, proxy.lost_answers) == (1, 0)
    assert marks(postgres_database) == []


def test_a_fault_hits_once_and_the_next_connection_works(proxy: Proxy, postgres_database: str) -> None:
    proxy.lose_answer()
    for n in (1, 2):
        connection = through(proxy, postgres_database)
        connection.execute("INSERT INTO mark VALUES (%s)", (n,))
        if n == 1:
            with pytest.raises(psycopg.OperationalError):
                connection.commit()
        else:
            connection.commit()
            connection.close()
    assert marks(postgres_database) == [1, 2]


def test_a_cut_ends_every_open_connection(proxy: Proxy, postgres_database: str) -> None:
    connections = [through(proxy, postgres_database) for _ in range(3)]
    connections[0].execute("INSERT INTO mark VALUES (1)")
    assert proxy.cut() == 3
    for connection in connections:
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    assert marks(postgres_database) == []
    through(proxy, postgres_database).close()


def test_a_refusing_proxy_lets_nobody_in_until_released(proxy: Proxy, postgres_database: str) -> None:
    proxy.cut(refuse=True)
    with pytest.raises(psycopg.OperationalError):
        through(proxy, postgres_database)
    proxy.release()
    through(proxy, postgres_database).close()


def test_a_delay_is_felt_in_both_directions(proxy: Proxy, postgres_database: str) -> None:
    with through(proxy, postgres_database, autocommit=True) as connection:
        proxy.delay(0.1)
        began = time.monotonic()
        connection.execute("SELECT 1")
        assert time.monotonic() - began >= 0.2
        proxy.delay(0)


def test_a_held_connection_is_silent_and_then_goes_on(proxy: Proxy, postgres_database: str) -> None:
    with through(proxy, postgres_database, autocommit=True) as connection, ThreadPoolExecutor(1) as thread:
        proxy.hold()
        insert = thread.submit(connection.execute, "INSERT INTO mark VALUES (7)")
        until(lambda: proxy.held_messages == 1)
        assert marks(postgres_database) == []
        assert not insert.done()
        proxy.release()
        insert.result(timeout=10)
    assert marks(postgres_database) == [7]


def test_a_held_connection_can_be_cut(proxy: Proxy, postgres_database: str) -> None:
    with ThreadPoolExecutor(1) as thread:
        connection = through(proxy, postgres_database, autocommit=True)
        proxy.hold()
        insert = thread.submit(connection.execute, "INSERT INTO mark VALUES (7)")
        until(lambda: proxy.held_messages == 1)
        proxy.cut()
        with pytest.raises(psycopg.OperationalError):
            insert.result(timeout=10)
    proxy.release()
    until(lambda: proxy.held_messages == 0)
    assert marks(postgres_database) == []


def until(condition: Callable[[], bool], within_s: float = 10) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)
