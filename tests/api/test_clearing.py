"""Defragmenting over REST: for administrators, a plan moves nobody, what makes no sense is refused."""

from typing import Any

import pytest

from tests.api.face import Face, problem

PATH = "/api/v1/defragmentation"
NOTHING: dict[str, Any] = {"moves": [], "won": [], "given_up": []}


def test_who_waits_for_room_that_no_move_makes_is_given_up(face: Face) -> None:
    face.node("n1").register()
    assert face.get(PATH) == NOTHING
    cpus = face.get("/api/v1/nodes")[0]["cpus"]
    first = face.submit(cpus=cpus)["id"]
    assert face.get(PATH) == NOTHING  # it fits as things are
    second = face.submit(cpus=cpus)["id"]
    assert face.get(PATH) == NOTHING | {"given_up": [second]}
    found = face.get(PATH, params={"gpus": 512, "count": 2})
    assert found["given_up"] == [second, "room-1", "room-2"]
    assert face.get(f"/api/v1/sessions/{first}")["phase"] == "pending"
    assert face.get(PATH, params={"group": "default"}) == NOTHING  # neither said that it must be there


@pytest.mark.parametrize(
    ("params", "status", "code"),
    [
        ({"moves": 0}, 422, "bad_request"),
        ({"count": 0}, 422, "bad_request"),
        ({"gpus": -1}, 422, "bad_request"),
        ({"group": "no"}, 404, "group_unknown"),
    ],
)
def test_what_makes_no_sense_is_refused(face: Face, params: dict[str, Any], status: int, code: str) -> None:
    assert problem(face.request("GET", PATH, params=params)) == (status, code)
    assert problem(face.request("POST", PATH, json=params)) == (status, code)


def test_to_carry_out_a_plan_without_moves_moves_nobody(face: Face) -> None:
    face.node("n1").register()
    cpus = face.get("/api/v1/nodes")[0]["cpus"]
    ids = [face.submit(cpus=cpus)["id"] for _ in range(2)]
    done = face.post(PATH, {"moves": 5})
    assert done == {"plan": NOTHING | {"given_up": ids[1:]}, "begun": [], "refused": []}
    assert {face.get(f"/api/v1/sessions/{id_}")["phase"] for id_ in ids} == {"pending"}
    assert problem(face.request("POST", PATH, json={"move": 5})) == (422, "bad_request")


def test_it_is_for_administrators(face: Face) -> None:
    assert face.request("GET", PATH, as_="ann").status_code == 403
    assert face.request("POST", PATH, as_="ann", json={}).status_code == 403
