"""Sessions: submitting, guarded writes, history, questions about them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from corral import wire
from corral.model.faults import Invalid, Refused
from corral.model.lifecycle import Phase, Wanted
from corral.model.session import Session
from corral.ports import EVENTS, EventRow, NewSession, Reads, SessionFilter, Store, Tx, session_channel
from corral.testing.builders import BY, Play, new_session, noted, raising, spec, whole_run
from corral.testing.conformance.loop import on_a_loop


async def submitted(store: Store, *new: NewSession) -> list[Session]:
    return await store.tx("submit", lambda tx: tx.submit(new))


async def history(store: Store, id_: str) -> list[EventRow]:
    return await store.read("history", lambda reads: reads.history(id_))


class SessionRules:
    @on_a_loop
    async def test_a_submitted_session_is_there_with_its_first_event(self, store: Store) -> None:
        (made,) = await submitted(store, new_session(spec("echo", "é\n", name="one", labels={"a": "b"})))
        (found,) = (await store.read("look", lambda reads: reads.sessions([made.id]))).values()
        assert found == made
        assert (found.phase, found.attempt, found.seq, found.wanted) == (Phase.PENDING, 1, 1, Wanted.RUN)
        assert found.spec.command == ("echo", "é\n")
        assert found.next_check_at is not None
        (event,) = await history(store, made.id)
        assert (event.seq, event.entry.fact, event.entry.target) == (1, "submitted", Phase.PENDING)

    @on_a_loop
    async def test_a_submit_of_several_is_all_or_nothing(self, store: Store) -> None:
        taken = new_session(spec(), key="k", digest="one")
        await submitted(store, taken)
        fresh, clashing = new_session(), new_session(spec(), key="k", digest="another")
        with raising(Refused, "idempotency_conflict"):
            await submitted(store, fresh, clashing)
        assert await store.read("look", lambda reads: list(reads.sessions([fresh.id]))) == []
        assert await history(store, fresh.id) == []
        assert await store.read("count", lambda reads: reads.count_sessions()) == {"pending": 1}

    @on_a_loop
    async def test_a_repeated_idempotency_key_answers_the_first_session(self, store: Store) -> None:
        first, again = new_session(spec(), "k", "same"), new_session(spec(), "k", "same")
        (made,) = await submitted(store, first)
        (answered,) = await submitted(store, again)
        assert answered.id == made.id == first.id
        assert len(await history(store, first.id)) == 1
        other_project = new_session(spec(project="other"), "k", "same")
        assert (await submitted(store, other_project))[0].id == other_project.id

    @on_a_loop
    async def test_of_equal_keys_at_the_same_moment_one_session_is_made(self, store: Store) -> None:
        for round_ in range(5):
            new = [new_session(spec(), f"key-{round_}", "same") for _ in range(8)]
            answers = await asyncio.gather(*(submitted(store, one) for one in new))
            assert len({made.id for (made,) in answers}) == 1
        assert await store.read("count", lambda reads: reads.count_sessions()) == {"pending": 5}

    @on_a_loop
    async def test_a_stale_write_changes_nothing_and_tells_nothing(self, store: Store) -> None:
        (before,) = await submitted(store, new_session())
        for stale in (
            before._replace(phase=Phase.PLACED),
            before._replace(attempt=2),
            before._replace(seq=7),
            before._replace(id="0nosuchone"),
        ):
            assert await store.tx("stale", lambda tx, stale=stale: tx.write([noted(stale, priority=5)], BY)) == set()
        assert await store.read("look", lambda reads: reads.sessions([before.id])) == {before.id: before}
        assert len(await history(store, before.id)) == 1

    @on_a_loop
    async def test_of_two_writes_from_one_state_the_first_stands(self, store: Store) -> None:
        (before,) = await submitted(store, new_session())
        first, second = noted(before, priority=1), noted(before, priority=2)
        taken = await asyncio.gather(
            *(store.tx("write", lambda tx, one=one: tx.write([one], BY)) for one in (first, second))
        )
        assert sorted(map(len, taken)) == [0, 1]
        assert [row.seq for row in await history(store, before.id)] == [1, 2]

    @on_a_loop
    async def test_within_a_batch_only_the_stale_one_is_left_out(self, store: Store) -> None:
        one, two = await submitted(store, new_session(), new_session())
        changes = [noted(one, priority=3), noted(two._replace(seq=9), priority=3)]
        assert await store.tx("write", lambda tx: tx.write(changes, BY)) == {one.id}
        found = await store.read("look", lambda reads: reads.sessions([one.id, two.id]))
        assert (found[one.id].priority, found[two.id].priority) == (3, 0)

    @on_a_loop
    async def test_a_body_that_fails_leaves_nothing(self, store: Store) -> None:
        (before,) = await submitted(store, new_session())
        watch = store.wakeups.watch(session_channel(before.id))

        def body(tx: Tx) -> None:
            tx.write([noted(before, priority=9)], BY)
            tx.add_credential("ann", "user", "digest")
            raise RuntimeError("on purpose")

        with raising(RuntimeError, "on purpose"):
            await store.tx("fails", body)
        assert await store.read("look", lambda reads: reads.sessions([before.id])) == {before.id: before}
        assert await store.read("look", lambda reads: reads.credential("digest")) is None
        assert not await watch.wait(0.05)

    @on_a_loop
    async def test_history_is_gapless_and_events_keep_its_order(self, store: Store) -> None:
        play = Play(store)
        await play.join("n1")
        ids = await play.submit_and_claim(*(spec() for _ in range(4)))
        tokens = await play.tokens(ids)
        for token in tokens:
            await play.exchange("n1", *whole_run(token))
        events = await store.read("events", lambda reads: reads.events(0))
        assert [row.id for row in events] == sorted({row.id for row in events})
        for id_ in ids:
            mine = [row for row in events if row.session == id_]
            assert mine == await history(store, id_)
            assert [row.seq for row in mine] == list(range(1, len(mine) + 1))
            assert mine[-1].entry.target is Phase.ENDED
        last = await store.read("last", lambda reads: reads.last_event())
        assert last == events[-1].id
        assert await store.read("rest", lambda reads: reads.events(events[5].id, limit=3)) == events[6:9]

    @on_a_loop
    async def test_a_change_hints_its_session_and_the_watchers(self, store: Store) -> None:
        (before,) = await submitted(store, new_session())
        mine, events, other = (
            store.wakeups.watch(channel) for channel in (session_channel(before.id), EVENTS, session_channel("other"))
        )
        await store.tx("write", lambda tx: tx.write([noted(before)], BY))
        assert await mine.wait(10)
        assert await events.wait(10)
        assert not await other.wait(0.01)

    @on_a_loop
    async def test_lists_page_by_page_newest_first(self, store: Store) -> None:
        for index in range(7):
            what = spec(name=f"s{index}", labels={"even": str(index % 2 == 0)}, project="p" if index < 5 else "q")
            await submitted(store, new_session(what, owner="ann" if index else "bob"))

        async def names(what: SessionFilter) -> list[str]:
            return [session.spec.name for session in await store.read("list", lambda reads: reads.list_sessions(what))]

        assert await names(SessionFilter()) == ["s6", "s5", "s4", "s3", "s2", "s1", "s0"]
        assert await names(SessionFilter(project="p", limit=2)) == ["s4", "s3"]
        assert await names(SessionFilter(owner="bob")) == ["s0"]
        assert await names(SessionFilter(name="s3", phases=("pending", "ended"))) == ["s3"]
        assert await names(SessionFilter(phases=("ended",))) == []
        assert await names(SessionFilter(labels={"even": "True"}, limit=2)) == ["s6", "s4"]
        third = (await store.read("list", lambda reads: reads.list_sessions(SessionFilter(limit=3))))[-1]
        assert await names(SessionFilter(after=third.ordinal, limit=2)) == ["s3", "s2"]

    @on_a_loop
    async def test_ids_are_found_by_their_beginning(self, store: Store) -> None:
        new = [NewSession(id_, spec(), "ann") for id_ in ("abc0000001", "abc0000002", "abd0000001")]
        await submitted(store, *new)

        def look(reads: Reads) -> tuple[list[str], list[str], list[str]]:
            return reads.find_sessions("abc"), reads.find_sessions("abd"), reads.find_sessions("x")

        assert await store.read("find", look) == (["abc0000001", "abc0000002"], ["abd0000001"], [])
        await submitted(store, NewSession("abc0000003", spec(), "bob"))
        assert await store.read("his", lambda reads: reads.find_sessions("abc", 1, "bob")) == ["abc0000003"]
        assert await store.read("newest", lambda reads: reads.newest_session("ann")) == "abd0000001"
        assert await store.read("newest", lambda reads: reads.newest_session("eve")) is None

    @on_a_loop
    async def test_what_is_due_and_what_is_postponed(self, store: Store) -> None:
        one, two = await submitted(store, new_session(), new_session())

        def advance(tx: Tx) -> None:
            tx.postpone([two.id], tx.now - 1)

        await store.tx("advance", advance)
        assert await store.read("due", lambda reads: reads.due(10)) == [two.id]
        await store.tx("broken", lambda tx: tx.mark_broken(one.id, "cannot be read", tx.now - 5))
        assert await store.read("due", lambda reads: reads.due(10)) == [one.id, two.id]
        assert await store.read("due", lambda reads: reads.due(1)) == [one.id]
        snapshot = await store.read("snapshot", lambda reads: reads.snapshot(10))
        assert [waiting.id for waiting in snapshot.waiting] == [two.id]

    @on_a_loop
    async def test_a_read_sees_one_state(self, store: Store) -> None:
        (before,) = await submitted(store, new_session())
        loop = asyncio.get_running_loop()

        async def write() -> None:
            await store.tx("write", lambda tx: tx.write([noted(before, priority=4)], BY))

        def look(reads: Reads) -> tuple[Session, Session]:
            first = reads.sessions([before.id])[before.id]
            asyncio.run_coroutine_threadsafe(write(), loop).result(30)
            return first, reads.sessions([before.id])[before.id]

        first, second = await store.read("look", look)
        assert first == second == before

    @on_a_loop
    async def test_a_number_that_no_column_holds_is_the_callers_fault(self, store: Store) -> None:
        with raising(Invalid, "value_out_of_range"):
            await submitted(store, new_session(), new_session(spec(priority=2**70)))
        with raising(Invalid, "value_out_of_range"):
            await store.read("events", lambda reads: reads.events(2**64))
        assert await store.read("count", lambda reads: reads.count_sessions()) == {}
        await submitted(store, new_session())

    @on_a_loop
    async def test_a_spec_changes_while_it_waits(self, store: Store) -> None:
        (made,) = await submitted(store, new_session())
        await store.tx("set", lambda tx: tx.set_spec(made.id, replace(made.spec, group="other")))
        found = await store.read("look", lambda reads: reads.sessions([made.id])[made.id])
        assert found.spec.group == "other"

    @on_a_loop
    async def test_refusals_are_kept_while_it_waits(self, store: Store) -> None:
        (made,) = await submitted(store, new_session(spec(cpus=1000)))
        why = [{"code": "not_enough_cpus", "message": "…", "counts": {"n1": 1}}]
        await store.tx("note", lambda tx: tx.note_refusals({made.id: wire.encode(why).decode()}))
        assert await store.read("look", lambda reads: reads.refusals([made.id])) == {made.id: why}
        assert await store.read("look", lambda reads: reads.position(made)) == 1
