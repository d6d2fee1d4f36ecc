"""Moving sessions so that others find room: guarded on all sides, each into room that is kept for it from the start."""

from __future__ import annotations

from typing import NamedTuple

from corral.model.faults import Refused
from corral.model.lifecycle import ExitClass, Outcome, Phase
from corral.model.pin_invariants import MOVING
from corral.model.reservation import AskedReservation
from corral.model.resources import GpuRequest
from corral.model.session import Session, StopFor
from corral.model.spec import SessionSpec
from corral.ports import Deed, Store
from corral.reconcile import groups, intents, reserving
from corral.reconcile.defragmenting import CarriedOut, Clearance, carry_out, clear, clearances, look
from corral.scheduling.moving.clearing import Wanted
from corral.testing.builders import BY, Play, exited, raising, ready, result, spec
from corral.testing.conformance.loop import on_a_loop
from corral.testing.conformance.store_preemption import pins, told_to_go

GPUS = 4
NODES = ("n1", "n2")
OPTIONS = {"preemption_min_runtime": 0}


class Scattered(NamedTuple):
    """Two nodes with half of their GPUs held, and one session that wants all of a node."""

    play: Play
    held: list[str]
    goal: str

    async def session(self, id_: str) -> Session:
        return await self.play.session(id_)

    async def node_of(self, id_: str) -> str:
        return (await self.play.kernels(id_))[0].node

    async def gone(self, id_: str) -> None:
        """It saves its work and goes."""
        (token,) = [kernel.token for kernel in await self.play.kernels(id_) if kernel.certificate is None]
        await self.play.exchange(await self.node_of(id_), told_to_go(token, 85), exited(token))


def _gpus(count: int) -> SessionSpec:
    return spec(memory_mib=1, gpu=GpuRequest(count=count), grace_s=5)


async def scattered(store: Store, play: Play | None = None) -> Scattered:
    if play is None:
        play = Play(store)
        for node in NODES:
            await play.join(node, gpus=GPUS)
    change = groups.GroupChange(placement="spread", options=OPTIONS)
    await store.tx("set group", lambda tx: groups.change(tx, "default", change, BY))
    ids = await play.submit_and_claim(_gpus(2), _gpus(2))
    for node in NODES:
        await play.exchange(node)
    for id_ in ids:
        (kernel,) = await play.kernels(id_)
        await play.exchange(kernel.node, ready(kernel.token))
    (goal,) = await play.submit(_gpus(GPUS))
    await play.place()
    return Scattered(play, ids, goal)


async def run(store: Store, wanted: Wanted | None = None) -> CarriedOut:
    return await carry_out(store, wanted or Wanted(), BY)


async def planned_on(store: Store) -> Clearance:
    snapshot, found = await store.read("look", lambda reads: look(reads, Wanted()))
    (one,) = clearances(snapshot, found)
    return one


async def used(store: Store) -> dict[str, int]:
    """GPUs that are held or kept, by node."""
    devices = await store.read("devices", lambda reads: reads.devices(NODES))
    return {name: sum(one.used_milli for one in devices if one.node == name) // 1000 for name in NODES}


class MovingRules:
    @on_a_loop
    async def test_one_moves_and_the_other_has_its_room(self, store: Store) -> None:
        scene = await scattered(store)
        done = await run(store)
        (move,) = done.begun
        here, there = move.here[0].node, move.there[0].node
        assert (move.goal, {here, there}, dict(done.refused)) == (scene.goal, set(NODES), {})
        mover = await scene.session(move.id)
        assert (mover.phase, mover.stop_for, mover.preempted_for, mover.preemptions) == (
            Phase.STOPPING, StopFor.PREEMPTED, scene.goal, 1)  # fmt: skip
        kept = {(pin.owner, pin.place.node) for pin in await pins(store)}
        assert kept == {(move.id, there), (scene.goal, here)}, "what is free beside the mover is the goal's at once"
        assert await used(store) == {here: GPUS, there: GPUS}
        assert (await scene.play.facts(move.id))[-2:] == [MOVING, "unwanted"]
        assert (await scene.play.facts(scene.goal))[-1] == "preempting"
        (order,) = [one for one in (await scene.play.exchange(here)).orders if move.id in one.token]
        assert order.stop is not None
        assert (order.stop.reason, "go on elsewhere" in order.stop.message) == ("preempted", True)
        assert await scene.play.violations() == []
        await scene.play.place()
        assert (await scene.session(scene.goal)).phase is Phase.PENDING
        await scene.gone(move.id)
        waiting = await scene.session(move.id)
        assert (waiting.phase, waiting.attempt, waiting.failures, waiting.stop_for) == (Phase.PENDING, 2, 0, None)
        assert {(pin.owner, pin.place.node) for pin in await pins(store)} == {(move.id, there), (scene.goal, here)}
        assert await scene.play.violations() == []
        await scene.play.place()
        assert (await scene.node_of(move.id), await scene.node_of(scene.goal)) == (there, here)
        assert (await pins(store), await used(store)) == ([], {here: GPUS, there: GPUS})
        assert await scene.play.violations() == []
        assert dict(store.deeds) == {Deed("moved"): 1}
        (first, _) = await store.read("attempts", lambda reads: reads.attempts(move.id))
        assert (first["exit_class"], first["reason"]["code"]) == ("preempted", "preempted")

    @on_a_loop
    async def test_room_that_nobody_waits_for_is_nobodys(self, store: Store) -> None:
        scene = await scattered(store)
        await scene.play.cancel(scene.goal)
        assert (await run(store)).begun == []
        (move,) = (await run(store, Wanted(gpus=GPUS))).begun
        assert (await scene.session(move.id)).preempted_for is None
        await scene.gone(move.id)
        assert [pin.owner for pin in await pins(store)] == [move.id]
        assert await used(store) == {move.here[0].node: 0, move.there[0].node: GPUS}
        await scene.play.place()
        assert await scene.node_of(move.id) == move.there[0].node, "and not back to where it was"
        assert await scene.play.violations() == []

    @on_a_loop
    async def test_nothing_is_written_when_anything_is_not_as_planned(self, store: Store) -> None:
        play = None
        for what, code in (
            ("mover changed", "moved_meanwhile"), ("mover ended", "moved_meanwhile"), ("goal held", "moved_meanwhile"),
            ("room taken", "no_room"), ("paused", "no_room"), ("reserved", "no_room"),
            ("goal's node reserved", "no_room"),
        ):  # fmt: skip
            play = await self._refused(await scattered(store, play), what, code)

    async def _refused(self, scene: Scattered, what: str, code: str) -> Play:
        store = scene.play.store
        planned = await planned_on(store)
        ((mover, there),) = planned.moves
        match what:
            case "mover changed":
                await store.tx("update", lambda tx: intents.update(tx, mover.id, BY, time_limit_s=99))
            case "mover ended":
                (token,) = await scene.play.tokens([mover.id])
                await scene.play.exchange(mover.ranks[0].node, result(token), exited(token))
            case "goal held":
                await store.tx("hold", lambda tx: intents.hold(tx, scene.goal, BY))
            case "room taken":
                await scene.play.submit(spec(memory_mib=1, gpu=GpuRequest(count=1), on_nodes=(there[0].node,)))
                await scene.play.place()
            case "paused":
                await store.tx("pause", lambda tx: groups.pause(tx, "default", BY))
            case _:
                node = there[0].node if what == "reserved" else planned.places[0].node
                asked = AskedReservation("r", "now", None, "1h", nodes=(node,))
                await store.tx("reserve", lambda tx: reserving.create(tx, asked, BY))
        before = await scene.session(mover.id)
        with raising(Refused, code):
            await store.tx("defragment", lambda tx: clear(tx, planned, BY))
        assert await scene.session(mover.id) == before, what
        assert (await pins(store), (await scene.session(scene.goal)).room_by) == ([], None), what
        assert await scene.play.violations() == []
        if what == "paused":
            await store.tx("resume", lambda tx: groups.resume(tx, "default", BY))
        elif what.endswith("reserved"):
            await store.tx("free", lambda tx: reserving.delete(tx, "r", BY))
        await _cleared(scene)
        return scene.play

    @on_a_loop
    async def test_a_plan_is_carried_out_once_and_not_again_while_it_goes_on(self, store: Store) -> None:
        scene = await scattered(store)
        planned = await planned_on(store)
        await store.tx("defragment", lambda tx: clear(tx, planned, BY))
        with raising(Refused, "moved_meanwhile"):
            await store.tx("defragment", lambda tx: clear(tx, planned, BY))
        done = await run(store)
        assert (done.begun, dict(done.refused)) == ([], {})
        assert (await scene.session(planned.moves[0][0].id)).preemptions == 1

    @on_a_loop
    async def test_one_that_does_not_go_on_leaves_the_room_that_was_kept_for_it(self, store: Store) -> None:
        play = None
        for what in ("finished", "cancelled", "failed"):
            scene = await scattered(store, play)
            play = scene.play
            (move,) = (await run(store)).begun
            (token,) = await scene.play.tokens([move.id])
            if what == "cancelled":
                await scene.play.cancel(move.id)
            told = {"finished": told_to_go(token, 0), "failed": result(token, 3)}.get(what, told_to_go(token, signal=9))
            await scene.play.exchange(move.here[0].node, told, exited(token))
            ended = await scene.session(move.id)
            assert (ended.phase, ended.room_by) == (Phase.ENDED, None), what
            assert ended.outcome is {"finished": Outcome.SUCCEEDED, "failed": Outcome.FAILED}.get(
                what, Outcome.CANCELLED
            )
            assert ended.exit_class is not ExitClass.PREEMPTED
            assert {pin.owner for pin in await pins(store)} == {scene.goal}
            assert await used(store) == {move.here[0].node: GPUS, move.there[0].node: 2}, "with what was free beside it"
            assert await scene.play.violations() == []
            await _cleared(scene)


async def _cleared(scene: Scattered) -> None:
    """Everything is cancelled, and has ended."""
    left: list[str] = []
    for phase in ("pending", "placed", "starting", "running", "stopping"):
        left += await scene.play.store.read("left", lambda reads, phase=phase: reads.in_phase(phase, 99))
    for id_ in left:
        await scene.play.cancel(id_)
    for id_ in left:
        for kernel in await scene.play.kernels(id_):
            if kernel.certificate is None:
                await scene.play.exchange(kernel.node, told_to_go(kernel.token, signal=9), exited(kernel.token))
    assert await pins(scene.play.store) == []
    assert await used(scene.play.store) == dict.fromkeys(NODES, 0)
