"""The zygote and its shims: agent.ports.Shims over a socketpair, a datagram socket and pidfds in the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from corral.agent import jobdir, trees, zygote
from corral.agent.ports import Birth

_DATAGRAM_BYTES = 4096
_QUEUE_BYTES = 1 << 20
_LINES_AT_ONCE = 64
_AGAIN_S = 0.1
ZYGOTE_PATIENCE_S = 10.0  # even a zygote that makes launches wait answers one a second


class ZygoteShims:
    """Starts the zygote when first needed, and another when it is gone: its shims live on."""

    def __init__(self, folder_of: Callable[[str], str], notify: str, environment: Mapping[str, str]) -> None:
        self._folder_of = folder_of
        self._environment = dict(environment)
        self._loop = asyncio.get_running_loop()
        self._changed: set[str] = set()
        self._news = asyncio.Event()
        self._channel: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._heard = b""
        self._unsent: dict[bytes, None] = {}  # in order, and each once however often it is asked for
        self._sent_bytes = 0
        self._sending: asyncio.Handle | None = None
        self._closed = False
        self._unanswered: set[str] = set()
        self._answered_at = 0.0
        self._watchdog: asyncio.TimerHandle | None = None
        self._watching: dict[tuple[int, int], tuple[int, set[str]]] = {}
        self._hints = _datagram_socket(notify)
        self._loop.add_reader(self._hints, self._take_hints)

    async def spawn(self, birth: Birth) -> None:
        line = {"jobdir": self._folder_of(birth.token), "run_id": birth.run_id, "node_epoch": birth.node_epoch}
        self._unsent[json.dumps(line).encode() + b"\n"] = None
        if not self._unanswered:
            self._answered_at = self._loop.time()
        self._unanswered.add(birth.token)
        if self._watchdog is None:
            self._watchdog = self._loop.call_later(ZYGOTE_PATIENCE_S, self._see_to_zygote)
        if self._sending is None:
            self._sending = self._loop.call_soon(self._send_what_is_left)  # what is asked for together goes together

    def _see_to_zygote(self) -> None:
        """One that was stopped is no help to anybody: its shims live on, and the agent asks again for the rest."""
        self._watchdog = None
        if not self._unanswered or self._closed:
            return
        silent_s = self._loop.time() - self._answered_at
        if silent_s >= ZYGOTE_PATIENCE_S:
            self._lose_zygote()
            self._send_what_is_left()
        else:
            self._watchdog = self._loop.call_later(ZYGOTE_PATIENCE_S - silent_s, self._see_to_zygote)

    def _send(self) -> None:
        """As much as the channel takes now; the rest when it takes more, for a busy zygote must not stop the agent."""
        try:
            channel = self._zygote()
            while self._unsent:
                lines = list(itertools.islice(self._unsent, _LINES_AT_ONCE))
                self._sent_bytes += channel.send(b"".join(lines)[self._sent_bytes :])
                for line in itertools.takewhile(lambda line: self._sent_bytes >= len(line), lines):
                    del self._unsent[line]
                    self._sent_bytes -= len(line)
            self._loop.remove_writer(channel)
        except BlockingIOError:
            assert self._channel is not None
            self._loop.add_writer(self._channel, self._send)
        except OSError:
            self._lose_zygote()
            self._loop.call_later(_AGAIN_S, self._send_what_is_left)

    def _send_what_is_left(self) -> None:
        self._sending = None
        if self._unsent and not self._closed:
            self._send()

    def _zygote(self) -> socket.socket:
        if self._channel is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            program = str(Path(zygote.__file__))
            self._process = subprocess.Popen(
                [sys.executable, "-S", "-E", program, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                env=self._environment,
            )
            theirs.close()
            ours.setblocking(False)
            self._channel = ours
            self._loop.add_reader(ours, self._take_answers)
        return self._channel

    def _lose_zygote(self) -> None:
        if self._channel is not None:
            self._loop.remove_reader(self._channel)
            self._loop.remove_writer(self._channel)
            self._channel.close()
            self._channel = None
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            self._process.wait()
            self._process = None
        self._heard = b""
        self._unanswered.clear()
        self._sent_bytes = 0  # the line that was cut off goes whole to the next one

    def _take_answers(self) -> None:
        assert self._channel is not None
        try:
            chunk = self._channel.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk:
            self._lose_zygote()
            self._send_what_is_left()
            return
        *lines, self._heard = (self._heard + chunk).split(b"\n")
        for line in lines:
            self._take_answer(json.loads(line))

    def _take_answer(self, answer: dict[str, Any]) -> None:
        """News of a launch, or who serves it: watched from birth on, for of a shim that died nobody brings news."""
        token = os.path.basename(str(answer.get("jobdir", "")))
        self._unanswered.discard(token)
        self._answered_at = self._loop.time()
        pid, start_time = answer.get("pid"), answer.get("start_time")
        if pid is None or start_time is None or not self._watch(token, pid, start_time):
            self._change(token)

    def _take_hints(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                self._change(self._hints.recv(_DATAGRAM_BYTES).decode(errors="replace"))

    def _change(self, token: str) -> None:
        self._changed.add(token)
        self._news.set()

    async def watch(self, token: str, pid: int, start_time: int) -> bool:
        return self._watch(token, pid, start_time)

    def _watch(self, token: str, pid: int, start_time: int) -> bool:
        key = (pid, start_time)
        if key in self._watching:
            self._watching[key][1].add(token)  # one shim, one launch after the other
            return True
        fd = _open_exactly(pid, start_time)
        if fd is None:
            return False
        self._watching[key] = (fd, {token})
        self._loop.add_reader(fd, self._shim_ended, key)
        return True

    def _shim_ended(self, key: tuple[int, int]) -> None:
        fd, tokens = self._watching.pop(key)
        self._loop.remove_reader(fd)
        os.close(fd)
        for token in tokens:
            self._change(token)

    async def poke(self, pid: int, start_time: int) -> None:
        for signum in (signal.SIGUSR1, signal.SIGCONT):  # a job may have stopped its own shim
            trees.signal_exactly(pid, start_time, signum)

    async def changes(self) -> set[str]:
        await self._news.wait()
        self._news.clear()
        changed, self._changed = self._changed, set()
        return changed

    def close(self) -> None:
        """Let the zygote end; shims go on."""
        self._closed = True
        if self._watchdog is not None:
            self._watchdog.cancel()
        self._lose_zygote()
        self._loop.remove_reader(self._hints)
        self._hints.close()


def _datagram_socket(path: str) -> socket.socket:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    hints = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    hints.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _QUEUE_BYTES)
    hints.setblocking(False)
    hints.bind(path)
    os.chmod(path, 0o600)
    return hints


def _open_exactly(pid: int, start_time: int) -> int | None:
    """A pidfd of this very process; None where it has ended, or where there is no descriptor left to see it with."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return None
    try:
        if jobdir.start_time_of(pid) == start_time and not _ended(fd):
            return fd
    except OSError:
        pass
    os.close(fd)
    return None


def _ended(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))
