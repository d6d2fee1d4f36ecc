"""Resource groups: their options, versions and history; what a pass reads for their orders; what their owners used."""

from __future__ import annotations

from typing import Any

from corral.model.faults import Invalid, NotFound, Refused
from corral.model.node import ResourceGroup
from corral.model.resources import GpuRequest
from corral.model.session import Session
from corral.model.spec import SessionSpec
from corral.ports import Store
from corral.reconcile import groups, intents
from corral.reconcile.groups import GroupChange
from corral.reconcile.placement import commit
from corral.scheduling.cycle import cycle
from corral.scheduling.snapshot import Usage
from corral.testing.builders import BY, Play, new_session, raising, spec, whole_run
from corral.testing.conformance.loop import on_a_loop

ADMIN = "user:admin"


async def a_group(store: Store, name: str, order: str = "fifo", **options: Any) -> ResourceGroup:
    group = ResourceGroup(name, order, order_options=options)
    return await store.tx("create", lambda tx: groups.create(tx, group, ADMIN))


async def set_group(store: Store, name: str, **changes: Any) -> ResourceGroup:
    return await store.tx("set", lambda tx: groups.change(tx, name, GroupChange(**changes), ADMIN))


async def submit(store: Store, owner: str, *specs: SessionSpec) -> list[Session]:
    new = [new_session(one, owner=owner) for one in specs]
    return await store.tx("submit", lambda tx: intents.submit(tx, new, f"user:{owner}"))


async def read_ids(store: Store, per_shape: int = 2) -> list[str]:
    snapshot = await store.read("snapshot", lambda reads: reads.snapshot(per_shape))
    return [waiting.id for waiting in snapshot.waiting]


async def usage(store: Store) -> dict[tuple[str, str], Usage]:
    def look(reads: Any) -> list[Usage]:
        return reads.usage(list(reads.groups().values()))

    return {(one.group, one.owner): one for one in await store.read("usage", look)}


class GroupRules:
    @on_a_loop
    async def test_each_change_of_a_group_is_a_version_with_history(self, store: Store) -> None:
        made = await a_group(store, "fast", "priority", ageing="2")
        assert (made.order_options, made.version, made.paused) == ({"ageing": 2.0}, 1, False)
        assert (await set_group(store, "fast", order_options={"ageing": 2})).version == 1, "nothing changed"
        assert (await set_group(store, "fast", order_options={"ageing": 3})).version == 2
        assert (await set_group(store, "fast", placement="spread")).order_options == {"ageing": 3.0}
        assert (await set_group(store, "fast", order_options={"ageing": None})).order_options == {}
        other = await set_group(store, "fast", order="drf", order_options={"weights": {"ann": 2}})
        assert (other.order_options, other.placement, other.version) == ({"weights": {"ann": 2.0}}, "spread", 5)
        assert (await set_group(store, "fast", order="fifo")).order_options == {}
        found = await store.read("groups", lambda reads: reads.groups())
        assert found["fast"].version == 6
        rows = await store.read("history", lambda reads: reads.group_history("fast"))
        assert [(row.seq, row.entry.fact) for row in rows] == [(1, "group_created")] + [
            (version, "group_set") for version in range(2, 7)
        ]
        assert rows[4].entry.detail["order_options"] == {"weights": {"ann": 2.0}}
        assert {(row.session, row.group, row.entry.by) for row in rows} == {(None, "fast", ADMIN)}
        everything = await store.read("events", lambda reads: reads.events(0))
        assert [row.id for row in everything] == [row.id for row in rows]

    @on_a_loop
    async def test_a_change_that_makes_no_sense_changes_nothing(self, store: Store) -> None:
        await a_group(store, "fast", "priority")
        with raising(Refused, "group_exists"):
            await a_group(store, "fast")
        with raising(Invalid, "bad_name"):
            await a_group(store, "-fast")
        with raising(Invalid, "unknown_policy"):
            await set_group(store, "fast", order="best")
        with raising(Invalid, "unknown_policy"):
            await set_group(store, "fast", placement="best")
        with raising(Invalid, "unknown_option"):
            await set_group(store, "fast", order_options={"half_life": 1})
        with raising(Invalid, "bad_option"):
            await set_group(store, "fast", order_options={"ageing": "x"})
        with raising(Refused, "version_conflict"):
            await set_group(store, "fast", version=7, order="fifo")
        with raising(NotFound, "group_unknown"):
            await set_group(store, "slow", order="fifo")
        for verb in (groups.pause, groups.resume, groups.delete):
            with raising(NotFound, "group_unknown"):
                await store.tx("verb", lambda tx, verb=verb: verb(tx, "slow", ADMIN))
        assert (await store.read("groups", lambda reads: reads.groups()))["fast"].version == 1

    @on_a_loop
    async def test_only_an_empty_group_can_be_deleted(self, store: Store) -> None:
        await a_group(store, "fast")
        play = Play(store)
        await play.join("n1", group="fast")
        with raising(Refused, "group_has_nodes"):
            await store.tx("delete", lambda tx: groups.delete(tx, "fast", ADMIN))
        await play.join("n1", group="slow")
        (session,) = await submit(store, "ann", spec(group="fast"))
        with raising(Refused, "group_has_sessions"):
            await store.tx("delete", lambda tx: groups.delete(tx, "fast", ADMIN))
        await play.cancel(session.id)
        await store.tx("delete", lambda tx: groups.delete(tx, "fast", ADMIN))
        assert set(await store.read("groups", lambda reads: reads.groups())) == {"slow"}
        rows = await store.read("history", lambda reads: reads.group_history("fast"))
        assert [row.entry.fact for row in rows] == ["group_created", "group_deleted"]
        await play.join("n1", group="fast")
        assert "fast" in await store.read("groups", lambda reads: reads.groups())
        await set_group(store, "fast", order="lifo")
        again = await store.read("history", lambda reads: reads.group_history("fast", 2))
        told = [(row.seq, row.entry.fact, row.entry.by) for row in again]
        assert told == [(3, "group_created", "node:n1"), (4, "group_set", ADMIN)], "it goes on counting"

    @on_a_loop
    async def test_a_group_made_by_a_node_has_its_line_of_history_once(self, store: Store) -> None:
        play = Play(store)
        for name in ("n1", "n2", "n1"):
            await play.join(name, group="fast")
        (row,) = await store.read("history", lambda reads: reads.group_history("fast"))
        assert (row.seq, row.entry.fact, row.entry.by) == (1, "group_created", "node:n1")
        assert row.entry.detail["order"] == "fifo"

    @on_a_loop
    async def test_nobody_waits_for_a_group_that_is_not_there(self, store: Store) -> None:
        with raising(NotFound, "group_unknown"):
            await submit(store, "ann", spec(), spec(group="gone"))
        assert await read_ids(store) == [], "all or none"
        (session,) = await submit(store, "ann", spec())
        with raising(NotFound, "group_unknown"):
            await store.tx("update", lambda tx: intents.update(tx, session.id, "user:ann", group="gone"))
        await a_group(store, "fast")
        key = new_session(spec(group="fast"))._replace(idempotency_key="k", digest="d")
        (kept,) = await store.tx("submit", lambda tx: intents.submit(tx, [key], "user:ann"))
        await Play(store).cancel(kept.id)
        await store.tx("delete", lambda tx: groups.delete(tx, "fast", ADMIN))
        again = key._replace(id="another000")
        (same,) = await store.tx("submit", lambda tx: intents.submit(tx, [again], "user:ann"))
        assert same.id == kept.id, "what was answered once is answered again"
        with raising(NotFound, "group_unknown"):
            await store.tx("requeue", lambda tx: intents.requeue(tx, kept.id, "anew000000", "user:ann"))

    @on_a_loop
    async def test_a_paused_group_starts_nothing_from_its_acknowledgement_on(self, store: Store) -> None:
        play = Play(store)
        await play.join("n1")
        (running,) = await play.submit_and_claim(spec())
        (waits,) = await play.submit(spec())
        plan = cycle(await store.read("snapshot", lambda reads: reads.snapshot(10)))
        assert [placed.session.id for placed in plan.placements] == [waits]
        paused = await store.tx("pause", lambda tx: groups.pause(tx, "default", ADMIN))
        assert (paused.paused, paused.version) == (True, 2)
        assert await store.tx("place", lambda tx: commit(tx, plan, {}, BY)) == 0, "a plan made before"
        assert await play.place() == 0
        refused = await store.read("refusals", lambda reads: reads.refusals([waits]))
        assert [why["code"] for why in refused[waits]] == ["group_paused"]
        (token,) = await play.tokens([running])
        await play.exchange("n1", *whole_run(token))
        assert (await play.session(running)).phase == "ended", "what runs goes on"
        assert (await store.tx("pause", lambda tx: groups.pause(tx, "default", ADMIN))).version == 2
        await store.tx("resume", lambda tx: groups.resume(tx, "default", ADMIN))
        assert await play.place() == 1
        assert await play.violations() == []

    @on_a_loop
    async def test_a_pass_reads_those_that_could_come_first(self, store: Store) -> None:
        await a_group(store, "default")
        anns = await submit(store, "ann", *[spec() for _ in range(4)])
        (bobs,) = await submit(store, "bob", spec())
        (other,) = await submit(store, "ann", spec(project="other"))
        (urgent,) = await submit(store, "ann", spec(priority=9))
        (short,) = await submit(store, "ann", spec(time_limit_s=5))
        (newest,) = await submit(store, "ann", spec())
        oldest = [session.id for session in anns[:2]]
        assert await read_ids(store) == oldest, "fifo needs no more than the oldest of each shape"
        for order, extra in {
            "drf": [bobs, other, urgent, short],
            "fair-share": [bobs, other, urgent, short],
            "priority": [urgent],
            "shortest-first": [short],
            "lifo": [short, newest],
        }.items():
            await set_group(store, "default", order=order)
            found = await read_ids(store)
            assert found[:2] == oldest, order
            assert {session.id for session in extra if session is not short} <= set(found), order
            assert len(found) < 9, order
        assert await read_ids(store, per_shape=0) == []

    @on_a_loop
    async def test_more_is_known_to_wait_when_not_all_were_read(self, store: Store) -> None:
        await a_group(store, "default", "drf")
        await submit(store, "ann", *[spec() for _ in range(3)])
        bobs = await submit(store, "bob", *[spec() for _ in range(3)])
        snapshot = await store.read("snapshot", lambda reads: reads.snapshot(2))
        assert bobs[1].id in snapshot.last_read
        assert bobs[2].id not in [one.id for one in snapshot.waiting]
        await set_group(store, "default", order="lifo")
        snapshot = await store.read("snapshot", lambda reads: reads.snapshot(2))
        assert bobs[1].id in snapshot.last_read

    @on_a_loop
    async def test_a_session_that_was_placed_once_is_read_whatever_its_group(self, store: Store) -> None:
        """One that named no group and ran in another than the home group waits in the home group's line again."""
        play = Play(store)
        await play.join("n1", group="away", cpus=2)
        await a_group(store, "default", "priority")
        (id_,) = await play.submit_and_claim(spec())
        await store.tx("requeue", lambda tx: intents.requeue(tx, id_, "unused", ADMIN))
        assert (await play.session(id_)).phase == "pending"
        assert id_ in await read_ids(store)

    @on_a_loop
    async def test_what_is_held_is_summed_by_owner(self, store: Store) -> None:
        await a_group(store, "default", "drf")
        play = Play(store)
        await play.join("n1", gpus=3)
        half = GpuRequest(share_milli=250, vram_mib=40_000)
        await submit(store, "ann", spec(cpus=2, gpu=GpuRequest(1)), spec(cpus=1, gpu=half))
        await submit(store, "bob", spec(memory_mib=100))
        await play.place()
        found = await usage(store)
        ann, bob = found["default", "ann"], found["default", "bob"]
        assert (ann.cpu_milli, ann.memory_mib, ann.gpu_milli) == (3000, 128, 1500)
        assert (bob.cpu_milli, bob.memory_mib, bob.gpu_milli, bob.project) == (1000, 100, 0, "default")

    @on_a_loop
    async def test_what_was_used_is_counted_once(self, store: Store) -> None:
        await a_group(store, "default", "fair-share", half_life=60)
        play = Play(store)
        await play.join("n1", gpus=2)
        running, over = await play.submit_and_claim(*[spec(cpus=2, gpu=GpuRequest(1)) for _ in range(2)])
        (token,) = await play.tokens([over])
        await play.exchange("n1", *whole_run(token))
        before = (await usage(store))["default", "ann"]
        assert before.cpu_s > before.gpu_s > 0
        assert await store.tx("count", lambda tx: tx.count_usage(100)) == 2, "a node's room and a GPU's"
        assert await store.tx("count", lambda tx: tx.count_usage(100)) == 0
        after = (await usage(store))["default", "ann"]
        assert 0 < after.gpu_s < before.gpu_s + 5.0, "the running one goes on, nothing is counted twice"
        (token,) = await play.tokens([running])
        await play.exchange("n1", *whole_run(token))
        assert await store.tx("count", lambda tx: tx.count_usage(1)) in (1, 2)
        await store.tx("count", lambda tx: tx.count_usage(100))
        total = (await usage(store))["default", "ann"]
        assert after.gpu_s / 2 < total.gpu_s < before.gpu_s + 10.0
        assert await play.violations() == []
