"""Stopping sessions for another: guarded on all sides, the room kept for whom it was freed, and given back at last."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from corral.model.lifecycle import ExitClass, Outcome, Phase
from corral.model.node import ResourceGroup
from corral.model.pin_invariants import PREEMPTED
from corral.model.quota import Quota
from corral.model.reservation import AskedReservation
from corral.model.resources import GpuRequest
from corral.model.session import FactKind, KernelFact, Result, Session, StopFor
from corral.model.spec import SessionSpec
from corral.ports import Deed, Keep, Store
from corral.reconcile import groups, intents, quotas, reserving
from corral.reconcile.preempting import drop_old_pins, preempt
from corral.scheduling.cycle import cycle
from corral.scheduling.kept.picture import Picture
from corral.scheduling.limits import check_limits
from corral.scheduling.plan import Preemption
from corral.scheduling.snapshot import Pin
from corral.testing.builders import BY, Play, exited, ready, result, spec, whole_run
from corral.testing.conformance.loop import on_a_loop

GPUS = 4
OPTIONS = {"preemption": "priority", "preemption_min_runtime": 0, "backfill": "none"}


def told_to_go(token: str, code: int | None = None, signal: int | None = None) -> KernelFact:
    """How a command ended that was told to."""
    ended = Result(exit_code=code, signal=signal, exit_class=ExitClass.CANCELLED)
    return KernelFact(token, FactKind.RESULT, 0.0, result=ended)


class Scene(NamedTuple):
    """A full node, with somebody who would have others stopped."""

    play: Play
    victims: list[str]
    claimant: str

    async def go(self, *facts: KernelFact, node: str = "n1") -> None:
        await self.play.exchange(node, *facts)

    async def session(self, id_: str) -> Session:
        return await self.play.session(id_)


async def full(store: Store, *sizes: int, claims: int = GPUS, play: Play | None = None, **fields: Any) -> Scene:
    """Sessions of so many GPUs each run on a node, and one of high priority waits for more than is free."""
    if play is None:
        play = Play(store)
        await play.join("n1", gpus=GPUS)
    group = groups.GroupChange(options=OPTIONS)
    await store.tx("set group", lambda tx: groups.change(tx, "default", group, BY))
    ids = await play.submit(*(_gpus(size, **fields) for size in sizes))
    await play.place()
    await play.claim()
    await play.exchange("n1")
    await play.exchange("n1", *(ready(token) for token in await play.tokens(ids)))
    (claimant,) = await play.submit(_gpus(claims, priority=10))
    await play.place()  # it is refused, so that the next pass reads who runs
    return Scene(play, ids, claimant)


def _gpus(count: int, **fields: Any) -> SessionSpec:
    return spec(memory_mib=1, gpu=GpuRequest(count=count), grace_s=5, **fields)


async def two_claims(store: Store, play: Play | None = None) -> tuple[Scene, tuple[Preemption, Preemption]]:
    """Two of one project, whose quota has room for one, and whom passes that see one alone would have stopped."""
    scene = await full(store, 2, 2, claims=2, play=play, project="batch")
    limit = Quota("claims", project="default", limits={"sessions": 1})
    await store.tx("set quota", lambda tx: quotas.put(tx, limit, BY))
    await scene.play.submit(_gpus(2, priority=10))
    snapshot = await store.read("snapshot", lambda reads: reads.snapshot(8))
    plan = cycle(snapshot)
    (planned,) = plan.preemptions
    assert check_limits(snapshot, plan) == []
    alone = [one for one in snapshot.waiting if one != planned.claimant]
    (other,) = cycle(replace(snapshot, waiting=alone)).preemptions
    spare = next(one for one in snapshot.running if one not in planned.victims)
    return scene, (planned, other._replace(victims=(spare,), ranks=spare.ranks))


async def plan_of(store: Store) -> Preemption:
    snapshot = await store.read("snapshot", lambda reads: reads.snapshot(8))
    (one,) = cycle(snapshot).preemptions
    return one


async def pins(store: Store) -> list[Pin]:
    return await store.read("pins", lambda reads: reads.pins())


async def used(store: Store) -> tuple[int, int]:
    """CPUs and GPUs that are held or kept on the first node."""
    node = (await store.read("node", lambda reads: reads.nodes(["n1"])))["n1"]
    devices = await store.read("devices", lambda reads: reads.devices(["n1"]))
    return node.cpu_used_milli, sum(device.used_milli for device in devices)


async def carry_out(store: Store, planned: Preemption) -> bool:
    return await store.tx("preempt", lambda tx: preempt(tx, planned, BY))


class PreemptionRules:
    @on_a_loop
    async def test_the_victim_stops_and_its_room_goes_to_the_claimant(self, store: Store) -> None:
        scene = await full(store, 2, 2)
        play, (one, two) = scene.play, scene.victims
        await play.place()
        asked = [await scene.session(id_) for id_ in scene.victims]
        assert [(s.phase, s.stop_for, s.preempted_for, s.preemptions) for s in asked] == [
            (Phase.STOPPING, StopFor.PREEMPTED, scene.claimant, 1)] * 2  # fmt: skip
        waiting = await scene.session(scene.claimant)
        assert waiting.phase is Phase.PENDING
        assert waiting.room_by is not None
        assert waiting.room_by > asked[0].phase_at + 5
        assert (await play.facts(one))[-2:] == [PREEMPTED, "unwanted"]
        assert (await play.facts(scene.claimant))[-1] == "preempting"
        (order,) = [o for o in (await play.exchange("n1")).orders if o.token == (await play.tokens([one]))[0]]
        assert order.stop is not None
        assert order.stop.reason == "preempted"
        assert order.stop.message == "preempted for another session; checkpoint, and exit with 85"
        (token,) = await play.tokens([one])
        await scene.go(told_to_go(token, 85), exited(token))
        first = await scene.session(one)
        assert (first.phase, first.attempt, first.failures, first.infra_failures) == (Phase.PENDING, 2, 0, 0)
        assert (first.preemptions, first.preempted_for, first.stop_for) == (1, None, None)
        assert [pin.owner for pin in await pins(store)] == [scene.claimant]
        assert await used(store) == (2000, 4000)
        assert await play.violations() == []
        await play.place()
        assert (await scene.session(one)).phase is Phase.PENDING, "what is kept is not its room any more"
        (token,) = await play.tokens([two])
        await scene.go(told_to_go(token, signal=9), exited(token))
        assert [pin.place.grants[0].uuid for pin in await pins(store)] == ["n1-gpu-0", "n1-gpu-2"]
        await play.place()
        got = await scene.session(scene.claimant)
        assert (got.phase, got.room_by) == (Phase.PLACED, None)
        assert await pins(store) == []
        assert await used(store) == (1000, 4000)
        assert await play.violations() == []
        (attempt,) = await store.read("attempts", lambda reads: reads.attempts(one))
        assert dict(store.deeds) == {Deed("preempted"): 2}
        assert (attempt["exit_class"], attempt["reason"]["code"]) == ("preempted", "preempted")
        assert scene.claimant in attempt["reason"]["message"]

    @on_a_loop
    async def test_nobody_else_is_stopped_while_some_are(self, store: Store) -> None:
        scene = await full(store, 1, 1, 1, 1, claims=2)
        for _ in range(3):
            await scene.play.place()
        asked = [await scene.session(id_) for id_ in scene.victims]
        assert sum(session.stop_for is StopFor.PREEMPTED for session in asked) == 2
        assert (await scene.play.facts(scene.claimant)).count("preempting") == 1
        told = (await store.read("why", lambda reads: reads.refusals([scene.claimant])))[scene.claimant]
        assert (told[0]["code"], told[0]["counts"]) == ("preempting", {"sessions": 2})

    @on_a_loop
    async def test_all_or_nothing_when_one_of_them_moved(self, store: Store) -> None:
        play = None
        for what in (
            "victim ended", "victim cancelled", "claimant held", "claimant changed", "switched off", "paused",
            "reserved",
        ):  # fmt: skip
            scene = await full(store, 2, 2, play=play)
            play, planned = scene.play, await plan_of(store)
            (token,) = await play.tokens(scene.victims[:1])
            match what:
                case "victim ended":
                    await scene.go(*whole_run(token))
                case "victim cancelled":
                    await play.cancel(scene.victims[0])
                case "claimant held":
                    await store.tx("hold", lambda tx, id_=scene.claimant: intents.hold(tx, id_, BY))
                case "claimant changed":
                    await store.tx("update", lambda tx, id_=scene.claimant: intents.update(tx, id_, BY, priority=11))
                case "paused":
                    await store.tx("pause", lambda tx: groups.pause(tx, "default", BY))
                case "reserved":
                    asked = AskedReservation("r", "now", None, "1h", nodes=("n1",))
                    await store.tx("reserve", lambda tx, asked=asked: reserving.create(tx, asked, BY))
                case _:
                    off = groups.GroupChange(options={"preemption": "none"})
                    await store.tx("set", lambda tx, off=off: groups.change(tx, "default", off, BY))
            assert not await carry_out(store, planned), what
            other = await scene.session(scene.victims[1])
            assert (other.phase, other.stop_for, other.preemptions) == (Phase.RUNNING, None, 0), what
            assert (await scene.session(scene.claimant)).room_by is None
            assert await play.violations() == []
            if what == "paused":
                await store.tx("resume", lambda tx: groups.resume(tx, "default", BY))
            await _empty(store, scene)

    @on_a_loop
    async def test_what_is_free_of_its_room_is_kept_for_the_claimant_at_once(self, store: Store) -> None:
        """Nobody takes meanwhile what was free, so that others have stopped in vain; tried again, it is kept once."""
        scene = await full(store, 1, 1)
        play = scene.play
        await play.place()
        kept = await pins(store)
        assert [pin.owner for pin in kept] == [scene.claimant]
        assert sum(grant.share_milli for pin in kept for grant in pin.place.grants) == 2000
        (late,) = await play.submit(_gpus(1, priority=5))
        await play.place()
        assert (await scene.session(late)).phase is Phase.PENDING
        assert await used(store) == (2000, 4000)
        assert await play.violations() == []
        for token in await play.tokens(scene.victims):
            await scene.go(told_to_go(token, 85), exited(token))
        await play.place()
        assert (await scene.session(scene.claimant)).phase is Phase.PLACED
        assert (await pins(store), await used(store)) == ([], (1000, 4000))
        assert await play.violations() == []

    @on_a_loop
    async def test_a_quota_with_room_for_one_has_others_stopped_for_one(self, store: Store) -> None:
        """Neither in one pass, nor in the next, nor by a manager that looked before, while room is on its way."""
        scene, planned = await two_claims(store)
        play, (mine, other) = scene.play, planned
        first, second = mine.claimant.id, other.claimant.id
        assert await carry_out(store, mine)
        assert not await carry_out(store, other), "which was planned when nobody had anybody stopped"
        await play.place()
        (token,) = await play.tokens([mine.victims[0].id])
        assert [(await scene.session(id_)).stop_for for id_ in scene.victims].count(StopFor.PREEMPTED) == 1
        await scene.go(told_to_go(token, 85), exited(token))
        assert not await carry_out(store, other)
        await play.place()
        assert [(await scene.session(id_)).phase for id_ in (first, second)] == [Phase.PLACED, Phase.PENDING]
        await play.place()
        assert not await carry_out(store, other), "and none for the second while the first holds room"
        assert await play.violations() == []
        await play.cancel(first)
        assert await carry_out(store, other)

    @on_a_loop
    async def test_the_strongest_claim_is_seen_behind_many_of_its_kind(self, store: Store) -> None:
        scene = await full(store, 4)
        await scene.play.submit(*(_gpus(4) for _ in range(12)))
        (urgent,) = await scene.play.submit(_gpus(4, priority=20))
        for picture in (None, Picture()):
            snapshot = await store.read("snapshot", lambda reads, seen=picture: reads.snapshot(2, seen))
            assert {urgent, scene.claimant} <= {waiting.id for waiting in snapshot.waiting}
            (one,) = cycle(snapshot).preemptions
            assert one.claimant.id == scene.claimant, "the order of the group is first in, first out"

    @on_a_loop
    async def test_a_plan_is_carried_out_once(self, store: Store) -> None:
        scene = await full(store, 4)
        planned = await plan_of(store)
        assert await carry_out(store, planned)
        assert not await carry_out(store, planned)
        assert (await scene.play.facts(scene.victims[0])).count(PREEMPTED) == 1

    @on_a_loop
    async def test_one_that_finishes_in_its_grace_has_finished(self, store: Store) -> None:
        scene = await full(store, 4)
        await scene.play.place()
        (token,) = await scene.play.tokens(scene.victims)
        await scene.go(result(token), exited(token))
        ended = await scene.session(scene.victims[0])
        assert (ended.phase, ended.outcome) == (Phase.ENDED, Outcome.SUCCEEDED)
        assert len(await pins(store)) == 1, "its room is the claimant's all the same"
        await scene.play.place()
        assert (await scene.session(scene.claimant)).phase is Phase.PLACED

    @on_a_loop
    async def test_one_that_had_failed_by_itself_has_failed(self, store: Store) -> None:
        scene = await full(store, 4)
        await scene.play.place()
        (token,) = await scene.play.tokens(scene.victims)
        await scene.go(result(token, 3), exited(token))
        ended = await scene.session(scene.victims[0])
        assert (ended.phase, ended.outcome, ended.exit_class) == (Phase.ENDED, Outcome.FAILED, ExitClass.USER)

    @on_a_loop
    async def test_one_that_is_not_to_run_twice_is_over(self, store: Store) -> None:
        scene = await full(store, 4, requeue=False, preemptible=True)
        await scene.play.place()
        (token,) = await scene.play.tokens(scene.victims)
        await scene.go(told_to_go(token, 85), exited(token))
        ended = await scene.session(scene.victims[0])
        assert (ended.phase, ended.outcome, ended.exit_class, ended.exit_code) == (
            Phase.ENDED, Outcome.FAILED, ExitClass.PREEMPTED, 1)  # fmt: skip

    @on_a_loop
    async def test_who_does_not_wait_any_more_gets_no_pins_and_loses_those_it_has(self, store: Store) -> None:
        play = None
        for what in ("cancel", "hold", "group"):
            scene = await full(store, 2, 2, play=play)
            play = scene.play
            if what == "group":
                await store.tx("other", lambda tx: tx.add_group(ResourceGroup("other")))
            await play.place()
            one, two = await play.tokens(scene.victims)
            await scene.go(told_to_go(one, 85), exited(one))
            assert len(await pins(store)) == 1
            match what:
                case "cancel":
                    await play.cancel(scene.claimant)
                case "hold":
                    await store.tx("hold", lambda tx, id_=scene.claimant: intents.hold(tx, id_, BY))
                case _:
                    await store.tx("move", lambda tx, id_=scene.claimant: intents.update(tx, id_, BY, group="other"))
            assert (await pins(store), await used(store)) == ([], (1000, 2000)), what
            await scene.go(told_to_go(two, 85), exited(two))
            assert (await pins(store), await used(store)) == ([], (0, 0)), what
            assert await play.violations() == []
            await _empty(store, scene)

    @on_a_loop
    async def test_room_is_not_kept_for_ever(self, store: Store) -> None:
        scene = await full(store, 2, 2)
        await scene.play.place()
        one, _ = await scene.play.tokens(scene.victims)
        await scene.go(told_to_go(one, 85), exited(one))
        (pin,) = await pins(store)
        room_by = (await scene.session(scene.claimant)).room_by
        assert room_by is not None
        assert pin.expires_at == room_by + 60.0
        now = await store.read("now", lambda reads: reads.now)
        await drop_old_pins(store, [pin], now)
        assert await pins(store) == [pin], "its time is not over"
        await drop_old_pins(store, [pin], pin.expires_at)
        assert await pins(store) == [pin], "the database's clock judges"
        await store.tx("let go", lambda tx: tx.drop_pins([scene.claimant]))
        assert await pins(store) == []
        assert await used(store) == (1000, 2000)
        two = scene.victims[1]
        await store.tx("long ago", lambda tx: tx.give_room_back([(two, 1)], {two: Keep(scene.claimant, tx.now - 1.0)}))
        assert await used(store) == (1000, 2000)
        await drop_old_pins(store, await pins(store), await store.read("now", lambda reads: reads.now))
        assert await pins(store) == []
        assert await used(store) == (0, 0)

    @on_a_loop
    async def test_a_gang_gathers_its_room_from_several_nodes(self, store: Store) -> None:
        play = Play(store)
        for node in ("n1", "n2"):
            await play.join(node, gpus=GPUS)
        await store.tx("set", lambda tx: groups.change(tx, "default", groups.GroupChange(options=OPTIONS), BY))
        victims = await play.submit_and_claim(_gpus(4), _gpus(4))
        await play.exchange("n1")
        await play.exchange("n2")
        (gang,) = await play.submit(_gpus(4, nodes=2, priority=10))
        await play.place()
        await play.place()
        for id_, node in zip(victims, ("n1", "n2"), strict=True):
            (token,) = await play.tokens([id_])
            await play.exchange(node, KernelFact(token, FactKind.VOID, 0.0))
            await play.place()
        assert [kernel.node for kernel in await play.kernels(gang)] == ["n1", "n2"]
        assert await pins(store) == []
        assert await play.violations() == []


async def _empty(store: Store, scene: Scene) -> None:
    """Nothing waits or runs any more."""
    waiting = await store.read("left", lambda reads: [*reads.in_phase("pending", 99), *reads.in_phase("running", 99),
                                                      *reads.in_phase("stopping", 99)])  # fmt: skip
    for id_ in waiting:
        await scene.play.cancel(id_)
    for token in await scene.play.tokens(waiting):
        await scene.go(told_to_go(token, signal=9), exited(token))
