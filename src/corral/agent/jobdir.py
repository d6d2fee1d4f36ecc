"""The job directory: the files by which agent and shim speak, each written whole or not at all.

Knows how a file comes into being (renamed over, or renamed once), how room for the last words is kept, and who holds
the lock. Never starts or signals a job. `shim` follows the protocol over it; the agent calls `reserve`, `void`,
`probe_lock`, `held_lock` and the readers.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import struct
from collections.abc import Generator
from typing import Any, cast

from corral.agent import linux
from corral.agent.jobspec import JsonObject

VERSION = 1
RESERVE_BYTES = 4096
SPEC, LOCK, STARTED, READY = "spec.json", "lock", "started", "ready.json"
GO, STOP, LIMIT = "go.json", "stop.json", "limit.json"
RESULT, EXIT, STUCK, TROUBLE = "result.json", "exit.json", "stuck.json", "trouble.json"
_RESERVED = (f"{STARTED}.tmp", "void.tmp", "stop.tmp", "result.tmp", "exit.tmp")
_PRIVATE = 0o600
_READ_BYTES = 1 << 16
_FLOCK = "hhqqi4x"


class Unreadable(ValueError):
    """The file is there and does not hold one JSON object."""


def reserve(jobdir: str) -> None:
    """Keep inodes and blocks for the decision, a first stop and the last words; OSError (ENOSPC) refuses the launch."""
    os.close(os.open(f"{jobdir}/{LOCK}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, _PRIVATE))
    for name in _RESERVED:
        fd = os.open(f"{jobdir}/{name}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, _PRIVATE)
        try:
            os.posix_fallocate(fd, 0, RESERVE_BYTES)
        finally:
            os.close(fd)


def read_object(jobdir: str, name: str) -> JsonObject | None:
    """The file's object, None where there is no such file."""
    content = read_file(f"{jobdir}/{name}")
    if content is None:
        return None
    try:
        value: Any = json.loads(content)
    except ValueError as error:
        raise Unreadable(f"{jobdir}/{name}: {error}") from None
    if not isinstance(value, dict):
        raise Unreadable(f"{jobdir}/{name}: not an object")
    return cast(JsonObject, value)


def write_object(jobdir: str, name: str, value: JsonObject) -> None:
    """Replace the file whole. Result and exit go into their reserved blocks, so that a full disk cannot stop them."""
    temporary = f"{jobdir}/{name.removesuffix('.json')}.tmp"
    _fill(temporary, value)
    os.rename(temporary, f"{jobdir}/{name}")


def _fill(path: str, value: JsonObject) -> None:
    data = json.dumps(value).encode()
    # no O_TRUNC: the blocks reserved for this file must stay its own until the bytes are in them
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, _PRIVATE)
    try:
        written = 0
        while written < len(data):
            written += os.pwrite(fd, data[written:], written)
        os.ftruncate(fd, len(data))
    finally:
        os.close(fd)


def decide(jobdir: str, temporary: str, decision: JsonObject) -> bool:
    """Make `started` with its content in one step; False where it was decided before.

    The rename fails where the name exists and shows the whole content where it does not: the two halves of O_EXCL that
    a reader may rely on.
    """
    final = f"{jobdir}/{STARTED}"
    if os.path.lexists(final):
        return False
    private = f"{jobdir}/{temporary}"
    _fill(private, decision)
    try:
        linux.rename_new(private, final)
    except FileExistsError:
        return False
    return True


def decide_run(jobdir: str, boot_id: str, pid: int, start_time: int, at: float) -> bool:
    """The shim's word, spoken with the lock in hand: this launch runs, here and now."""
    facts = {"says": "run", "boot_id": boot_id, "pid": pid, "start_time": start_time, "at": at, "version": VERSION}
    return decide(jobdir, f"{STARTED}.tmp", facts)


def void(jobdir: str, by: str, reason: str, at: float | None = None) -> bool:
    """The agent's word: this launch never runs. True where `started` now says void, whoever wrote it.

    False means that a shim was first: the launch is (or was) a run, and has to be stopped or judged as one.
    """
    decide(jobdir, "void.tmp", {"says": "void", "by": by, "reason": reason, "at": at, "version": VERSION})
    return decision_of(jobdir) == "void"


def decision_of(jobdir: str) -> str | None:
    """`run`, `void`, or None while undecided. What cannot be read is a run that began and died; so is what has an end
    and no decision any more."""
    try:
        started = read_object(jobdir, STARTED)
    except Unreadable:
        return "run"
    if started is None:
        over = any(os.path.lexists(f"{jobdir}/{name}") for name in (RESULT, EXIT))
        return "run" if over else None
    return "void" if started.get("says") == "void" else "run"


def _lock_request(kind: int) -> bytes:
    return struct.pack(_FLOCK, kind, os.SEEK_SET, 0, 0, 0)


def try_lock(jobdir: str) -> int | None:
    """The lock as an open descriptor, None while another holds it. Closing the descriptor gives it back."""
    fd = os.open(f"{jobdir}/{LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _PRIVATE)
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _lock_request(fcntl.F_WRLCK))
    except OSError as error:
        os.close(fd)
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return None
        raise
    return fd


@contextlib.contextmanager
def held_lock(jobdir: str) -> Generator[bool]:
    """Hold the lock to judge a death: True where it was free. A shim that begins meanwhile waits a second for it."""
    fd = try_lock(jobdir)
    try:
        yield fd is not None
    finally:
        if fd is not None:
            os.close(fd)


def probe_lock(jobdir: str) -> bool:
    """Whether a shim holds the lock, asked without taking it even for an instant."""
    try:
        fd = os.open(f"{jobdir}/{LOCK}", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _lock_request(fcntl.F_WRLCK))
    finally:
        os.close(fd)
    return struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def start_time_of(pid: int) -> int | None:
    """When the process began, in ticks since boot: with the pid and the boot id it names a process for ever."""
    stat = read_file(f"/proc/{pid}/stat")
    return None if stat is None else int(stat.rpartition(b")")[2].split()[19])


def read_file(path: str) -> bytes | None:
    """All of it, None where there is none (or no such process). Unbuffered: a shim's every page counts."""
    try:
        # O_NONBLOCK: what a job put here in place of a file, a FIFO say, must not hold anybody up
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    content = b""
    try:
        while chunk := os.read(fd, _READ_BYTES):
            content += chunk
    except ProcessLookupError:
        return None
    finally:
        os.close(fd)
    return content
