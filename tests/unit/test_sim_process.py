"""One incarnation of a process: its clocks, identities and crash points; and the faults that decide about them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from corral.ports import Clock, CrashPoint, Ids
from corral.testing.faults import BASE_RATES, Faults
from corral.testing.process import EPOCH, HostClock, SimProcess
from corral.testing.simloop import SimLoop
from corral.testing.steps import Dead


def run(main: Callable[[SimLoop, Faults], Awaitable[None]], faults: Faults | None = None) -> None:
    loop = SimLoop(random.Random(1))

    async def body() -> None:
        await main(loop, faults or Faults.none())

    try:
        loop.run(body())
    finally:
        loop.close()


def test_it_is_the_ports_that_production_code_asks_for() -> None:
    loop = SimLoop(random.Random(1))
    process = SimProcess(loop, Faults.none(), "m0")
    clock: Clock = process
    ids: Ids = process
    point: CrashPoint = process.point
    assert clock.wall() == EPOCH
    assert len(ids.session_id()) == 10
    point("nothing happens here")
    loop.close()


def test_the_clocks_of_a_machine_are_wrong_in_their_own_way_and_shared_by_its_processes() -> None:
    async def main(loop: SimLoop, faults: Faults) -> None:
        clock = HostClock(loop, skew_s=-3600.0, rate=1.02)
        agent = SimProcess(loop, faults, "n0.agent", clock=clock)
        shim = SimProcess(loop, faults, "n0.shim", clock=clock)
        began = agent.mono()
        assert agent.wall() == EPOCH - timedelta(hours=1)
        await asyncio.sleep(100)
        assert agent.mono() - began == pytest.approx(102.0)
        assert shim.mono() == agent.mono()
        assert agent.wall() == EPOCH + timedelta(seconds=102.0 - 3600.0)

    run(main)


def test_a_fast_clock_wakes_its_sleepers_early() -> None:
    async def main(loop: SimLoop, faults: Faults) -> None:
        process = SimProcess(loop, faults, "p", clock=HostClock(loop, rate=1.25))
        await process.spawn(process.sleep(100))
        assert loop.now_s == pytest.approx(80.0)

    run(main)


def test_a_reboot_starts_the_monotonic_clock_again() -> None:
    async def main(loop: SimLoop, faults: Faults) -> None:
        process = SimProcess(loop, faults, "p")
        await asyncio.sleep(10)
        process.clock.reboot()
        assert process.mono() == 0.0
        await asyncio.sleep(5)
        assert process.mono() == 5.0

    run(main)


def test_ids_repeat_with_the_seed_and_never_between_incarnations() -> None:
    def ids(seed: int, incarnation: int) -> list[str]:
        loop = SimLoop(random.Random(1))
        process = SimProcess(loop, Faults(seed), "m0", incarnation)
        found = [process.session_id(), process.token(), process.nonce()]
        loop.close()
        return found

    assert ids(1, 1) == ids(1, 1)
    everything = [*ids(1, 1), *ids(1, 2), *ids(2, 1)]
    assert len(set(everything)) == 9
    assert set(ids(1, 1)[0]) <= set("0123456789abcdefghjkmnpqrstvwxyz")


def test_a_crash_point_kills_at_the_planned_pass_and_nothing_below_it_happens() -> None:
    faults, passed = Faults.none(), list[int]()
    faults.plan_crash("launch.after_commit", 3)

    async def main(loop: SimLoop, faults: Faults) -> None:
        process, ends = SimProcess(loop, faults, "m0"), list[str]()
        process.at_exit.append(lambda dead: ends.append(dead.title))

        async def body() -> None:
            for number in range(10):
                process.point("launch.after_commit")
                passed.append(number)
                await process.sleep(1)

        process.spawn(body())
        await asyncio.sleep(100)
        assert not process.alive
        assert ends == ["m0#1"]

    run(main, faults)
    assert passed == [0, 1]
    assert faults.passes["launch.after_commit"] == 3
    assert faults.crashes == {"launch.after_commit": 1}


def test_a_process_can_be_stopped_at_a_point_and_goes_on_by_itself() -> None:
    faults, passed = Faults.none(), list[float]()
    faults.always("process.pause_at_point")

    async def main(loop: SimLoop, faults: Faults) -> None:
        process = SimProcess(loop, faults, "m0")

        async def body() -> None:
            for _ in range(3):
                process.point("anywhere")
                passed.append(loop.now_s)
                await process.sleep(0.001)

        await process.spawn(body())

    run(main, faults)
    assert passed[0] == 0.0
    assert passed[1] - passed[0] > 0.01 or passed[2] - passed[1] > 0.01
    assert faults.counts["process.pause_at_point"] == 3


def test_every_call_of_a_dead_process_says_so() -> None:
    async def main(loop: SimLoop, faults: Faults) -> None:
        process = SimProcess(loop, faults, "p")
        process.kill()
        for call in (process.wall, process.mono, process.session_id, process.nonce, process.check):
            with pytest.raises(Dead):
                call()
        with pytest.raises(Dead):
            process.point("x")
        with pytest.raises(Dead):
            process.sometimes("x")
        with pytest.raises(Dead):
            await process.sleep(1)

    run(main)


def test_reached_places_are_counted() -> None:
    faults = Faults.none()

    async def main(loop: SimLoop, faults: Faults) -> None:
        for incarnation in range(3):
            SimProcess(loop, faults, "p", incarnation).sometimes("stale claim was withdrawn")

    run(main, faults)
    assert faults.reached == {"stale claim was withdrawn": 3}


def test_each_kind_of_fault_is_off_in_about_a_quarter_of_the_seeds() -> None:
    seeds = [Faults(seed) for seed in range(400)]
    for kind in BASE_RATES:
        off = sum(faults.rates[kind] == 0.0 for faults in seeds)
        assert 60 < off < 145, (kind, off)
        assert len({faults.rates[kind] for faults in seeds}) == 4


def test_hits_are_counted_repeat_with_the_seed_and_stop_when_all_heals() -> None:
    def hits(seed: int) -> list[bool]:
        faults = Faults(seed, rates={"own.kind": 0.5})
        found = [faults.hit("own.kind") for _ in range(200)]
        assert faults.counts["own.kind"] == sum(found)
        faults.quiet()
        assert not any(faults.hit("own.kind") for _ in range(200))
        return found

    assert [hits(seed) for seed in range(20)] == [hits(seed) for seed in range(20)]
    assert any(sum(hits(seed)) > 20 for seed in range(20))


def test_a_fault_can_be_switched_on_and_off_and_must_exist() -> None:
    faults = Faults.none()
    faults.always("disk.full")
    assert faults.hit("disk.full")
    faults.never("disk.full")
    assert not faults.hit("disk.full")
    with pytest.raises(KeyError, match=r"no fault kind 'disk\.ful'"):
        faults.always("disk.ful")


def test_some_crash_points_are_hot_in_a_seed_and_every_one_is_in_some_seed() -> None:
    names = [f"point {number}" for number in range(8)]
    crashed: set[str] = set()
    for seed in range(60):
        faults = Faults(seed)
        found = {name for name in names for _ in range(100) if faults.crash(name)}
        assert found != set(names), "never all at once"
        assert set(faults.crashes) == found
        crashed |= found
    assert crashed == set(names)
