"""Logs: the node dials in and serves; nothing is lost, doubled or made up on the way to the reader."""

import base64
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from corral.model.session import FactKind
from corral.wire import StreamOrder
from tests.api.face import TOKENS, WAIT_S, Node, Served, bearer, events_of, fact, frame, problem


def dial(order: StreamOrder, token: str = TOKENS["agents"]) -> ClientConnection:
    return connect(order.url, additional_headers={"Authorization": f"Bearer {token}"}, open_timeout=WAIT_S)


class Serving:
    """A node that waits for a stream order, dials, and sends what it was given."""

    def __init__(self, node: Node, *frames: str | bytes) -> None:
        self._node = node
        self._frames = frames
        self.order: StreamOrder | None = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.order = self._node.stream()
            with dial(self.order) as socket:
                for one in self._frames:
                    socket.send(one)
                with pytest.raises(ConnectionClosed):
                    socket.recv(WAIT_S)
        except BaseException as error:
            self.error = error

    def done(self) -> StreamOrder:
        self._thread.join(WAIT_S)
        assert self.error is None, self.error
        assert self.order is not None
        return self.order


@pytest.fixture
def running(served: Served) -> tuple[Node, str]:
    """A node and the id of a session that runs on it."""
    node = served.node().register()
    id_ = served.submit()["id"]
    (order,) = node.orders()
    node.exchange(fact(order.token, FactKind.ACCEPTED), fact(order.token, FactKind.READY))
    return node, id_


def streams(served: Served) -> list[Any]:
    return served.tx(lambda tx: tx.streams("n1"))


def test_what_was_written_up_to_now(served: Served, running: tuple[Node, str]) -> None:
    node, id_ = running
    serving = Serving(node, frame(0, b"hello\n", end=False), b"hello\n", frame(6, b"\xff\x00!", end=True), b"\xff\x00!")
    response = served.client.get(f"/api/v1/sessions/{id_}/logs")
    assert (response.status_code, response.content) == (200, b"hello\n\xff\x00!")
    assert (response.headers["corral-attempt"], response.headers["corral-start-offset"]) == ("1", "0")
    order = serving.done()
    assert (order.stream, order.offset, order.follow) == ("stdout", 0, False)
    assert order.url.startswith(served.url.replace("http", "ws") + "/api/v1/agent/streams/")
    assert served.until(lambda: streams(served) == [], "the order is taken back")


def test_the_other_stream_from_an_offset_and_what_is_gone(served: Served, running: tuple[Node, str]) -> None:
    node, id_ = running
    serving = Serving(node, frame(500, b"late", end=True, dropped=400), b"late")
    response = served.client.get(f"/api/v1/sessions/{id_}/logs?stream=stderr&offset=100&rank=0")
    assert (response.content, response.headers["corral-start-offset"]) == (b"late", "500")
    order = serving.done()
    assert (order.stream, order.offset) == ("stderr", 100)


def test_a_log_without_a_byte_is_empty_and_not_an_error(served: Served, running: tuple[Node, str]) -> None:
    node, id_ = running
    serving = Serving(node, frame(0, b"", end=True))
    response = served.client.get(f"/api/v1/sessions/{id_}/logs")
    assert (response.status_code, response.content) == (200, b"")
    serving.done()


def follow(served: Served, id_: str, query: str = "", **headers: str) -> Iterator[tuple[str | None, str, Any]]:
    with served.client.stream("GET", f"/api/v1/sessions/{id_}/logs?follow=1{query}", headers=headers) as response:
        assert response.status_code == 200, response.read()
        yield from events_of(response.iter_lines())


def test_following_gives_each_piece_with_the_offset_to_resume_from(served: Served, running: tuple[Node, str]) -> None:
    node, id_ = running
    euro = "€".encode()
    serving = Serving(
        node,
        frame(0, b"a" + euro[:1], end=False), b"a" + euro[:1],
        frame(2, euro[1:] + b"b", end=False), euro[1:] + b"b",
        frame(5, b"\xff\xfe", end=False), b"\xff\xfe",
        frame(7, b"", end=True),
    )  # fmt: skip
    events = list(follow(served, id_))
    assert [(id_, name) for id_, name, _ in events] == [("1", "log"), ("5", "log"), ("7", "log"), ("7", "end")]
    assert [data.get("text") for _, _, data in events] == ["a", "€b", None, None]
    assert base64.b64decode(events[2][2]["base64"]) == b"\xff\xfe"
    assert [(data["start"], data["next"]) for _, name, data in events if name == "log"] == [(0, 1), (1, 5), (5, 7)]
    assert events[-1][2] == {"attempt": 1, "next": 7}
    assert serving.done().follow


def test_half_a_character_at_the_very_end_is_not_kept_back(served: Served, running: tuple[Node, str]) -> None:
    node, id_ = running
    serving = Serving(node, frame(0, b"x\xe2\x82", end=False), b"x\xe2\x82", frame(3, b"", end=True))
    events = list(follow(served, id_))
    assert [data.get("text") for _, _, data in events] == ["x", None, None]
    assert base64.b64decode(events[1][2]["base64"]) == b"\xe2\x82"
    serving.done()


def test_a_hole_in_the_log_shows_in_the_offsets(served: Served, running: tuple[Node, str]) -> None:
    node, id_ = running
    serving = Serving(node, frame(0, b"a\xe2", end=False), b"a\xe2", frame(90, b"z", end=True), b"z")
    logs = [(data["start"], data["next"]) for _, name, data in follow(served, id_) if name == "log"]
    assert logs == [(0, 1), (1, 2), (90, 91)]
    serving.done()


def test_a_reader_that_was_cut_off_resumes_from_its_offset(served: Served, running: tuple[Node, str]) -> None:
    node, id_ = running
    for query, headers in (("&offset=5", {}), ("", {"Last-Event-ID": "5"})):
        serving = Serving(node, frame(5, b"rest", end=True), b"rest")
        assert next(follow(served, id_, query, **headers))[2]["text"] == "rest"
        assert serving.done().offset == 5


def test_following_may_begin_before_the_session_does(served: Served) -> None:
    id_ = served.submit()["id"]
    events = follow(served, id_)
    got: list[Any] = []
    reading = threading.Thread(target=lambda: got.extend(events))
    reading.start()
    node = served.node().register()
    (order,) = node.orders()
    node.exchange(fact(order.token, FactKind.ACCEPTED), fact(order.token, FactKind.READY))
    serving = Serving(node, frame(0, b"begun", end=True), b"begun")
    reading.join(WAIT_S)
    assert [data.get("text") for _, _, data in got] == ["begun", None]
    serving.done()


def test_a_manager_that_stops_ends_no_log(served: Served) -> None:
    id_ = served.submit(hold=True)["id"]
    path = f"/api/v1/sessions/{id_}/logs?follow=1"
    with served.client.stream("GET", path) as response:
        served.loop.call_soon_threadsafe(served.stopping.set)
        said = "\n".join(response.iter_lines())
    assert "event: unavailable" in said and "manager_stopping" in said and "event: end" not in said
    assert problem(served.client.get(path)) == (503, "manager_stopping")


def test_following_a_session_that_ended_without_beginning_ends(served: Served) -> None:
    id_ = served.submit(hold=True)["id"]
    got: list[Any] = []
    reading = threading.Thread(target=lambda: got.extend(follow(served, id_)))
    reading.start()
    assert problem(served.client.get(f"/api/v1/sessions/{id_}/logs")) == (409, "not_started")
    served.client.post(f"/api/v1/sessions/{id_}/cancel")
    reading.join(WAIT_S)
    assert [name for _, name, _ in got] == ["end"]
    never = served.client.get(f"/api/v1/sessions/{id_}/logs")
    assert problem(never) == (409, "not_started")
    assert f"session {id_} ended (cancelled) before rank 0 began" in never.json()["detail"]
    assert "follow" not in never.json()["detail"]


def test_a_node_that_does_not_come_makes_logs_unavailable_never_empty(database: Path) -> None:
    with Served(database, dial_wait_s=0.1) as served:
        node = served.node().register()
        id_ = served.submit()["id"]
        (order,) = node.orders()
        node.exchange(fact(order.token, FactKind.ACCEPTED), fact(order.token, FactKind.READY))
        response = served.client.get(f"/api/v1/sessions/{id_}/logs")
        assert problem(response) == (503, "node_unreachable")
        assert "retry-after" in response.headers
        assert "n1" in response.json()["detail"]
        assert problem(served.client.get(f"/api/v1/sessions/{id_}/logs?follow=1")) == (503, "node_unreachable")
        assert streams(served) == []


def test_a_node_that_lost_the_log_says_so(served: Served, running: tuple[Node, str]) -> None:
    node, id_ = running
    serving = Serving(node, '{"unavailable": "retention is over"}')
    response = served.client.get(f"/api/v1/sessions/{id_}/logs")
    assert problem(response) == (404, "logs_unavailable")
    assert "retention is over" in response.json()["detail"]
    serving.done()


def test_a_node_that_breaks_off_is_told_to_the_follower(served: Served, running: tuple[Node, str]) -> None:
    node, id_ = running
    got: list[Any] = []
    reading = threading.Thread(target=lambda: got.extend(follow(served, id_)))
    reading.start()
    with dial(node.stream()) as socket:
        socket.send(frame(0, b"half", end=False))
        socket.send(b"half")
    reading.join(WAIT_S)
    assert [(name, data.get("text"), data.get("code")) for _, name, data in got] == [
        ("log", "half", None), ("unavailable", None, "stream_cut"),
    ]  # fmt: skip


@pytest.mark.parametrize("rubbish", ["", "[]", "{}", '{"start": 0}', '{"start": "x", "next": 1}', b"\x00"])
def test_a_node_that_sends_rubbish_hurts_nobody_else(
    served: Served, running: tuple[Node, str], rubbish: str | bytes
) -> None:
    node, id_ = running
    serving = Serving(node, rubbish)
    assert problem(served.client.get(f"/api/v1/sessions/{id_}/logs")) == (503, "stream_cut")
    serving.done()
    assert served.get("/readyz")


def test_a_reader_that_leaves_frees_a_node_that_is_quiet(served: Served, running: tuple[Node, str]) -> None:
    node, id_ = running
    serving = Serving(node)
    with served.client.stream("GET", f"/api/v1/sessions/{id_}/logs?follow=1") as response:
        assert response.status_code == 200
        assert len(streams(served)) == 1
    serving.done()
    assert served.until(lambda: streams(served) == [], "the order is taken back")


def test_a_reader_that_leaves_ends_the_stream_of_a_node_that_floods(served: Served, running: tuple[Node, str]) -> None:
    node, id_ = running
    closed = threading.Event()

    def flood() -> None:
        part = b"x" * 100_000
        try:
            with dial(node.stream()) as socket:
                for number in range(100_000):
                    socket.send(frame(number * len(part), part, end=False))
                    socket.send(part)
        except ConnectionClosed:
            closed.set()

    flooding = threading.Thread(target=flood)
    flooding.start()
    with served.client.stream("GET", f"/api/v1/sessions/{id_}/logs?follow=1") as response:
        assert next(events_of(response.iter_lines()))[1] == "log"
    flooding.join(WAIT_S)
    assert closed.is_set()
    assert served.until(lambda: streams(served) == [], "the order is taken back")


def test_only_agents_may_dial_and_only_where_someone_waits(served: Served, running: tuple[Node, str]) -> None:
    node, id_ = running
    nobody = StreamOrder(id="x", url=served.url.replace("http", "ws") + "/api/v1/agent/streams/x", token="t",
                         stream="stdout", offset=0, follow=False)  # fmt: skip
    for token in ("wrong", TOKENS["admin"], TOKENS["agents"]):
        with pytest.raises((InvalidStatus, ConnectionClosed)), dial(nobody, token) as socket:
            socket.recv(WAIT_S)
    assert bearer("agents")
    reading = threading.Thread(target=lambda: served.client.get(f"/api/v1/sessions/{id_}/logs"))
    reading.start()
    order = node.stream()
    with dial(order) as first:
        with pytest.raises((InvalidStatus, ConnectionClosed)), dial(order) as second:
            second.recv(WAIT_S)
        first.send(frame(0, b"", end=True))
        reading.join(WAIT_S)


@pytest.mark.parametrize(("query", "status", "code"), [
    ("rank=1", 404, "no_such_rank"), ("attempt=2", 404, "no_such_attempt"), ("rank=-1", 422, "bad_request"),
    ("stream=stdin", 422, "bad_request"), ("offset=-1", 422, "bad_request"), ("attempt=0", 422, "bad_request"),
])  # fmt: skip
def test_logs_that_cannot_be(served: Served, running: tuple[Node, str], query: str, status: int, code: str) -> None:
    _, id_ = running
    for follow_too in ("", "&follow=1"):
        assert problem(served.client.get(f"/api/v1/sessions/{id_}/logs?{query}{follow_too}")) == (status, code)
