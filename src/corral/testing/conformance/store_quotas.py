"""Quotas: their versions and history, what counts as used, who is let in, and who may still submit."""

from __future__ import annotations

from typing import Any

from corral.model.faults import Invalid, NotFound, Refused
from corral.model.lifecycle import Phase
from corral.model.quota import Amounts, Quota, used_under
from corral.model.resources import GpuRequest
from corral.model.session import Session
from corral.model.spec import SessionSpec
from corral.ports import Store
from corral.reconcile import arrays, intents, quotas
from corral.reconcile.placement import commit
from corral.scheduling.cycle import cycle
from corral.scheduling.kept.picture import Picture
from corral.testing.builders import BY, Play, new_session, raising, spec, whole_run
from corral.testing.conformance.loop import on_a_loop

ADMIN = "user:admin"


async def set_quota(store: Store, name: str, version: int | None = None, **fields: Any) -> Quota:
    scope = {kind: fields.pop(kind) for kind in ("owner", "project", "domain", "group") if kind in fields}
    return await store.tx("set quota", lambda tx: quotas.put(tx, Quota(name, **scope, limits=fields), ADMIN, version))


async def submit(store: Store, owner: str, *specs: SessionSpec) -> list[str]:
    new = [new_session(one, owner=owner) for one in specs]
    made = await store.tx("submit", lambda tx: intents.submit(tx, new, f"user:{owner}"))
    return [session.id for session in made]


async def placed(store: Store) -> dict[str, int]:
    """How many hold room, by owner."""
    found: dict[str, int] = {}
    for session in await sessions(store):
        if session.phase.holds_room:
            found[session.owner] = found.get(session.owner, 0) + 1
    return found


async def sessions(store: Store) -> list[Session]:
    def look(reads: Any) -> list[Session]:
        ids = [id_ for phase in Phase for id_ in reads.in_phase(phase, 1000)]
        return list(reads.sessions(ids).values())

    return await store.read("look", look)


async def used(store: Store, name: str) -> dict[tuple[str, ...], Amounts]:
    found = await store.read("quotas", lambda reads: reads.all_held())
    return used_under(next(one for one in found.listed if one.name == name), found)


class QuotaRules:
    @on_a_loop
    async def test_each_change_of_a_quota_is_a_version_with_history(self, store: Store) -> None:
        assert (await set_quota(store, "a", owner="ann", sessions=1)).version == 1
        assert (await set_quota(store, "a", owner="ann", sessions=1)).version == 1, "nothing changed"
        assert (await set_quota(store, "a", owner="ann", sessions=2, cpu_milli=500)).version == 2
        with raising(Refused, "version_conflict"):
            await set_quota(store, "a", version=1, owner="ann", sessions=3)
        with raising(Refused, "version_conflict"):
            await set_quota(store, "b", version=1, owner="ann", sessions=3)
        assert (await set_quota(store, "b", version=0, project="vision", gpu_milli=0)).version == 1
        with raising(Invalid, "bad_quota"):
            await set_quota(store, "c", sessions=1)
        await store.tx("drop", lambda tx: quotas.delete(tx, "a", ADMIN))
        with raising(NotFound, "no_such_quota"):
            await store.tx("drop", lambda tx: quotas.delete(tx, "a", ADMIN))
        assert (await set_quota(store, "a", domain="*", waiting=5)).version == 4, "the numbers go on"
        rows = await store.read("history", lambda reads: reads.quota_history("a"))
        assert [(row.seq, row.entry.fact, row.quota) for row in rows] == [
            (1, "quota_set", "a"), (2, "quota_set", "a"), (3, "quota_deleted", "a"), (4, "quota_set", "a"),
        ]  # fmt: skip
        assert rows[1].entry.detail == {"owner": "ann", "sessions": 2, "cpu_milli": 500}
        found = await store.read("quotas", lambda reads: reads.quotas())
        assert [one.name for one in found.listed] == ["a", "b"]
        assert found.listed[0] == Quota("a", domain="*", limits={"waiting": 5}, version=4)
        assert await Play(store).violations() == []

    @on_a_loop
    async def test_what_is_held_is_what_counts_until_it_is_given_back(self, store: Store) -> None:
        play = Play(store)
        await play.join("n1", cpus=8, gpus=2)
        await set_quota(store, "each", owner="*", gpu_milli=1500)
        share = GpuRequest(share_milli=250, vram_mib=40_000)
        first, second, third = await submit(
            store, "ann", spec(cpus=2, gpu=GpuRequest()), spec(gpu=share), spec(gpu=share)
        )
        await play.place()
        assert await used(store, "each") == {("ann",): Amounts(3000, 128, 1500, 120_000, 2)}
        assert (await play.session(third)).phase is Phase.PENDING
        await play.claim()
        for id_ in (first, second):
            await play.exchange("n1", *whole_run((await play.tokens([id_]))[0]))
        assert await used(store, "each") == {}, "nothing is held"
        await play.place()
        assert await used(store, "each") == {("ann",): Amounts(1000, 64, 500, 40_000, 1)}
        await play.cancel(third)
        assert await used(store, "each") == {}
        assert await play.violations() == []

    @on_a_loop
    async def test_a_session_that_is_requeued_gives_back_what_it_held(self, store: Store) -> None:
        play = Play(store)
        await play.join("n1", cpus=8)
        await set_quota(store, "one", owner="ann", sessions=1)
        running, waits = await submit(store, "ann", spec(retries=1), spec())
        await play.place()
        assert (await play.session(waits)).phase is Phase.PENDING
        await play.claim()
        await play.exchange("n1", *whole_run((await play.tokens([running]))[0], code=3))
        assert (await play.session(running)).attempt == 2
        assert await used(store, "one") == {}
        assert await play.place() == 1
        assert (await play.session(waits)).phase is Phase.PLACED
        assert await play.violations() == []

    @on_a_loop
    async def test_a_limit_set_below_what_is_held_stops_nobody_and_lets_in_nobody(self, store: Store) -> None:
        play = Play(store)
        await play.join("n1", cpus=8)
        ids = await submit(store, "ann", *(spec() for _ in range(3)))
        await play.place()
        await set_quota(store, "a", owner="ann", sessions=1)
        await submit(store, "ann", spec())
        assert await play.place() == 0
        assert await placed(store) == {"ann": 3}
        assert await play.violations() == []
        await play.cancel(ids[0])
        await play.cancel(ids[1])
        assert await play.place() == 0, "one is left, and one is allowed"
        await set_quota(store, "a", owner="ann", sessions=2)
        assert await play.place() == 1
        assert await play.violations() == []

    @on_a_loop
    async def test_a_plan_that_knew_no_quota_is_held_to_it(self, store: Store) -> None:
        play = Play(store)
        await play.join("n1", cpus=8)
        ids = await submit(store, "ann", *(spec() for _ in range(4))) + await submit(store, "bob", spec())
        snapshot = await store.read("snapshot", lambda reads: reads.snapshot(10))
        await set_quota(store, "a", owner="ann", cpu_milli=2000)
        plan = cycle(snapshot)
        assert len(plan.placements) == len(ids)
        assert await store.tx("place", lambda tx: commit(tx, plan, {}, BY)) == 3
        assert await placed(store) == {"ann": 2, "bob": 1}
        assert await play.violations() == []

    @on_a_loop
    async def test_a_project_that_moves_takes_what_it_holds_along(self, store: Store) -> None:
        play = Play(store)
        await play.join("n1", cpus=8)
        await set_quota(store, "shop", domain="shop", sessions=1)
        await set_quota(store, "lab", domain="lab", sessions=1)
        await submit(store, "ann", spec(project="vision/detect"), spec(project="vision/track"))
        await play.place()
        await store.tx("assign", lambda tx: quotas.assign(tx, {"vision": "shop"}, ADMIN))
        assert await used(store, "shop") == {(): Amounts(2000, 128, 0, 0, 2)}, (
            "more than it allows, and nobody is stopped"
        )
        assert await play.violations() == []
        await submit(store, "ann", spec(project="vision/segment"))
        assert await play.place() == 0
        await store.tx("assign", lambda tx: quotas.assign(tx, {"vision/detect": "lab"}, ADMIN))
        assert await used(store, "shop") == {(): Amounts(1000, 64, 0, 0, 1)}
        assert await used(store, "lab") == {(): Amounts(1000, 64, 0, 0, 1)}
        facts = [row.entry.fact for row in await store.read("h", lambda reads: reads.quota_history("shop"))]
        assert facts == ["quota_set", "domains_set", "domains_set"]
        await store.tx("assign", lambda tx: quotas.assign(tx, {"vision/detect": "lab"}, ADMIN))
        assert len(await store.read("h", lambda reads: reads.quota_history("shop"))) == 3, "nothing changed"
        assert await play.violations() == []

    @on_a_loop
    async def test_more_than_may_wait_are_refused_when_they_are_submitted(self, store: Store) -> None:
        await set_quota(store, "each", owner="*", waiting=2)
        await set_quota(store, "all", project="vision", waiting=3)
        await submit(store, "ann", spec(), spec())
        with raising(Refused, "quota_waiting"):
            await submit(store, "ann", spec())
        await submit(store, "bob", spec())
        with raising(Refused, "quota_waiting"):
            await submit(store, "bob", spec(project="vision"), spec(project="vision"))
        for owner in ("cyd", "dan", "eve"):
            await submit(store, owner, spec(project="vision/detect"))
        with raising(Refused, "quota_waiting"):
            await submit(store, "fay", spec(project="vision"))
        assert len(await sessions(store)) == 6
        again = new_session(spec(), key="k", digest="d", owner="bob")
        for _ in range(2):
            (made,) = await store.tx("submit", lambda tx: intents.submit(tx, [again], "user:bob"))
            assert made.id == again.id, "what is repeated is not counted again"

    @on_a_loop
    async def test_an_array_counts_as_all_its_members_that_wait(self, store: Store) -> None:
        play = Play(store)
        await set_quota(store, "a", owner="ann", waiting=10, cpu_milli=2000)

        async def submit_array(indices: str, cpus: int = 1) -> None:
            new = [new_session(spec(cpus=cpus, array=indices), owner="ann")]
            await store.tx("submit", lambda tx: intents.submit_all(tx, new, "user:ann"))

        with raising(Refused, "quota_waiting"):
            await submit_array("0-10")
        with raising(Refused, "infeasible"):
            await submit_array("0-1", cpus=3)
        await submit_array("0-7")
        await submit(store, "ann", spec(), spec())
        with raising(Refused, "quota_waiting"):
            await submit(store, "ann", spec())
        await play.join("n1", cpus=8)
        while await play.place():
            pass
        assert await placed(store) == {"ann": 2}
        await submit(store, "ann", spec(), spec())
        assert await play.violations() == []

    @on_a_loop
    async def test_what_can_never_start_is_refused_when_it_is_submitted(self, store: Store) -> None:
        await set_quota(store, "a", owner="ann", cpu_milli=2000, time_limit_s=60)
        await submit(store, "ann", spec(cpus=2, time_limit_s=60))
        for wrong in (spec(cpus=3, time_limit_s=1), spec(), spec(time_limit_s=61), spec(nodes=3, time_limit_s=1)):
            with raising(Refused, "infeasible"):
                await submit(store, "ann", wrong)
        await submit(store, "bob", spec(cpus=3))

    @on_a_loop
    async def test_an_update_leads_nobody_past_a_quota(self, store: Store) -> None:
        play = Play(store)
        await play.join("n1", cpus=8)
        await play.join("n2", group="other", cpus=8)
        await set_quota(store, "t", owner="ann", time_limit_s=60)
        await set_quota(store, "g", owner="*", group="other", sessions=0)
        (id_,) = await submit(store, "ann", spec(time_limit_s=60))
        new = [new_session(spec(array="0-1", time_limit_s=60), owner="ann")]
        (array,) = await store.tx("submit", lambda tx: intents.submit_all(tx, new, "user:ann"))
        changes: list[dict[str, Any]] = [{"time_limit_s": 61}, {"group": "other"}]
        for change in changes:
            with raising(Refused, "infeasible"):
                await store.tx("update", lambda tx, asked=change: intents.update(tx, id_, "user:ann", **asked))
            with raising(Refused, "infeasible"):
                await store.tx("update", lambda tx, asked=change: arrays.update(tx, array.id, "user:ann", **asked))
        await store.tx("update", lambda tx: intents.update(tx, id_, "user:ann", time_limit_s=30, group="default"))
        assert (await play.session(id_)).time_limit_s == 30

    @on_a_loop
    async def test_one_owner_over_its_quota_hides_nobody_behind_it(self, store: Store) -> None:
        """However many of one shape stand before, whether what waits is read anew or kept."""
        play = Play(store)
        await play.join("n1", cpus=8)
        await set_quota(store, "a", owner="ann", sessions=1)
        await submit(store, "ann", *(spec() for _ in range(150)))
        await submit(store, "bob", spec())
        await submit(store, "ann", spec(project="other"))
        kept = Picture()
        for picture in (None, kept, kept):
            snapshot = await store.read("look", lambda reads, with_=picture: reads.snapshot(128, with_))
            owners = [found.session.owner for found in cycle(snapshot).placements]
            assert owners.count("ann") == 1
        while await play.place():
            pass
        assert await placed(store) == {"ann": 1, "bob": 1}
        assert await play.violations() == []
