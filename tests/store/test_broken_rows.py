"""One stored row that cannot be read never stops the others: not a list, not a pass, not a sweep, not a start."""

import asyncio
import sqlite3
from collections.abc import Callable

import psycopg
import pytest

from corral.model.faults import Refused
from corral.model.invariants import check, gather
from corral.model.lifecycle import Phase
from corral.ports import SessionFilter, Store, Unreadable
from corral.reconcile.arrays import ARRAYS_AT_ONCE
from corral.reconcile.intents import cancel, requeue, submit_all
from corral.reconcile.sessions import sweep_due
from corral.testing.builders import BY, Play, new_session, spec, whole_run

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
        assert list(await store.read("all", lambda reads: reads.unreadable_sessions())) == [broken]
        live = [phase.value for phase in Phase if phase is not Phase.ENDED]
        for what in (
            SessionFilter(),
            SessionFilter(live),
            SessionFilter(live, owner="ann"),
            SessionFilter(name="broken"),
        ):
            first = (await store.read("listed", lambda reads, what=what: reads.listed(what)))[-1]
            assert isinstance(first, Unreadable), what
            assert (first.id, first.name, first.owner) == (broken, "broken", "ann")
            assert first.error
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


@pytest.mark.parametrize("how", BREAKAGES)
@pytest.mark.parametrize("begun", [False, True], ids=["waiting", "running"])
def test_a_cancel_leads_a_session_that_cannot_be_read_to_its_end(
    store: Store, direct: Sql, how: str, begun: bool
) -> None:
    async def body() -> None:
        play = Play(store)
        await play.join("n1")
        (id_,) = await (play.submit_and_claim(spec(name="mine")) if begun else play.submit(spec(name="mine")))
        token = (await play.tokens([id_]))[0] if begun else ""
        if begun:
            await play.exchange("n1")
            await play.exchange("n1", *whole_run(token)[:2])
        direct(BREAKAGES[how].replace("{id}", id_))
        assert (await store.tx("cancel", lambda tx: cancel(tx, id_, "user:admin"))).wanted == "stop"
        if begun:
            assert (await play.session(id_)).phase == "stopping", "its launch is not proven dead"
            (order,) = (await play.exchange("n1", have=0)).orders
            assert (order.token, order.stop is not None, order.launch) == (token, True, None)
            await play.exchange("n1", *whole_run(token)[2:])
        ended = await play.session(id_)
        assert (ended.phase, ended.spec.name, ended.spec.ranks) == ("ended", "mine", 1)
        assert await store.read("broken", lambda reads: reads.broken([id_])) == {}
        story = [row.entry for row in await store.read("history", lambda reads: reads.history(id_))]
        (aside,) = [entry for entry in story if entry.fact == "set_aside"]
        kept = await store.read("kept", lambda reads: reads.blob(str(aside.detail["kept"])))
        assert kept is not None
        assert (kept in (b"{", b"[1]", b"")) == how.startswith("spec"), "what could not be read is kept as it was"
        assert check(gather(await store.read("all", lambda reads: list(reads.ledger())))) == []
        with pytest.raises(Refused, match="submit it anew"):
            await store.tx("requeue", lambda tx: requeue(tx, id_, "0000000000", "user:admin"))

    asyncio.run(body())


@pytest.mark.parametrize("how", ["spec = '{'", "spec = '[1]'", """spec = '{"array": "x"}'"""])
def test_broken_arrays_hide_no_other(store: Store, direct: Sql, how: str) -> None:
    async def body() -> None:
        play = Play(store)
        await play.join("n1")
        new = [new_session(spec(array="0-3%1")) for _ in range(ARRAYS_AT_ONCE + 2)]
        arrays = await store.tx("submit", lambda tx: submit_all(tx, new, "user:ann"))
        *broken, sound = [one.id for one in arrays]
        direct(f"UPDATE session_array SET {how} WHERE id <> '{sound}'")
        assert (await store.read("arrays", lambda reads: reads.arrays([*broken, sound]))).keys() == {sound}
        listed = await store.read("list", lambda reads: reads.list_arrays(SessionFilter()))
        assert [array.id for array, _ in listed] == [sound]
        whole = await store.read("list", lambda reads: reads.listed_arrays(SessionFilter(("pending",))))
        aside = [one for one in whole if isinstance(one, Unreadable)]
        assert [one.id for one in aside] == broken[::-1]
        assert all(one.is_array and one.error for one in aside)
        assert await play.place() == 1
        assert (await play.session(f"{sound}[0]")).phase is Phase.PLACED
        await store.tx("cancel", lambda tx: cancel(tx, f"{sound}[3]", "user:ann"))

    asyncio.run(body())
