"""Quotas over REST: set by administrators, seen by those who fall under them, told to whoever they hold back."""

from datetime import datetime
from typing import Any

import pytest

from corral.model.session import FactKind
from tests.api.face import Face, Node, fact, problem
from tests.api.test_groups import place

QUOTAS, PLAN = "/api/v1/quotas", "/api/v1/sessions:plan"
NO_LIMITS = {
    "cpus": None, "memory_mib": None, "gpus": None, "vram_mib": None, "sessions": None, "waiting": None,
    "time_limit_s": None,
}  # fmt: skip


def put(face: Face, name: str, **fields: Any) -> dict[str, Any]:
    answer = face.request("PUT", f"{QUOTAS}/{name}", json=fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


def use(of: str, **held: Any) -> dict[str, Any]:
    nothing = {"cpus": 0.0, "memory_mib": 0, "gpus": 0.0, "vram_mib": 0, "sessions": 0, "waiting": None}
    return {"of": of} | nothing | held


def test_a_quota_from_its_making_to_its_end(face: Face) -> None:
    made = put(face, "ann", owner="ann", group="default", gpus="1.5", memory="4GiB", time="2h")
    assert made == {
        "name": "ann", "of": "owner ann in group default", "owner": "ann", "project": None, "domain": None,
        "group": "default", "limits": NO_LIMITS | {"gpus": 1.5, "memory_mib": 4096, "time_limit_s": 7200},
        "used": [use("owner ann in group default")], "version": 1,
    }  # fmt: skip
    changed = put(face, "ann", owner="ann", sessions=2, version=1)
    assert (changed["version"], changed["limits"]) == (2, NO_LIMITS | {"sessions": 2}), "exactly what was said"
    assert put(face, "ann", owner="ann", sessions=2)["version"] == 2, "nothing changed"
    assert problem(face.request("PUT", f"{QUOTAS}/ann", json={"owner": "ann", "sessions": 3, "version": 1})) == (
        409, "version_conflict",
    )  # fmt: skip
    assert face.get(f"{QUOTAS}/ann") == changed and face.get(QUOTAS) == [changed]
    assert face.request("DELETE", f"{QUOTAS}/ann").json() == changed
    assert face.get(QUOTAS) == []
    history = face.get(f"{QUOTAS}/ann/history")
    assert [(one["seq"], one["fact"], one["by"], one["quota"]) for one in history] == [
        (1, "quota_set", "user:admin", "ann"), (2, "quota_set", "user:admin", "ann"),
        (3, "quota_deleted", "user:admin", "ann"),
    ]  # fmt: skip
    assert history[1]["detail"] == {"owner": "ann", "sessions": 2}
    assert face.get(f"{QUOTAS}/ann/history", params={"after": 2}) == history[2:]
    assert face.get("/api/v1/events:page")["events"] == history
    assert face.get("/api/v1/events:page", as_="ann")["events"] == []


@pytest.mark.parametrize(
    ("name", "body", "code"),
    [
        ("q", {}, "bad_quota"),
        ("q", {"owner": "ann"}, "bad_quota"),
        ("q", {"cpus": 1}, "bad_quota"),
        ("q", {"owner": "", "cpus": 1}, "bad_quota"),
        ("q", {"owner": "a\x00", "cpus": 1}, "bad_quota"),
        ("q", {"owner": "ann", "cpus": "many"}, "bad_cpus"),
        ("q", {"owner": "ann", "cpus": -1}, "bad_cpus"),
        ("q", {"owner": "ann", "gpus": "A100:2"}, "bad_gpus"),
        ("q", {"owner": "ann", "memory": "lots"}, "bad_memory"),
        ("q", {"owner": "ann", "vram": "99999999999TiB"}, "amount_too_large"),
        ("q", {"owner": "ann", "sessions": -1}, "bad_number"),
        ("q", {"owner": "ann", "sessions": "3"}, "bad_request"),
        ("q", {"owner": "ann", "sessions": 10**30}, "bad_quota"),
        ("q", {"owner": "ann", "time": 0}, "bad_quota"),
        ("q", {"owner": "ann", "disk": 1}, "bad_request"),
        ("q", {"project": "a//b", "cpus": 1}, "bad_quota"),
        ("q", {"project": "vision/", "cpus": 1}, "bad_quota"),
        ("q", {"group": "a b", "cpus": 1}, "bad_quota"),
        ("a%20b", {"owner": "ann", "cpus": 1}, "bad_name"),
        ("x%00", {"owner": "ann", "cpus": 1}, "bad_name"),
    ],
)
def test_bad_input_is_one_clear_error(face: Face, name: str, body: dict[str, Any], code: str) -> None:
    assert problem(face.request("PUT", f"{QUOTAS}/{name}", json=body)) == (422, code)
    assert face.get(QUOTAS) == []


def test_an_unknown_quota_is_not_found(face: Face) -> None:
    for name in ("nobody", "x%00y"):
        assert problem(face.request("GET", f"{QUOTAS}/{name}")) == (404, "no_such_quota")
        assert problem(face.request("GET", f"{QUOTAS}/{name}/history")) == (404, "no_such_quota")
        assert problem(face.request("DELETE", f"{QUOTAS}/{name}")) == (404, "no_such_quota")


def test_only_administrators_set_quotas_and_everybody_sees_his_own(face: Face) -> None:
    put(face, "ann", owner="ann", cpus=4)
    put(face, "bob", owner="bob", cpus=4)
    put(face, "each", owner="*", sessions=4)
    put(face, "vision", project="vision", cpus=4)
    put(face, "all", group="default", cpus=100)
    for method, path, body in (
        ("PUT", f"{QUOTAS}/ann", {"owner": "ann", "cpus": 8}),
        ("DELETE", f"{QUOTAS}/ann", None),
        ("GET", f"{QUOTAS}/ann/history", None),
    ):
        assert problem(face.request(method, path, "ann", json=body)) == (403, "not_allowed")
    assert [one["name"] for one in face.get(QUOTAS, as_="ann")] == ["all", "ann", "each"]
    assert problem(face.request("GET", f"{QUOTAS}/bob", "ann")) == (404, "no_such_quota")
    face.node().register()
    for owner in ("ann", "bob"):
        face.submit(as_=owner, project="vision")
    place(face)
    assert [one["name"] for one in face.get(QUOTAS, as_="ann")] == ["all", "ann", "each", "vision"]
    assert face.get(f"{QUOTAS}/each", as_="ann")["used"] == [use("owner ann", cpus=1.0, memory_mib=1024, sessions=1)]
    assert [one["of"] for one in face.get(f"{QUOTAS}/each")["used"]] == ["owner ann", "owner bob"]
    assert face.get(f"{QUOTAS}/vision", as_="bob")["used"] == [
        use("project vision", cpus=2.0, memory_mib=2048, sessions=2)
    ]


def test_whoever_is_held_back_is_told_by_what(face: Face) -> None:
    node = Node("n1", lambda path, body: face.request("POST", path, "agents", content=body)).register()
    put(face, "ann", owner="ann", cpus=2)
    running, waits = (face.submit(as_="ann", cpus=2)["id"] for _ in range(2))
    other = face.submit(as_="bob", cpus=2)["id"]
    assert place(face) == [running, other]
    shown = face.get(f"/api/v1/sessions/{waits}")
    assert [(one["code"], one["counts"]) for one in shown["refusals"]] == [
        ("quota_owner", {"limit": 2000, "used": 2000, "asked": 2000})
    ]
    (listed,) = face.get("/api/v1/sessions", params={"phase": "pending"})["sessions"]
    assert listed["refusals"] == shown["refusals"]
    told = face.get(f"/api/v1/sessions/{waits}/explain")
    assert (told["fits_now"], told["infeasible"], told["blockers"]) == (False, False, shown["refusals"])
    planned = face.post("/api/v1/sessions:plan", {"command": ["x"], "cpus": 1}, "ann")
    assert (planned["fits_now"], [one["code"] for one in planned["blockers"]]) == (False, ["quota_owner"])
    assert face.post("/api/v1/sessions:plan", {"command": ["x"], "cpus": 1}, "bob")["fits_now"]
    too_much = face.request("POST", "/api/v1/sessions", "ann", json={"command": ["x"], "cpus": 3})
    assert (
        problem(too_much) == (409, "infeasible") and "quota ann: owner ann may hold 2 CPUs" in too_much.json()["detail"]
    )
    never = face.post("/api/v1/sessions:plan", {"command": ["x"], "cpus": 3}, "ann")
    assert (never["infeasible"], never["blockers"][0]["code"]) == (True, "quota_owner")
    put(face, "ann", owner="ann", cpus=1)
    assert face.get(f"/api/v1/sessions/{waits}/explain")["infeasible"], "now it could never start"
    assert node.epoch == 1
    face.post(f"/api/v1/sessions/{running}/cancel", as_="ann")
    put(face, "ann", owner="ann", cpus=2)
    assert place(face) == [waits]


def test_too_many_that_wait_are_refused(face: Face) -> None:
    put(face, "few", owner="*", waiting=2)
    batch = {"sessions": [{"command": ["x"]}] * 2}
    assert problem(face.request("POST", "/api/v1/sessions:batch", "ann", json={"sessions": batch["sessions"] * 2})) == (
        409, "quota_waiting",
    )  # fmt: skip
    face.post("/api/v1/sessions:batch", batch, "ann")
    refused = face.request("POST", "/api/v1/sessions", "ann", json={"command": ["x"]})
    assert problem(refused) == (409, "quota_waiting") and "of owner ann 2 sessions may wait" in refused.json()["detail"]
    face.submit(as_="bob")
    assert [one["waiting"] for one in face.get(f"{QUOTAS}/few")["used"]] == [2, 1]
    assert _planned(face, "ann") == _planned(face, "bob", array="0-1") == ["quota_waiting"] and not _planned(
        face, "bob"
    )


def _planned(face: Face, owner: str, **fields: str) -> list[str]:
    told = face.post(PLAN, {"command": ["x"], **fields}, owner)["blockers"]
    return [one["code"] for one in told if one["code"].startswith("quota")]


def test_when_somebody_whom_a_quota_holds_back_starts_is_not_made_up(face: Face) -> None:
    face.node().register()
    put(face, "ann", owner="ann", cpus=2)
    running, waits = (face.submit(as_="ann", cpus=2)["id"] for _ in range(2))
    assert place(face) == [running]
    told = face.get(f"/api/v1/sessions/{waits}/explain")
    assert (told["position"], told["estimate"]) == (1, None)
    assert "quota ann would let it in" in told["estimate_unknown"]
    face.request("DELETE", f"{QUOTAS}/ann")
    face.post("/api/v1/groups/default/pause")
    told = face.get(f"/api/v1/sessions/{waits}/explain")
    assert told["estimate"] is None and told["estimate_unknown"] is None, "a paused group starts nobody"


def test_by_what_such_sessions_took_lately_not_by_how_often_others_started(face: Face) -> None:
    node = face.node().register()
    for _ in range(3):
        runs_of(face, "bob")
        (order,) = node.orders()
        node.exchange(*(fact(order.token, kind) for kind in (FactKind.ACCEPTED, FactKind.READY)))
        node.exchange(fact(order.token, FactKind.RESULT, 0), fact(order.token, FactKind.EXITED))
    put(face, "ann", owner="ann", cpus=2)
    runs_of(face, "ann", cpus=2)
    waits = face.submit(as_="ann", cpus=2)["id"]
    told = face.get(f"/api/v1/sessions/{waits}/explain")["estimate"]
    assert told["basis"] == "lately" and "quota ann counted" in told["message"]


def test_who_is_held_back_starts_when_those_under_its_quota_have_ended(face: Face) -> None:
    face.node().register()
    put(face, "ann", owner="ann", sessions=1)
    runs_of(face, "ann", time="10m")
    first, second = (face.submit(as_="ann", time="10m")["id"] for _ in range(2))
    estimates = [face.get(f"/api/v1/sessions/{id_}/explain", as_="ann")["estimate"] for id_ in (first, second)]
    assert [one["basis"] for one in estimates] == ["limits", "limits"]
    assert all("quota ann counted" in one["message"] for one in estimates)
    at = [datetime.fromisoformat(one["at"]) for one in estimates]
    assert (at[1] - at[0]).total_seconds() == pytest.approx(630, abs=30)


def runs_of(face: Face, owner: str, **fields: Any) -> str:
    id_ = face.submit(as_=owner, **fields)["id"]
    assert id_ in place(face)
    return id_


def test_what_would_start_it_within_the_quota_and_the_room_is_told(face: Face) -> None:
    node = face.node().register()
    put(face, "ann", owner="ann", cpus=3)
    runs_of(face, "ann", cpus=1)
    waits = face.submit(as_="ann", cpus=3)["id"]
    assert place(face) == []
    for told in (
        face.get(f"/api/v1/sessions/{waits}/explain", as_="ann"),
        face.post(PLAN, {"command": ["x"], "cpus": 3}, "ann"),
    ):
        assert told["changes"] == [
            {"option": "cpus", "value": "2", "message": "with --cpus 2 it would start now"}
        ]  # fmt: skip
    never = face.post(PLAN, {"command": ["x"], "cpus": 4}, "ann")
    assert never["infeasible"] and [one["value"] for one in never["changes"]] == ["2"]
    put(face, "short", owner="ann", time="1h")
    told = face.post(PLAN, {"command": ["x"], "cpus": 2, "time": "2h"}, "ann")
    assert [(one["option"], one["value"]) for one in told["changes"]] == [("time", "1h")]
    begins = face.submit(as_="bob", cpus=1, begin="+1h")["id"]
    (change,) = face.get(f"/api/v1/sessions/{begins}/explain", as_="bob")["changes"]
    assert (change["option"], change["value"]) == ("begin", None)
    face.submit(as_="bob", cpus=1)
    assert len(place(face)) == 1 and node.epoch == 1
    applied = face.submit(as_="ann", cpus=2, time="1h")["id"]
    assert place(face) == [applied], "what was suggested works"


def test_who_uses_a_quota_up_is_told_as_far_as_the_caller_may_know(face: Face) -> None:
    face.node().register()
    put(face, "vision", project="vision", cpus=4)
    mine = runs_of(face, "ann", cpus=1, project="vision", time="10m")
    theirs = [runs_of(face, "bob", cpus=number, project="vision/x") for number in (1, 2)]
    waits = face.submit(as_="ann", cpus=2, project="vision")["id"]
    path = f"/api/v1/sessions/{waits}/explain"
    seen = face.get(path, as_="ann")
    assert [(one["session"], one["sessions"], one["cpus"]) for one in seen["held_by"]] == [(mine, 1, 1), (None, 2, 3)]
    assert seen["held_by"][0]["until"] is not None and seen["held_by"][1]["until"] is None
    assert not any(id_ in str(seen) for id_ in (*theirs, "bob"))
    all_ = face.get(path)["held_by"]
    assert [(one["session"], one["quota"]) for one in all_] == [
        (theirs[1], "vision"), *((id_, "vision") for id_ in sorted([mine, theirs[0]]))
    ]  # fmt: skip


def test_use_and_limits_are_metrics(face: Face) -> None:
    put(face, "ann", owner="ann", cpus="2.5", sessions=3)
    put(face, "each", owner="*", cpus=1)
    face.node().register()
    face.submit(as_="ann")
    place(face)
    lines = face.request("GET", "/metrics").text.splitlines()
    told = {line for line in lines if line.startswith("corral_quota")}
    assert told == {
        'corral_quota_used{quota="ann",what="cpus"} 1.0', 'corral_quota_limit{quota="ann",what="cpus"} 2.5',
        'corral_quota_used{quota="ann",what="sessions"} 1.0', 'corral_quota_limit{quota="ann",what="sessions"} 3.0',
    }  # fmt: skip
    assert face.get("/api/v1/doctor")["ok"]
