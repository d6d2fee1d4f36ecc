"""The shim in the simulator, under a page of agent: it races itself, is voided, stopped, killed and judged."""

from __future__ import annotations

import contextlib
from collections import Counter

import pytest

from corral.agent import jobdir
from corral.agent.jobspec import Spec
from corral.agent.ports import Birth
from corral.agent.shim import CRASH_POINTS
from corral.testing.disk import SimFiles
from corral.testing.process import SimProcess
from corral.testing.sim_agent import SimJobDirs, SimShims, SimTreesPort
from corral.testing.sim_node import SimNode
from corral.testing.sim_world import World
from corral.testing.site import Size

SEEDS = range(60)
SIZE = Size(managers=1, nodes=0, users=1, sessions=1, chaos_s=0, disk_step_s=0.01, store_step_s=0.01, skew_s=0)


class Bench:
    """One node, six launches, and a hand that plays the agent."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed, size=SIZE)
        self.site = self.world.site
        self.site.truth.on_start.clear()  # there is no ledger here that a start could agree with
        self.node = SimNode(self.site, "n0", 0)
        self.node.boots = 1
        self.outcomes = Counter[str]()

    def run(self) -> None:
        try:
            self.world.loop.run(self.main())
        finally:
            self.world.loop.close()

    async def main(self) -> None:
        process = self.site.process("n0", self.node.clock)
        self.dirs = SimJobDirs(SimFiles(self.node.disk, process), self.node.run_directory, self.node.records)
        self.shims = SimShims(self.node, process)
        self.trees = SimTreesPort(self.node.trees, process, self.node)
        self.node.agent = process
        await self.dirs.write_run_id("run-1")
        tasks = [process.spawn(self.one(process, f"1-{number:010d}-1-0"), name=f"job {number}") for number in range(6)]
        for _ in range(20):
            await self.site.sleep(self.site.chance.random())
            if self.site.chance.random() < 0.3:
                self.node.kill_shim()
        self.site.faults.quiet()
        await self.site.sleep(400.0)
        assert all(task.done() for task in tasks)
        assert not self.site.truth.live

    async def one(self, process: SimProcess, token: str) -> None:
        chance = self.site.chance
        spec = Spec(
            token, self.node.machine().boot_id, "run-1", 1, ("job",), {}, "/", "out", "err",
            barrier=chance.random() < 0.4, time_limit_s=chance.choice((None, 2.0)), grace_s=1.0,
        )  # fmt: skip
        await self.dirs.accept(token, spec.to_json(), {})
        for _ in range(chance.choice((1, 2, 3))):
            await self.shims.spawn(Birth(token, "run-1", 1))
        if chance.random() < 0.3:
            await process.sleep(chance.random() * 0.2)
            self.outcomes["void" if await self.dirs.void(token, "cancelled", 0.0) else "void_lost"] += 1
        if spec.barrier:
            await process.sleep(chance.random() * 2)
            await self.tell(token, jobdir.GO, {"env": {"MASTER_ADDR": "n0"}})
        if chance.random() < 0.5:
            await process.sleep(chance.random() * 3)
            await self.tell(token, jobdir.STOP, {"reason": "cancelled", "grace_s": 0.5})
        await self.judge(process, token)

    async def tell(self, token: str, name: str, value: dict[str, object]) -> None:
        await self.dirs.write(token, name, value)
        started = await self.dirs.read(token, jobdir.STARTED)
        if started and started["says"] == "run":
            await self.shims.poke(started["pid"], started["start_time"])

    async def judge(self, process: SimProcess, token: str) -> None:
        """Until there is proof: its own exit record, or a lock nobody holds and an empty tree."""
        while True:
            await process.sleep(1.0)
            decision = await self.dirs.decision(token)
            if decision is None:
                await self.shims.spawn(Birth(token, "run-1", 1))
                continue
            if decision == "void":
                self.outcomes["ended_void"] += 1
                return
            if await self.dirs.read(token, jobdir.EXIT) is not None:
                assert token not in self.node.trees.trees
                assert await self.dirs.read(token, jobdir.RESULT) is not None
                self.outcomes["exited"] += 1
                return
            if await self.dirs.try_lock(token):
                if await self.dirs.read(token, jobdir.EXIT) is not None:
                    await self.dirs.unlock(token)
                    continue
                while not await self.trees.is_empty(token):
                    await self.trees.kill(token)
                    await process.sleep(0.2)
                with contextlib.suppress(FileNotFoundError):
                    await self.dirs.write(token, jobdir.EXIT, {"reason": "supervisor_lost"})
                self.outcomes["judged"] += 1
                return


def test_a_launch_starts_at_most_once_and_ends_with_proof() -> None:
    outcomes, crashes = Counter[str](), Counter[str]()
    for seed in SEEDS:
        bench = Bench(seed)
        bench.site.faults.never("disk.full", "disk.sync_error")
        bench.run()
        outcomes += bench.outcomes
        crashes += bench.site.faults.crashes
    assert set(outcomes) == {"void", "void_lost", "ended_void", "exited", "judged"}, outcomes
    died = {point for point in crashes if point.startswith("shim.")}
    assert len(died) >= 12, set(CRASH_POINTS) - died


@pytest.mark.parametrize("point", CRASH_POINTS)
def test_a_death_at_each_point_is_survived(point: str) -> None:
    """The first three passes of each point are deaths, in three quiet worlds."""
    for count in (1, 2, 3):
        bench = Bench(count)
        bench.site.faults.quiet()
        bench.site.faults.plan_crash(point, count)
        bench.run()
