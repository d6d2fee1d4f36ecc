"""The way to a manager: agent.ports.Link by HTTP/1.1 over kept connections.

Knows requests and answers of known length or in chunks, and nothing of what they say. Small on purpose: an agent makes
a few exchanges for every launch, and a general client costs more than all the rest of one. What cannot be an answer
is `Unreachable`; `daemon` tries the next manager.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import httptools

from corral.agent.ports import Rejected, Unreachable

CONNECT_S = 5.0
MOST_IDLE = 4
PROBLEM = b"application/problem+json"

Sink = Callable[[bytes], object]


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    type: bytes
    body: bytes


class HttpLink:
    """Requests with the agent's token. An answer of 5xx is no answer."""

    def __init__(self, token: str) -> None:
        self._authorization = f"Authorization: Bearer {token}\r\n"
        self._idle: dict[str, list[_Connection]] = defaultdict(list)

    async def post(self, manager: str, path: str, body: bytes, timeout_s: float) -> bytes:
        head = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._ask(manager, "POST", path, head, body)
        except TimeoutError:
            raise Unreachable(f"{manager}: no answer within {timeout_s:g} s") from None
        return _checked(answer, manager).body

    async def download(self, manager: str, path: str, into: Path, timeout_s: float) -> None:
        """Write the answer to a file, piece by piece. `timeout_s` is how long it may be silent."""
        with into.open("wb") as file:
            answer = await self._ask(manager, "GET", path, "", b"", file.write, timeout_s)
        _checked(answer, manager)

    async def close(self) -> None:
        for idle in self._idle.values():
            while idle:
                idle.pop().close()

    async def _ask(
        self,
        manager: str,
        method: str,
        path: str,
        head: str,
        body: bytes,
        sink: Sink | None = None,
        silence_s: float | None = None,
    ) -> _Answer:
        connection = await self._connection(manager)
        url = urlsplit(manager)
        first = f"{method} {url.path.rstrip('/')}{path} HTTP/1.1\r\nHost: {url.netloc}\r\n"
        words = f"{first}{self._authorization}{head}\r\n"
        try:
            answer = await connection.ask(words.encode() + body, sink, silence_s)
        except _Lost as lost:
            raise Unreachable(f"{manager}: {lost}") from None
        finally:
            idle = self._idle[manager]
            if connection.is_reusable and len(idle) < MOST_IDLE:
                idle.append(connection)
            else:
                connection.close()
        return answer

    async def _connection(self, manager: str) -> _Connection:
        idle = self._idle[manager]
        while idle:
            kept = idle.pop()
            if kept.is_reusable:
                return kept
            kept.close()
        url = urlsplit(manager)
        secure = url.scheme == "https"
        try:
            async with asyncio.timeout(CONNECT_S):
                _, made = await asyncio.get_running_loop().create_connection(
                    _Connection,
                    url.hostname or "",
                    url.port or (443 if secure else 80),
                    ssl=ssl.create_default_context() if secure else None,
                )
        except (OSError, ValueError) as error:
            raise Unreachable(f"{manager}: {str(error) or 'no connection in time'}") from None
        return made


class _Lost(Exception):
    """The connection ended, or what came over it is no HTTP."""


class _Connection(asyncio.Protocol):
    """One request at a time; the parser's callbacks gather its answer."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._answer: asyncio.Future[_Answer] | None = None
        self._sink: Sink | None = None
        self._body = bytearray()
        self._type = b""
        self._heard = 0
        self.is_reusable = False

    async def ask(self, request: bytes, sink: Sink | None, silence_s: float | None) -> _Answer:
        """Whatever else happens than a whole answer, this connection is not used again."""
        if self._transport is None:
            raise _Lost("the connection was closed")
        self.is_reusable = False
        self._parser = httptools.HttpResponseParser(self)
        self._answer = asyncio.get_running_loop().create_future()
        self._sink, self._type, self._heard = sink, b"", 0
        self._body.clear()
        self._transport.write(request)
        return await (self._answer if silence_s is None else self._unless_silent(self._answer, silence_s))

    async def _unless_silent(self, answer: asyncio.Future[_Answer], silence_s: float) -> _Answer:
        heard = -1
        while heard != self._heard:
            heard = self._heard
            await asyncio.wait({answer}, timeout=silence_s)
            if answer.done():
                return answer.result()
        answer.cancel()
        raise _Lost(f"nothing came for {silence_s:g} s")

    def close(self) -> None:
        self.is_reusable = False
        if self._transport is not None:
            self._transport.abort()

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
        self.close()

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.is_reusable = True

    def data_received(self, data: bytes) -> None:
        self._heard += len(data)
        if self._parser is None or self._answer is None or self._answer.done():
            return self._fail(_Lost("an answer to nothing"))
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            self._fail(error.__context__ if isinstance(error.__context__, OSError) else _Lost(str(error)))
        except httptools.HttpParserError as error:
            self._fail(_Lost(f"no HTTP: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._fail(_Lost(f"the connection was lost: {exc or 'closed before the answer was whole'}"))

    # --- the parser's callbacks

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-type":
            self._type = value

    def on_body(self, body: bytes) -> None:
        assert self._parser is not None
        if self._sink is not None and self._parser.get_status_code() < 400:
            self._sink(body)
        else:
            self._body += body

    def on_message_complete(self) -> None:
        assert self._parser is not None
        if self._answer is not None and not self._answer.done():
            self.is_reusable = bool(self._parser.should_keep_alive())
            self._answer.set_result(_Answer(self._parser.get_status_code(), self._type, bytes(self._body)))


def _checked(answer: _Answer, manager: str) -> _Answer:
    if answer.status >= 500 or answer.status < 200:
        raise Unreachable(f"{manager}: {answer.status}")
    if answer.status < 300:
        return answer
    code, message = "rejected", answer.body.decode(errors="replace")[:300]
    if answer.type.startswith(PROBLEM):
        try:
            problem: Any = json.loads(answer.body)
            code, message = str(problem.get("code")), str(problem.get("detail") or problem.get("title"))
        except (ValueError, AttributeError):
            pass
    raise Rejected(answer.status, code, message)
