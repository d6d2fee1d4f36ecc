"""A quota whose row cannot be read holds back those under it, is told of, and hurts nobody else."""

import asyncio
import sqlite3

from corral.clock import SystemClock, SystemIds
from corral.model.quota import Quota
from corral.reconcile import quotas
from corral.store import SqliteStore, open_store
from corral.testing.builders import Play, new_session, spec


def test_a_quota_that_cannot_be_read(sqlite_url: str) -> None:
    store = open_store(sqlite_url, SystemClock(), SystemIds())
    assert isinstance(store, SqliteStore)

    async def put() -> None:
        await store.tx("set", lambda tx: quotas.put(tx, Quota("q", owner="bob", limits={"sessions": 2}), "user:admin"))

    async def main() -> None:
        play = Play(store)
        await play.join("n1")
        await play.submit(spec())
        (bobs,) = await store.tx("submit", lambda tx: tx.submit([new_session(spec(), owner="bob")]))
        assert await play.place() == 1
        found = await store.read("held back", lambda reads: quotas.held_back(reads, [bobs]))
        assert found[bobs.id][0].message.startswith("quota q: owner bob may hold 0 sessions at once")
        assert [(one.code, one.subject) for one in await play.violations()] == [("QU1", "q")]
        await put()
        assert await play.place() == 1
        assert await play.violations() == []

    try:
        asyncio.run(put())
        with sqlite3.connect(sqlite_url.removeprefix("sqlite://")) as raw:
            raw.execute("UPDATE quota SET limits = '{\"sessions\": 2'")
        asyncio.run(main())
    finally:
        store.close()
