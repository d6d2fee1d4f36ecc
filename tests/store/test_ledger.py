"""Doctor's short look: of the sessions that are over one for each story. It misses nothing that is wrong in any."""

import asyncio
import sqlite3
from collections.abc import Iterator

import pytest

from corral.clock import SystemClock, SystemIds
from corral.model.invariants import check, gather
from corral.reconcile.intents import requeue
from corral.store import PostgresStore, SqliteStore, open_store, upgrade
from corral.store.connection import SqliteConnection
from corral.store.reads import SqlReads
from corral.testing.builders import BY, Play, spec, whole_run

ALIKE = 6


async def tell_stories(play: Play) -> dict[str, list[str]]:
    """Some that went well, alike; some that failed; some cancelled before they began; one that ran twice; an array; and
    one that lives."""
    for name in ("n1", "n2"):
        await play.join(name)
        await play.exchange(name)
    well = await _run(play, *[0] * ALIKE)
    failed = await _run(play, 1, 1)
    cancelled = await play.submit(spec(cpus=64), spec(cpus=64))
    for id_ in cancelled:
        await play.cancel(id_)
    again = await _run(play, 0)
    await play.store.tx("again", lambda tx: requeue(tx, again[0], "zzzzzzzzz1", BY))
    await play.submit(spec(array="0-1"))
    return {"well": [*well, *failed], "cancelled": cancelled}  # how it ended is no rule's concern


async def _run(play: Play, *codes: int) -> list[str]:
    ids: list[str] = []
    for code in codes:
        (id_,) = await play.submit_and_claim(spec())
        (token,) = await play.tokens([id_])
        node = (await play.kernels(id_))[0].node
        await play.exchange(node)
        await play.exchange(node, *whole_run(token, code))
        assert (await play.session(id_)).phase == "ended"
        ids.append(id_)
    return ids


def test_one_of_each_story_is_read_and_all_are_counted(store: SqliteStore | PostgresStore) -> None:
    async def body() -> None:
        ids = await tell_stories(Play(store))
        whole = await store.read("all", lambda reads: gather(reads.ledger()))
        few = await store.read("few", lambda reads: gather(reads.ledger(alike=False)))
        assert check(whole) == check(few) == []
        assert {name: len(rows) for name, rows in whole.items()} == await store.read(
            "counts", lambda reads: reads.ledger_counts()
        )
        told = {row["id"] for row in few["session"]}
        assert {name: len(told & set(alike)) for name, alike in ids.items()} == dict.fromkeys(ids, 1)
        assert {row["session"] for row in few["event"]} >= told
        assert len(few["event"]) < len(whole["event"])
        assert {row["phase"] for row in few["session"]} == {row["phase"] for row in whole["session"]}

    asyncio.run(body())


def wrong(reads: SqlReads, *, alike: bool) -> list[str]:
    """A row that a rule cannot even look at is wrong, too."""
    try:
        return [str(one) for one in check(gather(reads.ledger(alike=alike)))]
    except (KeyError, TypeError, ValueError) as error:
        return [repr(error)]


DAMAGE = {
    "session": ("outcome", "exit_class", "ended_at", "attempt", "seq", "room_by", "phase", "wanted", "next_check_at"),
    "attempt": ("live", "ended_at", "attempt", "outcome"),
    "kernel": ("claimed_version", "certificate", "node_epoch", "node", "rank", "attempt", "session", "ready_at"),
    "holding": ("released_at", "node", "token", "attempt", "session", "cpu_milli", "exclusive"),
    "event": ("fact", "source", "target", "attempt", "seq", "session"),
}
VALUES = ("NULL", "0", "1", "99", "'odd'", "'pending'", "'ended'", "'preempted'", "'stop'")


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SqliteStore, str]]:
    path = tmp_path_factory.mktemp("ledger") / "corral.db"
    upgrade(f"sqlite://{path}")
    store = open_store(f"sqlite://{path}", SystemClock(), SystemIds())
    assert isinstance(store, SqliteStore)
    ids = asyncio.run(tell_stories(Play(store)))
    yield store, ids["well"][2]
    store.close()


@pytest.mark.parametrize(("table", "column"), [(table, column) for table in DAMAGE for column in DAMAGE[table]])
def test_what_is_wrong_in_one_of_many_is_seen(told: tuple[SqliteStore, str], table: str, column: str) -> None:
    """Each column of each row of one that ended well like others, overwritten: the short look finds something exactly
    when the long one does."""
    store, id_ = told
    whole = sqlite3.connect(":memory:", isolation_level=None)
    store._writer.raw.backup(whole)  # pyright: ignore[reportPrivateUsage]
    whole.execute("PRAGMA ignore_check_constraints = ON")
    reads = SqlReads(SqliteConnection(whole, lambda: 2e9))
    seen = 0
    of = "id" if table == "session" else "session"
    places = [row[0] for row in whole.execute(f"SELECT rowid FROM {table} WHERE {of} = '{id_}'")]
    assert places
    for place in places:
        for value in VALUES:
            whole.execute("SAVEPOINT damage")
            try:
                whole.execute(f"UPDATE {table} SET {column} = {value} WHERE rowid = {place}")
                long = wrong(reads, alike=True)
                assert bool(wrong(reads, alike=False)) == bool(long), (place, value, long)
                seen += bool(long)
            except sqlite3.IntegrityError:
                pass  # no column of that kind takes such a value
            finally:
                whole.execute("ROLLBACK TO damage")
                whole.execute("RELEASE damage")
    whole.close()
    assert seen or f"{table}.{column}" in UNSEEN


# Of one that is over no rule looks at these.
UNSEEN = (
    *("session.wanted", "session.next_check_at", "attempt.outcome", "kernel.ready_at"),
    *("holding.attempt", "holding.session", "holding.cpu_milli", "holding.exclusive"),
)
