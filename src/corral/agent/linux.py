"""The few Linux calls that Python 3.11 does not offer, through ctypes.

Knows call numbers and argument layouts, and turns a failed call into OSError. Never decides anything: who calls
them, and when, is in `birth`, `posixjob` and `zygote`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import struct
from array import array

CLOCK_BOOTTIME = 7

_libc = ctypes.CDLL(None, use_errno=True)
# PyDLL keeps the interpreter lock across the call: a child born in it goes on running Python with the lock in hand.
_libc_locked = ctypes.PyDLL(None, use_errno=True)

_SYS_CLONE3 = 435
_SYS_SIGACTION = 13 if platform.machine() == "x86_64" else 134
_SYS_IOPRIO_GET = 252 if platform.machine() == "x86_64" else 31
_IOPRIO_WHO_PROCESS, _RLIM_NLIMITS, _CONTENT_BYTES = 1, 16, 1 << 16
_LAST_SIGNAL, _UNCHANGEABLE = 64, (9, 19)
_CLONE_INTO_CGROUP = 0x200000000
_CLONE_NEWNS = 0x00020000
_SIGCHLD = 17
_AT_FDCWD, _RENAME_NOREPLACE = -100, 1
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_SLAVE = 1, 2, 4, 32, 4096, 16384, 1 << 19
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_SET_NAME = 1, 36, 15
_SFD_FLAGS = os.O_CLOEXEC | os.O_NONBLOCK
_TFD_TIMER_ABSTIME = 1
_SIGNALFD_RECORD_BYTES = 128


def _checked(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def _address(words: array[int]) -> ctypes.c_void_p:
    # an array of ctypes' own would do, at fifty page faults in every shim
    return ctypes.c_void_p(words.buffer_info()[0])


def fork_into_cgroup(cgroup_fd: int) -> int:
    """Fork a child born in the cgroup; 0 in the child. The child must do nothing but prepare and exec.

    The interpreter's own after-fork steps do not run in the child: threads, locks and atexit are out of bounds there.
    """
    args = array("Q", [_CLONE_INTO_CGROUP, 0, 0, 0, _SIGCHLD, 0, 0, 0, 0, 0, cgroup_fd])
    pid = _libc_locked.syscall(ctypes.c_long(_SYS_CLONE3), _address(args), ctypes.c_size_t(88))
    return _checked(pid, "clone3")


def stop_ignoring() -> None:
    """Take every signal's default again: also those two that the C library keeps for itself and does not let us set."""
    default = array("Q", [0] * 8)
    for signum in range(1, _LAST_SIGNAL + 1):
        if signum not in _UNCHANGEABLE:
            _libc.syscall(ctypes.c_long(_SYS_SIGACTION), signum, _address(default), None, ctypes.c_size_t(8))


def set_parent_death_signal(signum: int) -> None:
    _checked(_libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signum), 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")


def become_subreaper() -> None:
    _checked(_libc.prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), 0, 0, 0), "prctl(PR_SET_CHILD_SUBREAPER)")


def standing() -> tuple[object, ...]:
    """What others can change of this process and its children inherit: limits, groups, priorities, processors."""
    return (
        tuple(resource.getrlimit(kind) for kind in range(_RLIM_NLIMITS)),
        _content("/proc/self/cgroup"),
        _content("/proc/self/oom_score_adj"),
        os.getpriority(os.PRIO_PROCESS, 0),
        os.sched_getscheduler(0),
        os.sched_getaffinity(0),
        _libc.syscall(ctypes.c_long(_SYS_IOPRIO_GET), _IOPRIO_WHO_PROCESS, 0),
    )


def _content(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, _CONTENT_BYTES)
    finally:
        os.close(fd)


def set_name(name: str) -> None:
    """Name the process as `ps` shows it (15 bytes at most)."""
    _libc.prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()[:15]), 0, 0, 0)


def rename_new(src: str, dst: str) -> None:
    """Rename without ever replacing: FileExistsError where the name is taken. Needs no room on the disk."""
    source, target = os.fsencode(src), os.fsencode(dst)
    if _libc.renameat2(_AT_FDCWD, source, _AT_FDCWD, target, ctypes.c_uint(_RENAME_NOREPLACE)) == 0:
        return
    code = ctypes.get_errno()
    if code not in (errno.EINVAL, errno.ENOSYS):
        raise OSError(code, os.strerror(code), src, None, dst)
    # a file system that cannot (NFS): link has the same meaning, and needs an inode on some
    os.link(src, dst)
    os.unlink(src)


def new_mount_namespace() -> None:
    """Leave the shared mounts; what is mounted from here on is seen by this process tree only."""
    _checked(_libc.unshare(_CLONE_NEWNS), "unshare")
    _checked(_libc.mount(b"none", b"/", None, ctypes.c_ulong(_MS_REC | _MS_SLAVE), None), "mount --make-rslave /")


def bind_mount(src: str, dst: str, read_only: bool) -> None:
    source, target = os.fsencode(src), os.fsencode(dst)
    _checked(_libc.mount(source, target, None, ctypes.c_ulong(_MS_BIND | _MS_REC), None), f"mount {src} on {dst}")
    if read_only:
        flags = _MS_BIND | _MS_REMOUNT | _MS_RDONLY | _kept_mount_flags(dst)
        _checked(_libc.mount(b"none", target, None, ctypes.c_ulong(flags), None), f"mount {dst} read-only")


def _kept_mount_flags(path: str) -> int:
    # a remount that leaves out nosuid or nodev would take them away, which the kernel refuses in a user namespace
    have = os.statvfs(path).f_flag
    return have & (_MS_NOSUID | _MS_NODEV)


def open_signalfd(signals: frozenset[int]) -> int:
    """A descriptor that becomes readable when one of the (blocked) signals is pending."""
    room = array("Q", [sum(1 << (signum - 1) for signum in signals), *[0] * 15])
    return _checked(_libc.signalfd(-1, _address(room), _SFD_FLAGS), "signalfd")


def read_signalfd(fd: int) -> frozenset[int]:
    """The signals that were pending; they no longer are."""
    try:
        data = os.read(fd, _SIGNALFD_RECORD_BYTES * 16)
    except BlockingIOError:
        return frozenset()
    starts = range(0, len(data), _SIGNALFD_RECORD_BYTES)
    return frozenset(struct.unpack_from("=I", data, start)[0] for start in starts)


def open_boottime_timer() -> int:
    """A timer that counts through suspends, which poll's own time limit does not."""
    return _checked(_libc.timerfd_create(CLOCK_BOOTTIME, _SFD_FLAGS), "timerfd_create")


def set_timer(fd: int, at_s: float | None) -> None:
    """Ring at a CLOCK_BOOTTIME instant; None silences it."""
    ns = 0 if at_s is None else max(1, int(at_s * 1e9))
    spec = array("q", [0, 0, ns // 10**9, ns % 10**9])
    _checked(_libc.timerfd_settime(fd, _TFD_TIMER_ABSTIME, _address(spec), None), "timerfd_settime")
