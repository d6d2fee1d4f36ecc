"""One stored row that cannot be read never stops the others: not a list, not a pass, not a sweep, not a start."""

import asyncio
import sqlite3
from collections.abc import Callable

import psycopg
import pytest

from corral.ports import SessionFilter, Store
from corral.reconcile.sessions import sweep_due
from corral.testing.builders import BY, Play, spec, whole_run

BREAKAGES = {
    "spec is no JSON": "UPDATE session SET spec = '{' WHERE id = '{id}'",
    "spec is JSON of something else": "UPDATE session SET spec = '[1]' WHERE id = '{id}'",
    "spec is empty": "UPDATE session SET spec = '' WHERE id = '{id}'",
    "phase is unknown": "UPDATE session SET phase = 'asleep' WHERE id = '{id}'",
    "wanted is unknown": "UPDATE session SET wanted = 'more' WHERE id = '{id}'",
}
UNCHECKED = "ALTER TABLE session DROP CONSTRAINT session_phase_known, DROP CONSTRAINT session_wanted_known"

Sql = Callable[[str], None]


@pytest.fixture
def direct(database_url: str) -> Sql:
    """Writes past the store, CHECKs switched off: what a bad disk or a bad hand leaves behind."""

    def run(statement: str) -> None:
        if database_url.startswith("sqlite"):
            with sqlite3.connect(database_url.removeprefix("sqlite://"), timeout=10) as raw:
                raw.execute("PRAGMA ignore_check_constraints = ON")
                raw.execute(statement)
        else:
            with psycopg.connect(database_url) as raw:
                if raw.execute("SELECT 1 FROM pg_constraint WHERE conname = 'session_phase_known'").fetchone():
                    raw.execute(UNCHECKED)
                raw.execute(statement.encode())

    return run


@pytest.mark.parametrize("how", BREAKAGES)
def test_a_broken_row_stands_alone(store: Store, direct: Sql, how: str) -> None:
    async def body() -> None:
        play = Play(store)
        await play.join("n1")
        broken, sound = await play.submit(spec(name="broken"), spec(name="sound"))
        direct(BREAKAGES[how].replace("{id}", broken))
        direct("UPDATE session SET next_check_at = 1")

        assert [s.id for s in await store.read("list", lambda reads: reads.list_sessions(SessionFilter()))] == [sound]
        assert list(await store.read("broken", lambda reads: reads.broken([broken, sound]))) == [broken]
        assert await sweep_due(store, BY) == 2
        assert await store.read("due", lambda reads: reads.due(10)) == [], "the broken one would be seen for ever"
        await play.place()
        await play.claim()
        await play.exchange("n1")
        await play.exchange("n1", *whole_run((await play.tokens([sound]))[0]))
        assert (await play.session(sound)).outcome == "succeeded"
        assert sum((await store.read("count", lambda reads: reads.count_sessions())).values()) == 2

    asyncio.run(body())


def test_a_session_that_breaks_while_it_runs_does_not_stop_its_node(store: Store, direct: Sql) -> None:
    async def body() -> None:
        play = Play(store)
        await play.join("n1")
        broken, sound = await play.submit_and_claim(spec(), spec())
        await play.exchange("n1")
        tokens = {await_id: (await play.tokens([await_id]))[0] for await_id in (broken, sound)}
        direct(f"UPDATE session SET spec = 'x' WHERE id = '{broken}'")
        facts = [*whole_run(tokens[broken]), *whole_run(tokens[sound])]
        assert not (await play.exchange("n1", *facts)).stale
        assert (await play.session(sound)).outcome == "succeeded"
        (kernel,) = await play.kernels(broken)
        assert kernel.certificate is not None, "what its node reported is kept"
        assert [o.token for o in (await play.exchange("n1", have=0)).orders] == []

    asyncio.run(body())
