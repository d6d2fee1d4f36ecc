"""The shim in the simulation: production's `supervise` on a job port whose files and processes are simulated.

`SimJob` is to the simulator what `agent.posixjob` is to a machine, step for step, with every system call a scheduling
point; `SimShim` is the process that serves one after the other. They note what really happened for the checkers, and
decide nothing. Next: `sim_node.py` forks them.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Callable
from dataclasses import dataclass

from corral.agent import jobdir
from corral.agent.jobspec import BadJobFile, Go, JsonObject, LogEnd, Result, Spec, Status, Stop, Trouble, Usage
from corral.agent.shim import CannotStart, supervise
from corral.model.session import parse_token
from corral.testing import sim_jobdir
from corral.testing.checkers import Records
from corral.testing.disk import SimDisk, SimFiles
from corral.testing.process import SimProcess, yield_once
from corral.testing.trees import JobPlan, SimTrees, Tree

LOCK_PATIENCE_S, LOCK_PAUSE_S = 1.0, 0.05
FREE_S = 2.0
LONGEST_PAUSE_S = 20.0
PAUSES = {
    "shim.begun": "shim.pause_at_birth",
    "shim.locked": "shim.pause_early",
    "shim.before_started": "shim.pause_early",
}
NOTHING_USED = Usage(0.0, 0.0, 0)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What of its node a shim can reach."""

    disk: SimDisk
    trees: SimTrees
    records: Records
    plan_of: Callable[[str], JobPlan]
    notify: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Permission:
    boot_id: str
    run_id: str
    node_epoch: int


class SimJob:
    """agent.shim.Job over one simulated job directory."""

    spec: Spec

    def __init__(
        self, process: SimProcess, pid: int, start_time: int, folder: str, permission: Permission, around: Surroundings
    ) -> None:
        self.process = process
        self.pid = pid
        self.start_time = start_time
        self.folder = folder
        self.token = folder.rpartition("/")[2]
        self.around = around
        self.permission = permission
        self.files = SimFiles(around.disk, process)
        self._trees = around.trees
        self._tree: Tree | None = None
        self._poked = False
        self._result_untold = False
        self._wake: asyncio.Future[None] | None = None

    async def run(self) -> bool:
        """The whole launch; whether it came to its end. An error of the operating system ends the shim, as it would end
        the real one."""
        try:
            word = await supervise(self)
        except OSError as error:
            if error.errno == errno.ENOSPC and self._tree is not None:
                self.process.loop.violate(f"PROTOCOL 8: a full disk ended the shim of {self.spec.token}: {error}")
            with contextlib.suppress(OSError):
                await self._leave_trouble("shim_failed", "an error of the operating system")
            self.process.sometimes("shim.failed")
            return False
        self.process.sometimes(f"shim.{word}")
        return True

    async def close(self) -> None:
        """Let go of the lock: from then on nobody answers for this launch."""
        await yield_once()
        self.files.let_go()

    @property
    def has_begun(self) -> bool:
        return self._tree is not None

    def poke(self) -> None:
        """SIGUSR1."""
        self._poked = True
        self._ring()

    def _ring(self, _: object = None) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    # --- the decision

    async def point(self, name: str) -> None:
        self.process.point(name)
        if self.process.faults.hit(PAUSES.get(name, "shim.pause")):
            self.process.pause()
            self.process.loop.at(self.process.faults.span_s(LONGEST_PAUSE_S), self.process.resume)
        await yield_once()

    async def take_lock(self) -> bool:
        give_up_s = self.now_s() + LOCK_PATIENCE_S
        while not await sim_jobdir.try_lock(self.files, self.folder):
            if await self._decided() or self.now_s() > give_up_s:
                return False
            await self.process.sleep(LOCK_PAUSE_S)
        return not await self._decided()

    async def _decided(self) -> bool:
        return await self.files.exists(f"{self.folder}/{jobdir.STARTED}")

    async def read_spec(self) -> Spec | None:
        try:
            raw = await sim_jobdir.read_object(self.files, self.folder, jobdir.SPEC)
            if raw is None:
                raise BadJobFile("spec.json: there is none")
            spec = Spec.from_json(raw)
        except (jobdir.Unreadable, BadJobFile, TypeError) as error:
            await self._leave_trouble("bad_spec", str(error))
            return None
        if Permission(spec.boot_id, spec.run_id, spec.node_epoch) != self.permission:
            await self._leave_trouble("stale_permission", f"spec.json is not for {self.permission}")
            return None
        self.spec = spec
        return spec

    async def _leave_trouble(self, code: str, message: str) -> None:
        trouble: JsonObject = {"code": code, "message": message, "at": self.wall_s()}
        await sim_jobdir.write_object(self.files, self.folder, jobdir.TROUBLE, trouble)

    async def create_started(self) -> bool:
        decision: JsonObject = {
            "says": "run",
            "boot_id": self.spec.boot_id,
            "pid": self.pid,
            "start_time": self.start_time,
            "at": self.wall_s(),
            "version": jobdir.VERSION,
        }
        decided = await sim_jobdir.decide(self.files, self.folder, f"{jobdir.STARTED}.tmp", decision)
        if decided:
            self.around.records.said_run.add(self.spec.token)
            if not self.spec.barrier:
                self._notify()
        return decided

    # --- before the command

    async def prepare(self) -> None:
        await yield_once()
        if self.process.faults.hit("shim.cannot_prepare"):
            raise CannotStart(Trouble("containment_failed", "no cgroup can be made"))

    async def hold_port(self) -> int:
        await yield_once()
        return 20_000 + self.pid

    async def write_ready(self, port: int | None) -> None:
        try:
            await self._write(jobdir.READY, {"port": port, "at": self.wall_s()})
        except OSError:
            raise CannotStart(Trouble("ready_failed", "the disk is full")) from None
        self._notify()

    async def read_go(self) -> Go | None:
        raw = await self._read(jobdir.GO)
        return None if raw is None else Go.from_json(raw)

    async def read_stop(self) -> Stop | None:
        raw = await self._read(jobdir.STOP)
        return None if raw is None else Stop.from_json(raw)

    async def read_limit(self, current_s: float | None) -> float | None:
        raw = await self._read(jobdir.LIMIT)
        return current_s if raw is None else raw.get("time_limit_s", current_s)

    async def _read(self, name: str) -> JsonObject | None:
        try:
            return await sim_jobdir.read_object(self.files, self.folder, name)
        except jobdir.Unreadable:
            return {}

    # --- the command

    async def start(self, role: str, env: Go) -> None:
        token = self.spec.token
        named = parse_token(token)
        visible = self.spec.env.get("CUDA_VISIBLE_DEVICES", "")
        devices = tuple(uuid for uuid in visible.split(",") if uuid)
        try:
            self._tree = await self._trees.start(
                self.process, token, named.session, named.rank, self.around.plan_of(token), devices
            )
        except BlockingIOError:
            raise CannotStart(Trouble("fork_failed", "no process ids left")) from None
        self._tree.on_main_end.append(self._ring)
        self._tree.on_empty.append(self._ring)

    async def ended(self) -> Status | None:
        await yield_once()
        tree = self._tree
        if tree is None or tree.main_lives:
            return None
        return Status(tree.exit_code, tree.signal, NOTHING_USED)

    async def start_trouble(self) -> Trouble | None:
        return None

    async def wait(self, until_s: float | None) -> bool:
        self._wake = self.process.loop.create_future()
        tree = self._tree
        timer = None
        if until_s is not None:
            timer = self.process.loop.call_later(
                max(0.0, until_s - self.now_s()) / self.process.clock.rate, self._ring, context=self.process.context
            )
        ended = tree is not None and not tree.main_lives
        if not self._poked and not (ended and until_s is None):
            await self._wake
        if timer is not None:
            timer.cancel()
        self._wake = None
        poked, self._poked = self._poked, False
        return poked

    async def signal_main(self, signum: int) -> None:
        tree = self._tree
        if tree is not None and tree.main_lives and signum == 15:
            await self._trees.terminate(self.process, tree.main_pid, tree.token)

    async def write_stop_file(
        self, reason: str, message: str, seconds_left: float, deadline: str | float | None
    ) -> None:
        await yield_once()

    async def kill_tree(self) -> None:
        if self._result_untold:
            self._notify()
        await self._trees.kill_tree(self.process, self.spec.token)

    async def tree_is_empty(self) -> bool:
        return await self._trees.is_empty(self.process, self.spec.token)

    async def oom_killed(self) -> bool:
        return False

    # --- the end

    async def write_result(self, result: Result) -> None:
        await self._write(jobdir.RESULT, result.to_json())
        self._result_untold = True  # the exit's own hint is next, unless the tree has to be killed first
        self.around.records.results.setdefault(self.spec.token, (result.exit_code, result.signal))

    async def write_stuck(self) -> None:
        await self._write(jobdir.STUCK, {"pids": [], "at": self.wall_s()})
        self._notify()

    async def close_logs(self) -> dict[str, LogEnd]:
        return {}

    async def write_exit(self, logs: dict[str, LogEnd]) -> None:
        await self._write(jobdir.EXIT, {"reason": "exited", "at": self.wall_s(), "logs": {}})
        self._notify()

    async def remove_tree(self) -> None:
        await yield_once()

    async def _write(self, name: str, value: JsonObject) -> None:
        await sim_jobdir.write_object(self.files, self.folder, name, value)

    def _notify(self) -> None:
        self._result_untold = False
        self.around.notify(self.spec.token)

    def now_s(self) -> float:
        return self.process.mono()

    def wall_s(self) -> float:
        return self.process.wall().timestamp()


class SimShim:
    """A shim's process: one launch after the other, each to its proven end, as long as its zygote wants it."""

    def __init__(self, process: SimProcess, zygote: SimProcess, pid: int, start_time: int) -> None:
        self.process = process
        self.zygote = zygote
        self.pid = pid
        self.start_time = start_time
        self.job: SimJob | None = None
        self._following: asyncio.Future[SimJob | None] | None = None
        self._poked = False
        self.is_frozen = False
        zygote.at_exit.append(lambda _: self._take(None))

    async def run(self, job: SimJob) -> None:
        following: SimJob | None = job
        while following is not None:
            self.job = following
            if self._poked:
                following.poke()
            if not await following.run():
                break
            await following.close()
            following = await self._next_launch()
        self.process.kill()

    @property
    def is_free(self) -> bool:
        return self.process.alive and self._following is not None and not self._following.done()

    def freeze(self) -> None:
        """SIGSTOP, and nobody has a SIGCONT in mind."""
        self.is_frozen = True
        self.process.pause()

    def take(self, job: SimJob) -> None:
        self.process.sometimes("shim.again")
        self._take(job)

    def poke(self) -> None:
        """SIGUSR1. What comes between two launches is heard by the next."""
        if self.job is not None:
            self.job.poke()
        else:
            self._poked = True

    async def _next_launch(self) -> SimJob | None:
        """Say that it is free, and wait for what comes. None: it is no longer wanted."""
        self.job, self._poked = None, False
        if not self.zygote.alive:
            return None
        self._following = self.process.loop.create_future()
        timer = self.process.loop.at(FREE_S, self._take, None)
        following = await self._following
        timer.cancel()
        return following

    def _take(self, job: SimJob | None) -> None:
        if self.is_free and self._following is not None:
            self._following.set_result(job)
