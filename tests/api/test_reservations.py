"""Reservations and planned starts over REST: made by administrators, seen by everybody, told to whoever waits."""

from typing import Any

import pytest

from corral.reconcile.placement import PER_SHAPE, commit, new_refusals
from corral.reconcile.promising import ahead_of
from corral.scheduling.cycle import cycle
from tests.api.face import Face, Node, problem

RESERVATIONS = "/api/v1/reservations"


def reserve(face: Face, name: str = "maint", **fields: Any) -> dict[str, Any]:
    return face.post(RESERVATIONS, {"name": name, "node": ["n1"], "begin": "+1h", "length": "2h"} | fields)


def place(face: Face) -> None:
    """One scheduling pass."""

    def one_pass(tx: Any) -> None:
        snapshot = tx.snapshot(PER_SHAPE)
        plan = cycle(snapshot)
        told, ahead = new_refusals(snapshot, plan), ahead_of(snapshot, plan)
        commit(tx, plan, told, "manager:test", claiming=True, ahead=ahead)

    face.tx(one_pass)


@pytest.fixture
def node(face: Face) -> Node:
    return face.node().register()


def test_a_reservation_from_its_making_to_its_end(face: Face, node: Node) -> None:
    answer = face.request("POST", RESERVATIONS, json={
        "name": "maint", "group": "default", "nodes": 1, "begin": "+1h", "length": "2h", "owner": ["eve", "eve"],
        "project": ["p"], "reason": "disks",
    })  # fmt: skip
    assert answer.status_code == 201
    assert answer.headers["location"] == f"{RESERVATIONS}/maint"
    made = answer.json()
    assert (made["state"], made["nodes"], made["owners"], made["projects"]) == ("ahead", ["n1"], ["eve"], ["p"])
    assert (made["conflicts"], made["made_by"], made["version"]) == (0, "user:admin", 1)
    seen = made | {"owners": [], "others": 1}
    assert face.get(f"{RESERVATIONS}/maint", as_="ann") == seen, "who else it is for is nobody's business"
    assert face.get(RESERVATIONS, as_="ann") == [seen]
    assert face.request("DELETE", f"{RESERVATIONS}/maint").json() == made
    assert face.get(RESERVATIONS) == []
    (kept,) = face.get(RESERVATIONS, params={"every": "true"})
    assert (kept["state"], kept["deleted_by"], kept["reason"]) == ("deleted", "user:admin", "disks")


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"begin": "2020-01-01T00:00+00:00"}, 422, "in_the_past"),
        ({"begin": "soon"}, 422, "bad_begin"),
        ({"length": None, "end": "+30m"}, 422, "ends_before_it_begins"),
        ({"end": "+3h"}, 422, "bad_end"),
        ({"length": "0s"}, 422, "ends_before_it_begins"),
        ({"length": "99999d"}, 422, "out_of_range"),
        ({"node": ["n9"]}, 404, "no_such_node"),
        ({"node": []}, 422, "no_nodes"),
        ({"group": "default"}, 422, "contradiction"),
        ({"node": [], "group": "default", "nodes": 7}, 409, "not_enough_nodes"),
        ({"node": [], "group": "no"}, 404, "group_unknown"),
        ({"owner": ["a\nb"]}, 422, "bad_name"),
        ({"project": ["a//b"]}, 422, "bad_name"),
        ({"reason": "a\nb"}, 422, "bad_reason"),
        ({"name": "a b"}, 422, "bad_name"),
        ({"name": "there"}, 409, "reservation_exists"),
        ({"owner": ["eve"]}, 409, "reserved"),
    ],
)
def test_bad_input_is_refused_with_its_code(
    face: Face, node: Node, fields: dict[str, Any], status: int, code: str
) -> None:
    reserve(face, "there")
    before = face.get(RESERVATIONS)
    body = {"name": "maint", "node": ["n1"], "begin": "+1h", "length": "2h"} | fields
    assert problem(face.request("POST", RESERVATIONS, json=body)) == (status, code)
    assert face.get(RESERVATIONS) == before


def test_who_works_in_a_project_below_is_of_those_it_is_for(face: Face, node: Node) -> None:
    reserve(face, project=["vision"])
    ids = [face.submit("ann", project=name)["id"] for name in ("vision/detect", "visionary", "vision")]
    place(face)
    place(face)  # who runs is read once somebody finds no room
    assert [face.get(f"/api/v1/sessions/{id_}")["phase"] for id_ in ids] == ["starting", "pending", "starting"]
    assert [one["conflicts"] for one in face.get(RESERVATIONS)] == [0]


def test_users_see_reservations_and_do_not_make_them(face: Face, node: Node) -> None:
    body = {"name": "mine", "node": ["n1"], "length": "1h"}
    assert problem(face.request("POST", RESERVATIONS, "ann", json=body)) == (403, "not_allowed")
    reserve(face)
    assert problem(face.request("DELETE", f"{RESERVATIONS}/maint", "ann")) == (403, "not_allowed")
    assert problem(face.request("DELETE", f"{RESERVATIONS}/other")) == (404, "no_such_reservation")
    assert problem(face.request("GET", f"{RESERVATIONS}/other")) == (404, "no_such_reservation")


def test_what_runs_into_it_is_shown_to_whom_it_belongs(face: Face, node: Node) -> None:
    hers, his = face.submit("ann")["id"], face.submit("bob")["id"]
    place(face)
    made = reserve(face)
    assert (made["conflicts"], set(made["conflicting"])) == (2, {hers, his})
    (seen,) = face.get(RESERVATIONS, as_="ann")
    assert (seen["conflicts"], seen["conflicting"]) == (2, [hers])


def test_who_waits_for_a_reservation_is_told_and_what_time_limit_would_do(face: Face, node: Node) -> None:
    made = reserve(face)
    waits = face.submit("ann", time="2h")["id"]
    place(face)
    place(face)
    shown = face.get(f"/api/v1/sessions/{waits}", as_="ann")
    (why,) = shown["refusals"]
    assert (why["code"], why["counts"]) == ("reserved", {"nodes": 1})
    assert "maint" in why["message"]
    assert shown["planned_start"] == made["ends_at"]
    told = face.get(f"/api/v1/sessions/{waits}/explain", as_="ann")
    assert not told["fits_now"]
    assert [one["code"] for one in told["blockers"]] == ["reserved"]
    assert told["estimate"]["at"] == told["estimate"]["latest"] == made["ends_at"]
    assert told["estimate"]["basis"] == "limits"
    (change,) = told["changes"]
    assert change["option"] == "time"
    plan = face.post("/api/v1/sessions:plan", {"command": ["x"], "time": "2h"}, "bob")
    assert [one["code"] for one in plan["blockers"]] == ["reserved"]
    assert not plan["fits_now"]
    again = face.post("/api/v1/sessions:plan", {"command": ["x"], "time": change["value"]}, "bob")
    assert again["fits_now"]
    assert again["estimate"]["basis"] == "now"


def test_the_first_in_line_has_a_planned_start_and_those_behind_are_told_of_it(face: Face, node: Node) -> None:
    runs = face.submit("ann", cpus=6, time="1h")["id"]
    place(face)
    first, second = face.submit("ann", cpus=8, time="1h")["id"], face.submit("bob", cpus=1, time="2h")["id"]
    for _ in range(3):
        place(face)
    shown = face.get(f"/api/v1/sessions/{first}")
    assert shown["planned_start"] is not None
    (why,) = face.get(f"/api/v1/sessions/{second}")["refusals"]
    assert (why["code"], why["counts"]) == ("would_delay", {"nodes": 1})
    assert first in why["message"]
    told = face.get(f"/api/v1/sessions/{second}/explain")
    assert [one["code"] for one in told["blockers"]] == ["would_delay"]
    assert told["estimate"]["basis"] == "limits"
    assert told["changes"][0]["option"] == "time"
    assert [one["planned_start"] for one in face.get("/api/v1/sessions")["sessions"] if one["id"] == runs] == [None]
    hold = face.submit("ann", cpus=8, hold=True)["id"]
    assert face.get(f"/api/v1/sessions/{hold}/explain")["estimate"] is None


def test_where_no_end_is_known_no_start_is_made_up(face: Face, node: Node) -> None:
    face.submit("ann", cpus=8)
    place(face)
    waits = face.submit("ann", cpus=8)["id"]
    place(face)
    place(face)
    assert face.get(f"/api/v1/sessions/{waits}")["planned_start"] is None
    assert face.get(f"/api/v1/sessions/{waits}/explain")["estimate"] is None
