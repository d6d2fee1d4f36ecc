"""Arrays: their members are made once each, in order, as far as their throttle and a pass allow, whoever does it."""

from __future__ import annotations

import asyncio
import contextlib

from corral.model.array import Array
from corral.model.dependency import dependency_of
from corral.model.faults import NotFound, Refused
from corral.model.lifecycle import Outcome, Phase, Wanted
from corral.model.session import Session
from corral.ports import NewSession, SessionFilter, Store, Tx
from corral.reconcile import arrays, intents
from corral.testing.builders import Play, new_session, raising, spec, whole_run
from corral.testing.conformance.loop import on_a_loop

ROUNDS = 6


class ArrayRules:
    @on_a_loop
    async def test_an_array_is_one_row(self, store: Store) -> None:
        array = await submit(store, "0-999999")
        assert (array.size, array.made, array.reached) == (1_000_000, 0, 0)
        assert await rows(store, array) == []
        (after,) = await Play(store).submit(spec())
        assert (await Play(store).session(after)).ordinal > array.ordinal_at(999_999), "its places are its own"
        assert (await look(store, array)).size == 1_000_000
        assert await Play(store).violations() == []

    @on_a_loop
    async def test_members_are_made_in_order_as_far_as_the_throttle_allows(self, store: Store) -> None:
        play = Play(store)
        await play.join("n1", cpus=64)
        array = await submit(store, "0-3,10-18:2%3")
        later = (await play.submit(spec()))[0]
        assert await play.place() == 4
        names = [f"{array.id}[{index}]" for index in (0, 1, 2, 3, 10, 12, 14, 16, 18)]
        assert [one.id for one in await rows(store, array)] == names[:3]
        assert [one.submitted_at for one in await rows(store, array)] == [array.submitted_at] * 3
        assert max(one.ordinal for one in await rows(store, array)) < (await play.session(later)).ordinal
        await play.claim()
        await end(play, names[1])
        await play.place()
        assert [one.id for one in await rows(store, array)] == names[:4]
        assert await play.violations() == []

    @on_a_loop
    async def test_without_a_throttle_no_more_wait_than_a_pass_reads(self, store: Store) -> None:
        play = Play(store)
        await play.join("n1", cpus=2)
        array = await submit(store, "0-9999")
        for _ in range(3):
            await play.place()
        phases = [one.phase for one in await rows(store, array)]
        assert phases.count(Phase.PLACED) == 2
        assert phases.count(Phase.PENDING) == arrays.WINDOW
        counts = await store.read("counts", lambda reads: reads.count_sessions())
        assert counts == {"pending": 9998, "placed": 2}
        assert await store.read("live", lambda reads: reads.count_live()) == counts

    @on_a_loop
    async def test_managers_that_unfold_at_once_make_each_member_once(self, store: Store) -> None:
        play = Play(store)
        array = await submit(store, "0-39%5")
        other = await submit(store, "0-39")
        await asyncio.gather(*(arrays.unfold_pass(store, f"manager:{number}") for number in range(6)))
        assert [one.id for one in await rows(store, array)] == [array.id_at(place) for place in range(5)]
        assert [one.id for one in await rows(store, other)] == [other.id_at(place) for place in range(40)]
        assert await play.violations() == []

    @on_a_loop
    async def test_the_throttle_holds_while_members_end_and_are_asked_for(self, store: Store) -> None:
        play = Play(store)
        await play.join("n1", cpus=64)
        array = await submit(store, "0-29%3")
        while True:
            made = len(await rows(store, array))
            wanted = (max(0, made - 1), made, made + 2) if made < 30 else ()
            wishes = [hold(store, array, place) for place in wanted]
            await asyncio.gather(play.place(), play.place(), *wishes)
            await release(store, array, min(30, made + 3))
            assert await play.violations() == []
            await play.claim()
            live = [one for one in await rows(store, array) if one.phase.holds_room]
            assert len(live) <= 3
            if not live and (await look(store, array)).ended_at is not None:
                break
            for one in live:
                await end(play, one.id)
        ended = await look(store, array)
        assert (ended.outcome, ended.exit_code, ended.made) == (Outcome.SUCCEEDED, 0, 30)
        assert await play.violations() == []

    @on_a_loop
    async def test_a_member_that_something_is_asked_of_waits_for_its_turn(self, store: Store) -> None:
        play = Play(store)
        await play.join("n1", cpus=64)
        array = await submit(store, "0-5%2")
        last = f"{array.id}[5]"
        changed = await store.tx("update", lambda tx: intents.update(tx, last, "user:ann", priority=3))
        assert (changed.id, changed.priority, changed.phase) == (last, 3, Phase.PENDING)
        assert await play.place() == 2
        assert [one.id for one in await rows(store, array) if one.phase.holds_room] == [
            f"{array.id}[0]", f"{array.id}[1]",
        ]  # fmt: skip
        for place in range(5):
            await play.claim()
            await end(play, array.id_at(place))
            await play.place()
        await play.claim()
        await end(play, last)
        await play.place()
        assert (await look(store, array)).outcome is Outcome.SUCCEEDED
        assert [one.id for one in await rows(store, array)] == [array.id_at(place) for place in range(6)]
        assert await play.violations() == []

    @on_a_loop
    async def test_a_cancel_against_every_step_of_unfolding(self, store: Store) -> None:
        play = Play(store)
        await play.join("n1", cpus=64)
        for number in range(ROUNDS):
            array = await submit(store, "0-9%4")
            one = f"{array.id}[{number % 5}]"
            await asyncio.gather(play.place(), play.cancel(one), cancel(store, array), play.place())
            await play.place()
            await play.claim()
            ended = await look(store, array)
            assert (ended.wanted, ended.outcome) == (Wanted.STOP, Outcome.CANCELLED), ended
            members = await rows(store, array)
            assert all(one.phase is Phase.ENDED for one in members)
            assert len({one.id for one in members}) == len(members) == ended.made
            assert await play.violations() == []
        assert (await store.read("counts", lambda reads: reads.count_sessions())).keys() == {"ended"}

    @on_a_loop
    async def test_the_same_key_makes_one_array(self, store: Store) -> None:
        asked = [new_session(spec(array="0-9"), key="k", digest="d") for _ in range(6)]
        made = await asyncio.gather(*(store.tx("submit", lambda tx, one=one: submit_one(tx, one)) for one in asked))
        assert len({one.id for one in made}) == 1
        other = new_session(spec(array="0-8"), key="k", digest="e")
        plain = new_session(spec(), key="k", digest="d")
        for one in (other, plain):
            with raising(Refused, "idempotency_conflict"):
                await store.tx("submit", lambda tx, one=one: intents.submit_all(tx, [one], "user:ann"))
        assert len(await store.read("list", lambda reads: reads.list_arrays(SessionFilter()))) == 1

    @on_a_loop
    async def test_submits_at_once_have_places_of_their_own(self, store: Store) -> None:
        asked = [new_session(spec(array="0-99") if number % 2 else spec()) for number in range(12)]
        made = await asyncio.gather(
            *(store.tx("submit", lambda tx, one=one: intents.submit_all(tx, [one], "user:ann")) for one in asked)
        )
        taken: list[int] = []
        for (one,) in made:
            taken += range(one.ordinal, one.ordinal + 1 + (one.size if isinstance(one, Array) else 0))
        assert len(set(taken)) == len(taken) == 6 + 6 * 101

    @on_a_loop
    async def test_one_after_another_of_arrays(self, store: Store) -> None:
        play = Play(store)
        await play.join("n1", cpus=64)
        first, second = await submit(store, "0-1"), await submit(store, "0-1")
        await store.tx("after", lambda tx: tx.array_waits_for(second.id, [dependency_of(first.id)]))
        await play.place()
        await play.claim()
        assert [one.id for one in await rows(store, second)] == []
        for place in range(2):
            await end(play, first.id_at(place))
        for _ in range(2):
            await play.place()
        assert len(await rows(store, second)) == 2
        assert await play.facts(second.id) == ["submitted", "dependency_met"]
        assert await play.violations() == []

    @on_a_loop
    async def test_what_has_no_member_of_that_name(self, store: Store) -> None:
        array = await submit(store, "0-9:3")
        with raising(NotFound, "no_such_member"):
            await store.tx("cancel", lambda tx: intents.cancel(tx, f"{array.id}[1]", "user:ann"))
        with raising(NotFound, "no_such_session"):
            await store.tx("cancel", lambda tx: intents.cancel(tx, "nothing[1]", "user:ann"))


def submit_one(tx: Tx, new: NewSession) -> Array:
    (made,) = intents.submit_all(tx, [new], "user:ann")
    assert isinstance(made, Array)
    return made


async def submit(store: Store, indices: str) -> Array:
    new = new_session(spec(array=indices))
    return await store.tx("submit", lambda tx: submit_one(tx, new))


async def look(store: Store, array: Array) -> Array:
    return (await store.read("array", lambda reads: reads.arrays([array.id])))[array.id]


async def rows(store: Store, array: Array) -> list[Session]:
    """Its members that have rows, in order."""
    what = SessionFilter(members=True, in_array=array.id, limit=100_000)
    return (await store.read("members", lambda reads: reads.list_sessions(what)))[::-1]


async def cancel(store: Store, array: Array) -> Array:
    return await store.tx("cancel", lambda tx: arrays.cancel(tx, array.id, "user:ann"))


async def end(play: Play, id_: str, code: int = 0) -> None:
    """Let a claimed member run to its end."""
    (token,) = await play.tokens([id_])
    await play.exchange("n1")
    await play.exchange("n1", *whole_run(token, code))


async def hold(store: Store, array: Array, place: int) -> None:
    """Hold the member in this place, if there is one that waits."""
    with contextlib.suppress(Refused, IndexError):
        await store.tx("hold", lambda tx: intents.hold(tx, array.id_at(place), "user:ann"))


async def release(store: Store, array: Array, places: int) -> None:
    for place in range(places):
        await store.tx("release", lambda tx, at=place: intents.release(tx, array.id_at(at), "user:ann"))
