"""Who holds room, as a scheduling pass reads it."""

from __future__ import annotations

from corral.model.resources import GpuRequest
from corral.ports import Store
from corral.scheduling.places import Grant
from corral.scheduling.snapshot import Running, Snapshot, shape_of
from corral.testing.builders import Play, ready, spec, whole_run
from corral.testing.conformance.loop import on_a_loop


async def read(store: Store, *groups: str) -> dict[str, Running]:
    return {one.id: one for one in await store.read("running", lambda reads: reads.running(groups or ("default",)))}


async def snapshot(store: Store) -> Snapshot:
    return await store.read("snapshot", lambda reads: reads.snapshot(8))


class RunningRules:
    @on_a_loop
    async def test_who_runs_is_read_with_the_room_that_each_rank_holds(self, store: Store) -> None:
        play = Play(store)
        for node in ("n1", "n2"):
            await play.join(node, gpus=2)
        alone = spec(memory_mib=10, gpu=GpuRequest(share_milli=500), priority=4, project="p")
        gang = spec(cpus=2, memory_mib=20, nodes=2, ranks_per_node=2, gpu=GpuRequest())
        first, second = await play.submit_and_claim(gang, alone)
        assert await read(store, "other") == {}
        found = await read(store)
        assert list(found) == [first], "the second had no GPU left, and waits"
        one = found[first]
        assert (one.group, one.owner, one.attempt, one.stopping, one.ends_at) == ("default", "ann", 1, False, None)
        assert (one.started_at, one.shape) == (None, shape_of(gang))
        assert [(rank.node, rank.cpu_milli, rank.memory_mib) for rank in one.ranks] == [
            *2 * [("n1", 2000, 20)],
            *2 * [("n2", 2000, 20)],
        ]
        assert [[grant.uuid for grant in rank.grants] for rank in one.ranks] == [
            ["n1-gpu-0"], ["n1-gpu-1"], ["n2-gpu-0"], ["n2-gpu-1"]]  # fmt: skip
        assert {rank.run_id for rank in one.ranks} == {"run-1"}
        assert {rank.epoch for rank in one.ranks} == {1}
        tokens = await play.tokens([first])
        for node, mine in (("n1", tokens[:2]), ("n2", tokens[2:])):
            await play.exchange(node)
            await play.exchange(node, *(fact for token in mine for fact in whole_run(token)))
        assert await read(store) == {}
        await play.place()
        shared = (await read(store))[second]
        assert (shared.priority, shared.project) == (4, "p")
        assert shared.ranks[0].grants == (Grant("n1-gpu-0", 500, 40_000),)

    @on_a_loop
    async def test_an_end_is_known_from_the_time_limit_and_the_grace(self, store: Store) -> None:
        play = Play(store)
        await play.join("n1")
        limited, endless = await play.submit_and_claim(spec(time_limit_s=100, grace_s=7), spec(grace_s=7))
        placed = await read(store)
        assert placed[limited].ends_at == placed[limited].placed_at + 107
        await play.exchange("n1")
        await play.exchange("n1", *(ready(token) for token in await play.tokens([limited, endless])))
        found = await read(store)
        started = found[limited].started_at
        assert started is not None
        assert found[limited].ends_at == started + 107
        assert found[endless].ends_at is None
        for id_ in (limited, endless):
            await play.cancel(id_)
        session = await play.session(endless)
        asked = await read(store)
        assert asked[endless].stopping
        assert asked[endless].ends_at == session.phase_at + 7
        assert (asked[limited].ends_at or 0) < (found[limited].ends_at or 0), "it goes before its limit"

    @on_a_loop
    async def test_who_runs_is_read_once_somebody_was_refused(self, store: Store) -> None:
        play = Play(store)
        await play.join("n1", cpus=2)
        first, second = await play.submit(spec(cpus=2), spec(cpus=2))
        before = await snapshot(store)
        assert (before.running, before.unread) == ([], {"default"})
        await play.place()
        after = await snapshot(store)
        assert [one.id for one in after.running] == [first]
        assert not after.unread
        assert [one.id for one in after.waiting] == [second]
