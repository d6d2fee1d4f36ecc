"""A small warm interpreter that forks shims: `python -S -E zygote.py FD`, FD being one end of a stream socketpair.

Knows nothing of any job: a line of JSON in, a fork, a line of JSON out (docs/node.md). Ends when the agent's end
closes; its shims live on, and each zygote keeps the code it started with. From here on a launch goes through
`posixjob` to `shim`.
"""

from __future__ import annotations

import gc
import os
import sys
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
import json
import resource
import signal
from typing import Any, NamedTuple

from corral.agent import jobdir, linux
from corral.agent.birthplan import Inherited
from corral.agent.crashplan import CrashPlan
from corral.agent.jobspec import Permission
from corral.agent.posixjob import BLOCKED_SIGNALS, PosixJob, open_signals, run_shim

CRASH_POINTS = ("zygote.before_fork", "zygote.after_fork")
_CHUNK_BYTES = 1 << 16
_MOST_FILES = 1 << 16
_LIKE_FILES = 65536
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


def serve(channel: _socket.socket) -> None:
    """Answer every line until the agent's end closes."""
    nursery = Nursery(_settle(), open_signals(), jobdir.boot_id(), os.environ.get("CORRAL_CRASH"))
    crash = CrashPlan(nursery.crash)
    waiting = b""
    while chunk := _receive(channel):
        *lines, waiting = (waiting + chunk).split(b"\n")
        answers = [_answer(line, nursery, crash) for line in lines if line.strip()]
        if answers:
            _send(channel, b"".join(json.dumps(answer).encode() + b"\n" for answer in answers))


def _receive(channel: _socket.socket) -> bytes:
    try:
        return channel.recv(_CHUNK_BYTES)
    except ConnectionError:
        return b""


def _send(channel: _socket.socket, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[channel.send(view) :]
        except (BrokenPipeError, ConnectionResetError):
            return  # the agent is gone; the next receive says so


def _answer(line: bytes, nursery: Nursery, crash: CrashPlan) -> dict[str, Any]:
    try:
        request: dict[str, Any] = json.loads(line)
        folder = str(request["jobdir"])
        job = _job(request, folder, nursery)
    except (ValueError, KeyError, TypeError) as error:
        return {"error": f"a request needs jobdir, run_id and node_epoch: {type(error).__name__} {error}"}
    crash.pass_by("zygote.before_fork")
    try:
        pid = os.fork()
    except OSError as error:
        return {"jobdir": folder, "error": f"fork: {error.strerror}"}
    if pid == 0:
        _become_shim(job, nursery.signals)
    crash.pass_by("zygote.after_fork")
    return {"jobdir": folder, "pid": pid, "start_time": jobdir.start_time_of(pid)}


def _job(request: dict[str, Any], folder: str, nursery: Nursery) -> PosixJob:
    """All that can be made before the fork is: here it costs no page."""
    permission = Permission(nursery.boot_id, str(request["run_id"]), int(request["node_epoch"]))
    job = PosixJob(folder, permission, request.get("crash") or nursery.crash, nursery.inherited, nursery.signals)
    job.read_ahead()
    return job


def _become_shim(job: PosixJob, signals: int) -> None:
    code = 1
    try:
        os.setsid()
        os.closerange(3, signals)
        os.closerange(signals + 1, _MOST_FILES)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        linux.set_name("corral-shim")
        code = run_shim(job)
    finally:
        os._exit(code)


def _settle() -> Inherited:
    """Leave the agent's terminal, signals, files and limits; remember what every command is to get back."""
    with contextlib.suppress(PermissionError):
        os.setsid()
    linux.set_name("corral-zygote")
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
    before = {kind: resource.getrlimit(kind) for kind in _RAISED}
    for kind, (_, hard) in before.items():
        resource.setrlimit(kind, (hard, hard))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _LIKE_FILES if hard == resource.RLIM_INFINITY else min(hard, _LIKE_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        before[resource.RLIMIT_NOFILE] = (wanted, hard)
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
