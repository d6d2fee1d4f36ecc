"""The pipes a job's output comes through, each into its stream's segments.

Knows which pipe belongs to which stream: a bootstrap and a command each have their own pipes into the same two. Never
waits: who polls (`posixjob`) says when to take.
"""

from __future__ import annotations

import os
import select

from corral.agent.jobspec import LogEnd
from corral.agent.logfile import LogWriter

_READ_BYTES = 1 << 16
_LAST_BYTES = 4 << 20


class Outputs:
    """Readers are registered with the poll object they are given, and leave it at their end."""

    def __init__(self, poll: select.poll, limit_bytes: int, segment_bytes: int) -> None:
        self._poll = poll
        self._limit_bytes = limit_bytes
        self._segment_bytes = segment_bytes
        self._logs: dict[str, LogWriter] = {}
        self._pipes: dict[int, LogWriter] = {}

    def listen(self, reader: int, stem: str) -> None:
        os.set_blocking(reader, False)
        if stem not in self._logs:
            self._logs[stem] = LogWriter(stem, self._limit_bytes, self._segment_bytes)
        self._pipes[reader] = self._logs[stem]
        self._poll.register(reader, select.POLLIN)

    def take(self, reader: int) -> int:
        """Take once from a pipe; 0 at its end (which closes it) and where nothing waits."""
        try:
            data = os.read(reader, _READ_BYTES)
        except BlockingIOError:
            return 0
        if data:
            self._pipes[reader].write(data)
            return len(data)
        self._drop(reader)
        return 0

    def _drop(self, reader: int) -> None:
        if self._pipes.pop(reader, None) is not None:
            self._poll.unregister(reader)
            os.close(reader)

    def close(self) -> dict[str, LogEnd]:
        """Take what is left, without waiting and within bounds: one who is not of the tree may hold a pipe open."""
        for reader in list(self._pipes):
            left = _LAST_BYTES
            while left > 0 and (taken := self.take(reader)):
                left -= taken
            self._drop(reader)
        for log in self._logs.values():
            log.close()
        return {stem: LogEnd(log.end, log.lost) for stem, log in self._logs.items()}
