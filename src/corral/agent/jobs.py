"""The kernels of one node: orders applied, launches made ready, stops passed on, ends collected.

Decides by what the job directories, the durable ledger and the process trees say; every touch of them is a port's
method. Never speaks to a manager: `daemon` brings the orders and takes the facts away (`outbox`) until acknowledged.
Next: `looking` sees what becomes of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from corral.agent import jobdir
from corral.agent.background import Background
from corral.agent.endings import Endings
from corral.agent.environment import Layout, Me, stop_for
from corral.agent.horizon import Horizon
from corral.agent.job import Job, job_of
from corral.agent.jobspec import JsonObject
from corral.agent.launcher import Launcher, NotBegun
from corral.agent.looking import RUN_DIR_LOST, STOPPED, Looking
from corral.agent.outbox import Outbox
from corral.agent.ports import (
    Devices,
    JobDirs,
    Ledger,
    Machine,
    Provision,
    Shims,
    Trees,
)
from corral.model.session import FactKind, KernelFact, Why, parse_token
from corral.ports import Clock, CrashPoint
from corral.wire import KernelOrder, Launch, Stop

ENDS = (FactKind.EXITED, FactKind.VOID, FactKind.REFUSED, FactKind.FAILED)

CRASH_POINTS = (
    "agent.after_spawn",
    "agent.before_stop",
    "agent.after_stop",
    "agent.before_collect",
)


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
        self._endings = Endings(dirs, trees, machine.kill_grace_s, clock, point)
        self._clock = clock
        self._point = point
        self._background = Background()
        self._launching: dict[str, asyncio.Event] = {}
        self._launcher = Launcher(me, machine, layout, dirs, devices, provision, self._horizon, clock, point)
        self.outbox = Outbox(ledger, machine.boot_id, point)
        self._looking = Looking(
            me, dirs, shims, self._endings, self._horizon, self.outbox, self._background, clock, point
        )
        self._jobs = self._looking.jobs
        self._foreign: set[str] = set()
        self.keep_looking = self._looking.keep_looking
        self.sweep = self._looking.sweep
        self.fail = self._background.fail

    def foreign(self) -> list[str]:
        """What runs here although no manager knows of it: left alone, and shown to people."""
        self._foreign &= self._jobs.keys()
        return sorted(token for token in self._foreign if FactKind.EXITED not in self._jobs[token].reported)

    def stuck(self) -> list[str]:
        """What outlives its killing although its shim is dead; the killing goes on."""
        return sorted(self._endings.stuck)

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
                await self._try_to_remind(job, order)
            elif order.stop is not None:
                self._background.start(self._stop_unknown(order.token, order.run_id, order.stop))
            elif order.token in self._launching:
                continue
            elif order.launch is not None and order.run_id == self._me.run_id:
                self._launching[order.token] = asyncio.Event()
                self._background.start(self._launch(order.token, order.launch, asked_at))
            else:
                self._background.start(self._missing(order.token, order.run_id))

    async def _try_to_remind(self, job: Job, order: KernelOrder) -> None:
        try:
            await self._remind(job, order)
        except OSError as error:
            self._looking.could_not_look(job, error)

    async def _remind(self, job: Job, order: KernelOrder) -> None:
        """An order for a launch that is here: pass on what changed, and say again all that is known."""
        job.reported.clear()
        job.asked_again = True
        if order.go is not None and "go" not in job.told:
            env = {"MASTER_ADDR": order.go.master_address, "MASTER_PORT": str(order.go.master_port)}
            await self._looking.tell(job, "go", jobdir.GO, {"env": env})
        if order.stop is not None and (job.stop is None or order.stop.grace_s < job.stop["grace_s"]):
            await self._stop(job, order.stop)
        if order.launch is None and order.stop is None and order.time_limit_s != job.time_limit_s:
            await self._looking.tell(job, "limit", jobdir.LIMIT, {"time_limit_s": order.time_limit_s})
            job.time_limit_s = order.time_limit_s
        await self._looking.look(job.token)

    async def _stop(self, job: Job, stop: Stop) -> None:
        """Stop a launch that is here: void it if nothing began, else have its shim end it."""
        self._point("agent.before_stop")
        said = stop_for(stop)
        job.told_to_stop(said, self._clock.mono())
        await self._horizon.remember(job.token, stopped=True)
        await self._looking.tell(job, "stop", jobdir.STOP, said)
        if await self._dirs.decision(job.token) is None:
            await self._looking.void(job.token, f"{STOPPED}: {stop.reason}")
        self._point("agent.after_stop")

    async def _stop_unknown(self, token: str, run_id: str, stop: Stop) -> None:
        """A stop for a launch that is not here: a tombstone first, so that no late copy of its start ever runs."""
        await self._horizon.remember(token, stopped=True)
        if (launching := self._launching.get(token)) is not None:
            self._launcher.give_up(token)
            await launching.wait()
        if (job := self._jobs.get(token)) is not None:
            try:
                await self._stop(job, stop)
            except OSError as error:
                self._looking.could_not_look(job, error)
            await self._looking.look(token)
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
            await self._lost(token, RUN_DIR_LOST)

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
            await self._lost(token, RUN_DIR_LOST)

    # --- launching

    async def _launch(self, token: str, launch: Launch, asked_at: float) -> None:
        done = self._launching[token]
        try:
            made = await self._prepare(token, launch, asked_at)
            if isinstance(made, NotBegun):
                await self._horizon.remember(token, stopped=True)
                self.outbox.add(KernelFact(token, made.kind, self._at(), why=made.why))
            else:
                job = self._jobs[token] = job_of(made)
                job.asked_again = True
                self._looking.report_once(job, FactKind.ACCEPTED)
                await self._looking.ask_for_shim(job)
                self._point("agent.after_spawn")
        finally:
            self._launching.pop(token, None)
            done.set()

    async def _prepare(self, token: str, launch: Launch, asked_at: float) -> JsonObject | NotBegun:
        """What this node's files would not do for one launch is said of that launch, and begins nothing."""
        try:
            return await self._launcher.prepare(token, launch, asked_at)
        except OSError as error:
            said = f"{error.strerror or error}: {error.filename}"
            return NotBegun(FactKind.REFUSED, Why("prepare_failed", said))

    def is_alive(self, token: str) -> bool:
        """Whether more output of this launch may come."""
        job = self._jobs.get(token)
        return job is not None and FactKind.EXITED not in job.reported

    # --- after a start

    async def adopt(self) -> None:
        """After a start of the agent in the same run directory: every launch that is here is looked at again."""
        for token in await self._dirs.tokens():
            spec = await self._read(token, jobdir.SPEC)
            changed = await self._read(token, jobdir.LIMIT)
            self._jobs[token] = job_of(spec | changed | {"token": token})
        for token in list(self._jobs):
            await self._looking.look(token)

    async def void_others(self, boot_id: str) -> None:
        """After a reboot: what a run directory on disk still shows is over, and names processes that are others now.
        After the loss of the durable store only, it is of this boot, and the horizon has to learn of it again."""
        for token in await self._dirs.tokens():
            spec = await self._read(token, jobdir.SPEC)
            if spec.get("boot_id") == boot_id:
                await self._horizon.remember(token)
            else:
                await self._dirs.collect(token)

    async def collect(self, facts: Iterable[KernelFact]) -> None:
        """A manager has acknowledged these: the directories of launches that have ended go."""
        for fact in facts:
            if fact.kind in ENDS and self._jobs.pop(fact.token, None) is not None:
                self._point("agent.before_collect")
                await self._dirs.collect(fact.token)

    async def _read(self, token: str, name: str) -> JsonObject:
        try:
            return await self._dirs.read(token, name) or {}
        except (jobdir.Unreadable, OSError):
            return {}

    def _at(self) -> float:
        return self._clock.wall().timestamp()
