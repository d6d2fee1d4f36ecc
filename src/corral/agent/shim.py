"""The life of one launch: decided once, run once, ended with proof. `supervise` is the whole of it, on one screen.

Knows the protocol (docs/protocol.md 5 to 8) and when to warn, stop and kill. Never makes a system call: each step is a
method of the `Job` port, which `posixjob` carries out on a real machine and the simulator in its own. `drive` runs
it without a loop.
"""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass, replace
from typing import Any, Protocol

from corral.agent.jobspec import Go, LogEnd, Result, Spec, Status, Stop, Trouble

CRASH_POINTS = (
    "shim.begun",
    "shim.locked",
    "shim.before_started",
    "shim.after_started",
    "shim.before_ready",
    "shim.after_ready",
    "shim.released",
    "shim.before_main",
    "shim.after_main",
    "shim.main_ended",
    "shim.before_result",
    "shim.after_result",
    "shim.before_kill",
    "shim.after_kill",
    "shim.tree_empty",
    "shim.before_exit",
    "shim.after_exit",
)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.005, 1.0
_SIGTERM = 15


class CannotStart(Exception):
    """The command cannot be started on this node as asked."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(trouble.message)
        self.trouble = trouble


class Job(Protocol):
    """What a shim can do and see; every method is one step that may be the last."""

    async def point(self, name: str) -> None:
        """A place where the process may be made to die."""
        ...

    async def take_lock(self) -> bool:
        """Hold the lock until death; False where the launch is in another's hands or already decided."""
        ...

    async def read_spec(self) -> Spec | None:
        """None where the permission in it is not for this boot, run and epoch, or does not read."""
        ...

    async def create_started(self) -> bool:
        """Write the decision; False where it was made before."""
        ...

    async def prepare(self) -> None:
        """Folders, cgroups. Raises CannotStart."""
        ...

    async def hold_port(self) -> int:
        """Bind a free port and keep it until the main process starts. Raises CannotStart."""
        ...

    async def write_ready(self, port: int | None) -> None: ...

    async def read_go(self) -> Go | None: ...

    async def read_stop(self) -> Stop | None: ...

    async def read_limit(self, current_s: float | None) -> float | None:
        """The time limit now in force."""
        ...

    async def start(self, role: str, env: Go) -> None:
        """Start `bootstrap` or `main`. Raises CannotStart."""
        ...

    async def ended(self) -> Status | None:
        """How the process started last ended; None while it runs."""
        ...

    async def start_trouble(self) -> Trouble | None:
        """Why the process that ended never became the command."""
        ...

    async def wait(self, until_s: float | None) -> bool:
        """Wait for a hint, a child's end or the instant; True when the agent's files may have changed."""
        ...

    async def signal_main(self, signum: int) -> None: ...

    async def write_stop_file(
        self, reason: str, message: str, seconds_left: float, deadline: str | float | None
    ) -> None: ...

    async def kill_tree(self) -> None: ...

    async def tree_is_empty(self) -> bool: ...

    async def oom_killed(self) -> bool: ...

    async def write_result(self, result: Result) -> None: ...

    async def write_stuck(self) -> None:
        """Say that the tree outlives its killing."""
        ...

    async def close_logs(self) -> dict[str, LogEnd]:
        """Take what is left in the pipes, without waiting."""
        ...

    async def write_exit(self, logs: dict[str, LogEnd]) -> None: ...

    async def remove_tree(self) -> None: ...

    def now_s(self) -> float:
        """CLOCK_BOOTTIME."""
        ...

    def wall_s(self) -> float: ...


async def supervise(job: Job) -> str:
    """Run one launch to its proven end; the word says how far this shim came."""
    await job.point("shim.begun")
    if not await job.take_lock():  # 1. nobody else, and not yet decided
        return "taken"
    await job.point("shim.locked")
    spec = await job.read_spec()  # 2. permission for this boot, run and epoch
    if spec is None or _too_late(spec, job.now_s()):
        return "no_permission"
    await job.point("shim.before_started")
    if not await job.create_started():  # 3. the one decision
        return "decided_before"
    await job.point("shim.after_started")
    result = await _run(job, spec)  # 4. barrier, bootstrap, command
    await job.point("shim.before_result")
    await job.write_result(result)  # 5. how the command ended
    await job.point("shim.after_result")
    await _end_tree(job, spec.kill_grace_s)  # 6. nothing of it lives
    await job.point("shim.tree_empty")
    logs = await job.close_logs()
    await job.point("shim.before_exit")
    await job.write_exit(logs)  # 7. the proof
    await job.point("shim.after_exit")
    await job.remove_tree()
    return "exited"


def _too_late(spec: Spec, now_s: float) -> bool:
    """Whether the order to start is older than any order may be (docs/protocol.md 7)."""
    return spec.start_before_s is not None and now_s >= spec.start_before_s


async def _run(job: Job, spec: Spec) -> Result:
    course = Course(spec)
    started_at: float | None = None
    try:
        await job.prepare()
        go = await _pass_barrier(job, spec, course)
        if go is None:
            return replace(course.outcome(), not_started=True, ended_at=job.wall_s())
        await job.point("shim.before_main")
        course.begin(job.now_s())
        for role in ("bootstrap", "main") if spec.bootstrap else ("main",):
            await job.start(role, go)
            started_at = started_at or job.wall_s()
            await job.point("shim.after_main")
            status = await _watch(job, course)
            trouble = await job.start_trouble()
            if trouble or role == "main" or status.exit_code != 0 or course.ending:
                return await _result(job, course, status, trouble, started_at, role)
        raise AssertionError("the last role always returns")
    except CannotStart as refused:
        at = job.wall_s()
        return replace(course.outcome(), not_started=True, error=refused.trouble, started_at=started_at, ended_at=at)


async def _pass_barrier(job: Job, spec: Spec, course: Course) -> Go | None:
    """None where the end was asked for before the start."""
    if spec.barrier:
        await job.point("shim.before_ready")
        await job.write_ready(await job.hold_port() if spec.hold_port else None)
        await job.point("shim.after_ready")
    while True:
        # files first, then wait: the agent writes, then hints, so that no order of the two is missed
        stop = await job.read_stop()
        if stop:
            course.stopped = stop.reason
            return None
        go = await job.read_go() if spec.barrier else Go()
        if go:
            await job.point("shim.released")
            return go
        await job.wait(None)


async def _watch(job: Job, course: Course) -> Status:
    """Until the process started last has ended: warn, stop, kill in their time."""
    look = True
    while True:
        status = await job.ended()
        if status:
            await job.point("shim.main_ended")
            return status
        if look:
            course.limit(await job.read_limit(course.time_limit_s))
            stop = await job.read_stop()
            if stop:
                course.stop(stop, job.now_s())
        for act in course.due(job.now_s()):
            await _carry_out(job, course, act)
        look = await job.wait(course.next_s())


async def _carry_out(job: Job, course: Course, act: str) -> None:
    if act == "warn":
        left = course.left_s(job.now_s())
        await job.write_stop_file("time_limit", "the time limit is near", left, None)
        await job.signal_main(course.spec.warn_signal or _SIGTERM)
    elif act == "term":
        reason, message, deadline = course.notice
        await job.write_stop_file(reason, message, course.left_s(job.now_s()), deadline)
        await job.signal_main(course.stop_signal or _SIGTERM)
    else:
        await job.point("shim.before_kill")
        await job.kill_tree()
        await job.point("shim.after_kill")


async def _result(
    job: Job, course: Course, status: Status, trouble: Trouble | None, started_at: float, role: str
) -> Result:
    failed_setup = trouble is not None and trouble.code != "exec_failed"
    cut_short = role == "bootstrap" and status.exit_code == 0
    return replace(
        course.outcome(),
        exit_code=None if failed_setup or cut_short else status.exit_code,
        signal=status.signal,
        not_started=failed_setup or cut_short,
        oom_killed=await job.oom_killed(),
        ended_in=role,
        error=trouble,
        started_at=started_at,
        ended_at=job.wall_s(),
        usage=status.usage,
    )


async def _end_tree(job: Job, kill_grace_s: float) -> None:
    """Kill until nothing is left, for ever if need be: no tree is called gone that is not."""
    began = job.now_s()
    pause = _FIRST_PAUSE_S
    stuck = False
    while not await job.tree_is_empty():
        await job.point("shim.before_kill")
        await job.kill_tree()
        await job.point("shim.after_kill")
        if await job.tree_is_empty():
            return
        if not stuck and job.now_s() - began >= kill_grace_s:
            stuck = True
            await job.write_stuck()
        await job.wait(job.now_s() + pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)


@dataclass(slots=True)
class Course:
    """When the command is to be warned, told to stop and killed. Plain arithmetic on CLOCK_BOOTTIME seconds."""

    spec: Spec
    time_limit_s: float | None = None
    stopped: str | None = None
    timed_out: bool = False
    killed: bool = False
    notice: tuple[str, str, str | float | None] = ("time_limit", "the time limit is over", None)
    stop_signal: int | None = None  # None: SIGTERM
    _began_s: float = 0.0
    _warned: bool = False
    _told: bool = False
    _stop_at_s: float | None = None
    _kill_at_s: float | None = None
    _pause_s: float = _FIRST_PAUSE_S

    def begin(self, now_s: float) -> None:
        self._began_s = now_s
        self.limit(self.spec.time_limit_s)

    @property
    def ending(self) -> bool:
        return self._stop_at_s is not None or self.timed_out

    def limit(self, time_limit_s: float | None) -> None:
        """Set or move the time limit; once it has struck it stays struck."""
        self.time_limit_s = time_limit_s

    def stop(self, stop: Stop, now_s: float) -> None:
        """A first stop sets the end, a later one can only bring it nearer."""
        if self.stopped is None and not self.timed_out:
            self.stopped = stop.reason
            self.notice = (stop.reason, stop.message, stop.deadline)
            self.stop_signal = None if self._warned else stop.signal
        self._stop_at_s = now_s if self._stop_at_s is None else self._stop_at_s
        self._end_by(now_s + stop.grace_s)

    def _end_by(self, at_s: float) -> None:
        self._kill_at_s = at_s if self._kill_at_s is None else min(self._kill_at_s, at_s)

    def _limit_at_s(self) -> float | None:
        return None if self.time_limit_s is None else self._began_s + self.time_limit_s

    def _warn_at_s(self) -> float | None:
        limit_at = self._limit_at_s()
        if limit_at is None or self._warned or self.spec.warn_signal is None:
            return None
        return max(self._began_s, limit_at - self.spec.warn_before_s)

    def due(self, now_s: float) -> list[str]:
        """What is to be done now: `warn`, `term`, `kill`."""
        acts: list[str] = []
        warn_at, limit_at = self._warn_at_s(), self._limit_at_s()
        if warn_at is not None and now_s >= warn_at and not self.ending:
            self._warned = True
            acts.append("warn")
        if limit_at is not None and now_s >= limit_at and not self.ending:
            self.timed_out = True
            self._stop_at_s = now_s
            self._end_by(now_s + self.spec.grace_s)
        if self._stop_at_s is not None and not self._told:
            self._told = True
            acts.append("term")
        if self._kill_at_s is not None and now_s >= self._kill_at_s:
            self.killed = True
            self._kill_at_s = now_s + self._pause_s
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
            acts.append("kill")
        return acts

    def next_s(self) -> float | None:
        """When `due` has something new; None: never by itself."""
        if self.ending:
            return self._kill_at_s
        instants = [at for at in (self._warn_at_s(), self._limit_at_s()) if at is not None]
        return min(instants, default=None)

    def left_s(self, now_s: float) -> float:
        end = self._kill_at_s if self._kill_at_s is not None else self._limit_at_s()
        return max(0.0, (end if end is not None else now_s) - now_s)

    def outcome(self) -> Result:
        return Result(stopped=self.stopped, timed_out=self.timed_out, killed=self.killed)


def drive(steps: Coroutine[Any, Any, str]) -> str:
    """Run a coroutine whose port never suspends: blocking calls, no event loop."""
    try:
        steps.send(None)
    except StopIteration as done:
        return done.value
    raise RuntimeError("a blocking port suspended")
