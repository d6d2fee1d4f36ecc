"""Shims that have ended one launch and take the next: a warm process costs a fraction of a new fork's pages.

A shim serves one launch at a time and holds its lock until the end is proven; only then does it say that it is free.
One that met anything unforeseen dies instead. Knows nothing of jobs. `zygote` asks for a shim and keeps the pool.
"""

from __future__ import annotations

import _socket
import select
import time
from collections.abc import Callable
from typing import NamedTuple

MOST_LAUNCHES = 200  # a shim that has had so many makes room for one with nothing left over in its memory
MOST_FREE = 32
FREE_S = 2.0
BEGINNING_S = 1.0  # one that takes longer waits for something else than a processor
_BEGINNING_PER_CPU = 4
_BEGUN, _FREE = b"\1", b"\0"
_MESSAGE_BYTES = 1 << 16


class Shim(NamedTuple):
    pid: int
    start_time: int | None
    link: _socket.socket


class ShimPool:
    """The living shims of this zygote; the warmest free one is taken first. Their links are registered with the poll
    object it is given."""

    def __init__(self, fork: Callable[[bytes], Shim], poll: select.poll, cpus: int) -> None:
        self._fork = fork
        self._poll = poll
        self._most_beginning = cpus * _BEGINNING_PER_CPU
        self._shims: dict[int, Shim] = {}
        self._free: dict[int, float] = {}
        self._beginning: dict[int, float] = {}
        self._serves: dict[int, str] = {}

    def wait_s(self) -> float:
        """How long the next launch should wait for a free shim before another is forked: many beginning at once would
        only wait for a processor each, and every fork copies pages."""
        now = time.monotonic()
        while self._beginning and now - _first(self._beginning)[1] >= BEGINNING_S:
            del self._beginning[_first(self._beginning)[0]]
        if self._free or len(self._beginning) < self._most_beginning:
            return 0.0
        return _first(self._beginning)[1] + BEGINNING_S - now

    def take(self, request: bytes, launch: str) -> Shim:
        """A shim that has the request. Raises OSError where none is free and none can be forked."""
        while self._free:
            fd, _ = self._free.popitem()
            if _sent(self._shims[fd].link, request):
                break
            self._forget(fd)
        else:
            shim = self._fork(request)
            fd = shim.link.fileno()
            self._shims[fd] = shim
            self._poll.register(fd, select.POLLIN)
        self._beginning[fd], self._serves[fd] = time.monotonic(), launch
        return self._shims[fd]

    def hear(self, fd: int) -> str | None:
        """A shim says that its command runs, that it is free, or (by closing its end) that it is no more. The launch
        that this is news of; None where its pid tells as much."""
        word, launch = _received(self._shims[fd].link), self._serves[fd]
        self._beginning.pop(fd, None)
        if word == _FREE and len(self._free) < MOST_FREE:
            self._free[fd] = time.monotonic()
        elif word != _BEGUN:
            self._forget(fd)
        return launch if word else None

    def thin_out(self) -> float | None:
        """Let go who has been free for long. The seconds until the next one will have been; None where none is free."""
        now = time.monotonic()
        while self._free:
            fd, since = _first(self._free)
            if now - since < FREE_S:
                return since + FREE_S - now
            self._forget(fd)
        return None

    def _forget(self, fd: int) -> None:
        """Close its link: that ends it once it has nothing left to do."""
        self._free.pop(fd, None)
        self._beginning.pop(fd, None)
        self._serves.pop(fd, None)
        self._poll.unregister(fd)
        self._shims.pop(fd).link.close()


def _first(since: dict[int, float]) -> tuple[int, float]:
    return next(iter(since.items()))


def say_begun(link: _socket.socket) -> bool:
    """In a shim: the command runs, or waits at its barrier; from here on it may last. False where nobody hears."""
    return _sent(link, _BEGUN)


def next_request(link: _socket.socket) -> bytes | None:
    """In a shim: say that it is free, then wait for the next launch. None when it is no longer wanted."""
    return (_received(link) or None) if _sent(link, _FREE) else None


def new_link() -> tuple[_socket.socket, _socket.socket]:
    """Two ends that keep messages whole."""
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET | _socket.SOCK_CLOEXEC)
    return ours, theirs


def _sent(link: _socket.socket, message: bytes) -> bool:
    try:
        link.send(message)
    except OSError:
        return False
    return True


def _received(link: _socket.socket) -> bytes:
    try:
        return link.recv(_MESSAGE_BYTES)
    except OSError:
        return b""
