"""Submitting: one, many, again with the same key, or only asking."""

import hashlib
from typing import Any

import pytest

from corral.model.session import ID_LENGTH
from corral.model.spec import SessionSpec
from corral.ports import NewSession
from tests.api.face import Face, good, problem

TRUE = {"command": ["/bin/true"]}


def ids(face: Face) -> list[str]:
    return [one["id"] for one in face.get("/api/v1/sessions?limit=1000")["sessions"]]


def test_a_session_is_answered_with_its_place(face: Face) -> None:
    response = face.request("POST", "/api/v1/sessions", json=TRUE)
    session = good(response)
    assert response.status_code == 201
    assert response.headers["location"] == f"/api/v1/sessions/{session['id']}"
    assert face.get(response.headers["location"]) == session
    assert (session["phase"], session["wanted"], session["position"], session["owner"]) == (
        "pending",
        "run",
        1,
        "admin",
    )


def test_every_field_reaches_the_spec(face: Face) -> None:
    parent = face.submit()["id"]
    content = b"#!/bin/sh\n"
    digest = "sha256:" + hashlib.sha256(content).hexdigest()
    good(face.request("PUT", f"/api/v1/blobs/{digest}", content=content))
    body: dict[str, Any] = {
        "command": ["a", "b"], "name": "n", "project": "p", "priority": 3, "labels": ["k=v=w"],
        "cpus": "500m", "memory": "4GiB", "gpus": "A100:2", "vram": "20GB", "gpu_arch": "sm_80",
        "nodes": 2, "ranks_per_node": 3, "exclusive": True, "on": {"zone": "a"}, "node": "n1", "not_node": ["n2"],
        "prefer": ["disk=fast", "rack=a=b", "disk=slow", "disk=fast"],
        "env": {"A": "1"}, "workdir": "/w", "script": digest, "upload": digest, "bootstrap": digest,
        "mount": ["/a:/b:ro", {"source": "/c", "target": "/d"}], "port": ["web:80"], "time": "2h", "grace": 5,
        "signal": "SIGUSR1@120", "retries": 4, "continuations": 7, "requeue": False, "outcome_rule": "main-only",
        "hold": True,
        "runtime": "process", "begin": "+2h", "after": f"{parent}:any", "options": {"memory": "enforced"},
        "preemptible": False,
    }  # fmt: skip
    session = face.post("/api/v1/sessions", body)
    assert face.get(f"/api/v1/sessions/{session['id']}/spec") == {
        "command": ["a", "b"], "name": "n", "kind": "batch", "project": "p", "group": None, "priority": 3,
        "labels": {"k": "v=w"},
        "resources": {
            "cpu_milli": 500, "memory_mib": 4096,
            "gpu": {"count": 2, "share_milli": 1000, "vram_mib": 19074, "model": "A100", "arch": "sm_80"},
        },
        "nodes": 2, "ranks_per_node": 3, "exclusive": True, "on_labels": {"zone": "a"}, "on_nodes": ["n1"],
        "not_nodes": ["n2"], "prefer": [["disk", "fast"], ["rack", "a=b"], ["disk", "slow"]],
        "environment": {"A": "1"}, "workdir": "/w", "script": digest, "upload": digest,
        "bootstrap": digest,
        "mounts": [
            {"source": "/a", "target": "/b", "read_only": True}, {"source": "/c", "target": "/d", "read_only": False},
        ],
        "ports": {"web": 80}, "time_limit_s": 7200, "grace_s": 5, "early_signal": {"signal": "USR1", "before_s": 120},
        "retries": 4, "continuations": 7, "requeue": False, "on_node_loss": "hold", "outcome_rule": "main-only",
        "image": None,
        "preemptible": False,
        "runtime": "process", "hold": True, "begin": "+2h", "after": [f"{parent}:any"], "array": None, "env_compat": [],
        "options": {"memory": "enforced"},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        ({}, (1.0, 1024, None, None)),
        ({"cpus": 0.5, "memory": "512M"}, (0.5, 512, None, None)),
        ({"cpus": 2.0, "gpus": 2}, (2.0, 1024, 2, None)),
        ({"gpus": "0.5"}, (1.0, 1024, 0.5, None)),
        ({"gpus": 0}, (1.0, 1024, None, None)),
        ({"vram": "10GiB"}, (1.0, 1024, 0.0, 10240)),
        ({"gpus": 0.25, "vram": "10GiB"}, (1.0, 1024, 0.25, 10240)),
    ],
)
def test_amounts_are_what_people_write(face: Face, asked: dict[str, Any], shown: tuple[Any, ...]) -> None:
    resources = face.submit(**asked)["resources"]
    assert (resources["cpus"], resources["memory_mib"], resources["gpus"], resources["vram_mib"]) == shown


def test_a_repeated_key_answers_the_session_it_made(face: Face) -> None:
    key = {"Idempotency-Key": "k1"}
    first = face.request("POST", "/api/v1/sessions", json=TRUE, headers=key)
    again = face.request("POST", "/api/v1/sessions", json=TRUE, headers=key)
    in_body = face.request("POST", "/api/v1/sessions", json=TRUE | {"idempotency_key": "k1"})
    assert (first.status_code, again.status_code, in_body.status_code) == (201, 200, 200)
    assert first.json() == again.json() == in_body.json()
    other = face.request("POST", "/api/v1/sessions", json={"command": ["/bin/false"]}, headers=key)
    assert problem(other) == (409, "idempotency_conflict")
    assert first.json()["id"] in other.json()["detail"]
    two = face.request("POST", "/api/v1/sessions", json=TRUE | {"idempotency_key": "k2"}, headers=key)
    assert problem(two) == (422, "two_keys")
    assert len(ids(face)) == 1


def test_a_batch_is_all_or_nothing(face: Face) -> None:
    made = face.post("/api/v1/sessions:batch", {"sessions": [TRUE | {"name": f"s{i}"} for i in range(50)]})["sessions"]
    assert [one["name"] for one in made] == [f"s{i}" for i in range(50)]
    assert sorted(ids(face)) == sorted(one["id"] for one in made)
    for bad, code in (({"command": []}, "no_command"), (TRUE | {"group": "nowhere"}, "group_unknown"),
                      (TRUE | {"script": "sha256:" + "1" * 64}, "no_such_blob")):  # fmt: skip
        response = face.request("POST", "/api/v1/sessions:batch", json={"sessions": [TRUE, TRUE, bad]})
        assert problem(response)[1] == code
        if code == "no_command":
            assert response.json()["detail"].startswith("sessions[2]: ")
    assert len(ids(face)) == 50


def test_a_batch_has_one_key(face: Face) -> None:
    key = {"Idempotency-Key": "b1"}
    body = {"sessions": [TRUE, TRUE]}
    first = face.request("POST", "/api/v1/sessions:batch", json=body, headers=key)
    again = face.request("POST", "/api/v1/sessions:batch", json=body, headers=key)
    assert (first.status_code, again.status_code) == (201, 200)
    assert [one["id"] for one in first.json()["sessions"]] == [one["id"] for one in again.json()["sessions"]]
    more = face.request("POST", "/api/v1/sessions:batch", json={"sessions": [TRUE, TRUE, TRUE]}, headers=key)
    assert problem(more) == (409, "idempotency_conflict")
    keyed = {"sessions": [TRUE | {"idempotency_key": "x"}]}
    assert problem(face.request("POST", "/api/v1/sessions:batch", json=keyed, headers=key)) == (422, "two_keys")
    assert len(ids(face)) == 2


def test_sessions_of_a_batch_may_have_keys_of_their_own(face: Face) -> None:
    body = {"sessions": [TRUE | {"idempotency_key": "x"}, TRUE | {"idempotency_key": "y"}]}
    first = face.post("/api/v1/sessions:batch", body)["sessions"]
    body["sessions"].append(TRUE | {"idempotency_key": "z"})
    again = face.post("/api/v1/sessions:batch", body)["sessions"]
    assert [one["id"] for one in again[:2]] == [one["id"] for one in first]
    assert len(ids(face)) == 3


@pytest.mark.parametrize("sessions", [[], [TRUE] * 10_001])
def test_a_batch_has_at_least_one_and_at_most_ten_thousand(face: Face, sessions: list[Any]) -> None:
    assert problem(face.request("POST", "/api/v1/sessions:batch", json={"sessions": sessions})) == (422, "bad_request")


def test_what_no_node_can_ever_do_is_refused_at_once_and_only_once_nodes_are_known(face: Face) -> None:
    asked = TRUE | {"gpus": 3}
    assert face.post("/api/v1/sessions:plan", asked)["infeasible"] is False
    face.post("/api/v1/sessions", asked)
    face.node(gpus=2).register()
    plan = face.post("/api/v1/sessions:plan", asked)
    assert (plan["fits_now"], plan["infeasible"]) == (False, True)
    assert plan["blockers"]
    assert problem(face.request("POST", "/api/v1/sessions", json=asked)) == (409, "infeasible")
    response = face.request("POST", "/api/v1/sessions:batch", json={"sessions": [TRUE, asked]})
    assert problem(response) == (409, "infeasible")
    assert face.post("/api/v1/sessions:plan", TRUE | {"gpus": 2})["fits_now"] is True
    face.submit(gpus=2)
    assert len(ids(face)) == 2


def test_a_group_that_is_not_there(face: Face) -> None:
    for path in ("/api/v1/sessions", "/api/v1/sessions:plan"):
        assert problem(face.request("POST", path, json=TRUE | {"group": "lab"})) == (404, "group_unknown")
    face.node(group="lab").register()
    assert face.submit(group="lab")["group"] == "lab"


def test_planning_stores_nothing(face: Face) -> None:
    face.post("/api/v1/sessions:plan", TRUE)
    assert ids(face) == []


def test_ids_may_be_shortened_while_they_are_unambiguous(face: Face) -> None:
    names = ["abcd000001", "abcd000002", "abce000001"]
    new = [NewSession(id_, SessionSpec(command=("x",)), "admin") for id_ in names]
    face.tx(lambda tx: tx.submit(new))
    assert face.get("/api/v1/sessions/abce")["id"] == "abce000001"
    assert face.get("/api/v1/sessions/ABCE")["id"] == "abce000001"
    assert face.get("/api/v1/sessions/abcd000002")["id"] == "abcd000002"
    response = face.request("GET", "/api/v1/sessions/abcd")
    assert problem(response) == (409, "ambiguous_id")
    assert response.json()["candidates"] == names[:2]
    assert problem(face.request("GET", "/api/v1/sessions/abc")) == (404, "no_such_session")
    assert len(names[0]) == ID_LENGTH


def test_last_is_the_callers_newest(face: Face) -> None:
    face.submit("admin")
    ann = face.submit("ann")["id"]
    newest = face.submit("admin")["id"]
    assert face.get("/api/v1/sessions/last")["id"] == newest
    assert face.get("/api/v1/sessions/last", "ann")["id"] == ann
    assert face.post("/api/v1/sessions/last/cancel", as_="ann")["id"] == ann


def test_content_is_stored_by_its_digest(face: Face) -> None:
    content = bytes(range(256)) * 1000
    digest = "sha256:" + hashlib.sha256(content).hexdigest()
    path = f"/api/v1/blobs/{digest}"
    assert face.request("HEAD", path).status_code == 404
    assert good(face.request("PUT", path, content=content)) == {"digest": digest, "size_bytes": len(content)}
    good(face.request("PUT", path, content=content))
    assert face.request("HEAD", path).status_code == 200
    assert problem(face.request("PUT", path, content=content + b"x")) == (422, "digest_differs")
    assert problem(face.request("PUT", "/api/v1/blobs/sha256:xyz", content=b"")) == (422, "bad_digest")
    assert face.request("GET", f"/api/v1/agent/blobs/{digest}", "agents").content == content
    missing = face.request("GET", "/api/v1/agent/blobs/sha256:" + "0" * 64, "agents")
    assert problem(missing) == (404, "no_such_blob")


def test_a_record_that_cannot_be_read_says_so_and_hurts_no_other(face: Face) -> None:
    broken, other = face.submit()["id"], face.submit()["id"]
    face.tx(lambda tx: tx._connection.rows(f"UPDATE session SET spec = '{{' WHERE id = '{broken}' RETURNING id"))  # pyright: ignore
    assert problem(face.request("GET", f"/api/v1/sessions/{broken}")) == (409, "broken_record")
    assert ids(face) == [other, broken]
    doctor = face.get("/api/v1/doctor")
    assert not doctor["ok"]
    assert broken in [finding["subject"] for finding in doctor["findings"]]


def test_an_operator_ends_a_session_whose_record_cannot_be_read(face: Face) -> None:
    broken = face.submit(as_="ann")["id"]
    face.tx(lambda tx: tx._connection.rows(f"UPDATE session SET spec = '{{' WHERE id = '{broken}' RETURNING id"))  # pyright: ignore
    (found,) = [one for one in face.get("/api/v1/doctor")["findings"] if one["subject"] == broken]
    assert f"`corral cancel {broken}`" in found["message"]
    path = f"/api/v1/sessions/{broken}"
    for verb in ("hold", "release", "requeue"):
        assert problem(face.request("POST", f"{path}/{verb}")) == (409, "broken_record")
    assert problem(face.request("POST", f"{path}/cancel", "bob")) == (404, "no_such_session")
    ended = face.post(f"/api/v1/sessions/{broken[:6]}/cancel")
    assert (ended["phase"], ended["outcome"], ended["exit_code"], ended["owner"]) == ("ended", "cancelled", 130, "ann")
    assert face.get("/api/v1/doctor")["ok"]
    assert ids(face) == [broken]
    assert [one["fact"] for one in face.get(f"{path}/history")][:3] == ["submitted", "set_aside", "cancel"]
    assert problem(face.request("POST", f"{path}/requeue")) == (409, "broken_record")
