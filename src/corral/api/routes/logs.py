"""A kernel's output, byte by byte: plain up to now, or followed as server-sent events whose ids are byte offsets.

An event's data is `{"start", "next", "text"}`, or `"base64"` in place of `"text"` where the bytes are not UTF-8.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Annotated, Any, Literal

from fastapi import Header, Query, Response
from fastapi.responses import StreamingResponse

from corral.api import sse
from corral.api.context import Context, Here
from corral.api.lookup import find
from corral.api.openapi import bytes_of
from corral.api.policy import Asking, Caller, Policy, allow, routes
from corral.api.relay import Asked, Piece
from corral.api.waiting import hinted
from corral.model.faults import Fault, NotFound, Refused, Unavailable
from corral.model.lifecycle import Phase
from corral.model.node import NodeState
from corral.model.session import Kernel, Session
from corral.ports import Reads, session_channel

router = routes("sessions")
Stream = Literal["stdout", "stderr"]


@router.get("/api/v1/sessions/{session_id}/logs", responses=bytes_of("text/plain", sse.MEDIA_TYPE))
@allow(Policy.USER)
async def logs(
    here: Here,
    asking: Asking,
    session_id: str,
    rank: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
    stream: Stream = "stdout",
    offset: Annotated[int, Query(ge=0, le=2**62)] = 0,
    attempt: Annotated[int | None, Query(ge=1, le=2**31)] = None,
    follow: bool = False,
    accept: Annotated[str, Header()] = "",
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """The output of one rank. Without `attempt`, of the newest; what a node cannot serve just now is a 503."""
    session = await here.store.read("find", lambda reads: find(reads, asking, session_id))
    number = session.attempt if attempt is None else attempt
    if follow or sse.MEDIA_TYPE in accept:
        start = sse.resume_point(last_event_id, offset)
        pieces = _followed(here, asking, session.id, number, rank, stream, start)
        first = await anext(pieces, None)
        return sse.respond(_events(number, first, pieces))
    kernel = await here.store.read("kernel", lambda reads: _newest_begun(reads, session, attempt, rank))
    pieces = (
        piece async for piece in here.relay.read(Asked(kernel.node, kernel.token, stream, offset, False)) if piece
    )
    first = await anext(pieces, None) or Piece(offset, b"", offset, end=True)
    headers = {
        "Corral-Attempt": str(kernel.attempt),
        "Corral-Start-Offset": str(first.start),
        "Cache-Control": "no-store",
    }
    return StreamingResponse(_plain(first, pieces), media_type="text/plain; charset=utf-8", headers=headers)


async def _plain(first: Piece, rest: AsyncIterator[Piece]) -> AsyncIterator[bytes]:
    yield first.data
    async for piece in rest:
        yield piece.data


def _newest_begun(reads: Reads, session: Session, attempt: int | None, rank: int) -> Kernel:
    """The kernel whose output is meant: of the attempt asked for, or of the newest that was launched."""
    kernels = [row.kernel for row in reads.launches(session.id)]
    there = [one for one in kernels if one.rank == rank and attempt in (None, one.attempt)]
    begun = [one for one in there if one.accepted_at is not None]
    if begun:
        return _reachable(reads, max(begun, key=lambda one: one.attempt))
    if rank >= session.ranks:
        raise NotFound("no_such_rank", f"session {session.id} has ranks 0 to {session.ranks - 1}", subject=session.id)
    if attempt is not None and attempt > session.attempt:
        raise NotFound("no_such_attempt", f"session {session.id} is at attempt {session.attempt}", subject=session.id)
    raise Refused("not_started", _why_nothing(session, rank, attempt), subject=session.id)


def _why_nothing(session: Session, rank: int, attempt: int | None) -> str:
    if attempt is not None and attempt < session.attempt:
        return f"attempt {attempt} of session {session.id} was over before rank {rank} began; it wrote nothing"
    if session.phase is Phase.ENDED:
        return f"session {session.id} ended ({session.outcome}) before rank {rank} began; it wrote nothing"
    return f"session {session.id} is {session.phase} and has written nothing yet; follow it to wait"


def _reachable(reads: Reads, kernel: Kernel) -> Kernel:
    node = reads.nodes([kernel.node]).get(kernel.node)
    if node is None or node.state is not NodeState.UP:
        raise Unavailable(
            "node_unreachable", f"node {kernel.node} does not answer; its logs are there when it is back",
            subject=kernel.node,
        )  # fmt: skip
    return kernel


async def _followed(
    here: Context, asking: Caller, id_: str, attempt: int, rank: int, stream: Stream, offset: int
) -> AsyncGenerator[Piece | None, None]:
    """Wait until the kernel has begun (None now and then meanwhile), then its pieces to the end of the attempt."""
    watch = here.store.wakeups.watch(session_channel(id_))
    try:
        while not here.stopping.is_set():
            kernel, over = await here.store.read(
                "kernel", lambda reads: _to_follow(reads, find(reads, asking, id_), attempt, rank)
            )
            if kernel is not None:
                break
            if over:
                return
            yield None
            await hinted(watch, 5.0, here.stopping)
        else:
            raise _stopping()
    finally:
        watch.close()
    try:
        async for piece in here.relay.read(Asked(kernel.node, kernel.token, stream, offset, follow=True)):
            yield piece
    except Unavailable as cut:
        raise (_stopping() if here.stopping.is_set() else cut) from None


def _stopping() -> Unavailable:
    """Never an end: there is more to come, from this manager's next life or from another."""
    return Unavailable("manager_stopping", "the control plane is stopping; ask again from where you are")


def _to_follow(reads: Reads, session: Session, attempt: int, rank: int) -> tuple[Kernel | None, bool]:
    """The kernel once it was accepted, and whether none will come any more."""
    over = session.attempt > attempt or session.phase is Phase.ENDED
    try:
        kernel = _newest_begun(reads, session, attempt, rank)
    except Refused:
        return None, over
    return kernel, over


async def _events(attempt: int, first: Piece | None, rest: AsyncGenerator[Piece | None, None]) -> AsyncIterator[bytes]:
    held = b""
    start = 0
    try:
        async for piece in _again(first, rest):
            if piece is None:
                yield sse.HEARTBEAT
                continue
            if piece.start != start + len(held) and held:
                yield _event(start, held)
                held = b""
            start, data = (start, held + piece.data) if held else (piece.start, piece.data)
            whole = len(data) if piece.end else _whole_characters(data)
            if whole:
                yield _event(start, data[:whole])
            start, held = start + whole, data[whole:]
        yield sse.event("end", {"attempt": attempt, "next": start}, start)
    except Fault as fault:
        yield sse.unavailable(fault)


async def _again(first: Piece | None, rest: AsyncGenerator[Piece | None, None]) -> AsyncGenerator[Piece | None, None]:
    yield first
    async for piece in rest:
        yield piece


def _event(start: int, data: bytes) -> bytes:
    shown: dict[str, Any] = {"start": start, "next": start + len(data)}
    try:
        shown["text"] = data.decode()
    except UnicodeDecodeError:
        shown["base64"] = base64.b64encode(data).decode()
    return sse.event("log", shown, start + len(data))


def _whole_characters(data: bytes) -> int:
    """How much of it ends with a whole character, when it is text cut in the middle of one."""
    for back in range(1, min(4, len(data) + 1)):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        length = 2 if byte & 0xE0 == 0xC0 else 3 if byte & 0xF0 == 0xE0 else 4 if byte & 0xF8 == 0xF0 else 1
        return len(data) - back if length > back else len(data)
    return len(data)
