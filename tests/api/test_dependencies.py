"""`after`: whom a session waits for, what is said of it, and whose sessions may be waited for."""

import pytest

from corral.reconcile import dependencies
from corral.reconcile.dependencies import settle_dependents
from tests.api.face import Face, Served, problem
from tests.api.test_begin import codes
from tests.api.test_groups import place


def settle(face: Face) -> None:
    face.tx(lambda tx: settle_dependents(tx, tx.decided_dependents(100), "manager:test"))


def test_a_dependent_says_whom_it_waits_for(face: Face) -> None:
    face.node().register()
    parent = face.submit(hold=True)["id"]
    child = face.submit(after=[f"{parent[:6]}:any", "last"])["id"]
    assert face.get(f"/api/v1/sessions/{child}/spec")["after"] == [f"{parent[:6]}:any", "last:ok"]
    shown = face.get(f"/api/v1/sessions/{child}")
    assert codes(shown["refusals"]) == {"dependency"} and parent in shown["refusals"][0]["message"]
    told = face.get(f"/api/v1/sessions/{child}/explain")
    assert "dependency" in codes(told["blockers"])
    assert place(face) == []
    face.post(f"/api/v1/sessions/{parent}/cancel")
    settle(face)
    ended = face.get(f"/api/v1/sessions/{child}")
    assert (ended["phase"], ended["outcome"], ended["reason"]["code"]) == ("ended", "cancelled", "dependency_failed")
    assert ended["exit_code"] == 130


def test_what_can_never_be_met_is_told_before_it_is_submitted(face: Face) -> None:
    parent = face.submit(hold=True)["id"]
    for path in ("/api/v1/sessions", "/api/v1/sessions:plan"):
        body = {"command": ["true"], "after": [f"{parent}:ok", f"{parent[:6]}:notok"]}
        assert problem(face.request("POST", path, json=body)) == (422, "bad_dependency")
    face.post(f"/api/v1/sessions/{parent}/cancel")
    for kind, expected in (("ok", {"dependency_failed"}), ("notok", set()), ("any", set())):
        plan = face.post("/api/v1/sessions:plan", {"command": ["true"], "after": f"{parent}:{kind}"})
        assert codes(plan["blockers"]) & {"dependency", "dependency_failed"} == expected
    array = face.submit(array="0-9", hold=True)["id"]
    plan = face.post("/api/v1/sessions:plan", {"command": ["true"], "after": array})
    assert "dependency" in codes(plan["blockers"])


def test_unknown_and_foreign_sessions_are_not_found(face: Face) -> None:
    foreign = face.submit("bob")["id"]
    for path in ("/api/v1/sessions", "/api/v1/sessions:plan"):
        for id_ in ("zzzzzzzzzz", foreign, "nonsense!", "last"):
            body = {"command": ["true"], "after": id_}
            assert problem(face.request("POST", path, "ann", json=body)) == (404, "no_such_session"), id_
    assert face.get("/api/v1/sessions", as_="ann")["sessions"] == []
    batch = {"sessions": [{"command": ["true"]}, {"command": ["true"], "after": [foreign]}]}
    assert problem(face.request("POST", "/api/v1/sessions:batch", "ann", json=batch)) == (404, "no_such_session")
    assert face.get("/api/v1/sessions", as_="ann")["sessions"] == [], "all or none"


def test_nobody_has_more_dependents_than_a_pass_may_look_at(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dependencies, "MOST_DEPENDENTS", 3)
    parent, other = face.submit("ann", hold=True)["id"], face.submit("bob", hold=True)["id"]
    for _ in range(2):
        face.submit("ann", after=parent)
    two = {"sessions": [{"command": ["true"], "after": [parent]}] * 2}
    answer = face.request("POST", "/api/v1/sessions:batch", "ann", json=two)
    assert problem(answer) == (409, "too_many_dependents") and "2 sessions of ann" in answer.json()["detail"]
    face.submit("bob", after=other)
    third = face.submit("ann", after=parent)["id"]
    assert problem(face.request("POST", "/api/v1/sessions", "ann", json=two["sessions"][0])) == (
        409,
        "too_many_dependents",
    )
    face.post(f"/api/v1/sessions/{third}/cancel", as_="ann")
    face.submit("ann", after=parent)


def test_one_request_names_so_many_and_no_more(face: Face) -> None:
    parent = face.submit(hold=True)["id"]
    body = {"sessions": [{"command": ["true"], "after": [f"{parent}:{kind}" for kind in ("ok", "any")]}] * 5001}
    answer = face.request("POST", "/api/v1/sessions:batch", json=body)
    assert problem(answer) == (422, "bad_dependency") and "10002" in answer.json()["detail"]


def test_a_dependent_that_cannot_be_read_is_looked_at_once(face: Face) -> None:
    parent = face.submit(hold=True)["id"]
    child = face.submit(after=f"{parent}:any")["id"]
    face.post(f"/api/v1/sessions/{parent}/cancel")
    face.tx(lambda tx: tx._run("UPDATE session SET spec = '{' WHERE id = :id", id=child))  # pyright: ignore
    assert face.tx(lambda tx: tx.decided_dependents(9)) == [child]
    settle(face)
    assert face.tx(lambda tx: tx.decided_dependents(9)) == []
    assert child in face.tx(lambda tx: tx.broken([child]))


def test_a_repeated_submit_waits_for_what_it_waited_for(face: Face) -> None:
    parent = face.submit(hold=True)["id"]
    first = face.submit(after=["last"], idempotency_key="k")["id"]
    assert face.submit(after=["last"], idempotency_key="k")["id"] == first
    needs = face.tx(lambda tx: tx.dependencies([first]))
    assert [row.needs for row in needs[first]] == [parent]


def test_a_chain_runs_in_its_order(served: Served) -> None:
    node = served.node().register()
    first = served.submit(hold=True)["id"]
    second = served.submit(after=[first])["id"]
    third = served.submit(after=[f"{second}:any"])["id"]
    served.client.post(f"/api/v1/sessions/{first}/cancel")

    def ended() -> bool:
        return served.get(f"/api/v1/sessions/{second}")["phase"] == "ended"

    served.until(ended, "the second can never start")

    def starting() -> bool:
        node.exchange()
        return served.get(f"/api/v1/sessions/{third}")["phase"] == "starting"

    served.until(starting, "the third starts whatever became of the second")
    facts = [one["fact"] for one in served.get(f"/api/v1/sessions/{third}/history")]
    assert facts == ["submitted", "dependency_met", "placed", "claimed"]
