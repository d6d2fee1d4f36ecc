"""The kernels of one node: orders applied, launches made ready, directories read, ends proven and reported.

Decides by what the job directories, the durable ledger and the process trees say; every touch of them is a port's
method. Never speaks to a manager: `daemon` brings the orders and takes the facts away (`outbox`) until acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from corral.agent import jobdir
from corral.agent.endings import Endings
from corral.agent.environment import Layout, Me
from corral.agent.horizon import Horizon
from corral.agent.jobspec import JsonObject
from corral.agent.launcher import PERMISSION_EXPIRED, Launcher, NotBegun
from corral.agent.outbox import Outbox, result_of
from corral.agent.ports import (
    Birth,
    Devices,
    JobDirs,
    Ledger,
    Machine,
    NoRoom,
    Provision,
    Shims,
    Trees,
)
from corral.model.session import FactKind, KernelFact, Why, parse_token
from corral.ports import Clock, CrashPoint
from corral.wire import KernelOrder, Launch, Stop

SWEEP_S = 1.0
SWEEPS_ROUND = 60
RESPAWN_S = 2.0
STOPPED = "stopped"
ENDS = (FactKind.EXITED, FactKind.VOID, FactKind.REFUSED, FactKind.FAILED)

CRASH_POINTS = (
    "agent.after_spawn",
    "agent.before_void",
    "agent.after_void",
    "agent.before_stop",
    "agent.after_stop",
    "agent.before_collect",
)


@dataclass(slots=True)
class Job:
    """What this process knows of one launch. `reported` are the kinds put into the outbox since it was last asked;
    `asked_again`: this very process was told to start it, without which it asks for no shim (PROTOCOL.md 7)."""

    token: str
    barrier: bool = False
    start_before_s: float = 0.0
    asked_again: bool = False
    spawned_s: float | None = None
    time_limit_s: float | None = None
    stop: JsonObject | None = None
    told: set[str] = field(default_factory=set[str])
    untold: dict[str, JsonObject] = field(default_factory=dict[str, JsonObject])
    reported: set[FactKind] = field(default_factory=set[FactKind])
    watched: tuple[int, int] | None = None

    @property
    def quiet(self) -> bool:
        """Nothing is to be done or seen until its shim hints or ends."""
        running = self.watched is not None and FactKind.READY in self.reported and not self.untold
        return running or FactKind.EXITED in self.reported


def _job_of(spec: JsonObject) -> Job:
    """From spec.json; what cannot be read there is what permits least."""
    start_before_s, limit_s = spec.get("start_before_s") or 0.0, spec.get("time_limit_s")
    return Job(str(spec["token"]), bool(spec.get("barrier")), float(start_before_s), time_limit_s=limit_s)


class Jobs:
    """All launches of one node."""

    def __init__(
        self,
        me: Me,
        machine: Machine,
        layout: Layout,
        dirs: JobDirs,
        ledger: Ledger,
        shims: Shims,
        trees: Trees,
        devices: Devices,
        provision: Provision,
        clock: Clock,
        point: CrashPoint,
    ) -> None:
        self._me = me
        self._dirs = dirs
        self._horizon = Horizon(ledger, machine.boot_id, clock)
        self._ledger = ledger
        self._shims = shims
        self._endings = Endings(dirs, trees, clock, point)
        self._clock = clock
        self._point = point
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self._failed = asyncio.Event()
        self._jobs: dict[str, Job] = {}
        self._launching: dict[str, asyncio.Event] = {}
        self._launcher = Launcher(me, machine, layout, dirs, devices, provision, self._horizon, clock, point)
        self._judging: set[str] = set()
        self.outbox = Outbox(ledger, machine.boot_id, point)
        self._foreign: set[str] = set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._work_done)

    def _work_done(self, task: asyncio.Task[None]) -> None:
        """Without room nothing was said, and the manager asks again (B6). Anything else ends the agent."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, NoRoom):
            self._failure = error
            self._failed.set()

    async def fail(self) -> None:
        """Wait until some work in the background has failed, and raise that: the process is to end."""
        await self._failed.wait()
        assert self._failure is not None
        raise self._failure

    def foreign(self) -> list[str]:
        """What runs here although no manager knows of it: left alone, and shown to people."""
        self._foreign &= self._jobs.keys()
        return sorted(token for token in self._foreign if FactKind.EXITED not in self._jobs[token].reported)

    def sessions(self) -> set[str]:
        """The sessions with a launch here."""
        return {parse_token(token).session for token in self._jobs}

    # --- orders

    async def apply(self, orders: Sequence[KernelOrder], asked_at: float, *, whole: bool = False) -> None:
        """Carry out what is desired; an order may come any number of times. `asked_at`: when these were asked for;
        `whole`: they name every launch the manager thinks is here."""
        named = {order.token for order in orders}
        self._foreign = {token for token in self._jobs if token not in named} if whole else self._foreign - named
        for order in orders:
            job = self._jobs.get(order.token)
            if job is not None:
                await self._remind(job, order)
            elif order.stop is not None:
                self._spawn(self._stop_unknown(order.token, order.run_id, order.stop))
            elif order.token in self._launching:
                continue
            elif order.launch is not None and order.run_id == self._me.run_id:
                self._launching[order.token] = asyncio.Event()
                self._spawn(self._launch(order.token, order.launch, asked_at))
            else:
                self._spawn(self._missing(order.token, order.run_id))

    async def _remind(self, job: Job, order: KernelOrder) -> None:
        """An order for a launch that is here: pass on what changed, and say again all that is known."""
        job.reported.clear()
        job.asked_again = True
        if order.go is not None and "go" not in job.told:
            env = {"MASTER_ADDR": order.go.master_address, "MASTER_PORT": str(order.go.master_port)}
            await self._tell(job, "go", jobdir.GO, {"env": env})
        if order.stop is not None and (job.stop is None or order.stop.grace_s < job.stop["grace_s"]):
            await self._stop(job, order.stop)
        if order.launch is None and order.stop is None and order.time_limit_s != job.time_limit_s:
            await self._tell(job, "limit", jobdir.LIMIT, {"time_limit_s": order.time_limit_s})
            job.time_limit_s = order.time_limit_s
        await self.look(job.token)

    async def _tell(self, job: Job, mark: str, name: str, value: JsonObject) -> None:
        """Write a file for the shim and hint it. Without room on the disk it is tried again when next looked at."""
        job.untold[name] = value
        try:
            await self._dirs.write(job.token, name, value)
        except NoRoom:
            return
        if job.untold.get(name) is value:
            del job.untold[name]
        job.told.add(mark)
        await self._poke(job)

    async def _poke(self, job: Job) -> None:
        if job.watched is not None:
            await self._shims.poke(*job.watched)

    async def _stop(self, job: Job, stop: Stop) -> None:
        """Stop a launch that is here: void it if nothing began, else have its shim end it."""
        self._point("agent.before_stop")
        job.stop = {"reason": stop.reason, "message": stop.message, "grace_s": stop.grace_s, "deadline": None}
        job.untold[jobdir.STOP] = job.stop
        await self._horizon.remember(job.token, stopped=True)
        await self._tell(job, "stop", jobdir.STOP, job.stop)
        if await self._dirs.decision(job.token) is None:
            await self._void(job.token, f"{STOPPED}: {stop.reason}")
        self._point("agent.after_stop")

    async def _void(self, token: str, reason: str) -> bool:
        self._point("agent.before_void")
        voided = await self._dirs.void(token, reason, self._clock.wall().timestamp())
        self._point("agent.after_void")
        return voided

    async def _stop_unknown(self, token: str, run_id: str, stop: Stop) -> None:
        """A stop for a launch that is not here: a tombstone first, so that no late copy of its start ever runs."""
        await self._horizon.remember(token, stopped=True)
        if (launching := self._launching.get(token)) is not None:
            self._launcher.give_up(token)
            await launching.wait()
        if (job := self._jobs.get(token)) is not None:
            await self._stop(job, stop)
            await self.look(token)
        else:
            await self._gone(token, run_id)

    async def _gone(self, token: str, run_id: str) -> None:
        """What to say of a launch that is not here (and never will be: a tombstone is written): what the ledger knows
        of its end; else it never began here, or it was lost with its directory: whoever has a tree has begun."""
        known = await self._say_again(token)
        if FactKind.EXITED in known:
            return
        never_began = run_id == self._me.run_id and not known and await self._endings.tree_is_empty(token)
        if never_began:
            self.outbox.add(KernelFact(token, FactKind.VOID, self._at()))
        else:
            await self._lost(token, Why("run_dir_lost", "the node's run directory was lost"))

    async def _say_again(self, token: str) -> set[FactKind]:
        """Report what the ledger keeps of a launch: its result may be there without its end."""
        known = await self._ledger.facts(token)
        for fact in known:
            self.outbox.add(fact)
        return {fact.kind for fact in known}

    async def _lost(self, token: str, why: Why) -> None:
        await self._endings.end_tree(token)
        self.outbox.add(KernelFact(token, FactKind.EXITED, self._at(), why=why))

    async def _missing(self, token: str, run_id: str) -> None:
        """The manager thinks this launch was accepted, and it is not here: fence it, then say what became of it."""
        await self._horizon.remember(token, stopped=True)
        if FactKind.EXITED not in await self._say_again(token):
            await self._lost(token, Why("run_dir_lost", "the node's run directory was lost"))

    # --- launching

    async def _launch(self, token: str, launch: Launch, asked_at: float) -> None:
        done = self._launching[token]
        try:
            made = await self._launcher.prepare(token, launch, asked_at)
            if isinstance(made, NotBegun):
                await self._horizon.remember(token, stopped=True)
                self.outbox.add(KernelFact(token, made.kind, self._at(), why=made.why))
            else:
                job = self._jobs[token] = _job_of(made)
                job.asked_again = True
                self._report_once(job, KernelFact(token, FactKind.ACCEPTED, self._at()))
                await self._ask_for_shim(job)
                self._point("agent.after_spawn")
        finally:
            self._launching.pop(token, None)
            done.set()

    async def _ask_for_shim(self, job: Job) -> None:
        job.spawned_s = self._clock.mono()
        await self._shims.spawn(Birth(job.token, self._me.run_id, self._me.epoch))

    def is_alive(self, token: str) -> bool:
        """Whether more output of this launch may come."""
        job = self._jobs.get(token)
        return job is not None and FactKind.EXITED not in job.reported

    # --- looking

    async def adopt(self) -> None:
        """After a start of the agent in the same run directory: every launch that is here is looked at again."""
        for token in await self._dirs.tokens():
            spec = await self._read(token, jobdir.SPEC) or {}
            changed = await self._read(token, jobdir.LIMIT) or {}
            self._jobs[token] = _job_of(spec | changed | {"token": token})
        for token in list(self._jobs):
            await self.look(token)

    async def void_others(self, boot_id: str) -> None:
        """After a reboot: what a run directory on disk still shows is over, and names processes that are others now.
        After the loss of the durable store only, it is of this boot, and the horizon has to learn of it again."""
        for token in await self._dirs.tokens():
            spec = await self._read(token, jobdir.SPEC) or {}
            if spec.get("boot_id") == boot_id:
                await self._horizon.remember(token)
            else:
                await self._dirs.collect(token)

    async def keep_looking(self) -> None:
        """Look where something may have happened, for ever."""
        while True:
            for token in sorted(await self._shims.changes()):
                await self.look(token)

    async def sweep(self) -> None:
        """Look at everything now and then, for hints may be lost; at what is quiet, a share of it each time."""
        turn = 0
        while True:
            await self._clock.sleep(SWEEP_S)
            turn += 1
            for place, (token, job) in enumerate(list(self._jobs.items()), start=turn):
                if not job.quiet or place % SWEEPS_ROUND == 0:
                    await self.look(token)

    async def look(self, token: str) -> None:
        """Report what the directory says that was not reported yet."""
        job = self._jobs.get(token)
        if job is None or token in self._judging:
            return
        decision = await self._dirs.decision(token)
        if decision == "void":
            await self._report_void(job)
        elif decision == "run":
            await self._look_at_run(job)
        elif not await self._dirs.is_locked(token):
            await self._not_begun(job)

    async def _report_void(self, job: Job) -> None:
        started = await self._read(job.token, jobdir.STARTED) or {}
        code, _, message = str(started.get("reason") or STOPPED).partition(": ")
        if job.stop is not None or code == STOPPED:
            self._report_once(job, KernelFact(job.token, FactKind.VOID, self._at()))
        else:
            self._report_once(job, KernelFact(job.token, FactKind.REFUSED, self._at(), why=Why(code, message)))

    async def _not_begun(self, job: Job) -> None:
        """Accepted, undecided, and no shim: ask for one while permission lasts, else void it."""
        why = await self._hopeless(job)
        if why is not None:
            await self._void(job.token, f"{why.code}: {why.message}")
            await self.look(job.token)
        elif job.asked_again and (job.spawned_s is None or self._clock.mono() - job.spawned_s >= RESPAWN_S):
            await self._ask_for_shim(job)

    async def _hopeless(self, job: Job) -> Why | None:
        if job.stop is not None:
            return Why(STOPPED, str(job.stop["reason"]))
        trouble = await self._read(job.token, jobdir.TROUBLE)
        if trouble is not None:
            return Why(str(trouble.get("code")), str(trouble.get("message")))
        return PERMISSION_EXPIRED if self._clock.mono() >= job.start_before_s else None

    async def _look_at_run(self, job: Job) -> None:
        token = job.token
        ended = await self._read(token, jobdir.EXIT)
        alive = ended is not None or await self._watched(job)
        self._report_once(job, KernelFact(token, FactKind.ACCEPTED, self._at()))
        if job.barrier:
            ready = await self._read(token, jobdir.READY)
            if ready is not None:
                self._report_once(job, KernelFact(token, FactKind.READY, self._at(), port=ready.get("port")))
        else:
            self._report_once(job, KernelFact(token, FactKind.READY, self._at()))
        result = await self._read(token, jobdir.RESULT)
        if result is not None:
            self._report_once(job, KernelFact(token, FactKind.RESULT, self._at(), result=result_of(result)))
        if ended is not None:
            reason = str(ended.get("reason"))
            why = None if reason == "exited" else Why(reason, str(ended.get("message", "")))
            self._report_once(job, KernelFact(token, FactKind.EXITED, self._at(), why=why))
        elif not alive and not await self._dirs.is_locked(token):
            self._judging.add(token)
            self._spawn(self._judge(job))
        else:
            for name, value in list(job.untold.items()):
                await self._tell(job, name.removesuffix(".json"), name, value)

    async def _watched(self, job: Job) -> bool:
        """Whether the shim that `started` names lives; its end will be hinted."""
        if job.watched is not None:
            return await self._dirs.is_locked(job.token)
        started = await self._read(job.token, jobdir.STARTED) or {}
        pid, start_time = started.get("pid"), started.get("start_time")
        if not isinstance(pid, int) or not isinstance(start_time, int):
            return False
        job.watched = (pid, start_time)
        if not await self._shims.watch(job.token, pid, start_time):
            return False
        if job.told:
            await self._shims.poke(pid, start_time)
        return True

    async def _judge(self, job: Job) -> None:
        try:
            await self._endings.judge(job.token)
        finally:
            self._judging.discard(job.token)
            await self.look(job.token)

    async def _read(self, token: str, name: str) -> JsonObject | None:
        try:
            return await self._dirs.read(token, name)
        except jobdir.Unreadable:
            return {}

    # --- reporting

    def _at(self) -> float:
        return self._clock.wall().timestamp()

    def _report_once(self, job: Job, fact: KernelFact) -> None:
        if fact.kind not in job.reported:
            job.reported.add(fact.kind)
            self.outbox.add(fact)

    async def collect(self, facts: Iterable[KernelFact]) -> None:
        """A manager has acknowledged these: the directories of launches that have ended go."""
        for fact in facts:
            if fact.kind in ENDS and self._jobs.pop(fact.token, None) is not None:
                self._point("agent.before_collect")
                await self._dirs.collect(fact.token)
