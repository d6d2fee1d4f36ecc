"""Streams that outlive a connection: where one is, what to ask next, and what an event means. No input or output here.

`Client` and `AsyncClient` drive these the same way: ask `call()`, feed every event to `take`, and on a broken
connection ask again, until `over`.
"""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from corral.client.calls import Call, follow_events, follow_logs
from corral.client.errors import Unreachable
from corral.client.shapes import Event
from corral.client.sse import ServerEvent
from corral.model.faults import Fault, NotFound, Unavailable

T_co = TypeVar("T_co", covariant=True)

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 5.0
MOST_DOUBLINGS = 16
PATIENCE_S = 60.0


class LogChunk(NamedTuple):
    """Bytes of one rank's output from `start` up to `next`. What lies before `start` and was not seen is gone."""

    start: int
    data: bytes
    next: int
    attempt: int | None


class Followed(Protocol[T_co]):
    @property
    def over(self) -> bool: ...
    def call(self) -> Call: ...
    def take(self, event: ServerEvent) -> T_co | None: ...


class FollowedLog:
    """The output of one rank of one attempt, from an offset to its end."""

    def __init__(self, session: str, rank: int, stream: str, offset: int, attempt: int | None) -> None:
        self.over = False
        self._asked = (session, rank, stream)
        self._offset = offset
        self._attempt = attempt

    def call(self) -> Call:
        return follow_logs(*self._asked, self._offset, self._attempt)

    def take(self, event: ServerEvent) -> LogChunk | None:
        said = _said(event)
        if event.name == "end":
            self.over = True
            return None
        if event.name == "unavailable":
            raise _unavailable(said)
        if event.name != "log":
            return None
        data = said["text"].encode() if "text" in said else base64.b64decode(said["base64"])
        start, self._offset = int(said["start"]), int(said["next"])
        return LogChunk(start, data, self._offset, self._attempt)


class FollowedEvents:
    """Every event of the control plane after a number, in commit order, without end."""

    def __init__(self, after: int) -> None:
        self.over = False
        self._after = after

    def call(self) -> Call:
        return follow_events(self._after)

    def take(self, event: ServerEvent) -> Event | None:
        said = _said(event)
        if "id" not in said or "fact" not in said:
            return None
        self._after = int(said["id"])
        return Event(**said)


OnRetry = Callable[[Fault, float], None]


class Patience:
    """How long a broken connection is tried again: `limit_s` from the first failure on since it last worked. One that
    never worked is not; neither is a lasting refusal. `on_retry` hears of each failure, and how long there have been
    nothing else. `worked`: the control plane has answered this client before."""

    def __init__(self, limit_s: float, now_s: Callable[[], float], on_retry: OnRetry | None = None,
                 *, worked: bool = False) -> None:  # fmt: skip
        self._limit_s = limit_s
        self._now_s = now_s
        self._on_retry = on_retry
        self._failures = 0
        self._since_s = 0.0
        self._worked = worked

    def connected(self) -> None:
        """Somebody answers; whether anything comes of it is not known yet."""
        self._worked = True

    def went_well(self) -> None:
        self._failures, self._worked = 0, True

    def pause_s(self, fault: Fault) -> float:
        """Seconds until the next try; raises the fault when there is none."""
        if not isinstance(fault, Unavailable) or not self._worked:
            raise fault
        now_s = self._now_s()
        if self._failures == 0:
            self._since_s = now_s
        waited_s = now_s - self._since_s
        pause_s = min(FIRST_PAUSE_S * 2**self._failures, LONGEST_PAUSE_S)
        if waited_s + pause_s > self._limit_s:
            raise fault
        self._failures = min(self._failures + 1, MOST_DOUBLINGS)
        if self._on_retry is not None:
            self._on_retry(fault, waited_s)
        return pause_s


def _said(event: ServerEvent) -> dict[str, Any]:
    said: Any = None
    with contextlib.suppress(ValueError):
        said = json.loads(event.data)
    if not isinstance(said, dict):
        raise Unreachable("bad_event", f"the control plane sent an event {event.name!r} that is not JSON")
    return cast("dict[str, Any]", said)


def _unavailable(said: dict[str, Any]) -> Fault:
    code, message = str(said.get("code", "unavailable")), str(said.get("message", "the node does not serve this log"))
    return NotFound(code, message) if code == "logs_unavailable" else Unavailable(code, message)
