"""A stream of output kept in segment files named by where they begin.

Knows offsets, rotation and loss: `<stem>.<16 digits>` holds the bytes from that offset on, and a hole between two
segments is what a full disk swallowed. Offsets are counted from the stream's first byte and never move. Never waits
and never raises for want of disk. The shim writes; the agent reads with `read_log`.
"""

from __future__ import annotations

import os
from collections import deque
from typing import NamedTuple

_DIGITS = 16
_PRIVATE = 0o600
_MOST_SEGMENTS = 1024


class Chunk(NamedTuple):
    """What a reader got: `start` past the offset asked for means that the bytes between are gone."""

    start: int
    data: bytes
    next_offset: int
    end: int


class LogWriter:
    """Appends to the newest segment, drops the oldest beyond the limit, counts what the disk would not take."""

    def __init__(self, stem: str, limit_bytes: int, segment_bytes: int) -> None:
        self.stem = stem
        self.end = 0
        self.lost = 0
        self._segment_bytes = max(1, min(segment_bytes, limit_bytes // 2))
        self._limit_bytes = limit_bytes
        self._segments: deque[tuple[int, int]] = deque()
        self._fd: int | None = None
        self._start = 0

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            written = self._append(view)
            if not written:
                self._seal()
                self.lost += len(view)
                self.end += len(view)
                return
            view = view[written:]

    def _append(self, view: memoryview) -> int:
        if self._limit_bytes == 0 or not self._open_segment():
            return 0
        assert self._fd is not None
        room = self._segment_bytes - (self.end - self._start)
        try:
            written = os.write(self._fd, view[:room])
        except OSError:
            return 0
        self.end += written
        if self.end - self._start >= self._segment_bytes:
            self._seal()
        return written

    def _open_segment(self) -> bool:
        if self._fd is not None:
            return True
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        path = _segment_path(self.stem, self.end)
        try:
            try:
                self._fd = os.open(path, flags, _PRIVATE)
            except FileNotFoundError:
                os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
                self._fd = os.open(path, flags, _PRIVATE)
        except OSError:
            return False
        self._start = self.end
        return True

    def _seal(self) -> None:
        """Close the newest segment; what follows begins a new one, under its own offset."""
        if self._fd is None:
            return
        os.close(self._fd)
        self._fd = None
        size = self.end - self._start
        if size:
            self._segments.append((self._start, size))
        else:
            self._unlink(self._start)
        self._drop_oldest()

    def _drop_oldest(self) -> None:
        # the newest segment still to come counts in full, so that the limit holds at every instant
        kept = sum(size for _, size in self._segments) + self._segment_bytes
        while self._segments and (kept > self._limit_bytes or len(self._segments) > _MOST_SEGMENTS):
            start, size = self._segments.popleft()
            kept -= size
            self._unlink(start)

    def _unlink(self, start: int) -> None:
        try:
            os.unlink(_segment_path(self.stem, start))
        except OSError:
            pass

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _segment_path(stem: str, start: int) -> str:
    return f"{stem}.{start:0{_DIGITS}d}"


def segments(stem: str) -> list[tuple[int, int]]:
    """(start, size) of each segment kept, oldest first."""
    folder, prefix = os.path.split(stem)
    found: list[tuple[int, int]] = []
    try:
        entries = os.scandir(folder or ".")
    except FileNotFoundError:
        return []
    with entries:
        for entry in entries:
            name, _, digits = entry.name.rpartition(".")
            if name == prefix and len(digits) == _DIGITS and digits.isdigit():
                try:
                    found.append((int(digits), entry.stat().st_size))
                except FileNotFoundError:
                    continue
    return sorted(found)


def read_log(stem: str, offset: int, limit: int) -> Chunk:
    """At most `limit` bytes from `offset` on, or from the first byte after it that is still kept."""
    while True:
        kept = segments(stem)
        end = kept[-1][0] + kept[-1][1] if kept else 0
        here = next(((start, size) for start, size in kept if offset < start + size), None)
        if here is None:
            return Chunk(max(offset, 0), b"", max(offset, 0), end)
        start = max(offset, here[0])
        try:
            with open(_segment_path(stem, here[0]), "rb") as file:
                file.seek(start - here[0])
                data = file.read(limit)
        except FileNotFoundError:
            continue  # rotated away between the listing and the reading; the next listing begins later
        return Chunk(start, data, start + len(data), max(end, start + len(data)))
