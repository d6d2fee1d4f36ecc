"""The agents' routes: registration, the parked exchange, and what wakes it."""

import threading
from collections.abc import Callable
from typing import TypeVar

import msgspec
import pytest

from corral import wire
from corral.clock import SystemClock
from corral.model.session import FactKind
from tests.api.face import WAIT_S, Face, Served, fact, problem

T = TypeVar("T")
clock = SystemClock()


class Running:
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._thread = threading.Thread(target=self._run, args=(call,))
        self._answer: list[object] = []
        self._thread.start()

    def _run(self, call: Callable[[], object]) -> None:
        try:
            self._answer.append(call())
        except BaseException as error:
            self._answer.append(error)

    def answer(self) -> wire.Desired:
        self._thread.join(WAIT_S)
        assert self._answer, "no answer in time"
        assert isinstance(self._answer[0], wire.Desired), self._answer[0]
        return self._answer[0]

    @property
    def waits(self) -> bool:
        return not self._answer


def parked(served: Served) -> bool:
    return any(channel.startswith("node:") for channel in served.store.wakeups._watches)  # pyright: ignore


def test_a_parked_exchange_hears_of_a_new_session_at_once(served: Served) -> None:
    node = served.node().register()
    node.exchange()
    waiting = Running(lambda: node.exchange(wait_s=30.0))
    served.until(lambda: parked(served), "the exchange is parked")
    began = clock.mono()
    served.submit()
    (order,) = waiting.answer().orders
    assert order.launch is not None
    assert clock.mono() - began < 10


def test_an_exchange_with_nothing_new_is_answered_when_its_time_is_out(face: Face) -> None:
    node = face.node().register()
    began = clock.mono()
    desired = node.exchange(wait_s=0.2)
    assert (desired.orders, desired.stale) == ([], False)
    assert clock.mono() - began >= 0.2


def test_facts_are_acknowledged_at_once(served: Served) -> None:
    node = served.node().register()
    served.submit()
    (order,) = node.orders()
    began = clock.mono()
    node.exchange(fact(order.token, FactKind.ACCEPTED), wait_s=30.0)
    assert clock.mono() - began < 10


def test_a_newer_exchange_frees_the_place_of_the_older(served: Served) -> None:
    node = served.node().register()
    node.exchange()
    older_message = node.message(wait_s=30.0)
    older = Running(lambda: node.send(older_message))
    served.until(lambda: parked(served), "the exchange is parked")
    newer = Running(lambda: node.send(older_message))
    assert older.answer().orders == []
    assert newer.waits
    served.submit()
    assert newer.answer().orders


def test_what_is_said_without_parking_frees_the_place_too(served: Served) -> None:
    node = served.node().register()
    node.exchange()
    given_up = node.message(wait_s=30.0)
    older = Running(lambda: node.send(given_up))
    served.until(lambda: parked(served), "the exchange is parked")
    served.until(lambda: not node.exchange().orders and not older.waits, "its place is free")
    assert older.answer().orders == []


def test_the_manager_ends_parked_exchanges_when_it_stops(served: Served) -> None:
    node = served.node().register()
    node.exchange()
    waiting = Running(lambda: node.exchange(wait_s=30.0))
    served.until(lambda: parked(served), "the exchange is parked")
    served.loop.call_soon_threadsafe(served.stopping.set)
    assert waiting.answer().orders == []


def test_an_agent_that_is_not_who_holds_the_node_is_told_so(face: Face) -> None:
    node = face.node().register()
    message = wire.Exchange(node="n1", incarnation="other", epoch=node.epoch, boot_id="boot", run_id="run",
                            nonces=("n0", "n1"), wait_s=30.0)  # fmt: skip
    assert node.send(message).stale
    unknown = face.node("n9")
    assert unknown.exchange(wait_s=30.0).stale


@pytest.mark.parametrize("path", ["/api/v1/agent/register", "/api/v1/agent/exchange"])
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b'{"node": 1}', b"\xff", b'{"facts": [{"kind": "dance"}]}'])
def test_messages_that_do_not_fit(face: Face, path: str, body: bytes) -> None:
    assert problem(face.request("POST", path, "agents", content=body)) == (422, "bad_message")


def test_a_name_that_another_agent_holds(face: Face) -> None:
    face.node().register()
    other = face.node()
    other.registration = wire.decode(
        wire.encode(other.registration).replace(b'"one"', b'"two"').replace(b'"n0","n1"', b'"x","y"'), wire.Registration
    )
    response = face.request("POST", "/api/v1/agent/register", "agents", content=wire.encode(other.registration))
    assert problem(response) == (409, "identity_in_use")


def test_launches_that_the_ledger_does_not_know_are_shown_until_they_are_gone(face: Face) -> None:
    node, other = face.node("n1").register(), face.node("n2").register()
    token = "1-k3f9x2m4qa-1-0"
    node.send(msgspec.structs.replace(node.message(), foreign=[token]))
    node.exchange()
    other.exchange()
    counts = {one["name"]: one["foreign"] for one in face.get("/api/v1/nodes")}
    assert counts == {"n1": 1, "n2": 0}
    (found,) = face.get("/api/v1/nodes/n1")["foreign"]
    assert (found["node"], found["token"]) == ("n1", token)
    doctor = face.get("/api/v1/doctor")
    assert [(one["severity"], one["code"], one["subject"]) for one in doctor["findings"]] == [
        ("warning", "foreign_launch", token)
    ]
    assert doctor["ok"], "it is for a human to look at, and no promise broken"
    face.tx(lambda tx: tx._connection.rows("UPDATE foreign_token SET seen_at = seen_at - 60 RETURNING node"))  # pyright: ignore
    assert face.get("/api/v1/nodes/n1")["foreign"] == [], "the node spoke since and did not name it"
    assert face.get("/api/v1/doctor")["findings"] == []
