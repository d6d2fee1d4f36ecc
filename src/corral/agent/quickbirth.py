"""A command born without copying its shim: the child lives in the shim's memory until its exec (CLONE_VM, CLONE_VFORK).

Forking an interpreter costs a thousand page faults, more than the rest of a launch. Such a child must not run Python,
nor touch the stack it shares; so it runs 123 bytes of machine code that make system calls from a table and nothing
else. Knows which births can be said as such a table (x86-64, same user, no mounts). Never explains a failure: a child
that did not get to its exec has run nothing, and `birth` does it again the slow way, which says what is wrong.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import signal
from array import array
from collections.abc import Iterable, Sequence

from corral.agent.birthplan import Birth

# rbx: the row, r12: rows left, r13: where failure is noted. A row is: number, six arguments, and what must come back.
_CODE = bytes.fromhex(
    "f30f1efa"  # endbr64
    "5341544155"  # push rbx, r12, r13
    "4889d34989cc4d89c5"  # rbx = rows, r12 = count, r13 = failed
    "b8b30100000f05"  # clone3(args, size)
    "4885c07406"  # in the child: go to next_row
    "415d415c5bc3"  # in the parent, after the child's exec: pop r13, r12, rbx; return
    "4d85e4743e"  # next_row: none left? go to failed
    "488b03488b7b08488b7310488b5318"  # rax, rdi, rsi, rdx
    "4c8b53204c8b43284c8b4b300f05"  # r10, r8, r9, syscall
    "488b4b38"  # rcx = what must come back
    "4883f901740e7707"  # 1: anything, go to done; more: go to exactly
    "4885c07810eb05"  # 0: no error, else go to failed; go to done
    "4839c87509"  # exactly: this value, else go to failed
    "4883c34049ffccebbd"  # done: next row, go to next_row
    "49c7450001000000"  # failed: note it
    "bf7d000000b8e70000000f05"  # exit_group(125)
)
_NO_ERROR, _ANYTHING = 0, 1
_WRITE, _OPEN, _CLOSE, _SIGACTION, _SIGPROCMASK, _DUP2, _EXECVE, _CHDIR = 1, 2, 3, 13, 14, 33, 59, 80
_UMASK, _GETPPID, _SETSID, _PRCTL, _PRLIMIT = 95, 110, 112, 157, 302
_PDEATHSIG, _SETMASK = 1, 2
_CLONE_VM, _CLONE_VFORK, _CLONE_INTO_CGROUP = 0x100, 0x4000, 0x200000000
_WORD = (1 << 64) - 1
_CLONE_ARGS_BYTES = 88
_OOM_SCORE = b"/proc/self/oom_score_adj\0"


class _Table:
    """Rows of system calls with all that they point at, kept alive until the child no longer needs it."""

    def __init__(self) -> None:
        self._kept: list[array[int]] = []
        self._rows: list[int] = []
        self.count = 0

    def point_at(self, data: bytes) -> int:
        kept = array("B", data)
        self._kept.append(kept)
        return kept.buffer_info()[0]

    def point_at_words(self, words: Iterable[int]) -> int:
        kept = array("Q", [word & _WORD for word in words])
        self._kept.append(kept)
        return kept.buffer_info()[0]

    def point_at_strings(self, strings: Sequence[bytes]) -> int:
        """A null-ended array of strings, as argv and environ are."""
        at = self.point_at(b"\0".join(strings) + b"\0")
        addresses: list[int] = []
        for string in strings:
            addresses.append(at)
            at += len(string) + 1
        return self.point_at_words([*addresses, 0])

    def call(self, number: int, *arguments: int, back: int = _NO_ERROR) -> None:
        padded = (*arguments, 0, 0, 0, 0, 0, 0)[:6]
        self._rows += [number, *(argument & _WORD for argument in padded), back]
        self.count += 1

    def rows(self) -> int:
        return self.point_at_words(self._rows)


def _entry() -> ctypes._CFunctionType | None:  # pyright: ignore[reportPrivateUsage]
    """The code, in memory that can be executed and no longer written; None where that is not to be had."""
    if platform.machine() != "x86_64":
        return None
    memory = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    memory.write(_CODE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    protection = mmap.PROT_READ | mmap.PROT_EXEC
    if ctypes.CDLL(None).mprotect(ctypes.c_void_p(address), ctypes.c_size_t(mmap.PAGESIZE), protection) != 0:
        return None
    _keep.append(memory)
    word = ctypes.c_void_p
    return ctypes.PYFUNCTYPE(ctypes.c_long, word, ctypes.c_size_t, word, ctypes.c_size_t, word)(address)


_keep: list[mmap.mmap] = []
_born = _entry()


def try_birth(birth: Birth) -> int | None:
    """The pid of a command that has been executed, None where it has to be done the slow way (nothing ran)."""
    if _born is None or birth.mounts or birth.uid is not None or birth.gid is not None:
        return None
    opened: list[int] = []
    try:
        return _give(birth, opened)
    except (OSError, ValueError):
        return None
    finally:
        for fd in opened:
            os.close(fd)


def _give(birth: Birth, opened: list[int]) -> int | None:
    table = _Table()
    cgroup = _opened(opened, birth.born_in, os.O_RDONLY | os.O_DIRECTORY) if birth.born_in else None
    moves = [_opened(opened, f"{folder}/cgroup.procs", os.O_WRONLY) for folder in birth.move_into]
    _say_all(table, birth, moves)
    flags = _CLONE_VM | _CLONE_VFORK | (0 if cgroup is None else _CLONE_INTO_CGROUP)
    clone_args = table.point_at_words([flags, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, cgroup or 0])
    failed = array("Q", [0])
    assert _born is not None
    pid = _born(clone_args, _CLONE_ARGS_BYTES, table.rows(), table.count, failed.buffer_info()[0])
    if pid < 0:
        return None
    if failed[0]:
        os.waitpid(pid, 0)
        return None
    return pid


def _opened(opened: list[int], path: str, flags: int) -> int:
    fd = os.open(path, flags | os.O_CLOEXEC)
    opened.append(fd)
    return fd


def _say_all(table: _Table, birth: Birth, moves: Sequence[int]) -> None:
    """The steps of `birth`, in its order."""
    zero = table.point_at(b"0\0\0\0\0\0\0\0")
    for fd in moves:
        table.call(_WRITE, fd, zero, 1)
    table.call(_SETSID)
    table.call(_PRCTL, _PDEATHSIG, signal.SIGKILL)
    table.call(_GETPPID, back=os.getpid())
    for kind, (soft, hard) in birth.rlimits().items():
        table.call(_PRLIMIT, 0, kind, table.point_at_words([soft, hard]), 0)
    _say_oom_score(table, birth.inherited.oom_score_adj)
    table.call(_CHDIR, table.point_at(os.fsencode(birth.cwd) + b"\0"))
    table.call(_UMASK, 0o022)
    for target, source in enumerate((birth.stdin, birth.stdout, birth.stderr)):
        table.call(_DUP2, source, target)
    for signum in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGCHLD):
        table.call(_SIGACTION, signum, table.point_at_words([0, 0, 0, 0]), 0, 8)
    table.call(_SIGPROCMASK, _SETMASK, table.point_at_words([0]), 0, 8)
    argv = table.point_at_strings([os.fsencode(word) for word in birth.argv])
    environ = table.point_at_strings([os.fsencode(f"{name}={value}") for name, value in birth.env.items()])
    for program in birth.programs():
        table.call(_EXECVE, table.point_at(os.fsencode(program) + b"\0"), argv, environ, back=_ANYTHING)


def _say_oom_score(table: _Table, score: str | None) -> None:
    if score is None:
        return
    # the table cannot hand a result on: the number that open will give is known, since nobody else opens anything here
    free = os.dup(0)
    os.close(free)
    table.call(_OPEN, table.point_at(_OOM_SCORE), os.O_WRONLY | os.O_CLOEXEC, back=free)
    table.call(_WRITE, free, table.point_at(score.encode()), len(score))
    table.call(_CLOSE, free)
