"""A tiny protocol to try the simulation on: two managers have each token started, one node starts it at most once.

Per token the node has a directory; who holds its lock and makes the link `started` may start the job. The mutant
`no_lock` looks for `started` without the lock and without the link; `no_sync` does not make the name durable.
Run as a program it prints the digest of a seed: `python -m tests.unit.token_counter SEED`.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Awaitable, Callable

from corral.testing.disk import SimDisk, SimFiles
from corral.testing.faults import Faults
from corral.testing.network import NetworkError, SimNetwork
from corral.testing.process import HostClock, SimProcess
from corral.testing.simloop import SimLoop
from corral.testing.trace import Trace
from corral.testing.trees import GroundTruth, JobPlan, SimTrees

JOBS = "/state/jobs"
NODE = "n0"


class TokenCounter:
    def __init__(self, seed: int, mutant: str = "", traced: bool = False) -> None:
        self.chance = random.Random(f"{seed}:world")
        self.trace = Trace() if traced else None
        self.faults = Faults(seed)
        self.loop = SimLoop(random.Random(f"{seed}:order"), step_s=5e-5, max_steps=200_000, trace=self.trace)
        self.faults.note = self.loop.world_note
        self.network = SimNetwork(self.loop, self.faults)
        self.disk = SimDisk(self.loop, self.faults, NODE, step_s=0.02)
        self.disk.tree.make_directories(JOBS)
        self.disk.tree.directory("/").sync()
        self.disk.tree.directory("/state").sync()
        self.truth = GroundTruth(self.loop)
        self.trees = SimTrees(self.loop, self.faults, NODE, self.truth, step_s=0.02)
        self.clock = HostClock(self.loop, rate=self.chance.uniform(0.98, 1.02))
        self.mutant = mutant
        self.wanted = [f"1-session{i}-1-0" for i in range(self.chance.randrange(2, 6))]
        self.done: set[str] = set()
        self.processes: dict[str, SimProcess] = {}
        self.shims: list[SimProcess] = []
        self.lives = 0

    def boot(self, name: str, body: Callable[[SimProcess], Awaitable[None]]) -> SimProcess:
        self.lives += 1
        process = SimProcess(self.loop, self.faults, name, self.lives, self.clock if name.startswith(NODE) else None)
        process.spawn(_as_coroutine(body, process), name=name)
        return process

    def keep(self, name: str, body: Callable[[SimProcess], Awaitable[None]]) -> None:
        """Start a daemon, and again a while after each death."""
        process = self.processes[name] = self.boot(name, body)
        process.at_exit.append(lambda _: self.loop.at(self.chance.random() * 3, self.keep, name, body))

    # --- manager

    async def manager(self, process: SimProcess) -> None:
        while True:
            for token in self.wanted:
                if token in self.done:
                    continue
                process.point("manager.before_request")
                try:
                    answer = await self.network.request(process, NODE, token.encode(), 30.0)
                except NetworkError:
                    process.sometimes("manager.no_answer")
                    continue
                process.point("manager.after_answer")
                if answer == b"ended":
                    self.done.add(token)
            await process.sleep(1.0)

    # --- node

    async def agent(self, process: SimProcess) -> None:
        files = SimFiles(self.disk, process)

        async def serve(payload: bytes, caller: str) -> bytes:
            try:
                return await self.launch(process, files, payload.decode())
            except OSError:
                process.sometimes("agent.disk_error")
                return b"disk"

        self.network.listen(process, NODE, serve)
        await process.sleep(1e9)

    async def launch(self, process: SimProcess, files: SimFiles, token: str) -> bytes:
        job = f"{JOBS}/{token}"
        await files.make_directories(job)
        for _ in range(20):  # a long poll: up to 20 s
            if await files.exists(f"{job}/exit"):
                return b"ended"
            if not await files.exists(f"{job}/started"):
                process.point("agent.before_spawn")
                self.shims.append(self.boot(f"{NODE}.shim", lambda shim: self.shim(shim, token)))
                process.point("agent.after_spawn")
            elif not await files.exists(f"{job}/lock") or not await files.is_locked(f"{job}/lock"):
                await self.bury(process, files, token)
            await process.sleep(1.0)
        return b"running"

    async def bury(self, process: SimProcess, files: SimFiles, token: str) -> None:
        """The shim is dead: its tree goes, then the end is recorded."""
        process.sometimes("agent.bury")
        await self.trees.kill_tree(process, token)
        await self.trees.wait_empty(process, token)
        await files.replace_atomic(f"{JOBS}/{token}/exit", b"lost")

    async def shim(self, process: SimProcess, token: str) -> None:
        files, job = SimFiles(self.disk, process), f"{JOBS}/{token}"
        try:
            await self.supervise(process, files, token, job)
        except OSError:
            process.sometimes("shim.gave_up")
        process.kill()

    async def supervise(self, process: SimProcess, files: SimFiles, token: str, job: str) -> None:
        if not await files.exists(f"{job}/lock"):
            try:
                await files.create_excl(f"{job}/lock")
            except FileExistsError:
                process.sometimes("shim.lock_exists")
        if not await files.try_lock(f"{job}/lock"):
            return
        if self.mutant == "no_lock":
            await files.unlock(f"{job}/lock")
        process.point("shim.before_started")
        if not await self.win(process, files, job):
            process.sometimes("shim.lost_the_race")
            return
        process.point("shim.after_started")
        plan = JobPlan(lasts_s=self.chance.random() * 20, descendants=1, descendants_outlive_s=5.0)
        tree = await self.trees.start(process, token, token.split("-")[1], 0, plan)
        process.point("shim.after_start")
        await self.trees.wait_main(process, tree)
        await self.trees.kill_tree(process, token)
        await self.trees.wait_empty(process, token)
        process.point("shim.before_exit")
        await files.replace_atomic(f"{job}/exit", b"exited", sync=True)

    async def win(self, process: SimProcess, files: SimFiles, job: str) -> bool:
        mine = f"{job}/started.{process.incarnation}"
        if self.mutant == "no_lock":
            if await files.exists(f"{job}/started"):
                return False
            await files.create_excl(mine, b"run")
            await files.rename(mine, f"{job}/started")
            await files.sync(job)
        else:
            await files.create_excl(mine, b"run")
            try:
                await files.link(mine, f"{job}/started")
            except FileExistsError:
                return False
        if self.mutant != "no_sync":
            await files.sync(job)
            await files.sync(JOBS)
        return True

    # --- the world

    def reboot(self, power_lost: bool) -> None:
        for shim in self.shims:
            shim.kill(silently=True)
        self.processes[NODE].kill(silently=True)
        self.trees.power_off()
        self.disk.reboot(power_lost)

    async def nemesis(self) -> None:
        draw = self.chance
        while self.loop.now_s < 60.0:
            await asyncio.sleep(draw.expovariate(0.7))
            kind, name = draw.randrange(6), draw.choice(sorted(self.processes))
            victim = self.processes[name]
            if kind == 0:
                victim.kill()
            elif kind == 1:
                victim.pause()
                self.loop.at(draw.random() * 15, victim.resume)
            elif kind == 2:
                link = draw.choice([("m0", NODE), (NODE, "m0"), ("m1", NODE), (NODE, "m1")])
                self.network.cut(*link)
                self.loop.at(draw.random() * 10, self.network.mend, *link)
            elif kind == 3 and draw.random() < 0.3:
                self.reboot(power_lost=draw.random() < 0.5)
            elif kind == 4 and self.shims:
                draw.choice(self.shims).kill()
            elif kind == 5:
                self.disk.is_full = True
                self.loop.at(draw.random() * 5, self.disk_has_room)

    def disk_has_room(self) -> None:
        self.disk.is_full = False

    async def main(self) -> None:
        for name in ("m0", "m1"):
            self.keep(name, self.manager)
        self.keep(NODE, self.agent)
        await self.nemesis()
        self.faults.quiet()
        for _ in range(400):
            await asyncio.sleep(1.0)
            if len(self.done) == len(self.wanted) and not self.truth.live:
                return
        self.loop.violate(f"stuck: {sorted(set(self.wanted) - self.done)} of {self.wanted}, live {self.truth.live}")

    def run(self) -> None:
        try:
            self.loop.run(self.main())
        finally:
            self.loop.close()


async def _as_coroutine(body: Callable[[SimProcess], Awaitable[None]], process: SimProcess) -> None:
    await body(process)


def digest(seed: int) -> str:
    world = TokenCounter(seed, traced=True)
    world.run()
    assert world.trace is not None
    return world.trace.digest()


if __name__ == "__main__":
    for seed in sys.argv[1:]:
        print(seed, digest(int(seed)))
