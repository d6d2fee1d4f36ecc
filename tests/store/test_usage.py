"""What was used fades by half-lives, live and counted alike, and a restarted session brings what it has attained. Time
is moved by hand in the rows."""

import asyncio

import pytest

from corral.model.node import ResourceGroup
from corral.model.resources import GpuRequest
from corral.ports import Store
from corral.reconcile import groups, intents
from corral.reconcile.groups import GroupChange
from corral.store import SqliteStore
from corral.store.waiting import faded_s
from corral.testing.builders import Play, accepted, exited, ready, spec, whole_run

HALF_LIFE_S = 100.0
SLACK_S = 30.0  # how long the test itself may take between two looks


class Stage:
    """A store with one node whose group remembers what was used."""

    def __init__(self, store: Store, order: str, **options: object) -> None:
        self.store = store
        self.play = Play(store)
        self.group = ResourceGroup("default", order, order_options=options)

    async def begin(self) -> None:
        await self.store.tx("create", lambda tx: groups.create(tx, self.group, "user:admin"))
        await self.play.join("n1", gpus=2)

    async def run(self, statement: str) -> None:
        await self.store.tx("by hand", lambda tx: tx._run(statement))  # pyright: ignore[reportAttributeAccessIssue]

    async def cpu_s(self) -> float:
        found = await self.store.read("usage", lambda reads: reads.usage(list(reads.groups().values())))
        return found[0].cpu_s if found else 0.0

    async def count(self) -> int:
        return await self.store.tx("count", lambda tx: tx.count_usage(1000))


def test_the_weight_halves_every_half_life() -> None:
    assert faded_s(0, 1, 1, 1e9) == pytest.approx(1)
    assert faded_s(-1e9, 0, 0, 100) == pytest.approx(100 / 0.6931472, rel=1e-6)
    assert faded_s(0, 10, 110, 100) == pytest.approx(faded_s(0, 10, 10, 100) / 2)
    assert faded_s(0, 5, 10, 7) + faded_s(5, 10, 10, 7) == pytest.approx(faded_s(0, 10, 10, 7))


def test_what_is_held_long_fades_while_it_goes_on(store: SqliteStore) -> None:
    async def play() -> None:
        stage = Stage(store, "fair-share", half_life=HALF_LIFE_S)
        await stage.begin()
        (id_,) = await stage.play.submit_and_claim(spec(cpus=4))
        await stage.run("UPDATE holding SET held_at = held_at - 300")
        expected = 4 * faded_s(-300, 0, 0, HALF_LIFE_S)
        assert expected < 4 * 300 / 2
        assert expected <= await stage.cpu_s() < expected + 4 * SLACK_S
        (token,) = await stage.play.tokens([id_])
        await stage.play.exchange("n1", *whole_run(token))
        ended = await stage.cpu_s()
        assert await stage.count() == 1
        assert await stage.cpu_s() == pytest.approx(ended, rel=SLACK_S / HALF_LIFE_S)
        await stage.run("UPDATE usage SET at = at - 200")
        assert await stage.cpu_s() == pytest.approx(ended / 4, rel=SLACK_S / HALF_LIFE_S)
        await stage.run("UPDATE usage SET at = at - 1e9")
        assert await stage.cpu_s() == pytest.approx(0, abs=1e-9)

    asyncio.run(play())


def test_counting_adds_to_what_faded_since(store: SqliteStore) -> None:
    async def play() -> None:
        stage = Stage(store, "fair-share", half_life=HALF_LIFE_S)
        await stage.begin()
        for _ in range(2):
            (id_,) = await stage.play.submit_and_claim(spec(cpus=1, gpu=GpuRequest(1)))
            await stage.run("UPDATE holding SET held_at = held_at - 50 WHERE released_at IS NULL")
            (token,) = await stage.play.tokens([id_])
            await stage.play.exchange("n1", *whole_run(token))
            assert await stage.count() == 2
            await stage.run("UPDATE usage SET at = at - 100")
        once = faded_s(-50, 0, 0, HALF_LIFE_S)
        assert await stage.cpu_s() == pytest.approx(once / 2 + once / 4, rel=2 * SLACK_S / HALF_LIFE_S)

    asyncio.run(play())


def test_a_new_half_life_counts_from_then_on(store: SqliteStore) -> None:
    async def play() -> None:
        stage = Stage(store, "fifo")
        await stage.begin()
        (id_,) = await stage.play.submit_and_claim(spec(cpus=1))
        await stage.run("UPDATE holding SET held_at = held_at - 50")
        (token,) = await stage.play.tokens([id_])
        await stage.play.exchange("n1", *whole_run(token))
        assert await stage.count() == 1
        assert await stage.cpu_s() == 0, "fifo does not ask"
        fair = GroupChange(order="fair-share", order_options={"half_life": 60})
        await store.tx("set", lambda tx: groups.change(tx, "default", fair, "user:admin"))
        assert 45 < await stage.cpu_s() < 50 + SLACK_S, "it was remembered all the same"

    asyncio.run(play())


def test_a_restarted_session_brings_what_it_has_attained(store: SqliteStore) -> None:
    async def play() -> None:
        stage = Stage(store, "least-attained-service")
        await stage.begin()
        (id_,) = await stage.play.submit_and_claim(spec(cpus=3, gpu=GpuRequest(2)))
        (token,) = await stage.play.tokens([id_])
        await stage.play.exchange("n1", accepted(token), ready(token))
        await store.tx("requeue", lambda tx: intents.requeue(tx, id_, "unused", "user:ann"))
        await stage.run("UPDATE holding SET held_at = held_at - 100")
        await stage.play.exchange("n1", exited(token))
        assert (await stage.play.session(id_)).attempt == 2
        await stage.run("UPDATE session SET not_before = 0")
        (waiting,) = (await store.read("snapshot", lambda reads: reads.snapshot(5))).waiting
        assert waiting.gpu_s == pytest.approx(200, abs=2 * SLACK_S)
        assert waiting.cpu_s == pytest.approx(300, abs=3 * SLACK_S)

    asyncio.run(play())
