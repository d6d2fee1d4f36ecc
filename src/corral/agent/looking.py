"""What the job directories say, seen and reported: begun, ready, ended, void; and what to do where they say too little.

Reads and hints, and judges what its shim left behind. Never takes an order: `jobs` does, and shares its launches with
this. What is seen goes to `outbox`.
"""

from __future__ import annotations

import errno

from corral.agent import jobdir
from corral.agent.background import Background
from corral.agent.endings import Endings
from corral.agent.environment import Me
from corral.agent.horizon import Horizon
from corral.agent.job import Job
from corral.agent.jobspec import JsonObject
from corral.agent.launcher import PERMISSION_EXPIRED
from corral.agent.outbox import Outbox, result_of
from corral.agent.ports import Birth, JobDirs, NoRoom, Shims
from corral.model.faults import Fault
from corral.model.session import FactKind, KernelFact, Result, Why
from corral.ports import Clock, CrashPoint

SWEEP_S = 1.0
SWEEPS_ROUND = 60
MOST_FAILED_LOOKS = 3
OVERDUE_SLACK_S = 5.0
STOPPED = "stopped"
RUN_DIR_LOST = Why("run_dir_lost", "the node's run directory was lost")
_NOT_THE_LAUNCHS = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR, errno.ENOSPC, errno.EDQUOT}
)

CRASH_POINTS = ("agent.before_void", "agent.after_void")


class RunDirectoryLost(Fault):
    """Somebody removed or replaced it under the running agent. The next start proves dead what lived in it."""

    def __init__(self) -> None:
        super().__init__(
            "run_dir_lost", "the run directory was removed or replaced; start the agent again to end what lived in it"
        )


class Looking:
    """`jobs`: every launch that is here, by token."""

    def __init__(
        self,
        me: Me,
        dirs: JobDirs,
        shims: Shims,
        endings: Endings,
        horizon: Horizon,
        outbox: Outbox,
        background: Background,
        clock: Clock,
        point: CrashPoint,
    ) -> None:
        self.jobs: dict[str, Job] = {}
        self._me = me
        self._dirs = dirs
        self._shims = shims
        self._endings = endings
        self._horizon = horizon
        self._outbox = outbox
        self._background = background
        self._clock = clock
        self._point = point
        self._judging: set[str] = set()
        self._last_began_s = float("-inf")

    # --- when

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
            await self._find_run_directory()
            now_s = self._clock.mono()
            for place, (token, job) in enumerate(list(self.jobs.items()), start=turn):
                in_turn = place % SWEEPS_ROUND == 0
                if in_turn or not job.quiet(now_s):
                    await self.look(token)
                if in_turn and token in self.jobs:
                    await self._poke(job)  # it may have been stopped, and its command may have ended since

    async def _find_run_directory(self) -> None:
        if not self._me.run_id:
            return
        try:
            found = await self._dirs.read_run_id()
        except OSError as error:
            if error.errno in _NOT_THE_LAUNCHS:
                return
            raise
        if found != self._me.run_id:
            raise RunDirectoryLost

    # --- what

    async def look(self, token: str) -> None:
        """Report what the directory says that was not reported yet."""
        job = self.jobs.get(token)
        if job is None or token in self._judging or FactKind.EXITED in job.reported:
            return
        try:
            await self._look(job)
        except OSError as error:
            self.could_not_look(job, error)
        else:
            job.failed_looks = 0

    def could_not_look(self, job: Job, error: OSError) -> None:
        """Looked at again with the next sweep. A directory that stays unreadable is its own launch's end, and nobody
        else's."""
        if error.errno in _NOT_THE_LAUNCHS:
            job.failed_looks = max(1, job.failed_looks)
            return
        job.failed_looks += 1
        if job.failed_looks >= MOST_FAILED_LOOKS:
            said = f"its job directory cannot be used: {error.strerror or error}: {error.filename}"
            self._begin_end(job, Why("job_dir_damaged", said))

    async def _look(self, job: Job) -> None:
        if job.decided is None:
            job.decided = await self._read(job.token, jobdir.STARTED)
            if job.decided is not None:
                self._last_began_s = self._clock.mono()
        if job.decided is None:
            if not await self._dirs.is_locked(job.token):
                await self._not_begun(job)
        elif job.decided.get("says") == "void":
            self._report_void(job, job.decided)
        else:  # what cannot be read is a run that began and died
            await self._look_at_run(job, job.decided)

    def _report_void(self, job: Job, decided: JsonObject) -> None:
        code, _, message = str(decided.get("reason") or STOPPED).partition(": ")
        if job.stop is not None or code == STOPPED:
            self.report_once(job, FactKind.VOID)
        else:
            self.report_once(job, FactKind.REFUSED, why=Why(code, message))

    async def _not_begun(self, job: Job) -> None:
        """Accepted, undecided, and no shim: ask for one while permission lasts, else void it."""
        if await self._is_lost(job):
            return
        why = await self._hopeless(job)
        if why is not None:
            await self.void(job.token, f"{why.code}: {why.message}")
            await self.look(job.token)
        elif job.needs_shim(self._clock.mono(), self._last_began_s):
            await self.ask_for_shim(job)

    async def _hopeless(self, job: Job) -> Why | None:
        if job.stop is not None:
            return Why(STOPPED, str(job.stop["reason"]))
        trouble = await self._read(job.token, jobdir.TROUBLE)
        if trouble is not None:
            return Why(str(trouble.get("code")), str(trouble.get("message")))
        return PERMISSION_EXPIRED if self._clock.mono() >= job.start_before_s else None

    async def _look_at_run(self, job: Job, decided: JsonObject) -> None:
        token = job.token
        ended = await self._read(token, jobdir.EXIT)
        alive = ended is not None or await self._watched(job, decided)
        self.report_once(job, FactKind.ACCEPTED)
        await self._report_ready(job)
        if FactKind.RESULT not in job.reported:
            result = await self._read(token, jobdir.RESULT)
            if result is not None:
                self.report_once(job, FactKind.RESULT, result=result_of(result))
        if ended is not None:
            reason = str(ended.get("reason"))
            why = None if reason == "exited" else Why(reason, str(ended.get("message", "")))
            self.report_once(job, FactKind.EXITED, why=why)
        elif alive or await self._dirs.is_locked(token):
            await self._press(job)
        elif not await self._is_lost(job):
            self._judging.add(token)
            self._background.start(self._judge(job))

    async def _report_ready(self, job: Job) -> None:
        if FactKind.READY in job.reported:
            return
        ready = await self._read(job.token, jobdir.READY) if job.barrier else {}
        if ready is not None:
            self.report_once(job, FactKind.READY, port=ready.get("port"), urgent=job.barrier)

    async def _watched(self, job: Job, decided: JsonObject) -> bool:
        """Whether the shim that `started` names lives; its end will be hinted."""
        if job.watched is not None:
            return await self._dirs.is_locked(job.token)
        pid, start_time = decided.get("pid"), decided.get("start_time")
        if not isinstance(pid, int) or not isinstance(start_time, int):
            return False
        job.watched = (pid, start_time)
        if not await self._shims.watch(job.token, pid, start_time):
            return False
        if job.told:
            await self._shims.poke(pid, start_time)
        return True

    async def _is_lost(self, job: Job) -> bool:
        """The directory is gone, and not because it was collected: whatever lives of the launch is ended."""
        if await self._read(job.token, jobdir.SPEC) is not None or self.jobs.get(job.token) is not job:
            return False
        self._begin_end(job, RUN_DIR_LOST)
        return True

    async def _read(self, token: str, name: str) -> JsonObject | None:
        try:
            return await self._dirs.read(token, name)
        except jobdir.Unreadable:
            return {}

    # --- to the shim

    async def tell(self, job: Job, mark: str, name: str, value: JsonObject) -> None:
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

    async def void(self, token: str, reason: str) -> bool:
        self._point("agent.before_void")
        voided = await self._dirs.void(token, reason, self._at())
        self._point("agent.after_void")
        return voided

    async def ask_for_shim(self, job: Job) -> None:
        job.spawned_s = self._clock.mono()
        await self._shims.spawn(Birth(job.token, self._me.run_id, self._me.epoch))

    async def _press(self, job: Job) -> None:
        """What lives has to learn what it was told; and to act on it, or it is ended by force: a job may have stopped
        its own shim (SIGSTOP)."""
        for name, value in list(job.untold.items()):
            await self.tell(job, name.removesuffix(".json"), name, value)
        if job.stop_overdue_s is None:
            return
        late_s = self._clock.mono() - job.stop_overdue_s
        if late_s >= OVERDUE_SLACK_S and await self._read(job.token, jobdir.STUCK) is None:
            await self._endings.kill(job.token)
        elif late_s >= -job.kill_grace_s:
            await self._poke(job)

    # --- ends

    async def _judge(self, job: Job) -> None:
        try:
            await self._endings.judge(job.token)
        except OSError as error:
            self._judging.discard(job.token)
            self.could_not_look(job, error)
        else:
            self._judging.discard(job.token)
            await self.look(job.token)

    def _begin_end(self, job: Job, why: Why) -> None:
        if job.token not in self._judging:
            self._judging.add(job.token)
            self._background.start(self._end(job, why))

    async def _end(self, job: Job, why: Why) -> None:
        """Fenced first; and what is left of its directory taken away, so that no shim begins in it any more."""
        try:
            await self._horizon.remember(job.token, stopped=True)
            await self._take_away(job.token)
            await self._endings.end_tree(job.token)
            self.report_once(job, FactKind.ACCEPTED)
            self.report_once(job, FactKind.EXITED, why=why)
        finally:
            self._judging.discard(job.token)

    async def _take_away(self, token: str) -> None:
        while True:
            try:
                return await self._dirs.collect(token)
            except OSError:
                await self._clock.sleep(SWEEP_S)

    # --- reporting

    def _at(self) -> float:
        return self._clock.wall().timestamp()

    def report_once(
        self,
        job: Job,
        kind: FactKind,
        *,
        port: int | None = None,
        result: Result | None = None,
        why: Why | None = None,
        urgent: bool = True,
    ) -> None:
        if kind not in job.reported:
            job.reported.add(kind)
            self._outbox.add(KernelFact(job.token, kind, self._at(), port, result, why), urgent=urgent)
