"""`prefer`: labels that a session would rather have on its nodes, as told before it starts and once it runs."""

from typing import Any

import msgspec

from tests.api.face import Face, Served


def labelled(face: Face | Served, name: str, **labels: str) -> Any:
    node = face.node(name)
    node.registration = msgspec.structs.replace(node.registration, labels=labels)
    return node.register()


def test_a_dry_run_says_where_the_labels_are(face: Face) -> None:
    labelled(face, "n1", zone="a")
    labelled(face, "n2", zone="a", disk="fast")
    body = {"command": ["x"], "prefer": ["zone=a", "zone=b", "disk=fast"], "not_node": "n1"}
    plan = face.post("/api/v1/sessions:plan", body)
    assert plan["fits_now"] and plan["blockers"] == []
    assert [(one["label"], one["counts"]) for one in plan["preferences"]] == [
        ("zone=a", {"nodes": 1, "fitting": 1}),
        ("zone=b", {"nodes": 0, "fitting": 0}),
        ("disk=fast", {"nodes": 1, "fitting": 1}),
    ]
    assert plan["preferences"][1]["message"] == "zone=b: no node it may go to"
    assert face.post("/api/v1/sessions:plan", {"command": ["x"]})["preferences"] == []


def test_one_that_no_node_can_meet_beside_a_constraint_is_taken(face: Face) -> None:
    labelled(face, "n1", zone="a")
    labelled(face, "n2", zone="b")
    body = {"command": ["x"], "on": {"zone": "a"}, "prefer": {"zone": "b"}}
    assert face.post("/api/v1/sessions:plan", body)["preferences"][0]["counts"] == {"nodes": 0, "fitting": 0}
    session = face.post("/api/v1/sessions", body)
    assert session["prefer"] == ["zone=b"]


def test_it_goes_where_it_would_rather_be_and_explain_says_so(served: Served) -> None:
    labelled(served, "n1", zone="a")
    node = labelled(served, "n2", zone="b")
    id_ = served.submit(prefer=["zone=b", "disk=fast"])["id"]
    (order,) = node.orders()
    assert order.launch is not None and order.launch.session == id_
    told = served.get(f"/api/v1/sessions/{id_}/explain")["preferences"]
    assert [one["message"] for one in told] == ["zone=b: 1 of its 1 node", "disk=fast: 0 of its 1 node"]
    waiting = served.submit(prefer=["zone=b"], cpus=8)["id"]
    full = served.submit(cpus=8, prefer=["zone=b"])["id"]
    served.until(lambda: served.get(f"/api/v1/sessions/{full}")["refusals"], "it is told why it waits")
    assert served.get(f"/api/v1/sessions/{waiting}")["phase"] != "pending", "n1 has room, and that is enough"
    (told,) = served.get(f"/api/v1/sessions/{full}/explain")["preferences"]
    assert told["message"] == "zone=b: 1 of the nodes it may go to, with room on 0 now"
