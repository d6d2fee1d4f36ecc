"""Server-sent events out of bytes, in whatever pieces they come. Knows the format and nothing of what events mean."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class ServerEvent(NamedTuple):
    """One event: the id to resume from (None: it has none), its name and its data."""

    id: str | None
    name: str
    data: str


class EventReader:
    """Feed it bytes; it gives the events that are whole. What is cut off at the end of a stream is dropped.

    Lines end with a line feed only: what JSON leaves unescaped (U+2028 …) must not cut a line in two.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._fields: dict[str, list[str]] = {}

    def feed(self, data: bytes) -> Iterator[ServerEvent]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            text = line.removesuffix(b"\r").decode("utf-8", "replace")
            if text:
                name, _, value = text.partition(":")
                self._fields.setdefault(name, []).append(value.removeprefix(" "))
            elif (event := self._whole()) is not None:
                yield event

    def _whole(self) -> ServerEvent | None:
        fields, self._fields = self._fields, {}
        if "data" not in fields:
            return None
        ids, names = fields.get("id", []), fields.get("event", [])
        return ServerEvent(ids[-1] if ids else None, names[-1] if names else "message", "\n".join(fields["data"]))
