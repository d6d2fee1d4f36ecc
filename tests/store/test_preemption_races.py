"""Several managers on one PostgreSQL: preempting, releasing, placing and cancelling at the same moment."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from corral.clock import SystemClock, SystemIds
from corral.model.lifecycle import Phase
from corral.reconcile import intents
from corral.store import PostgresStore
from corral.testing.builders import BY, Play, exited
from corral.testing.conformance.store_preemption import (
    Scene,
    carry_out,
    full,
    pins,
    plan_of,
    told_to_go,
    two_claims,
    used,
)

ROUNDS = 12
TOGETHER_S = 60


@pytest.fixture
def stores(postgres_url_migrated: str) -> Iterator[list[PostgresStore]]:
    opened = [PostgresStore(postgres_url_migrated, SystemClock(), SystemIds(), connections=2) for _ in range(3)]
    yield opened
    for store in opened:
        store.close()


def at_once(*moves: Callable[[], Awaitable[Any]]) -> list[Any]:
    """Each move on a thread and a loop of its own, let go together; their answers."""
    gate = threading.Barrier(len(moves))

    async def limited(move: Callable[[], Awaitable[Any]]) -> Any:
        gate.wait(TOGETHER_S)
        async with asyncio.timeout(TOGETHER_S):
            return await move()

    with ThreadPoolExecutor(len(moves)) as threads:
        futures = [threads.submit(lambda move=move: asyncio.run(limited(move))) for move in moves]
        return [future.result(TOGETHER_S) for future in futures]


async def cleared(scene: Scene) -> None:
    """Everything is cancelled, and has ended on the node."""
    store = scene.play.store
    left: list[str] = []
    for phase in ("pending", "placed", "starting", "running", "stopping"):
        left += await store.read("left", lambda reads, phase=phase: reads.in_phase(phase, 99))
    for id_ in left:
        await scene.play.cancel(id_)
    await scene.play.exchange("n1")
    for token in await scene.play.tokens(left):
        await scene.go(told_to_go(token, signal=9), exited(token))
    assert await pins(store) == []
    assert await used(store) == (0, 0)
    assert await scene.play.violations() == []


def test_two_managers_with_one_plan_stop_the_victims_once(stores: list[PostgresStore]) -> None:
    play = None
    for _ in range(ROUNDS):
        scene = asyncio.run(full(stores[0], 2, 2, play=play))
        play = scene.play
        planned = asyncio.run(plan_of(stores[0]))
        done = at_once(*(partial(carry_out, store, planned) for store in stores))
        assert sorted(done) == [False, False, True]
        victims = [asyncio.run(scene.session(id_)) for id_ in scene.victims]
        assert [victim.preemptions for victim in victims] == [1, 1]
        asyncio.run(cleared(scene))


def test_two_claims_at_once_under_a_quota_with_room_for_one(stores: list[PostgresStore]) -> None:
    """Each has victims of its own, so that nothing but the quota makes them follow one another."""
    play = None
    for _ in range(ROUNDS):
        scene, planned = asyncio.run(two_claims(stores[0], play))
        play = scene.play
        done = at_once(*(partial(carry_out, store, one) for store, one in zip(stores, planned, strict=False)))
        assert sorted(done) == [False, True]
        asyncio.run(cleared(scene))


@pytest.mark.parametrize("meddling", ["cancel the claimant", "hold the claimant", "cancel a victim"])
def test_whoever_comes_first_nothing_stays_kept_for_nobody(stores: list[PostgresStore], meddling: str) -> None:
    """A victim gives its room back, a pass places, and a user meddles, all at once."""
    play = None
    for _ in range(ROUNDS):
        scene = asyncio.run(full(stores[0], 2, 2, play=play))
        play = scene.play
        planned = asyncio.run(plan_of(stores[0]))
        assert asyncio.run(carry_out(stores[0], planned))
        first, second = asyncio.run(scene.play.tokens(scene.victims))
        asyncio.run(scene.go(told_to_go(first, 85), exited(first)))
        whom = scene.victims[1] if meddling == "cancel a victim" else scene.claimant
        what = intents.hold if meddling == "hold the claimant" else intents.cancel

        async def meddle(whom: str = whom, what: Any = what) -> None:
            try:
                await stores[1].tx("meddle", lambda tx: what(tx, whom, BY))
            except intents.Refused:
                assert (await Play(stores[1]).session(whom)).phase is not Phase.PENDING

        at_once(
            lambda scene=scene, second=second: scene.go(told_to_go(second, 85), exited(second)),
            Play(stores[2]).place,
            meddle,
        )
        assert asyncio.run(scene.play.violations()) == []
        asyncio.run(cleared(scene))
