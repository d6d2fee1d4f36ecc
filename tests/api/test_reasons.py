"""All that keeps a session from starting is said, wherever it is shown."""

from typing import Any

import pytest

from tests.api.face import Face
from tests.api.test_groups import GROUPS, place


def codes(told: list[dict[str, Any]]) -> list[str]:
    return [one["code"] for one in told]


def shown(face: Face, id_: str) -> dict[str, list[str]]:
    listed = {one["id"]: one for one in face.get("/api/v1/sessions")["sessions"]}
    return {
        "ps": codes(listed[id_]["refusals"]),
        "show": codes(face.get(f"/api/v1/sessions/{id_}")["refusals"]),
        "explain": codes(face.get(f"/api/v1/sessions/{id_}/explain")["blockers"]),
    }


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"hold": True}, ["held"]),
        ({"begin": "+2h"}, ["begin_not_reached"]),
        ({"after": "PARENT"}, ["dependency"]),
        ({"hold": True, "begin": "+2h"}, ["held", "begin_not_reached"]),
        ({"hold": True, "after": "PARENT"}, ["held", "dependency"]),
        ({"begin": "+2h", "after": "PARENT"}, ["begin_not_reached", "dependency"]),
        ({"hold": True, "begin": "+2h", "after": "PARENT"}, ["held", "begin_not_reached", "dependency"]),
    ],
)
def test_every_reason_is_told_where_several_hold(face: Face, fields: dict[str, Any], expected: list[str]) -> None:
    face.node().register()
    parent = face.submit(hold=True)["id"]
    asked = {name: parent if value == "PARENT" else value for name, value in fields.items()}
    full, like_it = face.submit(cpus="7.9")["id"], face.submit(cpus=5)["id"]
    id_ = face.submit(cpus=5, **asked)["id"]
    assert place(face) == [full]
    assert codes(face.get(f"/api/v1/sessions/{like_it}")["refusals"]) == ["not_enough_cpus"]
    assert shown(face, id_) == {where: [*expected, "not_enough_cpus"] for where in ("ps", "show", "explain")}
    plan = face.post("/api/v1/sessions:plan", {"command": ["true"], "cpus": 5, **asked})
    assert codes(plan["blockers"]) == [*expected, "not_enough_cpus"] and plan["estimate"] is None
    small = face.post("/api/v1/sessions:plan", {"command": ["true"], "cpus": "0.1", **asked})
    assert codes(small["blockers"]) == expected, "whatever room there is"


def test_nobody_is_behind_those_who_are_not_there(face: Face) -> None:
    face.node().register()
    first, second = face.submit(cpus=1)["id"], face.submit(cpus=1)["id"]
    assert face.get(f"/api/v1/sessions/{first}/explain")["blockers"] == []
    (behind,) = face.get(f"/api/v1/sessions/{second}/explain")["blockers"]
    assert (behind["code"], behind["message"]) == ("behind", "1 session is before it")


def test_what_was_told_before_it_left_the_line_is_not_told_any_more(face: Face) -> None:
    face.node().register()
    full, id_ = face.submit(cpus=8)["id"], face.submit(cpus=5)["id"]
    assert place(face) == [full]
    face.post(f"/api/v1/sessions/{id_}/hold")
    assert shown(face, id_)["show"] == ["held"], "nobody has asked since whether there is room"
    assert shown(face, id_)["explain"] == ["held", "not_enough_cpus"], "who asks now is told"


def test_each_class_of_nodes_says_all_of_its_reasons(face: Face) -> None:
    face.node(gpus=4).register()
    face.node("n2").register()
    face.node("n3", group="other", gpus=4).register()
    face.post(f"{GROUPS}/other/pause")
    face.submit(cpus=8, gpus=4)
    face.submit(cpus=8)
    assert len(place(face)) == 2
    id_ = face.submit(cpus=2, gpus=2)["id"]
    told = face.get(f"/api/v1/sessions/{id_}/explain")
    found = {one["name"]: (one["nodes"], one["fitting"], codes(one["blockers"])) for one in told["classes"]}
    kinds = {name.partition(", ")[0] + (" with" if "x" in name else " without") for name in found}
    assert kinds == {"default with", "default without", "other with"}
    assert sorted(found.values(), key=repr) == [
        (1, 0, ["group_paused"]),
        (1, 0, ["no_gpus", "not_enough_cpus"]),
        (1, 0, ["not_enough_cpus", "not_enough_gpus"]),
    ]
    plan = face.post("/api/v1/sessions:plan", {"command": ["true"], "cpus": 2, "gpus": 2})
    assert plan["classes"] == told["classes"] and plan["blockers"] == told["blockers"]
    assert {one["code"]: one["counts"]["nodes"] for one in told["blockers"]} == {
        "group_paused": 1, "no_gpus": 1, "not_enough_cpus": 2, "not_enough_gpus": 1,
    }  # fmt: skip


def test_what_could_never_be_is_told_apart(face: Face) -> None:
    face.node(gpus=4).register()
    plan = face.post("/api/v1/sessions:plan", {"command": ["true"], "cpus": 100, "gpus": 5})
    assert (plan["fits_now"], plan["infeasible"]) == (False, True)
    assert codes(plan["classes"][0]["blockers"]) == ["not_enough_cpus", "not_enough_gpus"]
    assert all("even empty" in one["message"] for one in plan["blockers"])
