"""Lines of several writers on one stream, each line whole and after its writer's label."""

from __future__ import annotations

from typing import IO

LONGEST_LINE_BYTES = 64 * 1024


class Labelled:
    """A place to write bytes in any pieces. A line is passed on once it is whole; one without end, piece by piece."""

    def __init__(self, out: IO[bytes], label: bytes) -> None:
        self._out = out
        self._label = label
        self._rest = b""

    def write(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._put(lines)
        while len(self._rest) >= LONGEST_LINE_BYTES:
            piece, self._rest = self._rest[:LONGEST_LINE_BYTES], self._rest[LONGEST_LINE_BYTES:]
            self._put([piece])

    def flush(self) -> None:
        self._out.flush()

    def finish(self) -> None:
        """The writer has ended: what it wrote last may lack the end of a line."""
        if self._rest:
            self._put([self._rest])
            self._rest = b""
        self._out.flush()

    def _put(self, lines: list[bytes]) -> None:
        if lines:
            self._out.write(b"".join(b"%b%b\n" % (self._label, line) for line in lines))
