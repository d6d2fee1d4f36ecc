"""The SDK: both clients alike, streams that outlive a connection, answers that are lost."""

import asyncio
import base64
import inspect
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.client import AsyncClient, Client, Unreachable, document_of, host
from corral.client.sse import EventReader, ServerEvent
from corral.model.faults import Denied, Fault, Invalid, NotFound, Refused, Unavailable
from tests.cli.conftest import Corral


def public(kind: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(kind, callable) if not name.startswith("_")}


def test_both_clients_have_the_same_methods() -> None:
    assert public(Client) == public(AsyncClient)
    for name in public(Client):
        own = inspect.signature(getattr(Client, name)).parameters
        assert list(own) == list(inspect.signature(getattr(AsyncClient, name)).parameters), name


def test_every_method_awaited_does_what_it_does_blocking(corral: Corral, client: Client) -> None:
    async def story() -> None:
        async with AsyncClient() as awaited:
            session = await awaited.submit({"command": ["sh", "-c", "echo one; echo two"], "name": "awaited"})
            ended = await awaited.wait(session["id"])
            assert ended == client.get(session["id"])
            chunks = [chunk async for chunk in awaited.follow_logs(session["id"])]
            assert b"".join(chunk.data for chunk in chunks) == b"one\ntwo\n"
            assert [piece async for piece in awaited.logs(session["id"])] == list(client.logs(session["id"]))
            assert await awaited.history(session["id"]) == client.history(session["id"])
            assert (await awaited.launches(session["id"]))["double_starts"] == []
            assert [one["id"] async for one in awaited.all_sessions(name="awaited", limit=1)] == [session["id"]]
            assert [node["name"] for node in await awaited.nodes()] == [node["name"] for node in client.nodes()]
            assert await awaited.has_blob("sha256:" + "0" * 64) is False
            async for event in awaited.follow_events():
                assert event["id"] > 0
                break

    asyncio.run(asyncio.wait_for(story(), 60))


def test_errors_have_their_kinds_and_codes(client: Client, corral: Corral) -> None:
    cases: list[tuple[type[Fault], str, Callable[[], object]]] = [
        (NotFound, "no_such_session", lambda: client.get("zzzzzzzzzz")),
        (NotFound, "no_such_session", lambda: client.get("")),
        (Invalid, "no_command", lambda: client.submit({"command": []})),
        (Invalid, "not_text", lambda: client.submit({"command": ["\udcff"]})),
        (Refused, "infeasible", lambda: client.submit({"command": ["x"], "gpus": 99})),
        (Denied, "bad_credential", lambda: Client(client.connection.url, "wrong").nodes()),
        (Invalid, "digest_differs", lambda: client.put_blob("sha256:" + "0" * 64, b"x")),
    ]
    for kind, code, act in cases:
        with pytest.raises(kind) as raised:
            act()
        assert (raised.value.code, document_of(raised.value)["code"]) == (code, code)


# --- the event format


EVENTS = st.lists(
    st.tuples(st.none() | st.integers(0, 10**12).map(str), st.sampled_from(["log", "end"]), st.text(max_size=20)),
    max_size=8,
)


@given(EVENTS, st.lists(st.integers(1, 40), min_size=1), st.sampled_from(["\n", "\r\n"]))
def test_events_come_out_whole_however_the_bytes_are_cut(
    events: list[tuple[str | None, str, str]], sizes: list[int], end: str
) -> None:
    written = "".join(
        f": alive{end}{end}" + (f"id: {id_}{end}" if id_ is not None else "")
        + f"event: {name}{end}data: {json.dumps(text, ensure_ascii=False)}{end}{end}"
        for id_, name, text in events
    ).encode()  # fmt: skip
    reader, found, start = EventReader(), [], 0
    while start < len(written):
        size = sizes[start % len(sizes)]
        found += reader.feed(written[start : start + size])
        start += size
    assert found == [ServerEvent(id_, name, json.dumps(text, ensure_ascii=False)) for id_, name, text in events]


# --- connections that break


Answer = Callable[[str, int], bytes]


@contextmanager
def answering(answer: Answer) -> Iterator[tuple[str, list[str]]]:
    """A server that gives each connection the bytes of `answer(request, number)` and hangs up."""
    requests: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    head = connection.recv(65536).decode()
                    requests.append(head)
                    connection.sendall(answer(head, len(requests)))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", requests
        server.shutdown(socket.SHUT_RDWR)
    thread.join(5)


def ok(body: bytes, kind: str = "application/json", length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return (
        f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {size}\r\nconnection: close\r\n\r\n".encode()
        + body
    )


def log_event(start: int, data: bytes, *, binary: bool = False) -> bytes:
    said: dict[str, object] = {"start": start, "next": start + len(data)}
    said |= {"base64": base64.b64encode(data).decode()} if binary else {"text": data.decode()}
    return f"id: {start + len(data)}\nevent: log\ndata: {json.dumps(said)}\n\n".encode()


def stream(*events: bytes) -> bytes:
    return ok(b"".join(events), "text/event-stream", length=10**6)


def offset_asked(request: str) -> int:
    return int(request.split("offset=")[1].split("&")[0].split()[0])


TEXT = b"0123456789"
END = b'id: 10\nevent: end\ndata: {"attempt": 1, "next": 10}\n\n'


def cut_every_time(request: str, number: int) -> bytes:
    """Two bytes from where the reader is, then half an event, then nothing."""
    at = offset_asked(request)
    if at == len(TEXT):
        return stream(END)
    return stream(b": alive\n\n", log_event(at, TEXT[at : at + 2], binary=number % 2 == 0), b'event: log\ndata: {"sta')


def test_a_log_is_whole_however_often_it_is_cut() -> None:
    with answering(cut_every_time) as (url, requests), Client(url, "t") as client:
        chunks = list(client.follow_logs("k3f9x2m4qa", attempt=1))
    assert b"".join(chunk.data for chunk in chunks) == TEXT
    assert [offset_asked(one) for one in requests] == [0, 2, 4, 6, 8, 10]


def test_awaited_too() -> None:
    async def read(url: str) -> bytes:
        async with AsyncClient(url, "t") as client:
            return b"".join([chunk.data async for chunk in client.follow_logs("k3f9x2m4qa", attempt=1)])

    with answering(cut_every_time) as (url, _):
        assert asyncio.run(asyncio.wait_for(read(url), 30)) == TEXT


def test_a_node_that_is_away_is_not_an_empty_log() -> None:
    gone = b'event: unavailable\ndata: {"code": "node_unreachable", "message": "node n1 is away"}\n\n'
    with (
        answering(lambda request, number: stream(gone)) as (url, requests),
        Client(url, "t") as client,
        pytest.raises(Unavailable, match="n1 is away"),
    ):
        list(client.follow_logs("k3f9x2m4qa"))
    assert len(requests) == 1


def test_a_lost_answer_to_a_submit_is_asked_for_again_with_the_same_key() -> None:
    def lose_the_first(request: str, number: int) -> bytes:
        return b"" if number == 1 else ok(b'{"id": "k3f9x2m4qa"}')

    with answering(lose_the_first) as (url, requests), Client(url, "t") as client:
        assert client.submit({"command": ["true"]})["id"] == "k3f9x2m4qa"
    keys = [line for one in requests for line in one.splitlines() if line.lower().startswith("idempotency-key:")]
    assert len(keys) == 2
    assert len(set(keys)) == 1


def test_a_lost_answer_to_a_requeue_is_asked_for_again_with_the_same_key() -> None:
    def lose_the_first(request: str, number: int) -> bytes:
        return b"" if number % 2 else ok(b'{"id": "k3f9x2m4qa"}')

    with answering(lose_the_first) as (url, requests), Client(url, "t") as client:
        for key in (None, None, "mine"):
            assert client.requeue("k3f9x2m4qa", idempotency_key=key)["id"] == "k3f9x2m4qa"
    keys = [line for one in requests for line in one.splitlines() if line.lower().startswith("idempotency-key:")]
    assert keys[0::2] == keys[1::2]
    assert len(set(keys)) == 3, "each call has one of its own"


def test_waiting_goes_on_when_the_control_plane_comes_back() -> None:
    def away_for_a_while(request: str, number: int) -> bytes:
        if number == 1:
            return ok(b'{"phase": "running"}')
        return b"" if number < 7 else ok(b'{"phase": "ended"}')

    with answering(away_for_a_while) as (url, requests), Client(url, "t") as client:
        assert client.wait("k3f9x2m4qa")["phase"] == "ended"
    assert len(requests) == 7


def test_what_answers_but_is_no_control_plane_is_said() -> None:
    missing = b"HTTP/1.1 404 Not Found\r\ncontent-length: 5\r\nconnection: close\r\n\r\nnope!"
    for page, kind, part in (
        (ok(b"<html>", "text/html"), Unreachable, "no control plane"),
        (missing, NotFound, "check the address"),
    ):
        with (
            answering(lambda request, number, page=page: page) as (url, _),
            Client(url, "t") as client,
            pytest.raises(kind, match=part),
        ):
            client.get("k3f9x2m4qa")


class Outage:
    """Answers once, then is away for good."""

    def __init__(self, first: bytes) -> None:
        self.first = first

    def __call__(self, request: str, number: int) -> bytes:
        return self.first if number == 1 else b""


@pytest.mark.parametrize("waits", ["wait", "follow_logs", "follow_events"])
def test_a_control_plane_that_stays_away_is_given_up_after_the_patience_asked_for(waits: str) -> None:
    first = ok(b'{"phase": "running"}') if waits == "wait" else stream(b": alive\n\n")
    heard: list[tuple[str, float]] = []
    with (
        answering(Outage(first)) as (url, requests),
        Client(
            url, "t", patience_s=1.0, on_retry=lambda fault, waited_s: heard.append((fault.code, waited_s))
        ) as client,
    ):
        began = host.now_s()
        with pytest.raises(Unreachable):
            list(client.follow_events()) if waits == "follow_events" else list(getattr(client, waits)("k3f9x2m4qa"))
        took_s = host.now_s() - began
    assert took_s < 5
    assert len(requests) > 2
    assert heard[0] == ("unreachable", 0.0)
    assert [waited_s for _, waited_s in heard] == sorted(waited_s for _, waited_s in heard)


def test_no_patience_is_no_second_try_awaited() -> None:
    async def follow(url: str) -> None:
        async with AsyncClient(url, "t", patience_s=0) as client:
            async for _ in client.follow_events():
                pass

    with answering(Outage(stream(b": alive\n\n"))) as (url, requests), pytest.raises(Unreachable):
        asyncio.run(asyncio.wait_for(follow(url), 30))
    assert len(requests) == 1


def test_what_answered_before_is_waited_for_though_it_is_away_just_now() -> None:
    def away_then_back(request: str, number: int) -> bytes:
        return ok(b'{"phase": "ended"}') if number in (1, 7) else b""

    with answering(away_then_back) as (url, requests), Client(url, "t") as client:
        assert client.get("k3f9x2m4qa")["phase"] == "ended"
        assert client.wait("k3f9x2m4qa")["phase"] == "ended"
    assert len(requests) == 7


def test_the_command_line_says_that_it_tries_again_and_then_gives_up(corral: Corral) -> None:
    with answering(Outage(stream(b": alive\n\n"))) as (url, _):
        done = corral("events", "-f", "--patience", "1", "--url", url)
    assert done.code == 5
    said, last = done.err.splitlines()
    assert said.startswith("corral: cannot reach the control plane")
    assert said.endswith("trying again, 0s of 1s")
    assert last.startswith("corral: cannot reach the control plane")
