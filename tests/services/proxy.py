"""A proxy between a client and PostgreSQL that can delay, hold, cut, or lose exactly the answer to a COMMIT.

Knows PostgreSQL's message framing, so that a fault hits a named message and never depends on timing. Runs its own loop
on its own thread: tests with and without a loop use it alike. Never changes a byte that it forwards.
"""

import asyncio
import socket
import struct
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar
from urllib.parse import urlsplit, urlunsplit

T = TypeVar("T")
Judge = Callable[[asyncio.StreamReader, bytes, bytes], Awaitable[None]]

ANSWER_WITHIN_S = 10.0
ENCRYPTION_REQUESTS = (80877103, 80877104)  # SSLRequest, GSSENCRequest
QUERY, PARSE, COMMAND_COMPLETE, READY = b"Q", b"P", b"C", b"Z"


class CutOff(Exception):
    """This connection was cut on purpose."""


class Proxy:
    """The faults, safe to call from any thread. Each takes effect before the call returns."""

    def __init__(self, target: tuple[str, int], loop: asyncio.AbstractEventLoop) -> None:
        self.target = target
        self.loop = loop
        self.port = 0
        self.lost_answers = 0
        self.stopped_commands = 0
        self.held_messages = 0
        self._delay_s = 0.0
        self._answers_to_lose: list[bytes] = []
        self._commands_to_stop: list[bytes] = []
        self._refusing = False
        self._open: set[asyncio.StreamWriter] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()

    def url(self, direct_url: str) -> str:
        """The same database, through the proxy."""
        parts = urlsplit(direct_url)
        login = parts.netloc.rpartition("@")[0]
        return urlunsplit(parts._replace(netloc=f"{login}@127.0.0.1:{self.port}"))

    def delay(self, delay_s: float) -> None:
        """From now on every message waits this long, in both directions."""

        async def apply() -> None:
            self._delay_s = delay_s

        self._on_loop(apply())

    def hold(self) -> None:
        """Connections stay open and fall silent, as when packets are dropped."""

        async def apply() -> None:
            self._flowing.clear()

        self._on_loop(apply())

    def release(self) -> None:
        """What was held flows again, and new connections are let in."""

        async def apply() -> None:
            self._refusing = False
            self._flowing.set()

        self._on_loop(apply())

    def cut(self, refuse: bool = False) -> int:
        """Resets every open connection at once; says how many. With `refuse`, new ones are reset until `release`."""

        async def apply() -> int:
            self._refusing = refuse
            clients = [writer for writer in self._open if writer.get_extra_info("sockname")[1] == self.port]
            for writer in list(self._open):
                reset(writer)
            return len(clients)

        return self._on_loop(apply())

    def lose_answer(self, tag: str = "COMMIT") -> None:
        """The next command that ends with this tag is carried out, its answer swallowed, its connection cut."""

        async def apply() -> None:
            self._answers_to_lose.append(tag.encode())

        self._on_loop(apply())

    def stop_command(self, text: str = "COMMIT") -> None:
        """The next command whose text begins so never reaches the server; its connection is cut."""

        async def apply() -> None:
            self._commands_to_stop.append(text.upper().encode())

        self._on_loop(apply())

    def _on_loop(self, step: Coroutine[None, None, T]) -> T:
        return asyncio.run_coroutine_threadsafe(step, self.loop).result(ANSWER_WITHIN_S)

    async def serve(self, client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter) -> None:
        self._open.add(client_out)
        server_out: asyncio.StreamWriter | None = None
        try:
            if self._refusing:
                raise CutOff
            server_in, server_out = await asyncio.open_connection(*self.target)
            self._open.add(server_out)
            await forward_start(client_in, client_out, server_out)
            async with asyncio.TaskGroup() as both_ways:
                both_ways.create_task(self._pump(client_in, server_out, self._judge_command))
                both_ways.create_task(self._pump(server_in, client_out, self._judge_answer))
        except* (CutOff, OSError, EOFError):
            pass
        finally:
            for writer in (client_out, server_out):
                if writer is not None:
                    self._open.discard(writer)
                    reset(writer)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, judge: Judge) -> None:
        """Forwards whole messages until one side is gone; the end of one direction ends the other as well."""
        while True:
            kind, frame = await read_message(source)
            await judge(source, kind, frame[5:])
            if self._delay_s:
                await asyncio.sleep(self._delay_s)
            await self._pass_when_flowing()
            sink.write(frame)
            await sink.drain()

    async def _pass_when_flowing(self) -> None:
        self.held_messages += 1
        try:
            await self._flowing.wait()
        finally:
            self.held_messages -= 1

    async def _judge_command(self, _source: asyncio.StreamReader, kind: bytes, body: bytes) -> None:
        if kind in (QUERY, PARSE) and self._commands_to_stop:
            text = body if kind == QUERY else body.split(b"\0", 1)[1]
            if text.lstrip().upper().startswith(self._commands_to_stop[0]):
                self._commands_to_stop.pop(0)
                self.stopped_commands += 1
                raise CutOff

    async def _judge_answer(self, source: asyncio.StreamReader, kind: bytes, body: bytes) -> None:
        if kind == COMMAND_COMPLETE and self._answers_to_lose and body.startswith(self._answers_to_lose[0]):
            self._answers_to_lose.pop(0)
            while kind != READY:  # only then is a statement outside a transaction committed for certain
                kind, _ = await read_message(source)
            self.lost_answers += 1
            raise CutOff


async def forward_start(
    client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter, server_out: asyncio.StreamWriter
) -> None:
    """The first message has no kind. Encryption is declined here, so that what follows can be read."""
    while True:
        length_bytes = await client_in.readexactly(4)
        body = await client_in.readexactly(struct.unpack("!I", length_bytes)[0] - 4)
        if struct.unpack("!I", body[:4])[0] not in ENCRYPTION_REQUESTS:
            server_out.write(length_bytes + body)
            await server_out.drain()
            return
        client_out.write(b"N")
        await client_out.drain()


async def read_message(source: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """(kind, the whole frame): one byte of kind, four of length, the body."""
    head = await source.readexactly(5)
    (length,) = struct.unpack("!I", head[1:])
    return head[:1], head + await source.readexactly(length - 4)


def reset(writer: asyncio.StreamWriter) -> None:
    """Closes with a TCP reset: what was not sent yet is lost, and the other side learns of it at once."""
    with suppress(OSError):
        raw: socket.socket = writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@contextmanager
def proxy_to(direct_url: str) -> Iterator[Proxy]:
    """A proxy in front of the server that `direct_url` names, on a free port, until the block ends."""
    parts = urlsplit(direct_url)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="postgres-proxy", daemon=True)
    thread.start()
    proxy = Proxy((parts.hostname or "127.0.0.1", parts.port or 5432), loop)
    listener = asyncio.run_coroutine_threadsafe(listen(proxy), loop).result(ANSWER_WITHIN_S)
    try:
        yield proxy
    finally:
        asyncio.run_coroutine_threadsafe(close(listener), loop).result(ANSWER_WITHIN_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(ANSWER_WITHIN_S)
        loop.close()


async def listen(proxy: Proxy) -> asyncio.Server:
    listener = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = listener.sockets[0].getsockname()[1]
    return listener


async def close(listener: asyncio.Server) -> None:
    listener.close()
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
