"""What one pass leaves for the next to know of nodes: whose turn it was, and where an attempt went wrong."""

from __future__ import annotations

from corral.model.node import ResourceGroup
from corral.ports import Store
from corral.reconcile import groups
from corral.reconcile.decide import EXIT_REQUEUE, EXIT_RESUME
from corral.scheduling.snapshot import Preferred
from corral.testing.builders import BY, Play, noted, refused, spec, whole_run
from corral.testing.conformance.loop import on_a_loop

NODES = ("n1", "n2", "n3")


async def joined(store: Store, placement: str) -> Play:
    group = ResourceGroup("default", placement=placement)
    await store.tx("create", lambda tx: groups.create(tx, group, "user:admin"))
    play = Play(store)
    for name in NODES:
        await play.join(name, cpus=4)
    return play


class TurnRules:
    @on_a_loop
    async def test_turns_go_on_from_pass_to_pass_though_the_head_of_the_line_stands(self, store: Store) -> None:
        play = await joined(store, "round-robin")
        await play.submit(spec(cpus=3, nodes=3), spec(cpus=3, nodes=3))
        assert await play.place() == 1
        found: list[str] = []
        for _ in range(4):
            (id_,) = await play.submit(spec(memory_mib=1))
            assert await play.place() == 1
            (kernel,) = await play.kernels(id_)
            found.append(kernel.node)
            await play.cancel(id_)
        assert found == ["n1", "n2", "n3", "n1"], "the gang had the turns of all three"
        assert (await store.read("turns", lambda reads: reads.snapshot(1))).turns == {"default": "n1"}

    @on_a_loop
    async def test_a_node_that_comes_back_larger_is_still_somebodys_alone(self, store: Store) -> None:
        play = Play(store)
        await play.join("n1", cpus=4, memory_mib=4096)
        alone, other = await play.submit(spec(exclusive=True), spec(memory_mib=1))
        assert await play.place() == 1
        await play.claim()
        await play.join("n1", cpus=8, memory_mib=8192)
        assert await play.place() == 0
        node = (await store.read("nodes", lambda reads: reads.nodes()))["n1"]
        assert (node.cpu_milli, node.cpu_used_milli, node.memory_used_mib) == (8000, 8000, 8192)
        assert await play.violations() == []
        (token,) = await play.tokens([alone])
        await play.exchange("n1")
        await play.exchange("n1", *whole_run(token))
        assert await play.place() == 1
        assert (await play.kernels(other))[0].node == "n1"
        assert await play.violations() == []

    @on_a_loop
    async def test_no_turn_is_noted_where_none_is_taken(self, store: Store) -> None:
        play = await joined(store, "pack")
        await play.submit_and_claim(spec())
        assert (await store.read("turns", lambda reads: reads.snapshot(1))).turns == {}

    @on_a_loop
    async def test_a_node_on_which_an_attempt_went_wrong_is_last(self, store: Store) -> None:
        play = await joined(store, "pack")
        (id_,) = await play.submit_and_claim(spec(retries=5))
        went: list[str] = []
        for number in range(3):
            (kernel,) = await play.kernels(id_)
            went.append(kernel.node)
            await play.exchange(kernel.node)
            wrong = [refused(kernel.token)] if number == 1 else whole_run(kernel.token, code=1)
            await play.exchange(kernel.node, *wrong)
            session = await play.session(id_)
            assert (session.phase, session.attempt) == ("pending", number + 2)
            at_once = noted(session, not_before=0.0)
            await store.tx("at once", lambda tx, at_once=at_once: tx.write([at_once], BY))
            (waits,) = (await store.read("snapshot", lambda reads: reads.snapshot(8))).waiting
            assert waits.shunned == set(went)
            await store.tx("open", lambda tx: tx.back_off(went[-1], 0.0))
            assert await play.place() == 1
            await play.claim()
        assert went == list(NODES)
        (kernel,) = await play.kernels(id_)
        assert kernel.node in ("n1", "n3"), "they are last, and not barred; n2 is still backing off"

    @on_a_loop
    async def test_a_node_on_which_an_attempt_asked_to_go_on_is_as_good_as_any(self, store: Store) -> None:
        play = await joined(store, "pack")
        (id_,) = await play.submit_and_claim(spec())
        for number, code in enumerate((EXIT_RESUME, EXIT_REQUEUE), start=2):
            (kernel,) = await play.kernels(id_)
            assert kernel.node == "n1"
            await play.exchange("n1")
            await play.exchange("n1", *whole_run(kernel.token, code=code))
            session = await play.session(id_)
            assert (session.phase, session.attempt) == ("pending", number)
            at_once = noted(session, not_before=0.0)
            await store.tx("at once", lambda tx, at_once=at_once: tx.write([at_once], BY))
            (waits,) = (await store.read("snapshot", lambda reads: reads.snapshot(8))).waiting
            assert waits.shunned == set()
            saved = ("n1",) if code == EXIT_RESUME else None
            assert (waits.preferred and waits.preferred.nodes) == saved, "it goes on where it left what it saved"
            assert await play.place() == 1
            await play.claim()

    @on_a_loop
    async def test_what_it_would_rather_have_and_where_it_left_its_work(self, store: Store) -> None:
        play = Play(store)
        for name, zone in zip(NODES, "abb", strict=True):
            await play.join(name, cpus=4, labels={"zone": zone})
        (id_,) = await play.submit_and_claim(spec(cpus=2, prefer=(("zone", "b"),)))
        (kernel,) = await play.kernels(id_)
        assert kernel.node == "n2"
        await play.submit_and_claim(spec(cpus=3, prefer=(("zone", "c"), ("zone", "a"))))  # n1 is the fullest now
        await play.exchange("n2")
        await play.exchange("n2", *whole_run(kernel.token, code=EXIT_RESUME))
        at_once = noted(await play.session(id_), not_before=0.0)
        await store.tx("at once", lambda tx: tx.write([at_once], BY))
        (full,) = await play.submit(spec(cpus=3, on_nodes=("n3",)))
        (waits, other) = (await store.read("snapshot", lambda reads: reads.snapshot(8))).waiting
        assert (waits.preferred, other.preferred) == (Preferred((("zone", "b"),), ("n2",)), None)
        assert await play.place() == 2
        assert {(await play.kernels(one))[0].node for one in (id_, full)} == {"n2", "n3"}
        assert (await play.kernels(id_))[0].node == "n2"
