"""Server-sent events: an id to resume from, a name, one line of JSON. A comment now and then keeps it open."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
from fastapi.responses import StreamingResponse

from corral.model.faults import Fault, Invalid

HEARTBEAT_S = 15.0
HEARTBEAT = b": alive\n\n"
MEDIA_TYPE = "text/event-stream"


def event(name: str, data: Any, id_: object | None = None) -> bytes:
    head = f"event: {name}\n" if id_ is None else f"id: {id_}\nevent: {name}\n"
    return head.encode() + b"data: " + msgspec.json.encode(data) + b"\n\n"


def unavailable(fault: Fault) -> bytes:
    """The last word of a stream that cannot go on just now; its reader resumes from the last id."""
    return event("unavailable", {"code": fault.code, "message": fault.message})


def respond(stream: AsyncIterator[bytes]) -> StreamingResponse:
    return StreamingResponse(
        stream, media_type=MEDIA_TYPE, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    )


def resume_point(last_event_id: str | None, asked: int) -> int:
    """Where to go on: what the client saw last, else what it asked for."""
    if not last_event_id:
        return asked
    if last_event_id.isascii() and last_event_id.isdigit() and len(last_event_id) < 19:
        return int(last_event_id)
    raise Invalid("bad_event_id", f"Last-Event-ID {last_event_id[:80]!r} is none that was sent from here")
