"""What must hold whatever happens at the same moment, through one store. tests/store races several on PostgreSQL."""

from __future__ import annotations

import asyncio

from corral.model.lifecycle import Phase
from corral.model.resources import GpuRequest
from corral.ports import Store
from corral.testing.builders import Play, spec, whole_run
from corral.testing.conformance.loop import on_a_loop

ROUNDS = 10


class RaceRules:
    @on_a_loop
    async def test_passes_that_overlap_place_each_session_once(self, store: Store) -> None:
        play = Play(store)
        await play.join("n1", gpus=2)
        await play.join("n2", gpus=1)
        ids = await play.submit(*(spec(gpu=GpuRequest()) for _ in range(5)))
        placed = await asyncio.gather(*(play.place() for _ in range(6)))
        assert sum(placed) <= 3
        await play.place()
        sessions = await store.read("look", lambda reads: reads.sessions(ids))
        assert sum(session.phase is Phase.PLACED for session in sessions.values()) == 3
        assert await play.violations() == []

    @on_a_loop
    async def test_passes_that_overlap_claim_each_session_once(self, store: Store) -> None:
        play = Play(store)
        await play.join("n1")
        ids = await play.submit(*(spec() for _ in range(5)))
        await play.place()
        assert sum(await asyncio.gather(*(play.claim() for _ in range(6)))) == 5
        for id_ in ids:
            assert await play.facts(id_) == ["submitted", "placed", "claimed"]
        assert await play.violations() == []

    @on_a_loop
    async def test_a_cancel_against_every_step_of_the_way(self, store: Store) -> None:
        play = Play(store)
        await play.join("n1")
        for _ in range(ROUNDS):
            (id_,) = await play.submit(spec())
            await asyncio.gather(play.place(), play.cancel(id_))
            (id_,) = await play.submit(spec())
            await play.place()
            await asyncio.gather(play.claim(), play.cancel(id_))
            (id_,) = await play.submit_and_claim(spec())
            await asyncio.gather(play.exchange("n1"), play.cancel(id_))
            tokens = await play.tokens([id_])
            if (await play.session(id_)).phase is not Phase.ENDED:
                await asyncio.gather(play.exchange("n1", *whole_run(tokens[0])), play.cancel(id_))
                assert (await play.session(id_)).phase is Phase.ENDED
            assert await play.violations() == []
        await play.claim()
        counts = await store.read("counts", lambda reads: reads.count_sessions())
        assert counts.keys() <= {"ended"}, counts

    @on_a_loop
    async def test_the_same_end_reported_twice_at_once_is_one_end(self, store: Store) -> None:
        play = Play(store)
        await play.join("n1")
        for _ in range(ROUNDS):
            (id_,) = await play.submit_and_claim(spec())
            (token,) = await play.tokens([id_])
            await play.exchange("n1")
            facts = whole_run(token)
            await asyncio.gather(*(store.tx("facts", lambda tx, facts=facts: tx.record(facts)) for _ in range(3)))
            await play.exchange("n1", *facts)
            assert await play.facts(id_) == ["submitted", "placed", "claimed", "ready", "decided", "released"]
        assert await play.violations() == []
