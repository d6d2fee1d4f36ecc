"""From a shim to a running command: one child, set up step by step, then exec.

Knows the order of the steps between fork and exec, and says which one failed through a pipe that a good exec closes.
Never comes back in the child. `posixjob` calls `give_birth` and, when the child has ended, `trouble_of`.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
from collections.abc import Callable

from corral.agent import linux, quickbirth
from corral.agent.birthplan import Birth
from corral.agent.jobspec import Mount, Trouble

COMMAND_NOT_FOUND, COMMAND_NOT_EXECUTABLE, SETUP_FAILED = 127, 126, 125
_REPORT_BYTES = 4096


def give_birth(birth: Birth) -> tuple[int, int | None]:
    """(pid, descriptor that will say what went wrong, if it can). Raises OSError where no child could be made."""
    pid = quickbirth.try_birth(birth)
    return (pid, None) if pid is not None else _by_fork(birth)


def _by_fork(birth: Birth) -> tuple[int, int]:
    reports, report = os.pipe2(os.O_CLOEXEC)
    try:
        shim = os.getpid()
        pid, move_into = _fork(birth)
        if pid == 0:
            _be_born(birth, move_into, shim, report)
    except BaseException:
        os.close(reports)
        raise
    finally:
        os.close(report)
    return pid, reports


def _fork(birth: Birth) -> tuple[int, tuple[str, ...]]:
    """Born inside the cgroup where the kernel can (1); otherwise born outside, to move in by itself (2)."""
    if birth.born_in is None:
        return os.fork(), birth.move_into
    folder = os.open(birth.born_in, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return linux.fork_into_cgroup(folder), birth.move_into
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EINVAL, errno.EPERM, errno.EACCES, errno.EOPNOTSUPP, errno.E2BIG):
            raise
    finally:
        os.close(folder)
    return os.fork(), (birth.born_in, *birth.move_into)


def trouble_of(reports: int) -> Trouble | None:
    """What the ended child had to say; None when its exec went well."""
    os.set_blocking(reports, False)
    try:
        data = os.read(reports, _REPORT_BYTES)
    except BlockingIOError:
        return None
    finally:
        os.close(reports)
    if not data:
        return None
    try:
        code, message = json.loads(data)
    except ValueError:
        return Trouble("setup_failed", "the command's set-up failed and its report was cut short")
    return Trouble(str(code), str(message))


def _be_born(birth: Birth, move_into: tuple[str, ...], shim: int, report: int) -> None:
    code, status = "setup_failed", SETUP_FAILED
    try:
        for step_code, step in _steps(birth, move_into, shim):
            code = step_code
            step()
        code, status = "exec_failed", COMMAND_NOT_EXECUTABLE
        _exec(birth)
    except OSError as error:
        status = COMMAND_NOT_FOUND if code == "exec_failed" and error.errno in _ABSENT else status
        _say(report, birth.stderr, code, _describe(birth, code, error))
    except BaseException as error:
        _say(report, birth.stderr, code, f"{type(error).__name__}: {error}")
    finally:
        os._exit(status)


_ABSENT = (errno.ENOENT, errno.ENOTDIR)


def _steps(birth: Birth, move_into: tuple[str, ...], shim: int) -> list[tuple[str, Callable[[], None]]]:
    """Every step by the code its failure gets; the order is the point: contained first, powerless last."""
    return [
        ("containment_failed", lambda: _move(move_into)),
        ("setup_failed", lambda: _stand_alone(shim)),
        ("mount_failed", lambda: _mount(birth.mounts)),
        ("limit_failed", lambda: _limit(birth)),
        ("user_failed", lambda: _become(birth.uid, birth.gid)),
        ("setup_failed", lambda: _bind_to(shim)),
        ("workdir_failed", lambda: os.chdir(birth.cwd)),
        ("setup_failed", lambda: _wire(birth)),
    ]


def _move(folders: tuple[str, ...]) -> None:
    for folder in folders:
        fd = os.open(f"{folder}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
        os.write(fd, b"0")
        os.close(fd)


def _stand_alone(shim: int) -> None:
    os.setsid()
    _bind_to(shim)


def _bind_to(shim: int) -> None:
    # asked for again after the user changed, which clears it; the parent may have died before either
    linux.set_parent_death_signal(signal.SIGKILL)
    if os.getppid() != shim:
        os._exit(SETUP_FAILED)


def _mount(mounts: tuple[Mount, ...]) -> None:
    if not mounts:
        return
    linux.new_mount_namespace()
    for mount in mounts:
        linux.bind_mount(mount.src, mount.dst, mount.read_only)


def _limit(birth: Birth) -> None:
    for kind, both in birth.rlimits().items():
        resource.setrlimit(kind, both)
    if birth.inherited.oom_score_adj is not None:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write(birth.inherited.oom_score_adj)


def _become(uid: int | None, gid: int | None) -> None:
    if gid is not None:
        os.setgroups([gid])
        os.setresgid(gid, gid, gid)
    if uid is not None:
        os.setresuid(uid, uid, uid)


def _wire(birth: Birth) -> None:
    os.umask(0o022)
    for target, source in enumerate((birth.stdin, birth.stdout, birth.stderr)):
        os.dup2(source, target)
    for signum in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGCHLD):
        signal.signal(signum, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _exec(birth: Birth) -> None:
    refused: OSError | None = None
    for program in birth.programs():
        try:
            os.execve(program, birth.argv, birth.env)
        except OSError as error:
            if error.errno not in _ABSENT:
                refused = refused or error
    raise refused or FileNotFoundError(errno.ENOENT, "command not found")


def _describe(birth: Birth, code: str, error: OSError) -> str:
    why = error.strerror or str(error)
    if code == "exec_failed":
        return f"{birth.argv[0]}: {'command not found' if error.errno in _ABSENT else why}"[:500]
    if code == "workdir_failed":
        return f"working directory {birth.cwd}: {why}"[:500]
    return why[:500]


def _say(report: int, stderr: int, code: str, message: str) -> None:
    os.write(report, json.dumps([code, message]).encode())
    os.write(stderr, f"corral: {message}\n".encode())
