"""The agent's way to a manager, against a server that says exactly what each test has it say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from corral.agent.link import HttpLink
from corral.agent.ports import Rejected, Unreachable

OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
PROBLEM = b'{"code": "stale_epoch", "detail": "it moved on"}'
TIMEOUT_S = 5.0


@dataclass
class Server:
    """Answers each request with the next of `answers`; None: never."""

    answers: list[bytes | None]
    close_after: bool = False
    requests: list[bytes] = field(default_factory=list)
    connections: int = 0
    lost: int = 0
    url: str = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                words = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:] if line)
                body = await reader.readexactly(int(words.get(b"Content-Length", b"0")))
                self.requests.append(head + body)
                answer = self.answers.pop(0)
                if answer is not None:
                    writer.write(answer)
                    await writer.drain()
                if self.close_after:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            self.lost += 1
        finally:
            writer.close()


@asynccontextmanager
async def serving(*answers: bytes | None, close_after: bool = False) -> AsyncIterator[tuple[Server, HttpLink]]:
    server = Server(list(answers), close_after)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    link = HttpLink("secret")
    try:
        yield server, link
    finally:
        await link.close()
        listening.close()


def trial(body: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await body()

    asyncio.run(bounded())


def post(server: Server, link: HttpLink, timeout_s: float = TIMEOUT_S) -> Awaitable[bytes]:
    return link.post(server.url, "/api/v1/agent/exchange", b'{"x":1}', timeout_s)


def test_a_connection_is_kept_and_the_request_is_whole() -> None:
    async def body() -> None:
        chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
        async with serving(OK, chunked, OK) as (server, link):
            assert [await post(server, link) for _ in range(3)] == [b"{}", b"abcde", b"{}"]
            assert server.connections == 1
            head, _, sent = server.requests[0].partition(b"\r\n\r\n")
            assert head.startswith(b"POST /api/v1/agent/exchange HTTP/1.1\r\nHost: 127.0.0.1:")
            assert b"\r\nAuthorization: Bearer secret\r\n" in head
            assert sent == b'{"x":1}'

    trial(body)


def test_a_connection_that_the_server_closed_is_not_used_again() -> None:
    async def body() -> None:
        last = OK.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
        async with serving(last, OK, OK) as (server, link):
            for _ in range(3):
                assert await post(server, link) == b"{}"
            assert server.connections == 2

    trial(body)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf",
        b"SSH-2.0-OpenSSH_9.7\r\n",
        b"",
    ],
    ids=["5xx", "cut", "other_protocol", "closed"],
)
def test_what_is_no_answer_is_unreachable(answer: bytes) -> None:
    async def body() -> None:
        async with serving(answer, OK, close_after=True) as (server, link):
            with pytest.raises(Unreachable, match=server.url):
                await post(server, link)
            assert await post(server, link) == b"{}"

    trial(body)


def test_a_no_is_told_with_its_code() -> None:
    async def body() -> None:
        said = b"HTTP/1.1 409 Conflict\r\ncontent-type: application/problem+json\r\ncontent-length: %d\r\n\r\n%s"
        plain = b"HTTP/1.1 404 Not Found\r\ncontent-length: 4\r\n\r\nnope"
        async with serving(said % (len(PROBLEM), PROBLEM), plain) as (server, link):
            with pytest.raises(Rejected) as refused:
                await post(server, link)
            assert (refused.value.status, refused.value.code, refused.value.message) == (
                409,
                "stale_epoch",
                "it moved on",
            )
            with pytest.raises(Rejected) as missing:
                await post(server, link)
            assert (missing.value.status, missing.value.code, missing.value.message) == (404, "rejected", "nope")
            assert server.connections == 1

    trial(body)


def test_nobody_listens() -> None:
    async def body() -> None:
        async with serving() as (server, link):
            pass
        with pytest.raises(Unreachable):
            await post(server, link)

    trial(body)


def test_silence_ends_the_request_and_its_connection() -> None:
    async def body() -> None:
        async with serving(None, OK) as (server, link):
            with pytest.raises(Unreachable, match="no answer within"):
                await post(server, link, timeout_s=0.2)
            assert await post(server, link) == b"{}"
            assert server.connections == 2

    trial(body)


def test_a_request_that_is_given_up_closes_its_connection() -> None:
    async def body() -> None:
        async with serving(None) as (server, link):
            asked = asyncio.ensure_future(post(server, link))
            while not server.requests:
                await asyncio.sleep(0.005)
            asked.cancel()
            while not server.lost:
                await asyncio.sleep(0.005)
            assert asked.cancelled()

    trial(body)


def test_a_download_goes_to_the_file(tmp_path: Path) -> None:
    async def body() -> None:
        content = bytes(range(256)) * 8192
        missing = b"HTTP/1.1 404 Not Found\r\ncontent-length: 4\r\n\r\nnope"
        whole = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(content), content)
        async with serving(whole, missing) as (server, link):
            await link.download(server.url, "/blob", tmp_path / "blob", TIMEOUT_S)
            assert (tmp_path / "blob").read_bytes() == content
            with pytest.raises(Rejected):
                await link.download(server.url, "/blob", tmp_path / "other", TIMEOUT_S)
            assert (tmp_path / "other").read_bytes() == b""

    trial(body)


def test_a_download_that_falls_silent(tmp_path: Path) -> None:
    async def body() -> None:
        async with serving(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nsome") as (server, link):
            with pytest.raises(Unreachable, match="nothing came"):
                await link.download(server.url, "/blob", tmp_path / "blob", 0.2)

    trial(body)


def test_a_download_onto_a_full_disk_says_so() -> None:
    async def body() -> None:
        whole = b"HTTP/1.1 200 OK\r\ncontent-length: 70000\r\n\r\n" + b"x" * 70000
        async with serving(whole) as (server, link):
            with pytest.raises(OSError, match="No space left"):
                await link.download(server.url, "/blob", Path("/dev/full"), TIMEOUT_S)

    trial(body)
