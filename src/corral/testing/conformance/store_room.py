"""Kernels and room: placed, claimed, reported, certified, given back, and never held twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from corral.model.lifecycle import Fact, Phase
from corral.model.node import Holding
from corral.model.resources import GpuRequest
from corral.model.session import Certificate, Change, Entry, Kernel, KernelFact, Session, Token
from corral.ports import Placement, Reads, Store, Tx
from corral.store import Conflict
from corral.testing.builders import (
    BY,
    Play,
    accepted,
    exited,
    new_session,
    noted,
    raising,
    ready,
    refused,
    result,
    spec,
    whole_run,
)
from corral.testing.conformance.loop import on_a_loop


def placement(
    session: Session, node: str, *, device: str | None = None, epoch: int = 1, milli: int = 1000
) -> Placement:
    """One kernel for the session, with `milli` of the node's CPUs, or of one of its devices."""
    token = str(Token(1, session.id, session.attempt, 0))
    held = Holding(token, session.id, session.attempt, node)
    if device is None:
        room = [replace(held, cpu_milli=milli, memory_mib=64)]
    else:
        room = [held, replace(held, device=device, share_milli=milli, vram_mib=80_000 * milli // 1000)]
    kernel = Kernel(token, session.id, session.attempt, 0, node, epoch, "run-1")
    return Placement(session, "default", [kernel], room)


def place(tx: Tx, session: Session, *placements: Placement) -> None:
    """Write the phase and hold the room, as a placement pass does, without its look at what is free."""
    after = session._replace(phase=Phase.PLACED, seq=session.seq + 1)
    entry = Entry(Fact.PLACED.value, session.phase, Phase.PLACED, session.attempt, BY)
    assert tx.write([Change(session, after, (entry,))], BY)
    tx.hold(placements, BY)


async def refuse(store: Store, name: str, body: Callable[[Tx], object]) -> None:
    """The transaction must be refused as a whole: by the database itself, or by a row count that is wrong."""
    with raising(Conflict):
        await store.tx(name, body)


async def used(store: Store, node: str) -> tuple[int, int]:
    found = (await store.read("nodes", lambda reads: reads.nodes([node])))[node]
    return found.cpu_used_milli, found.memory_used_mib


async def submitted(store: Store, count: int = 1) -> list[Session]:
    return await store.tx("submit", lambda tx: tx.submit([new_session() for _ in range(count)]))


class RoomRules:
    @on_a_loop
    async def test_a_session_goes_its_way_and_gives_everything_back(self, store: Store) -> None:
        play = Play(store)
        await play.join("n1", gpus=2)
        (id_,) = await play.submit(spec(cpus=2, memory_mib=100, gpu=GpuRequest()))
        assert await play.place() == 1
        assert await used(store, "n1") == (2000, 100)
        (kernel,) = await play.kernels(id_)
        assert (kernel.claimed_version, kernel.node, kernel.certificate) == (None, "n1", None)
        assert await play.claim() == 1
        desired = await play.exchange("n1")
        assert [order.token for order in desired.orders] == [kernel.token]
        await play.exchange("n1", *whole_run(kernel.token))
        ended = await play.session(id_)
        assert (ended.phase, ended.outcome, ended.exit_code) == (Phase.ENDED, "succeeded", 0)
        facts = ["submitted", "placed", "claimed", "ready", "decided", "released"]
        assert await play.facts(id_) == facts
        assert await used(store, "n1") == (0, 0)
        devices = await store.read("devices", lambda reads: reads.devices(["n1"]))
        assert [(device.used_mib, device.used_milli) for device in devices] == [(0, 0), (0, 0)]
        assert await play.violations() == []

    @on_a_loop
    async def test_what_is_read_of_an_attempt_is_what_happened(self, store: Store) -> None:
        play = Play(store)
        await play.join("n1", gpus=1)
        (id_,) = await play.submit_and_claim(spec(gpu=GpuRequest(share_milli=500)))
        await play.exchange("n1")
        (token,) = await play.tokens([id_])
        await play.exchange("n1", *whole_run(token, code=3))

        def look(reads: Reads) -> None:
            (launch,) = reads.launches(id_)
            assert launch.placed_by == launch.claimed_by == BY
            assert launch.placed_at <= (launch.claimed_at or 0) <= (launch.served_at or 0) <= reads.now
            (attempt,) = reads.attempts(id_)
            assert (attempt["attempt"], attempt["live"], attempt["outcome"]) == (1, False, "failed")
            assert (attempt["exit_code"], attempt["exit_class"], attempt["group"]) == (3, "user", "default")
            assert attempt["placed_at"] <= attempt["started_at"] <= attempt["ended_at"]
            rows = [(row.device, row.share_milli, row.vram_mib) for row in reads.holdings([id_])[id_]]
            assert rows == [(None, 0, 0), ("n1-gpu-0", 500, 40_000)]
            assert reads.tokens_sessions([token, "1-none-1-0"]) == {token: (id_, 1)}
            assert reads.sessions_on("n1") == []

        await store.read("look", look)

    @on_a_loop
    async def test_more_than_the_node_has_is_refused_by_the_database(self, store: Store) -> None:
        await Play(store).join("n1", cpus=2)
        one, two = await submitted(store, 2)
        await store.tx("fits", lambda tx: place(tx, one, placement(one, "n1", milli=1500)))
        await refuse(store, "too much", lambda tx: place(tx, two, placement(two, "n1", milli=501)))
        assert await used(store, "n1") == (1500, 64)
        found = await store.read("look", lambda reads: reads.sessions([two.id]))
        assert found == {two.id: two}
        await store.tx("fits", lambda tx: place(tx, two, placement(two, "n1", milli=500)))

    @on_a_loop
    async def test_more_than_a_device_has_is_refused_by_the_database(self, store: Store) -> None:
        await Play(store).join("n1", gpus=1)
        one, two, three = await submitted(store, 3)
        for session in (one, two):
            shared = placement(session, "n1", device="n1-gpu-0", milli=400)
            await store.tx("fits", lambda tx, s=session, p=shared: place(tx, s, p))
        late = placement(three, "n1", device="n1-gpu-0", milli=201)
        await refuse(store, "too much", lambda tx: place(tx, three, late))
        (device,) = await store.read("devices", lambda reads: reads.devices())
        assert (device.used_milli, device.used_mib) == (800, 64_000)

    @on_a_loop
    async def test_a_whole_device_has_one_holder_even_if_it_were_larger(self, store: Store) -> None:
        await Play(store).join("n1", gpus=1)
        one, two = await submitted(store, 2)
        await store.tx("fits", lambda tx: place(tx, one, placement(one, "n1", device="n1-gpu-0")))
        second = placement(two, "n1", device="n1-gpu-0")
        nothing = [replace(held, vram_mib=0) for held in second.holdings]
        await refuse(store, "second holder", lambda tx: place(tx, two, second._replace(holdings=nothing)))

    @on_a_loop
    async def test_a_session_has_one_live_attempt(self, store: Store) -> None:
        await Play(store).join("n1")
        (session,) = await submitted(store)
        await store.tx("first", lambda tx: place(tx, session, placement(session, "n1")))
        again = session._replace(attempt=2)
        await refuse(store, "second", lambda tx: tx.hold([placement(again, "n1")], BY))

    @on_a_loop
    async def test_room_of_an_older_epoch_or_of_a_missing_device_is_refused(self, store: Store) -> None:
        await Play(store).join("n1", gpus=1)
        (session,) = await submitted(store)
        wrong = [
            placement(session, "n1", epoch=7),
            placement(session, "n1", device="n1-gpu-9"),
            placement(session, "n2"),
        ]
        for one in wrong:
            await refuse(store, "wrong", lambda tx, one=one: place(tx, session, one))
        assert await used(store, "n1") == (0, 0)

    @on_a_loop
    async def test_room_is_given_back_once(self, store: Store) -> None:
        await Play(store).join("n1")
        one, two = await submitted(store, 2)
        for session in (one, two):
            await store.tx("place", lambda tx, s=session: place(tx, s, placement(s, "n1")))
        await refuse(store, "another attempt", lambda tx: tx.give_room_back([(one.id, 2)]))
        await store.tx("first", lambda tx: tx.give_room_back([(one.id, 1)]))
        await refuse(store, "second", lambda tx: tx.give_room_back([(one.id, 1)]))
        await refuse(store, "with another", lambda tx: tx.give_room_back([(two.id, 1), (one.id, 1)]))
        assert await used(store, "n1") == (1000, 64)
        await refuse(store, "held again", lambda tx: tx.hold([placement(one, "n1")], BY))

    @on_a_loop
    async def test_the_first_fact_of_a_kind_stands(self, store: Store) -> None:
        play = Play(store)
        await play.join("n1")
        (id_,) = await play.submit_and_claim(spec())
        (token,) = await play.tokens([id_])
        await play.exchange("n1")

        async def record(*facts: KernelFact) -> bool:
            return await store.tx("record", lambda tx: tx.record(facts)) == {token}

        assert await record(ready(token, port=5))
        (first,) = await play.kernels(id_)
        assert (first.port, first.accepted_at) == (5, first.ready_at)
        assert not await record(ready(token, port=6), accepted(token))
        assert await record(result(token, 3), result(token, 0))
        assert not await record(result(token, 4))
        assert await record(ready(token, port=7), result(token, 4), refused(token))
        assert not await record(exited(token, "supervisor_lost"))
        (last,) = await play.kernels(id_)
        assert (last.port, last.ready_at, last.accepted_at) == (5, first.ready_at, first.accepted_at)
        assert last.result is not None
        assert last.result.exit_code == 3
        assert (last.certificate, last.exit_reason) == (Certificate.VOID, None)
        assert last.refused == ("device_busy", "not now")
        assert await store.tx("record", lambda tx: tx.record([ready("1-unknown-1-0")])) == set()

    @on_a_loop
    async def test_text_with_a_nul_byte_fails_nothing(self, store: Store) -> None:
        play = Play(store)
        await play.join("n1", address="odd\x00address")
        (id_,) = await play.submit_and_claim(spec())
        await play.exchange("n1")
        (token,) = await play.tokens([id_])
        odd = refused("1-\x00-1-0"), refused(token, "odd\x00code")
        assert not (await play.exchange("n1", *odd)).stale
        assert (await play.session(id_)).refusals == 1
        found = await store.read("look", lambda reads: (reads.sessions(["\x00"]), reads.find_sessions("\x00")))
        assert found == ({}, [])

    @on_a_loop
    async def test_a_transaction_reads_what_it_wrote(self, store: Store) -> None:
        play = Play(store)
        await play.join("n1")
        (id_,) = await play.submit(spec())
        await play.place()

        def body(tx: Tx) -> None:
            tx.lock(["n1"], [id_])
            session, (kernel,) = tx.sessions([id_])[id_], tx.kernels([id_])[id_]
            tx.claim([kernel], BY)
            assert tx.kernels([id_])[id_][0].claimed_version == 1
            tx.record([ready(kernel.token, port=9)])
            assert tx.kernels([id_])[id_][0].port == 9
            tx.ask_stop([kernel.token])
            assert tx.kernels([id_])[id_][0].stop_asked
            tx.certify([kernel.token], Certificate.OPERATOR)
            assert tx.kernels([id_])[id_][0].certificate is Certificate.OPERATOR
            tx.mark_broken(id_, "odd", tx.now)
            assert tx.sessions([id_])[id_].error == "odd"
            tx.write([noted(session, priority=3)], BY)
            assert tx.sessions([id_])[id_].priority == 3
            tx.write([noted(tx.sessions([id_])[id_], attempt=2)], BY)
            assert tx.kernels([id_]) == {}, "the kernels of an attempt that is over"

        await store.tx("body", body)

    @on_a_loop
    async def test_a_kernel_is_claimed_and_certified_once(self, store: Store) -> None:
        play = Play(store)
        await play.join("n1")
        (id_,) = await play.submit(spec())
        await play.place()
        (kernel,) = await play.kernels(id_)
        await store.tx("claim", lambda tx: tx.claim([kernel], BY))
        await refuse(store, "claim", lambda tx: tx.claim([kernel], BY))
        await store.tx("certify", lambda tx: tx.certify([kernel.token], Certificate.VOID))
        await refuse(store, "certify", lambda tx: tx.certify([kernel.token], Certificate.EXIT))
        await refuse(store, "stop", lambda tx: tx.ask_stop([kernel.token]))
        await refuse(store, "go", lambda tx: tx.release_barrier([kernel.token]))
        await store.tx("ask again", lambda tx: tx.ask_again([kernel.token]))
        (after,) = await play.kernels(id_)
        assert after.certificate is Certificate.VOID

    @on_a_loop
    async def test_what_does_not_fit_the_place_is_not_touched(self, store: Store) -> None:
        play = Play(store)
        await play.join("n1", cpus=2)
        ids = await play.submit(*(spec(cpus=1) for _ in range(5)))
        assert await play.place() == 2
        assert await play.place() == 0
        phases = [session.phase for session in (await store.read("all", lambda reads: reads.sessions(ids))).values()]
        assert sorted(phases) == [Phase.PENDING] * 3 + [Phase.PLACED] * 2
        assert await play.violations() == []

    @on_a_loop
    async def test_a_retried_session_keeps_its_first_attempt_as_it_was(self, store: Store) -> None:
        play = Play(store)
        await play.join("n1")
        (id_,) = await play.submit_and_claim(spec(retries=1))
        (first,) = await play.tokens([id_])
        await play.exchange("n1", *whole_run(first, code=9))
        waiting = await play.session(id_)
        assert (waiting.phase, waiting.attempt, waiting.failures) == (Phase.PENDING, 2, 1)
        assert await play.kernels(id_) == []
        await store.tx("now", lambda tx: tx.write([_now(waiting)], BY))
        await play.place()
        await play.claim()
        (second,) = await play.tokens([id_])
        assert second != first
        await play.exchange("n1", *whole_run(first, code=0))
        assert (await play.session(id_)).phase is Phase.STARTING
        await play.exchange("n1", *whole_run(second))
        attempts = await store.read("attempts", lambda reads: reads.attempts(id_))
        assert [(row["attempt"], row["outcome"]) for row in attempts] == [(1, "failed"), (2, "succeeded")]
        assert await play.violations() == []


def _now(session: Session) -> Change:
    """The pause before the next attempt, cut short."""
    entry = Entry("update", session.phase, session.phase, session.attempt, BY)
    return Change(session, session._replace(seq=session.seq + 1, not_before=0.0), (entry,))
