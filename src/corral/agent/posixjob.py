"""The shim's port on a real machine: every step of `supervise` as blocking system calls.

Knows files, signals, pipes and cgroups, and that only one thread ever runs here. Never decides when: that is `shim`.
Born by fork in `zygote`, through `run_shim`.
"""

from __future__ import annotations

import _socket
import functools
import os
import select
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import replace

from corral.agent import jobdir, linux, orders, trees
from corral.agent.birth import give_birth, trouble_of
from corral.agent.birthplan import Birth, Inherited
from corral.agent.jobspec import (
    BadJobFile,
    Go,
    LogEnd,
    Permission,
    Result,
    Spec,
    Status,
    Stop,
    Trouble,
    Usage,
)
from corral.agent.outputs import Outputs
from corral.agent.shim import CannotStart, drive, supervise
from corral.crashplan import CrashPlan

BLOCKED_SIGNALS = frozenset(
    {
        signal.SIGCHLD,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGTERM,
        signal.SIGINT,
        signal.SIGHUP,
        signal.SIGPIPE,
        signal.SIGXFSZ,
    }
)
_HEARD_SIGNALS = frozenset({int(signal.SIGCHLD), int(signal.SIGUSR1)})
_LOCK_PATIENCE_S, _LOCK_PAUSE_S = 1.0, 0.01
_MESSAGE_LENGTH = 500


class PosixJob:
    """One job directory, one process tree, until both are done."""

    spec: Spec

    def __init__(
        self,
        folder: str,
        permission: Permission,
        crash: str | None,
        inherited: Inherited,
        signals: int,
        say_begun: Callable[[], bool],
    ) -> None:
        self._folder = folder
        self._permission = permission
        self._crash = CrashPlan(crash)
        self._inherited = inherited
        self._say_begun = say_begun
        self._begun = False
        self._lock: int | None = None
        self._spec_read = False
        self._main = 0
        self._status: Status | None = None
        self._report: int | None = None
        self._port: _socket.socket | None = None
        self._timer: int | None = None
        self._timer_at_s: float | None = None
        self._kills = 0
        self._result_untold = False
        self._move_into: tuple[str, ...] = ()
        self._outputs: Outputs | None = None
        self._signals = signals
        self._poll = select.poll()
        self._poll.register(self._signals, select.POLLIN)

    # --- the decision ---

    async def point(self, name: str) -> None:
        self._crash.pass_by(name)

    async def take_lock(self) -> bool:
        # an agent that judges a death holds the lock for an instant; a shim that lives holds it long and has decided
        give_up_s = self.now_s() + _LOCK_PATIENCE_S
        while (lock := jobdir.try_lock(self._folder)) is None:
            if self._decided() or self.now_s() > give_up_s:
                return False
            time.sleep(_LOCK_PAUSE_S)
        self._lock = lock
        return not self._decided()

    def _decided(self) -> bool:
        return jobdir.decision_of(self._folder) is not None

    def read_ahead(self) -> None:
        """Read the spec in the zygote: a warm process parses it without a page fault, and its forks inherit it."""
        try:
            self._read_spec()
        except (OSError, jobdir.Unreadable, BadJobFile, TypeError):
            self._spec_read = False  # the shim will come to the same end, and say so where the agent looks

    def _read_spec(self) -> None:
        raw = jobdir.read_object(self._folder, jobdir.SPEC)
        if raw is None:
            raise BadJobFile("spec.json: there is none")
        self.spec = Spec.from_json(raw)
        limits, containment = self.spec.limits, trees.Containment.from_json(self.spec.containment)
        limited = self.spec.memory_enforced or limits.pids is not None
        self._containment = containment if limited else containment.without_limits()
        self._spec_read = True

    async def read_spec(self) -> Spec | None:
        try:
            if not self._spec_read:
                self._read_spec()
        except (jobdir.Unreadable, BadJobFile, TypeError) as error:
            self._leave_trouble("bad_spec", str(error))
            return None
        spec = self.spec
        if Permission(spec.boot_id, spec.run_id, spec.node_epoch) != self._permission:
            self._leave_trouble("stale_permission", f"spec.json is not for {self._permission}")
            return None
        return spec

    def _leave_trouble(self, code: str, message: str) -> None:
        jobdir.write_object(self._folder, jobdir.TROUBLE, {"code": code, "message": message, "at": self.wall_s()})

    async def create_started(self) -> bool:
        pid = os.getpid()
        start_time = _start_time_of(pid)
        return jobdir.decide_run(self._folder, self.spec.boot_id, pid, start_time, self.wall_s())

    # --- before the command ---

    async def prepare(self) -> None:
        limits = self.spec.limits
        memory = limits.memory_bytes if self.spec.memory_enforced else None
        try:
            linux.become_subreaper()
            for path in self.spec.make_dirs:
                self._make_dir(path)
        except OSError as error:
            raise _cannot("workspace_failed", error) from None
        try:
            self._move_into = trees.make_tree(self._containment, self.spec.token, memory, limits.pids)
        except OSError as error:
            raise _cannot("containment_failed", error) from None

    def _make_dir(self, path: str) -> None:
        try:
            os.makedirs(path, 0o700)
        except FileExistsError:
            return
        if self.spec.uid is not None or self.spec.gid is not None:
            os.chown(path, _or_same(self.spec.uid), _or_same(self.spec.gid))

    async def hold_port(self) -> int:
        host = self.spec.port_address
        family = _socket.AF_INET6 if ":" in host else _socket.AF_INET
        try:
            self._port = _socket.socket(family, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
            self._port.bind((host, 0))
            return self._port.getsockname()[1]
        except OSError as error:
            raise _cannot("port_failed", error) from None

    async def write_ready(self, port: int | None) -> None:
        try:
            jobdir.write_object(self._folder, jobdir.READY, {"port": port, "at": self.wall_s()})
        except OSError as error:
            raise _cannot("ready_failed", error) from None
        self._has_begun()

    async def read_go(self) -> Go | None:
        go = orders.read_go(self._folder)
        if isinstance(go, Trouble):
            raise CannotStart(go)
        return go

    async def read_stop(self) -> Stop | None:
        return orders.read_stop(self._folder)

    async def read_limit(self, current_s: float | None) -> float | None:
        return orders.read_limit(self._folder, current_s)

    # --- the command ---

    async def start(self, role: str, env: Go) -> None:
        if self._port:
            self._port.close()
            self._port = None
        outputs = [os.pipe2(os.O_CLOEXEC) for _ in range(2)]
        birth = self._birth(role, env, outputs[0][1], outputs[1][1])
        try:
            self._main, self._report = give_birth(birth)
        except OSError as error:
            for reader, _ in outputs:
                os.close(reader)
            raise _cannot("fork_failed", error) from None
        finally:
            for _, writer in outputs:
                os.close(writer)
        self._has_begun()
        self._status = None
        if self._outputs is None:
            self._outputs = Outputs(self._poll, self.spec.log_limit_bytes, self.spec.log_segment_bytes)
        self._outputs.listen(outputs[0][0], self.spec.stdout)
        self._outputs.listen(outputs[1][0], self.spec.stderr)

    def _birth(self, role: str, env: Go, stdout: int, stderr: int) -> Birth:
        spec = self.spec
        return Birth(
            argv=_script_argv(spec.bootstrap) if role == "bootstrap" and spec.bootstrap else spec.argv,
            env={**spec.env, **env.env, trees.MARKER: spec.token},
            cwd=spec.cwd,
            stdin=0,
            stdout=stdout,
            stderr=stderr,
            limits=spec.limits,
            mounts=spec.mounts,
            uid=spec.uid,
            gid=spec.gid,
            born_in=trees.birth_folder(self._containment, spec.token),
            move_into=self._move_into,
            inherited=self._inherited,
        )

    async def ended(self) -> Status | None:
        self._reap()
        return self._status

    def _reap(self) -> bool:
        """Take every ended child; True when there is no child left, hence (as subreaper) no descendant."""
        while True:
            try:
                pid, wait_status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            if pid == self._main:
                code = os.waitstatus_to_exitcode(wait_status)
                usage = Usage(round(used.ru_utime, 6), round(used.ru_stime, 6), used.ru_maxrss)
                self._status = Status(code if code >= 0 else None, -code if code < 0 else None, usage)
                self._main = 0

    async def start_trouble(self) -> Trouble | None:
        report, self._report = self._report, None
        return None if report is None else trouble_of(report)

    async def wait(self, until_s: float | None) -> bool:
        self._set_timer(until_s)
        while True:
            heard: frozenset[int] = frozenset()
            rang = False
            for fd, _ in self._poll.poll():
                if fd == self._signals:
                    heard = linux.read_signalfd(fd)
                elif fd == self._timer:
                    rang = True
                elif self._outputs:
                    self._outputs.take(fd)
            if heard or rang:
                return int(signal.SIGUSR1) in heard

    def _set_timer(self, until_s: float | None) -> None:
        if self._timer is None:
            if until_s is None:
                return
            self._timer = linux.open_boottime_timer()
            self._poll.register(self._timer, select.POLLIN)
        # set again even to the same instant: that is what silences a timer that has rung
        linux.set_timer(self._timer, until_s)

    # --- the end ---

    async def signal_main(self, signum: int) -> None:
        if not self._main:
            return
        try:
            os.killpg(self._main, signum)
        except ProcessLookupError:
            os.kill(self._main, signum)  # it has not left our group yet
        except PermissionError:
            pass

    async def write_stop_file(
        self, reason: str, message: str, seconds_left: float, deadline: str | float | None
    ) -> None:
        if self.spec.stop_file is not None:
            at = deadline if deadline is not None else self.wall_s() + seconds_left
            notice = {"reason": reason, "message": message, "seconds_left": seconds_left, "deadline": at}
            orders.leave_notice(self.spec.stop_file, notice)

    async def kill_tree(self) -> None:
        if self._result_untold:
            self._notify()
        self._kills += 1
        if self._containment.kind != "marker":
            trees.kill_tree(self._containment, self.spec.token)
        if self._main:
            os.kill(self._main, signal.SIGKILL)
        if self._containment.kind == "marker" or self._kills > 1:
            # as subreaper we are the ancestor of all that is ours, also of what left its cgroup
            trees.kill_processes(lambda: trees.descendants({os.getpid()}))

    async def tree_is_empty(self) -> bool:
        if not self._reap():
            return False
        return self._containment.kind == "marker" or trees.tree_is_empty(self._containment, self.spec.token)

    async def oom_killed(self) -> bool:
        return self.spec.memory_enforced and trees.oom_kills(self._containment, self.spec.token) > 0

    async def write_result(self, result: Result) -> None:
        if result.error:
            short = Trouble(result.error.code, result.error.message[:_MESSAGE_LENGTH])
            result = replace(result, error=short)
        if result.stopped:
            result = replace(result, stopped=result.stopped[:_MESSAGE_LENGTH])
        jobdir.write_object(self._folder, jobdir.RESULT, result.to_json())
        self._result_untold = True  # unless the tree has to be killed first, the end is next

    async def write_stuck(self) -> None:
        pids = sorted(trees.descendants({os.getpid()}))[:20]
        jobdir.write_object(self._folder, jobdir.STUCK, {"pids": pids, "at": self.wall_s()})
        self._notify()

    async def close_logs(self) -> dict[str, LogEnd]:
        ends = self._outputs.close() if self._outputs else {}
        named = (("stdout", self.spec.stdout), ("stderr", self.spec.stderr))
        return {name: ends.get(stem, LogEnd(0, 0)) for name, stem in named}

    async def write_exit(self, logs: dict[str, LogEnd]) -> None:
        words = {
            "reason": "exited",
            "at": self.wall_s(),
            "logs": {name: {"end": log.end, "lost": log.lost} for name, log in logs.items()},
        }
        jobdir.write_object(self._folder, jobdir.EXIT, words)  # the agent hears of it as we are free, or are no more

    async def remove_tree(self) -> None:
        trees.remove_tree(self._containment, self.spec.token)

    def _has_begun(self) -> None:
        if not self._begun:
            self._begun = True
            if not self._say_begun():
                self._notify()

    def _notify(self) -> None:
        """A hint in a queue of ten: it may find no room, and the agent looks by itself now and then."""
        self._result_untold = False
        if self.spec.notify is None:
            return
        try:
            hint = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM | _socket.SOCK_NONBLOCK | _socket.SOCK_CLOEXEC)
            try:
                hint.sendto(self.spec.token.encode(), self.spec.notify)
            finally:
                hint.close()
        except OSError:
            pass  # a hint that nobody hears: the files say the same

    def now_s(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def wall_s(self) -> float:
        return round(time.time(), 6)

    def close(self) -> None:
        """Let go of everything, the lock last: from then on nobody answers for this launch."""
        if self._port:
            self._port.close()
        for fd in (self._report, self._timer, self._lock):
            if fd is not None:
                os.close(fd)

    def leave_traceback(self) -> None:
        self._leave_trouble("shim_failed", traceback.format_exc()[-2000:])


@functools.cache
def _start_time_of(pid: int) -> int:
    """This process's own: it does not change."""
    return jobdir.start_time_of(pid) or 0


def open_signals() -> int:
    """The descriptor by which every shim hears its own signals; opened once, before the forks."""
    return linux.open_signalfd(_HEARD_SIGNALS)


def run_shim(job: PosixJob) -> bool:
    """One launch from its decision to its proven end; False where something unforeseen came between."""
    try:
        drive(supervise(job))
    except BaseException:
        job.leave_traceback()
        return False
    return True


def _cannot(code: str, error: OSError) -> CannotStart:
    return CannotStart(Trouble(code, f"{error.filename or ''} {error.strerror or error}".strip()[:_MESSAGE_LENGTH]))


def _or_same(number: int | None) -> int:
    return -1 if number is None else number


def _script_argv(path: str) -> tuple[str, ...]:
    return (path,) if os.access(path, os.X_OK) else ("/bin/sh", path)
