"""Planned starts from pass to pass: whichever manager makes it, and whatever it knew when it looked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from corral.model.session import Session
from corral.ports import Store
from corral.reconcile import groups, intents
from corral.reconcile.groups import GroupChange
from corral.reconcile.placement import commit, new_refusals
from corral.reconcile.promising import Ahead, ahead_of
from corral.scheduling.cycle import cycle
from corral.scheduling.kept.picture import Picture
from corral.scheduling.plan import Plan
from corral.scheduling.snapshot import Promise
from corral.testing.builders import BY, Play, spec, whole_run
from corral.testing.conformance.loop import on_a_loop

ADMIN = "user:root"


async def backfill(store: Store, kind: str, **more: Any) -> None:
    change = GroupChange(options={"backfill": kind}, **more)
    await store.tx("set group", lambda tx: groups.change(tx, "default", change, ADMIN))


async def planned(store: Store) -> dict[str, Promise]:
    return await store.read("look", lambda reads: reads.promises())


async def put_off(store: Store, id_: str) -> list[Mapping[str, Any]]:
    """Whenever it was told that its start is not kept."""
    rows = await store.read("history", lambda reads: reads.history(id_))
    return [row.entry.detail for row in rows if row.entry.fact == "put_off"]


async def a_pass(store: Store, *only: str) -> tuple[Plan, dict[str, str], Ahead]:
    """What a manager is about to commit, who knows of these alone, or of all."""
    snapshot = await store.read("snapshot", lambda reads: reads.snapshot(8))
    running = await store.read("running", lambda reads: reads.running(["default"]))
    waiting = [one for one in snapshot.waiting if not only or one.id in only]
    snapshot = replace(snapshot, waiting=waiting, running=running, unread=frozenset())
    plan = cycle(snapshot)
    return plan, new_refusals(snapshot, plan), ahead_of(snapshot, plan)


async def both_full(store: Store) -> tuple[Play, str, str]:
    """n1 is free again in 100 s and n2 in 200; who runs there."""
    play = Play(store)
    for node in ("n1", "n2"):
        await play.join(node, cpus=2)
    await backfill(store, "conservative")
    short, long = await play.submit_and_claim(
        spec(cpus=2, on_nodes=["n1"], time_limit_s=100, grace_s=0),
        spec(cpus=2, on_nodes=["n2"], time_limit_s=200, grace_s=0),
    )
    return play, short, long


async def end(play: Play, id_: str) -> None:
    (kernel,) = await play.kernels(id_)
    await play.exchange(kernel.node)
    await play.exchange(kernel.node, *whole_run(kernel.token))


class PromiseRules:
    @on_a_loop
    async def test_who_could_start_earlier_leaves_the_promised_start_of_one_behind(self, store: Store) -> None:
        """Each pass is made by a manager that has seen nothing before."""
        play, short, long = await both_full(store)
        anywhere, there = await play.submit(
            spec(cpus=2, time_limit_s=1000), spec(cpus=2, on_nodes=["n2"], time_limit_s=500)
        )
        for _ in range(2):
            assert await play.place() == 0
        before = await planned(store)
        assert [rank.node for rank in before[anywhere].ranks] == ["n1"]
        assert before[there].told - before[anywhere].told > 90
        await end(play, long)  # the first in line could have n2 now, for longer than the other was promised
        assert await play.place() == 1
        assert (await play.facts(there))[-1] == "placed"
        assert await planned(store) == {anywhere: before[anywhere]}
        await end(play, short)
        assert await play.place() == 1
        assert (await planned(store), await play.violations()) == ({}, [])
        assert await put_off(store, anywhere) == await put_off(store, there) == []

    @on_a_loop
    async def test_a_promise_is_read_as_it_was_noted(self, store: Store) -> None:
        play, _, _ = await both_full(store)
        (id_,) = await play.submit(spec(cpus=2))
        for _ in range(2):
            await play.place()
        picture = Picture()
        kept = (await store.read("look", lambda reads: reads.snapshot(8, picture))).planned
        assert kept == await planned(store)
        (rank,) = kept[id_].ranks
        assert (rank.node, rank.cpu_milli, kept[id_].group) == ("n1", 2000, "default")
        changed = (await store.read("session", lambda reads: reads.sessions([id_])))[id_].seq
        assert await play.place() == 0
        assert (await store.read("session", lambda reads: reads.sessions([id_])))[id_].seq == changed
        assert await planned(store) == kept

    @on_a_loop
    async def test_who_comes_to_stand_before_it_puts_it_off_and_it_is_told_so(self, store: Store) -> None:
        play, _, _ = await both_full(store)
        await backfill(store, "easy", order="priority")
        (first,) = await play.submit(spec(cpus=2, time_limit_s=1000))
        for _ in range(2):
            await play.place()
        told = (await planned(store))[first].told
        (urgent,) = await play.submit(spec(cpus=2, priority=9, time_limit_s=1000))
        await play.place()
        assert {id_: one.told for id_, one in (await planned(store)).items()} == {urgent: told}
        (why,) = await put_off(store, first)
        assert (why["to"], why["why"]) == (None, "others are before it now")
        await backfill(store, "conservative")
        await play.place()
        assert (await planned(store))[first].told - told > 90

    @on_a_loop
    async def test_whose_priority_was_raised_is_not_held_by_what_it_was_promised(self, store: Store) -> None:
        play, _, _ = await both_full(store)
        await backfill(store, "conservative", order="priority")
        first, second = await play.submit(*[spec(cpus=2, on_nodes=["n1"], time_limit_s=500, grace_s=0)] * 2)
        for _ in range(2):
            await play.place()
        told = await planned(store)
        assert told[second].told == told[first].told + 500
        await store.tx("update", lambda tx: raised(tx, second))
        await play.place()
        now = await planned(store)
        assert (now[second].told, now[first].told) == (told[first].told, told[second].told)
        assert [why["why"] for why in await put_off(store, first)] == [f"session {second} is before it"]

    @on_a_loop
    async def test_a_placement_that_looked_before_a_promise_was_made_leaves_it(self, store: Store) -> None:
        """One manager has looked, and another promises n1 to somebody before the first one commits."""
        play, short, _ = await both_full(store)
        await end(play, short)
        (small,) = await play.submit(spec(cpus=1, on_nodes=["n1"], time_limit_s=1000))
        plan, told, ahead = await a_pass(store)
        assert [placed.session.id for placed in plan.placements] == [small]
        (large,) = await play.submit(spec(cpus=2, nodes=2, time_limit_s=60))
        others, _, promising = await a_pass(store, large)
        assert set(others.planned) == {large}
        assert await store.tx("place", lambda tx: commit(tx, others, {}, BY, ahead=promising)) == 0
        assert await store.tx("place", lambda tx: commit(tx, plan, told, BY, ahead=ahead)) == 0
        assert (await play.facts(small), set(await planned(store))) == (["submitted"], {large})
        short_enough = (await planned(store))[large].at - (await store.read("now", lambda reads: reads.now)) - 31
        await store.tx("update", lambda tx: intents.update(tx, small, "user:ann", time_limit_s=int(short_enough)))
        assert await play.place() == 1

    @on_a_loop
    async def test_a_promise_on_room_that_was_taken_meanwhile_is_not_made(self, store: Store) -> None:
        play, short, _ = await both_full(store)
        await end(play, short)
        (large,) = await play.submit(spec(cpus=2, nodes=2, time_limit_s=60))
        await play.place()
        plan, told, ahead = await a_pass(store)
        assert set(plan.planned) == {large}
        (small,) = await play.submit(spec(cpus=1, on_nodes=["n1"], time_limit_s=1000))
        others, _, _ = await a_pass(store, small)
        assert await store.tx("place", lambda tx: commit(tx, others, {}, BY)) == 1
        await store.tx("place", lambda tx: commit(tx, plan, told, BY, ahead=ahead))
        assert await planned(store) == {}
        await play.place()
        assert (await planned(store))[large].told > plan.planned[large].at + 500


def raised(tx: Any, id_: str) -> Session:
    return intents.update(tx, id_, "user:ann", priority=9)
