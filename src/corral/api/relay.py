"""Logs, from the node to whoever reads (docs/protocol.md 19): a manager never dials an agent.

A reader puts a stream order into its node's desired set and waits; the agent dials this very manager by WebSocket and
sends frames: text `{"start", "next", "end", "dropped"}`, then the bytes from `start` to `next` as one binary message.
`{"unavailable": why}` says that the node has no such log. An answer is never empty for want of a node.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import anyio
import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from corral.model.faults import Fault, NotFound, Unavailable
from corral.model.wording import span
from corral.ports import Ids, Store
from corral.wire import StreamOrder

DIAL_WAIT_S = 10.0
QUIET_S = 15.0
MAX_QUEUED = 16
NOBODY_WAITS = 4404
PATH = "/api/v1/agent/streams/"


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of a log from `start` on. `end`: nothing will follow; `dropped`: bytes before `start` that are gone."""

    start: int
    data: bytes
    next: int
    end: bool
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class Asked:
    """Which log, from where, and whether to go on with what is still to be written."""

    node: str
    token: str
    stream: str
    offset: int
    follow: bool


class Reader:
    """One who waits for pieces. `dialled` is set once the node is there."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[Piece | Fault] = asyncio.Queue(MAX_QUEUED)
        self.dialled = asyncio.Event()
        self.pump: asyncio.Task[None] | None = None


class Relay:
    """The readers waiting in this process, by stream id."""

    def __init__(self, store: Store, ids: Ids, url: str, dial_wait_s: float = DIAL_WAIT_S) -> None:
        self._store = store
        self._ids = ids
        self._url = url.replace("http", "ws", 1).rstrip("/")
        self._dial_wait_s = dial_wait_s
        self._readers: dict[str, Reader] = {}

    async def read(self, asked: Asked) -> AsyncGenerator[Piece | None, None]:
        """The pieces, as the node sends them; None first, when it is there, and whenever it has been quiet for long.
        Raises `Unavailable` when it does not come, or breaks off."""
        id_ = self._ids.nonce()
        reader = self._readers[id_] = Reader()
        order = StreamOrder(
            id=id_, url=f"{self._url}{PATH}{id_}", token=asked.token, stream=asked.stream, offset=asked.offset,
            follow=asked.follow,
        )  # fmt: skip
        try:
            await self._store.tx("stream wanted", lambda tx: tx.add_stream(asked.node, order))
            await _dialled(reader, self._dial_wait_s, asked.node)
            yield None
            while True:
                piece = await _next(reader.queue)
                if isinstance(piece, Fault):
                    raise piece
                yield piece
                if piece is not None and piece.end:
                    return
        finally:
            del self._readers[id_]
            if reader.pump is not None:
                reader.pump.cancel()
            with anyio.CancelScope(shield=True), anyio.move_on_after(5):
                await self._store.tx("stream over", lambda tx: tx.drop_stream(id_))

    async def serve(self, id_: str, socket: WebSocket) -> None:
        """Take what a node that dialled in sends, as fast as the reader reads, until either has enough."""
        reader = self._readers.get(id_)
        if reader is None or reader.dialled.is_set():
            await socket.close(NOBODY_WAITS, "nobody waits for this stream")
            return
        await socket.accept()
        reader.dialled.set()
        reader.pump = asyncio.ensure_future(_pump(socket, reader.queue))
        try:
            await asyncio.wait({reader.pump})
        finally:
            reader.pump.cancel()
        if socket.client_state is WebSocketState.CONNECTED and socket.application_state is WebSocketState.CONNECTED:
            with contextlib.suppress(WebSocketDisconnect):  # the node may have hung up first
                await socket.close()


async def _dialled(reader: Reader, wait_s: float, node: str) -> None:
    try:
        async with asyncio.timeout(wait_s):
            await reader.dialled.wait()
    except TimeoutError:
        raise Unavailable(
            "node_unreachable", f"node {node} did not answer within {span(wait_s)}; its logs are there when it is back",
            subject=node,
        ) from None  # fmt: skip


async def _next(queue: asyncio.Queue[Piece | Fault]) -> Piece | Fault | None:
    try:
        async with asyncio.timeout(QUIET_S):
            return await queue.get()
    except TimeoutError:
        return None


async def _pump(socket: WebSocket, queue: asyncio.Queue[Piece | Fault]) -> None:
    while True:
        try:
            piece = await _receive(socket)
        except WebSocketDisconnect:
            piece = Unavailable("stream_cut", "the node broke off; ask again from where you are")
        except (KeyError, TypeError, ValueError, msgspec.DecodeError):
            piece = Unavailable("stream_cut", "the node sent what is no log")
        await queue.put(piece)
        if isinstance(piece, Fault) or piece.end:
            return


async def _receive(socket: WebSocket) -> Piece | Fault:
    head: dict[str, Any] = msgspec.json.decode(await socket.receive_text())
    if "unavailable" in head:
        return NotFound("logs_unavailable", f"the node has no such log: {head['unavailable']}")
    start, next_ = int(head["start"]), int(head["next"])
    data = await socket.receive_bytes() if next_ > start else b""
    return Piece(start, data, next_, bool(head.get("end")), int(head.get("dropped") or 0))
