"""Verbs asked again, and asked with more than they take: a key makes twice once, and nothing is ignored."""

from __future__ import annotations

from typing import Any

import pytest

from corral.model.lifecycle import ExitClass
from corral.model.session import FactKind, KernelFact, Result
from tests.api.face import Face, Served, fact, good, problem

PATH = "/api/v1/sessions"


def requeue(face: Face, id_: str, key: str | None = None, as_: str = "admin") -> dict[str, Any]:
    return good(face.request("POST", f"{PATH}/{id_}/requeue", as_, headers={"Idempotency-Key": key} if key else {}))


def ended(face: Face, **fields: Any) -> str:
    id_ = face.submit(**fields)["id"]
    face.post(f"{PATH}/{id_}/cancel")
    return id_


@pytest.mark.parametrize("fields", [{}, {"array": "0-9"}], ids=["session", "array"])
def test_a_requeue_of_what_has_ended_makes_one_for_each_key(face: Face, fields: dict[str, Any]) -> None:
    id_ = ended(face, **fields)
    first, again, other = requeue(face, id_, "k1"), requeue(face, id_, "k1"), requeue(face, id_, "k2")
    assert first["requeue_of"] == again["requeue_of"] == id_
    assert first["id"] == again["id"] != other["id"]
    assert requeue(face, id_)["id"] != requeue(face, id_)["id"], "without a key each is a new one"
    face.post(f"{PATH}/{first['id']}/cancel")
    assert requeue(face, id_, "k1")["id"] == first["id"], "also once that one has ended"


def test_a_key_that_was_used_for_something_else_is_refused(face: Face) -> None:
    id_, two = ended(face), ended(face)
    good(face.request("POST", PATH, json={"command": ["x"]}, headers={"Idempotency-Key": "k1"}))
    requeue(face, two, "k2")
    for key in ("k1", "k2"):
        refused = face.request("POST", f"{PATH}/{id_}/requeue", headers={"Idempotency-Key": key})
        assert problem(refused) == (409, "idempotency_conflict")
    for key in (" ", "a\tb"):
        refused = face.request("POST", f"{PATH}/{id_}/requeue", headers={"Idempotency-Key": key})
        assert problem(refused) == (422, "bad_idempotency_key")


def test_one_that_lives_is_queued_again_once_for_each_key(served: Served) -> None:
    node = served.node().register()
    id_ = served.submit()["id"]

    def run(attempt: int) -> None:
        (order,) = [one for one in node.orders() if one.launch is not None and one.launch.attempt == attempt]
        node.exchange(fact(order.token, FactKind.ACCEPTED), fact(order.token, FactKind.READY))
        served.until(lambda: served.get(f"{PATH}/{id_}")["phase"] == "running", "it runs")

    def ask(key: str) -> dict[str, Any]:
        return good(served.client.post(f"{PATH}/{id_}/requeue", headers={"Idempotency-Key": key}))

    run(1)
    assert ask("k1")["phase"] == "stopping"
    assert ask("k1")["phase"] == "stopping", "not refused as stopping: it is what was asked for"
    (order,) = [one for one in node.orders() if one.stop is not None]
    stopped = Result(signal=15, exit_class=ExitClass.CANCELLED)
    node.exchange(KernelFact(order.token, FactKind.RESULT, 0.0, result=stopped), fact(order.token, FactKind.EXITED))
    run(2)
    again = ask("k1")
    assert (again["phase"], again["attempt"]) == ("running", 2)
    assert ask("k2")["phase"] == "stopping"
    told = [one["detail"] for one in served.get(f"{PATH}/{id_}/history") if one["fact"] == "requeue"]
    assert told == [{"key": "k1"}, {"key": "k2"}]


def test_a_key_counts_from_the_time_that_it_waits(face: Face) -> None:
    id_, array = face.submit(hold=True)["id"], face.submit(array="0-9")["id"]
    for each in (id_, array):
        for _ in range(2):
            assert requeue(face, each, "k1")["id"] == each
        assert [one["fact"] for one in face.get(f"{PATH}/{each}/history")].count("requeue") == 1
        face.post(f"{PATH}/{each}/cancel")
        assert requeue(face, each, "k1")["id"] == each, "it has ended since, and that is its answer"
        assert requeue(face, each, f"k2-{each}")["requeue_of"] == each


VERBS = [f"{PATH}/{{}}/{verb}" for verb in ("cancel", "hold", "release", "requeue")]
OTHERS = [
    "/api/v1/groups/default/pause",
    "/api/v1/groups/default/resume",
    "/api/v1/groups/default/schedule",
    "/api/v1/nodes/n1/confirm-dead",
]


@pytest.mark.parametrize("path", [*VERBS, *OTHERS])
def test_what_a_verb_does_not_take_is_refused_and_nothing_is_done(face: Face, path: str) -> None:
    face.node("n1").register()
    id_ = face.submit(hold=True)["id"]
    before = face.get(f"{PATH}/{id_}")
    for body, words in (
        ({"reason": "x"}, "reason: there is no such field"),
        ({"a": 1, "b": 2}, "a: there is no such field (and 1 more)"),
        ([1], "body: there is nothing to say here"),
        ("x", "body: there is nothing to say here"),
    ):
        refused = face.request("POST", path.format(id_), json=body)
        assert problem(refused) == (422, "bad_request")
        assert words in refused.json()["detail"]
    assert problem(face.request("POST", path.format(id_), content=b"{not json")) == (422, "bad_json")
    assert face.get(f"{PATH}/{id_}") == before
    assert not face.get("/api/v1/groups/default")["group"]["paused"]
    assert face.request("POST", path.format(id_), json={}).status_code in (200, 409), "that node is not silent"


def test_a_body_with_a_delete_is_refused_too(face: Face) -> None:
    face.post("/api/v1/groups", {"name": "fast"})
    refused = face.request("DELETE", "/api/v1/groups/fast", json={"force": True})
    assert problem(refused) == (422, "bad_request")
    assert face.get("/api/v1/groups/fast")["group"]["name"] == "fast"
