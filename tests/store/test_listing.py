"""What a list costs is what it shows: on either database a page reads no more rows however many sessions have ended."""

import asyncio
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from corral.clock import SystemClock, SystemIds
from corral.ports import SessionFilter
from corral.store import array_sql, listing, open_store, quota_sql, sql, upgrade
from corral.store.connection import PostgresConnection, SqliteConnection
from corral.testing.builders import Play, spec, whole_run
from tests.services.postgres import Server

ENDED, WAITING, PAGE = 4000, 30, 20
HELD = 1000
LIVE = listing.LIVE
FILTERS = {
    "ps": SessionFilter(LIVE),
    "ps of one owner": SessionFilter(LIVE, owner="ann"),
    "ps of one who has none": SessionFilter(LIVE, owner="zoe"),
    "ps, next page": SessionFilter(LIVE, after=ENDED + 20),
    "ps of one owner, next page": SessionFilter(LIVE, owner="ann", after=ENDED + 20),
    "ps with members": SessionFilter(LIVE, members=True),
    "ps --project": SessionFilter(LIVE, project="none"),
    "ps --name": SessionFilter(LIVE, name="none"),
    "ps --phase": SessionFilter(("running", "stopping")),
    "ps --phase of one owner": SessionFilter(("running",), owner="ann"),
    "ps --all": SessionFilter(),
    "ps --all, a page far back": SessionFilter(after=ENDED // 2),
    "ps --all of one owner": SessionFilter(owner="ann"),
    "ps --all of one owner, a page far back": SessionFilter(owner="ann", after=ENDED // 2),
    "ps --phase ended": SessionFilter(("ended",)),
    "ps --array": SessionFilter(LIVE, in_array="none"),
}
MOST_STEPS = 5_000  # of SQLite's machine; to walk over all that ended takes at least three for each
MOST_ROWS = 400  # looked at by PostgreSQL, on all levels of the plan together
COPIES = {
    "session": {"id": "{id}"},
    "attempt": {"session": "{id}"},
    "kernel": {"session": "{id}", "token": "'1-' || {id} || '-1-0'"},
    "holding": {"session": "{id}", "token": "'1-' || {id} || '-1-0'"},
}


async def _one_that_ended(play: Play) -> str:
    await play.join("n1")
    (id_,) = await play.submit_and_claim(spec(name="done"))
    await play.exchange("n1", *whole_run((await play.tokens([id_]))[0]))
    assert (await play.session(id_)).phase == "ended"
    return id_


def fill(url: str) -> None:
    """Thousands that ended as the one did, and after them a few that wait."""
    upgrade(url)
    store = open_store(url, SystemClock(), SystemIds())
    id_ = asyncio.run(_one_that_ended(Play(store)))
    store.close()
    if url.startswith("sqlite"):
        with sqlite3.connect(url.removeprefix("sqlite://")) as raw:
            series = (
                f"(WITH RECURSIVE s(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM s WHERE i < {ENDED}) SELECT i FROM s)"
            )
            for table in COPIES:
                columns = [row[1] for row in raw.execute(f"PRAGMA table_info({table})")]
                raw.execute(_copy(table, columns, id_, f"{series} AS s", "printf('%010d', 5000000 + s.i)"))
    else:
        with psycopg.connect(url, autocommit=True) as raw:
            for table in COPIES:
                columns = [column.name for column in raw.execute(f"SELECT * FROM {table} LIMIT 0").description or ()]  # pyright: ignore[reportArgumentType,reportCallIssue]
                copied = _copy(table, columns, id_, f"generate_series(1, {ENDED}) AS s(i)", "(5000000 + s.i)::text")
                raw.execute(copied.encode())
            raw.execute("ANALYZE")
    store = open_store(url, SystemClock(), SystemIds())
    asyncio.run(Play(store).submit(*[spec(name="waits") for _ in range(WAITING)]))
    store.close()


def _copy(table: str, columns: list[str], id_: str, series: str, new_id: str) -> str:
    names = [name for name in columns if name != "ordinal"]
    values = [COPIES[table].get(name, f"t.{name}").format(id=new_id) for name in names]
    of = "id" if table == "session" else "session"
    return (
        f"INSERT INTO {table} ({', '.join(names)}) SELECT {', '.join(values)} FROM {table} t CROSS JOIN {series} "
        f"WHERE t.{of} = '{id_}'"
    )


@pytest.fixture(scope="module")
def lite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqliteConnection]:
    path = tmp_path_factory.mktemp("listing") / "corral.db"
    fill(f"sqlite://{path}")
    connection = SqliteConnection(sqlite3.connect(path), lambda: 2e9)
    yield connection
    connection.close()


@pytest.fixture(scope="module")
def postgres(postgres_server: Server) -> Iterator[PostgresConnection]:
    with postgres_server.fresh_database() as url:
        fill(url)
        with psycopg.connect(url, autocommit=True) as raw:
            yield PostgresConnection(raw)


def steps(connection: SqliteConnection, text: str, **parameters: Any) -> int:
    """How many steps SQLite's machine takes for it, in hundreds."""
    taken = 0

    def count() -> int:
        nonlocal taken
        taken += 100
        return 0

    connection.raw.set_progress_handler(count, 100)
    try:
        connection.rows(text, **parameters)
    finally:
        connection.raw.set_progress_handler(None, 0)
    return taken


def looked_at(connection: PostgresConnection, text: str, **parameters: Any) -> int:
    """Rows that PostgreSQL looks at, those included that it leaves out again."""
    plan = "\n".join(row[0] for row in connection.rows(f"EXPLAIN (ANALYZE) {text.lstrip()}", **parameters))
    kept = sum(int(rows) * int(loops) for rows, loops in re.findall(r"actual time=\S+ rows=(\d+) loops=(\d+)", plan))
    return kept + sum(int(rows) for rows in re.findall(r"Rows Removed by \S+: (\d+)", plan))


def asked(name: str) -> tuple[str, dict[str, Any]]:
    what = FILTERS[name]._replace(limit=PAGE)
    return listing.sessions_statement(what, what.after), listing.parameters(what, what.after)


@pytest.mark.parametrize("name", FILTERS)
def test_a_page_costs_what_it_shows_on_sqlite(lite: SqliteConnection, name: str) -> None:
    text, parameters = asked(name)
    assert steps(lite, text, **parameters) < MOST_STEPS


@pytest.mark.parametrize("name", FILTERS)
def test_a_page_costs_what_it_shows_on_postgresql(postgres: PostgresConnection, name: str) -> None:
    text, parameters = asked(name)
    assert looked_at(postgres, text, **parameters) < MOST_ROWS


def test_to_walk_all_would_be_seen(lite: SqliteConnection, postgres: PostgresConnection) -> None:
    walk = "SELECT id FROM session WHERE name = 'none'"
    assert steps(lite, walk) > 2 * MOST_STEPS
    assert looked_at(postgres, walk) > 5 * MOST_ROWS


def others(newest: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """What `wait`, `show` and /metrics ask beside."""
    return {
        "position": (sql.SESSION_POSITION, {"id": newest, "groups": ["", "default"], "now": 2e9}),
        "session": (sql.SESSIONS, {"ids": [newest]}),
        "kernels": (sql.KERNELS, {"ids": [newest]}),
        "holdings": (sql.HOLDINGS, {"ids": [newest]}),
        "refusals": (sql.SESSION_REFUSALS, {"ids": [newest], "now": 2e9}),
        "counts of those that live": (sql.SESSION_COUNTS_LIVE, {}),
        "members to come": (array_sql.ARRAYS_UNMADE, {}),
        "waiting, by owner": (quota_sql.QUOTA_WAITING, {}),
        "held, by owner": (quota_sql.QUOTA_HELD, {}),
        "the newest": (sql.SESSION_NEWEST, {"owner": "ann"}),
    }


@pytest.mark.parametrize("name", others(""))
def test_who_waits_and_who_counts_looks_at_those_that_live(
    lite: SqliteConnection, postgres: PostgresConnection, name: str
) -> None:
    newest = "SELECT id FROM session WHERE owner = 'ann' ORDER BY ordinal DESC LIMIT 1"
    text, parameters = others(lite.rows(newest)[0][0])[name]
    assert steps(lite, text, **parameters) < MOST_STEPS
    text, parameters = others(postgres.rows(newest)[0][0])[name]
    assert looked_at(postgres, text, **parameters) < MOST_ROWS


def test_why_they_wait_costs_what_is_shown_though_nobody_of_their_shape_was_told(
    tmp_path: Path, postgres_database: str
) -> None:
    """As when all of them are held, or held back by a quota."""
    path = tmp_path / "corral.db"
    page: dict[str, list[str]] = {}
    for url in (f"sqlite://{path}", postgres_database):
        upgrade(url)
        store = open_store(url, SystemClock(), SystemIds())
        page[url] = asyncio.run(Play(store).submit(*[spec(hold=True) for _ in range(HELD)]))[-PAGE:]
        store.close()
    lite = SqliteConnection(sqlite3.connect(path), lambda: 2e9)
    assert steps(lite, sql.SESSION_REFUSALS, ids=page[f"sqlite://{path}"], now=2e9) < MOST_STEPS
    lite.close()
    with psycopg.connect(postgres_database, autocommit=True) as raw:
        raw.execute("ANALYZE")
        postgres = PostgresConnection(raw)
        assert looked_at(postgres, sql.SESSION_REFUSALS, ids=page[postgres_database], now=2e9) < MOST_ROWS


def test_pages_of_every_filter_are_what_one_list_of_all_says(lite: SqliteConnection) -> None:
    """The statements of several phases put together what is apart; none is missing, none twice, in order."""

    def ids(what: SessionFilter) -> list[str]:
        return [one.id for one in listing.sessions(lite.rows, what)]

    waiting = ids(SessionFilter(("pending",), limit=7))
    assert len(waiting) == len(set(waiting)) == WAITING
    assert waiting == ids(SessionFilter(LIVE, limit=1000)) == ids(SessionFilter(LIVE, owner="ann", limit=3))
    everybody = ids(SessionFilter(limit=333))
    assert everybody[:WAITING] == waiting
    assert len(everybody) == WAITING + ENDED + 1
    assert ids(SessionFilter((*LIVE, "ended"), limit=500)) == everybody
    assert ids(SessionFilter(("ended",), limit=500)) == everybody[WAITING:]


@pytest.mark.parametrize("members", [False, True])
@pytest.mark.parametrize("in_array", [None, "x"])
@pytest.mark.parametrize("phases", [(), LIVE, ("ended", "running"), ("placed",)])
def test_every_statement_is_valid_on_both(
    lite: SqliteConnection, postgres: PostgresConnection, phases: tuple[str, ...], in_array: str | None, members: bool
) -> None:
    plain = SessionFilter(phases, members=members, in_array=in_array, limit=3)
    for what in (plain, plain._replace(owner="x", project="x", group="x", name="x", after=3)):
        for connection in (lite, postgres):
            text, parameters = listing.sessions_statement(what, what.after), listing.parameters(what, what.after)
            assert len(connection.rows(text, **parameters)) == (0 if what.owner or in_array else min(3, shown(phases)))
            text = listing.arrays_statement(what, what.after, live=not members, unmade=members)
            assert connection.rows(text, **parameters) == []


def shown(phases: tuple[str, ...]) -> int:
    return 0 if phases == ("placed",) else 3


def test_names_are_looked_for_among_the_newest(database_url: str) -> None:
    store = open_store(database_url, SystemClock(), SystemIds())
    try:
        play = Play(store)
        first, other, second, whole = asyncio.run(
            play.submit(spec(name="a"), spec(name="b"), spec(name="a"), spec(name="a", array="0-3"))
        )

        def named(name: str, owner: str | None, limit: int = 5) -> list[str]:
            return asyncio.run(store.read("named", lambda reads: reads.named(name, owner, limit)))

        assert named("a", "ann") == named("a", None) == [whole, second, first]
        assert named("b", "ann") == [other]
        assert named("a", "ann", 2) == [whole, second]
        assert named("a", "bob") == named("c", None) == []
    finally:
        store.close()
