"""Nodes: registration, nonces, what they are told and when it counts as told; and the small tables around."""

from __future__ import annotations

from dataclasses import replace

from corral import wire
from corral.model.faults import Refused
from corral.model.lifecycle import Phase
from corral.model.node import NodeState, ResourceGroup
from corral.model.session import Certificate
from corral.ports import Store, Tx, node_channel
from corral.reconcile.nodes import mark_silent, nodes_pass
from corral.testing.builders import BY, Play, accepted, raising, ready, registration, spec, whole_run
from corral.testing.conformance.loop import on_a_loop


class NodeRules:
    @on_a_loop
    async def test_a_node_is_read_as_it_registered(self, store: Store) -> None:
        await Play(store).join("n1", gpus=2, labels={"rack": "é"})
        node = (await store.read("nodes", lambda reads: reads.nodes()))["n1"]
        assert (node.epoch, node.state, node.schedulable, node.cpu_milli) == (1, NodeState.UP, True, 8000)
        assert node.labels == {"rack": "é"}
        devices = await store.read("devices", lambda reads: reads.devices(["n1", "n2"]))
        assert [(device.uuid, device.capacity_mib, device.present) for device in devices] == [
            ("n1-gpu-0", 80_000, True),
            ("n1-gpu-1", 80_000, True),
        ]
        assert await store.read("groups", lambda reads: reads.groups()) == {"default": ResourceGroup("default")}

    @on_a_loop
    async def test_a_registration_is_compared_and_set(self, store: Store) -> None:
        message = registration("n1")
        assert await store.tx("first", lambda tx: tx.register(message, None, 1))
        assert not await store.tx("again as new", lambda tx: tx.register(message, None, 1))
        before = (await store.read("nodes", lambda reads: reads.nodes()))["n1"]
        rebooted = registration("n1", boot_id="boot-2", incarnation="agent-2")
        for stale in (
            replace(before, epoch=2),
            replace(before, boot_id="another"),
            replace(before, incarnation="another"),
        ):
            assert not await store.tx("stale", lambda tx, stale=stale: tx.register(rebooted, stale, 2))
        other_machine = registration("n1", hardware_id="another")
        assert not await store.tx("machine", lambda tx: tx.register(other_machine, before, 2))
        assert await store.tx("renew", lambda tx: tx.register(rebooted, before, 2))
        after = (await store.read("nodes", lambda reads: reads.nodes()))["n1"]
        assert (after.epoch, after.boot_id, after.incarnation) == (2, "boot-2", "agent-2")

    @on_a_loop
    async def test_a_registration_never_lowers_a_version_or_drops_what_is_held(self, store: Store) -> None:
        play = Play(store)
        await play.join("n1", gpus=1, held_version=0)
        (id_,) = await play.submit_and_claim(spec(cpus=6, memory_mib=9000))
        await play.join("n1", cpus=2, memory_mib=100, gpus=0, held_version=70)
        node = (await store.read("nodes", lambda reads: reads.nodes()))["n1"]
        assert (node.cpu_milli, node.cpu_used_milli) == (6000, 6000)
        assert (node.memory_mib, node.memory_used_mib) == (9000, 9000)
        assert node.desired_version == 70
        (device,) = await store.read("devices", lambda reads: reads.devices())
        assert not device.present
        await play.join("n1", gpus=1, held_version=3)
        node = (await store.read("nodes", lambda reads: reads.nodes()))["n1"]
        assert (node.desired_version, node.cpu_milli) == (70, 8000)
        await play.exchange("n1", *whole_run((await play.tokens([id_]))[0]))
        assert await play.violations() == []

    @on_a_loop
    async def test_a_nonce_is_good_once(self, store: Store) -> None:
        await store.tx("register", lambda tx: tx.register(registration("n1", nonces=("", "a")), None, 1))

        async def touch(last: str, following: str, incarnation: str = "agent-1") -> bool:
            return await store.tx("touch", lambda tx: tx.touch_node("n1", incarnation, (last, following)))

        assert await touch("a", "b")
        assert await touch("a", "b"), "the answer was lost: the same message again is good"
        assert not await touch("a", "c"), "a delayed or copied agent"
        assert not await touch("b", "c", incarnation="agent-2")
        assert await touch("b", "c")

    @on_a_loop
    async def test_a_node_hears_what_changed_since_it_last_heard(self, store: Store) -> None:
        play = Play(store)
        await play.join("n1")
        one, two = await play.submit_and_claim(spec(), spec())
        first = await play.exchange("n1")
        assert sorted(order.token for order in first.orders) == sorted(await play.tokens([one, two]))
        assert (await play.exchange("n1")).orders == []
        await play.exchange("n1", *(fact for t in await play.tokens([one, two]) for fact in (accepted(t), ready(t))))
        await play.cancel(one)
        (changed,) = (await play.exchange("n1")).orders
        assert changed.token == (await play.tokens([one]))[0]
        assert changed.stop is not None
        (three,) = await play.submit_and_claim(spec())
        assert [order.token for order in (await play.exchange("n1")).orders] == await play.tokens([three])
        everything = await play.exchange("n1", have=0)
        assert sorted(order.token for order in everything.orders) == sorted(await play.tokens([one, two, three]))

    @on_a_loop
    async def test_a_claim_that_no_node_heard_of_is_withdrawn_and_one_that_was_served_is_not(
        self, store: Store
    ) -> None:
        play = Play(store)
        await play.join("n1")
        unheard, heard = await play.submit_and_claim(spec(), spec())
        await play.cancel(unheard)
        assert (await play.session(unheard)).phase is Phase.ENDED
        (kernel,) = await play.kernels(unheard)
        assert kernel.certificate is Certificate.NEVER_SERVED
        await play.exchange("n1")
        await play.cancel(heard)
        assert (await play.session(heard)).phase is Phase.STOPPING
        assert (await play.kernels(heard))[0].certificate is None
        assert await play.violations() == []

    @on_a_loop
    async def test_served_never_runs_ahead_of_desired_nor_back(self, store: Store) -> None:
        play = Play(store)
        await play.join("n1")
        await play.submit_and_claim(spec())
        await store.tx("served", lambda tx: tx.served("n1", 99, 0))
        node = (await store.read("nodes", lambda reads: reads.nodes()))["n1"]
        assert (node.desired_version, node.served_version) == (1, 0)
        await store.tx("served", lambda tx: tx.served("n1", 1, 0))
        await store.tx("served", lambda tx: tx.served("n1", 0, 0))
        node = (await store.read("nodes", lambda reads: reads.nodes()))["n1"]
        assert node.served_version == 1

    @on_a_loop
    async def test_a_change_of_orders_hints_its_node(self, store: Store) -> None:
        play = Play(store)
        await play.join("n1")
        await play.submit(spec())
        await play.place()
        with_news = store.wakeups.watch(node_channel("n1"))
        without = store.wakeups.watch(node_channel("n2"))
        await play.claim()
        assert await with_news.wait(10)
        assert not await without.wait(0.01)

    @on_a_loop
    async def test_a_silent_node_is_marked_and_comes_back(self, store: Store) -> None:
        play = Play(store)
        await play.join("n1")

        async def mark(before_s: float) -> set[str]:
            def body(tx: Tx) -> set[str]:
                return tx.set_node_state(["n1", "n2"], NodeState.UNREACHABLE, tx.now + before_s)

            return await store.tx("mark", body)

        assert await mark(-60) == set()
        await store.tx("mark silent", lambda tx: mark_silent(tx, ["n1"]))
        assert await mark(60) == {"n1"}
        assert await mark(60) == set()
        assert (await store.read("nodes", lambda reads: reads.nodes()))["n1"].state is NodeState.UNREACHABLE
        await play.exchange("n1")
        assert (await store.read("nodes", lambda reads: reads.nodes()))["n1"].state is NodeState.UP

    @on_a_loop
    async def test_the_sweep_ends_what_ran_before_a_reboot(self, store: Store) -> None:
        play = Play(store)
        await play.join("n1")
        (id_,) = await play.submit_and_claim(spec(requeue=False))
        await play.exchange("n1")
        (token,) = await play.tokens([id_])
        await play.exchange("n1", accepted(token), ready(token))
        before = (await store.read("nodes", lambda reads: reads.nodes()))["n1"]
        rebooted = registration("n1", boot_id="boot-2", incarnation="agent-2")
        await store.tx("only the row", lambda tx: tx.register(rebooted, before, 2))
        assert await store.read("stale", lambda reads: reads.stale_kernels(10)) == [id_]
        await nodes_pass(store, BY)
        assert await store.read("stale", lambda reads: reads.stale_kernels(10)) == []
        ended = await play.session(id_)
        assert (ended.phase, ended.exit_class) == (Phase.ENDED, "lost")
        assert await play.violations() == []

    @on_a_loop
    async def test_of_two_agents_with_one_name_one_is_let_in(self, store: Store) -> None:
        play = Play(store)
        await play.join("n1")
        with raising(Refused, "identity_in_use"):
            await Play(store).join("n1", incarnation="agent-2", nonces=("x", "y"))
        with raising(Refused, "hardware_changed"):
            await play.join("n1", hardware_id="another machine")
        assert not (await play.exchange("n1")).stale

    @on_a_loop
    async def test_a_node_that_backs_off_is_not_placed_on(self, store: Store) -> None:
        play = Play(store)
        await play.join("n1")

        def back_off(tx: Tx) -> None:
            tx.back_off("n1", tx.now + 60)
            tx.back_off("n1", tx.now + 30)

        await store.tx("back off", back_off)
        await play.submit(spec())
        assert await play.place() == 0
        node, now = await store.read("nodes", lambda reads: (reads.nodes()["n1"], reads.now))
        assert node.backoff_until > now + 45

    @on_a_loop
    async def test_streams_are_told_to_their_node_until_dropped(self, store: Store) -> None:
        play = Play(store)
        await play.join("n1")
        order = wire.StreamOrder(id="s1", url="ws://x", token="t", stream="stdout", offset=2**40, follow=True)
        watch = store.wakeups.watch(node_channel("n1"))
        await store.tx("add", lambda tx: tx.add_stream("n1", order))
        assert await watch.wait(10)
        desired = await play.exchange("n1")
        assert (desired.streams, desired.version) == ([order], 1)
        await store.tx("drop", lambda tx: tx.drop_stream("s1"))
        assert (await play.exchange("n1")).streams == []

    @on_a_loop
    async def test_blobs_credentials_members_and_foreign_tokens_are_kept(self, store: Store) -> None:
        await Play(store).join("n1")
        data = bytes(range(256))

        def write(tx: Tx) -> None:
            for _ in range(2):
                tx.put_blob("sha256:1", data)
                tx.add_credential("ann", "user", "digest-1")
                tx.note_foreign("n1", ["1-x-1-0", "1-y-1-0"])
                tx.seen_member("m1", "http://one")
            tx.seen_member("m1", "http://moved")

        await store.tx("write", write)
        assert await store.read("blob", lambda reads: reads.blob("sha256:1")) == data
        assert await store.read("blob", lambda reads: reads.blob("sha256:2")) is None
        assert await store.read("credential", lambda reads: reads.credential("digest-1")) == ("ann", "user")
        ((id_, url, seen_at),) = await store.read("members", lambda reads: reads.members())
        assert (id_, url) == ("m1", "http://moved")
        assert await store.tx("prune", lambda tx: tx.prune(seen_at - 60)) == 0
        assert await store.tx("prune", lambda tx: tx.prune(tx.now + 60)) >= 1
        assert await store.read("members", lambda reads: reads.members()) == []
        assert await store.read("generation", lambda reads: reads.generation()) == 1
