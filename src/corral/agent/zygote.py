"""A small warm interpreter that forks shims: `python -S -E zygote.py FD`, FD being one end of a stream socketpair.

Knows nothing of any job: a line of JSON in, a fork, a line of JSON out (docs/node.md). Ends when the agent's end
closes; its shims live on, and each zygote keeps the code it started with. From here on a launch goes through
`posixjob` to `shim`.
"""

from __future__ import annotations

import gc
import os
import sys
from functools import partial
from types import ModuleType


def _bare_packages() -> None:
    """Import siblings under their full names without running the packages' own `__init__`: few imports, small shims."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != here]
    for name, folder in (("corral", os.path.dirname(here)), ("corral.agent", here)):
        package = ModuleType(name)
        package.__path__ = [folder]
        sys.modules[name] = package


if __name__ == "__main__":
    _bare_packages()

import _socket
import contextlib
import itertools
import json
import resource
import select
import signal
from collections.abc import Collection
from typing import Any, NamedTuple

from corral import openfiles
from corral.agent import jobdir, linux
from corral.agent.birthplan import Inherited
from corral.agent.jobspec import Permission
from corral.agent.posixjob import BLOCKED_SIGNALS, PosixJob, open_signals, run_shim
from corral.agent.shimpool import MOST_LAUNCHES, Shim, ShimPool, new_link, next_request, say_begun
from corral.crashplan import CrashPlan

CRASH_POINTS = ("zygote.before_fork", "zygote.after_fork")
_CHUNK_BYTES = 1 << 16
_SHIM_OOM_SCORE = -900
_RAISED = (
    resource.RLIMIT_FSIZE,
    resource.RLIMIT_CPU,
    resource.RLIMIT_AS,
    resource.RLIMIT_DATA,
    resource.RLIMIT_NPROC,
    resource.RLIMIT_CORE,
)


class Nursery(NamedTuple):
    """What every shim is born with."""

    inherited: Inherited
    signals: int
    boot_id: str
    crash: str | None
    standing: tuple[object, ...]


def serve(channel: _socket.socket) -> None:
    """Answer every line until the agent's end closes."""
    inherited = _settle()
    crash_plan = os.environ.get("CORRAL_CRASH")
    nursery = Nursery(inherited, open_signals(), jobdir.boot_id(), crash_plan, linux.standing())
    crash = CrashPlan(nursery.crash)
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    pool = ShimPool(lambda request: _fork(request, nursery, crash), poll, len(os.sched_getaffinity(0)))
    lines: dict[bytes, None] = {}  # in order, and each once however often it is asked for
    rest = b""
    while True:
        ready = [fd for fd, _ in poll.poll(_patience_ms(pool, lines))]
        for fd in ready:
            if fd != channel.fileno() and (launch := pool.hear(fd)) is not None:
                _send(channel, {"jobdir": launch, "news": True})
        if channel.fileno() in ready:
            chunk = _receive(channel)
            if not chunk:
                return
            *whole, rest = (rest + chunk).split(b"\n")
            lines |= dict.fromkeys(line for line in whole if line.strip())
        while lines and not pool.wait_s():
            line = next(iter(lines))
            del lines[line]
            _send(channel, _answer(line, pool))


def _patience_ms(pool: ShimPool, lines: Collection[bytes]) -> float | None:
    instants = [pool.thin_out(), pool.wait_s() if lines else None]
    return min((1000 * seconds for seconds in instants if seconds is not None), default=None)


def _receive(channel: _socket.socket) -> bytes:
    try:
        return channel.recv(_CHUNK_BYTES)
    except ConnectionError:
        return b""


def _send(channel: _socket.socket, said: dict[str, Any]) -> None:
    view = memoryview(json.dumps(said).encode() + b"\n")
    while view:
        try:
            view = view[channel.send(view) :]
        except (BrokenPipeError, ConnectionResetError):
            return  # the agent is gone; the next receive says so


def _answer(line: bytes, pool: ShimPool) -> dict[str, Any]:
    try:
        request: dict[str, Any] = json.loads(line)
        folder = str(request["jobdir"])
        _permission_in(request)
    except (ValueError, KeyError, TypeError) as error:
        return {"error": f"a request needs jobdir, run_id and node_epoch: {type(error).__name__} {error}"}
    try:
        shim = pool.take(line, folder)
    except OSError as error:
        return {"jobdir": folder, "error": f"fork: {error.strerror}"}
    return {"jobdir": folder, "pid": shim.pid, "start_time": shim.start_time}


def _permission_in(request: dict[str, Any]) -> tuple[str, int]:
    return str(request["run_id"]), int(request["node_epoch"])


def _job(line: bytes, link: _socket.socket, nursery: Nursery) -> PosixJob:
    request: dict[str, Any] = json.loads(line)
    permission = Permission(nursery.boot_id, *_permission_in(request))
    crash = request.get("crash") or nursery.crash
    begun = partial(say_begun, link)
    return PosixJob(request["jobdir"], permission, crash, nursery.inherited, nursery.signals, begun)


def _fork(request: bytes, nursery: Nursery, crash: CrashPlan) -> Shim:
    """A new shim for this request. All that can be made before the fork is: here it costs no page."""
    ours, theirs = new_link()
    job = _job(request, theirs, nursery)
    job.read_ahead()
    crash.pass_by("zygote.before_fork")
    try:
        pid = os.fork()
        if pid == 0:
            _become_shim(job, theirs, nursery)
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()
    crash.pass_by("zygote.after_fork")
    return Shim(pid, jobdir.start_time_of(pid), ours)


def _become_shim(job: PosixJob, link: _socket.socket, nursery: Nursery) -> None:
    code = 1
    try:
        os.setsid()
        for first, beyond in _all_but(link.fileno(), nursery.signals):
            os.closerange(first, beyond)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        linux.set_name("corral-shim")
        code = _serve_launches(job, link, nursery)
    finally:
        os._exit(code)


def _all_but(*kept: int) -> list[tuple[int, int]]:
    bounds = [2, *sorted(kept), openfiles.MOST]
    return [(low + 1, high) for low, high in itertools.pairwise(bounds)]


def _serve_launches(job: PosixJob, link: _socket.socket, nursery: Nursery) -> int:
    """The whole life of a shim: one launch after the other, each to its proven end."""
    for left in reversed(range(MOST_LAUNCHES)):
        if not run_shim(job):
            return 1
        job.close()
        # a command can reach its parent: what it changed there dies with this process
        if not left or linux.standing() != nursery.standing:
            break
        request = next_request(link)  # who says that it is free has to take what comes
        if request is None:
            break
        job = _job(request, link, nursery)
    return 0


def _settle() -> Inherited:
    """Leave the agent's terminal, signals, files and limits; remember what every command is to get back."""
    with contextlib.suppress(PermissionError):
        os.setsid()
    linux.set_name("corral-zygote")
    linux.stop_ignoring()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED_SIGNALS)
    os.umask(0o022)
    os.chdir("/")
    null = os.open("/dev/null", os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    os.close(null)
    inherited = Inherited(_raise_limits(), _spare_from_oom())
    gc.collect()
    gc.freeze()
    gc.disable()
    return inherited


def _raise_limits() -> dict[int, tuple[int, int]]:
    """The limits that were changed, as they were before."""
    before = {kind: both for kind in _RAISED if (both := resource.getrlimit(kind))[0] != both[1]}
    for kind, (_, hard) in before.items():
        resource.setrlimit(kind, (hard, hard))
    openfiles.allow_many()
    return before


def _spare_from_oom() -> str | None:
    """Make the kernel's choice fall on jobs before shims; None where this user may not."""
    path = "/proc/self/oom_score_adj"
    try:
        with open(path) as file:
            before = file.read().strip()
        with open(path, "w") as file:
            file.write(str(_SHIM_OOM_SCORE))
    except OSError:
        return None
    return before


if __name__ == "__main__":
    serve(_socket.socket(fileno=int(sys.argv[1])))
