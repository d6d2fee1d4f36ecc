"""Logs to whoever reads (docs/protocol.md 19): the agent dials the manager that asked, and sends what is there.

Frames: text `{"start", "next", "end", "dropped"}`, then the bytes from start to next as one binary message. A log this
node does not have is `{"unavailable": why}`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from corral.agent.logfile import read_log
from corral.agent.ports import LogSource
from corral.ports import Clock
from corral.wire import StreamOrder

PIECE_BYTES = 256 * 1024
POLL_S = 0.1
REMEMBERED = 10_000


class Streams:
    """Serves each stream order once."""

    def __init__(self, source: LogSource, token: str, clock: Clock) -> None:
        self._source = source
        self._headers = {"Authorization": f"Bearer {token}"}
        self._clock = clock
        self._served: dict[str, asyncio.Task[None]] = {}

    async def serve(self, orders: Sequence[StreamOrder]) -> None:
        """Begin those not begun yet."""
        for order in orders:
            if order.id not in self._served:
                self._served[order.id] = asyncio.ensure_future(self._dial(order))
        while len(self._served) > REMEMBERED:
            self._served.pop(next(iter(self._served)))

    async def _dial(self, order: StreamOrder) -> None:
        try:
            async with connect(order.url, additional_headers=self._headers, open_timeout=5, proxy=None) as socket:
                await self._send(order, socket)
        except (OSError, TimeoutError, ConnectionClosed, InvalidHandshake):
            return  # the reader asks again

    async def _send(self, order: StreamOrder, socket: ClientConnection) -> None:
        stem = self._source.stem(order.token, order.stream)
        if stem is None:
            await socket.send(json.dumps({"unavailable": "this node has no such log"}))
            return
        offset = order.offset
        while True:
            alive = order.follow and not self._source.over(order.token)
            chunk = read_log(stem, offset, PIECE_BYTES)
            dropped = max(0, chunk.start - offset) if chunk.data else 0
            end = not alive and chunk.next_offset >= chunk.end
            if chunk.data or end:
                head = {"start": chunk.start, "next": chunk.next_offset, "end": end, "dropped": dropped}
                await socket.send(json.dumps(head))
                if chunk.data:
                    await socket.send(chunk.data)
                offset = chunk.next_offset
            if end:
                return
            if socket.close_code is not None:
                return  # nobody reads any more
            if not chunk.data:
                await self._clock.sleep(POLL_S)
