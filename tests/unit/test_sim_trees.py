"""Simulated process trees and the ground truth that checkers read."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from corral.testing.faults import Faults
from corral.testing.process import SimProcess
from corral.testing.simloop import SimLoop
from corral.testing.steps import SimulationError
from corral.testing.trees import GroundTruth, JobPlan, SimTrees, Tree


class Machines:
    def __init__(self, loop: SimLoop, faults: Faults) -> None:
        self.loop = loop
        self.faults = faults
        self.truth = GroundTruth(loop)
        self.nodes = [SimTrees(loop, faults, name, self.truth) for name in ("n0", "n1")]
        self.shim = SimProcess(loop, faults, "n0.shim")

    async def start(self, token: str = "t1", plan: JobPlan | None = None, node: int = 0, session: str = "s") -> Tree:
        plan = plan or JobPlan(lasts_s=10.0)
        return await self.nodes[node].start(self.shim, token, session, 0, plan, ("gpu0",))


def run(main: Callable[[Machines], Awaitable[None]], *always: str) -> None:
    loop, faults = SimLoop(random.Random(1)), Faults.none()
    faults.always(*always)

    async def body() -> None:
        await main(Machines(loop, faults))

    try:
        loop.run(body())
    finally:
        loop.close()


def test_a_job_runs_its_time_and_ends_with_its_code() -> None:
    async def main(machines: Machines) -> None:
        trees = machines.nodes[0]
        tree = await machines.start(plan=JobPlan(lasts_s=10.0, exit_code=3))
        assert list(machines.truth.live) == ["t1"] == await trees.tokens(machines.shim)
        assert await trees.wait_main(machines.shim, tree) == (3, None)
        assert machines.loop.now_s == 10.0
        assert await trees.is_empty(machines.shim, "t1")
        assert machines.truth.live == {}
        assert machines.truth.starts == {"t1": 1}

    run(main)


def test_a_second_start_of_a_token_is_found_even_after_the_first_has_ended() -> None:
    async def main(machines: Machines) -> None:
        await machines.start()
        await asyncio.sleep(20)
        await machines.start(node=1)

    with pytest.raises(SimulationError, match="KE1: token t1 was started 2 times"):
        run(main)


def test_two_living_attempts_of_a_session_are_found() -> None:
    async def main(machines: Machines) -> None:
        await machines.start("t1")
        await asyncio.sleep(5)
        await machines.start("t2", node=1)

    with pytest.raises(SimulationError, match="KE2: t2 was started on n1 while t1 lives on n0"):
        run(main)


def test_an_attempt_after_the_death_of_the_last_is_right() -> None:
    async def main(machines: Machines) -> None:
        await machines.start("t1")
        await asyncio.sleep(20)
        await machines.start("t2", node=1)
        assert machines.truth.ended == 1

    run(main)


def test_a_tree_without_its_holding_is_found() -> None:
    async def main(machines: Machines) -> None:
        tree = await machines.start("t1")
        assert machines.truth.unbacked([("t1", "n0", "gpu0")]) == []
        assert machines.truth.unbacked([("t1", "n0", "gpu1"), ("t2", "n0", "gpu0")]) == [tree]

    run(main)


def test_descendants_outlive_the_main_process_until_they_are_killed() -> None:
    async def main(machines: Machines) -> None:
        trees = machines.nodes[0]
        tree = await machines.start(plan=JobPlan(lasts_s=1.0, descendants=2, descendants_outlive_s=100.0))
        await trees.wait_main(machines.shim, tree)
        await asyncio.sleep(5)
        assert not tree.main_lives
        assert not await trees.is_empty(machines.shim, "t1")
        await trees.kill_tree(machines.shim, "t1")
        await trees.wait_empty(machines.shim, "t1")
        assert machines.truth.live == {}
        assert machines.loop.now_s < 10.0

    run(main)


def test_the_main_process_dies_with_its_shim_and_its_descendants_do_not() -> None:
    async def main(machines: Machines) -> None:
        tree = await machines.start(plan=JobPlan(lasts_s=50.0, descendants=1, descendants_outlive_s=100.0))
        machines.shim.kill()
        await asyncio.sleep(1)
        assert (tree.main_lives, tree.signal) == (False, 9)
        assert list(machines.truth.live) == ["t1"]

    run(main)


@pytest.mark.parametrize(("heeds", "ended_by"), [(True, 12.0), (False, 50.0)])
def test_sigterm_is_heeded_or_not(heeds: bool, ended_by: float) -> None:
    async def main(machines: Machines) -> None:
        trees = machines.nodes[0]
        tree = await machines.start(plan=JobPlan(lasts_s=50.0, heeds_term=heeds, term_takes_s=2.0))
        await asyncio.sleep(10)
        assert await trees.terminate(machines.shim, tree.main_pid, "t1")
        assert await trees.wait_main(machines.shim, tree) == ((None, 15) if heeds else (0, None))
        assert machines.loop.now_s == ended_by
        assert not await trees.terminate(machines.shim, tree.main_pid, "t1")

    run(main)


def test_a_signal_to_a_stale_process_id_hits_an_innocent() -> None:
    async def main(machines: Machines) -> None:
        trees = machines.nodes[0]
        first = await machines.start("t1", JobPlan(lasts_s=1.0))
        await asyncio.sleep(2)
        for number in range(2, 1 + SimTrees.PID_SPACE):
            await machines.start(f"t{number}", JobPlan(lasts_s=0.5), session=f"s{number}")
            await asyncio.sleep(1)
        later = await machines.start("later", session="later")
        assert later.main_pid == first.main_pid
        assert await trees.terminate(machines.shim, first.main_pid, "t1")
        assert trees.innocents_hit == 1

    run(main)


def test_a_fork_bomb_finds_the_end_of_the_process_ids() -> None:
    async def main(machines: Machines) -> None:
        with pytest.raises(BlockingIOError):
            await machines.start(plan=JobPlan(lasts_s=5.0, descendants=SimTrees.PID_SPACE))
        await machines.start("t2", session="other")

    run(main)


def test_death_takes_a_moment_and_a_driver_can_hold_it_up() -> None:
    async def main(machines: Machines) -> None:
        trees = machines.nodes[0]
        await machines.start(plan=JobPlan(lasts_s=500.0, unkillable_for_s=60.0))
        await trees.kill_tree(machines.shim, "t1")
        await trees.kill_tree(machines.shim, "t1")
        assert not await trees.is_empty(machines.shim, "t1")
        await trees.wait_empty(machines.shim, "t1")
        assert 60.0 <= machines.loop.now_s < 65.0

    run(main, "tree.slow_death")


def test_power_off_ends_every_tree_of_its_node_at_once() -> None:
    async def main(machines: Machines) -> None:
        await machines.start("t1", JobPlan(lasts_s=50.0, unkillable_for_s=100.0, descendants=3))
        await machines.start("t2", node=1, session="other")
        machines.nodes[0].power_off()
        assert list(machines.truth.live) == ["t2"]
        assert machines.nodes[0].pids == {}

    run(main)
