"""What is shown of sessions, and what users do to them."""

import hashlib
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from corral.api.render import slurm_state
from corral.model.lifecycle import ExitClass, Outcome, Phase
from corral.model.node import NodeState
from corral.model.session import FactKind, Session, Why
from corral.model.spec import SessionSpec
from corral.reconcile.placement import place_pass
from tests.api.face import Face, Served, fact, good, problem

PROMISED = {
    "id", "name", "kind", "project", "owner", "group", "priority", "phase", "outcome", "exit_class", "exit_code",
    "reason", "cause", "attempt", "wanted", "submitted_at", "started_at", "ended_at", "resources", "nodes", "kernels",
    "refusals", "position", "slurm_state", "labels",
}  # fmt: skip
PROMISED_OF_KERNELS = {"rank", "node", "devices", "phase", "exit_code", "started_at", "ended_at", "token"}


def ran(served: Served, *codes: int, **fields: Any) -> str:
    """A session that ran on a scripted node, one rank for each exit code."""
    node = served.node(gpus=2).register()
    id_ = served.submit(ranks_per_node=len(codes), **fields)["id"]
    tokens = [order.token for order in node.orders()]
    for kind in (FactKind.ACCEPTED, FactKind.READY):
        node.exchange(*(fact(token, kind) for token in tokens))
    node.exchange(*(fact(token, FactKind.RESULT, code) for token, code in zip(tokens, codes, strict=True)))
    node.exchange(*(fact(token, FactKind.EXITED) for token in tokens))
    assert served.get(f"/api/v1/sessions/{id_}/wait?timeout_s=20")["phase"] == "ended"
    return id_


def test_a_session_has_every_field_that_was_promised(served: Served) -> None:
    id_ = ran(served, 0, gpus=1, labels={"k": "v"}, name="first")
    session = served.get(f"/api/v1/sessions/{id_}")
    assert set(session) >= PROMISED
    assert (session["phase"], session["outcome"], session["exit_class"], session["exit_code"]) == (
        "ended", "succeeded", "ok", 0,
    )  # fmt: skip
    assert (session["name"], session["labels"], session["group"], session["nodes"]) == (
        "first",
        {"k": "v"},
        "default",
        1,
    )
    for name in ("submitted_at", "started_at", "ended_at"):
        assert session[name].endswith("Z")
    assert session["submitted_at"] <= session["started_at"] <= session["ended_at"]
    (kernel,) = session["kernels"]
    assert set(kernel) >= PROMISED_OF_KERNELS
    assert (kernel["rank"], kernel["node"], kernel["phase"], kernel["exit_code"]) == (0, "n1", "ended", 0)
    assert kernel["devices"] in (["SIM-n1-0"], ["SIM-n1-1"])
    assert kernel["token"].split("-")[1:] == [id_, "1", "0"]


def test_the_exit_code_is_the_deciding_ranks(served: Served) -> None:
    session = served.get(f"/api/v1/sessions/{ran(served, 0, 3)}")
    assert (session["outcome"], session["exit_class"], session["exit_code"]) == ("failed", "user", 3)
    assert [kernel["exit_code"] for kernel in session["kernels"]] == [0, 3]
    assert session["slurm_state"] == "FAILED"


def test_history_is_gapless_and_in_the_promised_form(served: Served) -> None:
    id_ = ran(served, 0)
    history = served.get(f"/api/v1/sessions/{id_}/history")
    assert [entry["seq"] for entry in history] == list(range(1, len(history) + 1))
    assert {"seq", "at", "from", "fact", "to", "attempt", "by", "detail"} <= set(history[0])
    assert [entry["fact"] for entry in history][:3] == ["submitted", "placed", "claimed"]
    assert (history[0]["from"], history[-1]["to"]) == (None, "ended")
    assert all(before["to"] == after["from"] for before, after in pairwise(history))
    assert served.get(f"/api/v1/sessions/{id_}/history?after=2&limit=1") == history[2:3]


def test_the_chain_of_a_launch_is_told_with_time_and_writer(served: Served) -> None:
    id_ = ran(served, 0, 0)
    audit = served.get(f"/api/v1/sessions/{id_}/launches")
    assert (audit["session"], audit["double_starts"], len(audit["launches"])) == (id_, [], 2)
    for launch in audit["launches"]:
        steps = {step["step"]: step for step in launch["steps"]}
        assert list(steps) == [
            "intent",
            "claim",
            "served",
            "accepted",
            "started",
            "result",
            "certified",
            "acknowledged",
        ]
        assert all(step["at"] and step["by"] for step in steps.values()), steps
        times = [step["at"] for step in launch["steps"]]
        assert times == sorted(times)
        assert steps["intent"]["by"].startswith("manager:")
        assert steps["started"]["by"] == "node:n1"
        assert steps["certified"]["detail"]["certificate"] == "exit"
        assert launch["starts"] == 1
    (attempt,) = served.get(f"/api/v1/sessions/{id_}/attempts")
    assert (attempt["attempt"], attempt["outcome"], attempt["live"]) == (1, "succeeded", False)


def test_waiting_ends_with_the_session_and_not_before(served: Served) -> None:
    node = served.node().register()
    id_ = served.submit()["id"]
    (order,) = node.orders()
    assert served.get(f"/api/v1/sessions/{id_}/wait?timeout_s=0")["phase"] != "ended"
    node.exchange(fact(order.token, FactKind.ACCEPTED), fact(order.token, FactKind.READY))
    assert served.get(f"/api/v1/sessions/{id_}/wait?timeout_s=0.05")["phase"] == "running"
    node.exchange(fact(order.token, FactKind.RESULT, 7), fact(order.token, FactKind.EXITED))
    ended = served.get(f"/api/v1/sessions/{id_}/wait?timeout_s=20")
    assert (ended["phase"], ended["exit_code"]) == ("ended", 7)


def test_explain_names_what_keeps_it_or_what_is_missing(served: Served) -> None:
    id_ = served.submit(hold=True, cpus=8)["id"]
    path = f"/api/v1/sessions/{id_}/explain"
    assert [one["code"] for one in served.get(path)["blockers"]] == ["held", "no_nodes"]
    node = served.node().register()
    assert [one["code"] for one in served.get(path)["blockers"]] == ["held"]
    good(served.client.post(f"/api/v1/sessions/{id_}/release"))
    (order,) = node.orders()
    told = served.get(path)
    assert (told["phase"], told["missing"]) == ("starting", ["rank 0 on n1: to be accepted by the node"])
    other = served.submit(cpus=8)["id"]
    blockers = served.until(
        lambda: served.get(f"/api/v1/sessions/{other}")["refusals"], "the pass notes why it does not start"
    )
    assert blockers[0]["counts"] == {"nodes": 1}
    explained = served.get(f"/api/v1/sessions/{other}/explain")
    assert explained["blockers"]
    assert explained["changes"] == []
    node.exchange(fact(order.token, FactKind.ACCEPTED))
    assert served.get(path)["missing"] == ["rank 0 on n1: workspace and command being prepared"]
    node.exchange(fact(order.token, FactKind.READY))
    assert served.get(path)["summary"] == "it is running"


def test_the_smallest_change_with_which_it_would_start_is_named(face: Face) -> None:
    face.node().register()
    plan = face.post("/api/v1/sessions:plan", {"command": ["x"], "nodes": 3})
    assert [(one["option"], one["value"]) for one in plan["changes"]] == [("nodes", "1")]
    assert plan["changes"][0]["message"] == "with --nodes 1 it would start now"


def test_explain_says_why_a_session_failed_and_how_the_attempt_before_ended(served: Served) -> None:
    node = served.node().register()
    failed = served.submit()["id"]
    (order,) = node.orders()
    for kind, code in (
        (FactKind.ACCEPTED, None),
        (FactKind.READY, None),
        (FactKind.RESULT, 7),
        (FactKind.EXITED, None),
    ):
        node.exchange(fact(order.token, kind, code))
    assert served.get(f"/api/v1/sessions/{failed}/explain")["summary"] == "it has ended, failed: exit code 7 (user)"
    refused = served.submit()["id"]
    (order,) = node.orders()
    node.exchange(fact(order.token, FactKind.REFUSED, why=Why("node_disk", "no room under /var/lib")))
    told = served.get(f"/api/v1/sessions/{refused}/explain")
    assert (told["phase"], told["blockers"][0]["code"]) == ("pending", "backing_off")
    assert told["summary"].endswith("(attempt 1: rank 0 on n1 was refused by the node: node_disk)")


def test_hold_release_and_cancel(face: Face) -> None:
    id_ = face.submit()["id"]
    path = f"/api/v1/sessions/{id_}"
    for verb, wanted in (("hold", "hold"), ("hold", "hold"), ("release", "run"), ("release", "run")):
        assert face.post(f"{path}/{verb}")["wanted"] == wanted
    for _ in range(2):
        ended = face.post(f"{path}/cancel")
        assert (ended["phase"], ended["outcome"], ended["exit_code"], ended["slurm_state"]) == (
            "ended", "cancelled", 130, "CANCELLED",
        )  # fmt: skip
    assert problem(face.request("POST", f"{path}/hold")) == (409, "not_pending")
    facts = [entry["fact"] for entry in face.get(f"{path}/history")]
    assert facts[:4] == ["submitted", "hold", "release", "cancel"]
    assert {entry["by"] for entry in face.get(f"{path}/history")[1:4]} == {"user:admin"}


def test_requeue_of_an_ended_session_makes_a_linked_one(face: Face) -> None:
    id_ = face.submit(name="again")["id"]
    face.post(f"/api/v1/sessions/{id_}/cancel")
    new = face.post(f"/api/v1/sessions/{id_}/requeue")
    assert new["id"] != id_
    assert (new["requeue_of"], new["phase"], new["name"]) == (id_, "pending", "again")


def test_update_of_what_may_change(face: Face) -> None:
    face.node(group="lab").register()
    id_ = face.submit(hold=True)["id"]
    path = f"/api/v1/sessions/{id_}"
    changed = good(face.request("PATCH", path, json={"priority": 9, "group": "lab", "time": "2h"}))
    assert (changed["priority"], changed["group"], changed["time_limit_s"]) == (9, "lab", 7200)
    assert problem(face.request("PATCH", path, json={"group": "none"})) == (404, "group_unknown")
    face.post(f"{path}/cancel")
    assert problem(face.request("PATCH", path, json={"priority": 1})) == (409, "already_ended")


def test_whether_it_may_be_stopped_for_others_changes_until_it_ends(face: Face) -> None:
    face.node().register()
    path = f"/api/v1/sessions/{face.submit(cpus=1)['id']}"
    for said in (False, True):
        assert good(face.request("PATCH", path, json={"preemptible": said}))["preemptible"] is said
    assert face.client.portal is not None
    face.client.portal.call(partial(place_pass, claiming=True), face.store, "manager:test")
    assert good(face.request("PATCH", path, json={"preemptible": False}))["preemptible"] is False
    assert face.tx(lambda tx: [one.preemptible for one in tx.running(["default"])]) == [False]
    (last,) = [one for one in face.get(f"{path}/history") if one["detail"] == {"preemptible": False}][1:]
    assert (last["fact"], last["from"], last["to"]) == ("update", "starting", "starting")
    assert problem(face.request("PATCH", path, json={"throttle": 1})) == (422, "not_an_array")
    assert problem(face.request("PATCH", path, json={"throttle": -1})) == (422, "bad_request")


def test_lists_are_paged_newest_first_and_filtered(face: Face) -> None:
    made = [face.submit(name=f"s{i}", labels={"odd": str(i % 2)}, project=f"p{i % 3}")["id"] for i in range(7)]
    face.post(f"/api/v1/sessions/{made[0]}/cancel")

    def listed(query: str) -> list[str]:
        return [one["id"] for one in face.get(f"/api/v1/sessions?{query}")["sessions"]]

    seen: list[str] = []
    cursor = ""
    for _ in range(10):
        page = face.get(f"/api/v1/sessions?limit=3{cursor}")
        seen += [one["id"] for one in page["sessions"]]
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
    assert seen == made[::-1]
    assert listed("phase=ended") == made[:1]
    assert listed("phase=ended&phase=pending") == made[::-1]
    assert listed("label=odd%3D1") == made[5::-2]
    assert listed("label=odd%3D1&limit=1") == made[5:6]
    assert listed("project=p0") == [made[6], made[3], made[0]]
    assert listed("name=s4") == made[4:5]
    assert listed("owner=ann") == []
    assert listed("group=none") == []


ENDS = [
    (Outcome.SUCCEEDED, ExitClass.OK, 1.0, "COMPLETED"),
    (Outcome.CANCELLED, ExitClass.CANCELLED, None, "CANCELLED"),
    (Outcome.FAILED, ExitClass.USER, 1.0, "FAILED"),
    (Outcome.FAILED, ExitClass.TIMEOUT, 1.0, "TIMEOUT"),
    (Outcome.FAILED, ExitClass.OOM, 1.0, "OUT_OF_MEMORY"),
    (Outcome.FAILED, ExitClass.LOST, 1.0, "NODE_FAIL"),
    (Outcome.FAILED, ExitClass.PREEMPTED, 1.0, "PREEMPTED"),
    (Outcome.FAILED, ExitClass.INFRA, None, "BOOT_FAIL"),
    (Outcome.FAILED, ExitClass.INFRA, 1.0, "NODE_FAIL"),
]
LIVE = {"pending": "PENDING", "placed": "CONFIGURING", "starting": "CONFIGURING", "running": "RUNNING",
        "stopping": "COMPLETING"}  # fmt: skip
SESSION = Session("abcdefghjk", 1, SessionSpec(command=("x",)), "admin", 0.0)


def test_every_live_phase_has_slurms_word() -> None:
    assert {phase: slurm_state(SESSION._replace(phase=Phase(phase))) for phase in LIVE} == LIVE
    assert set(LIVE) == set(Phase) - {Phase.ENDED}


@pytest.mark.parametrize(("outcome", "exit_class", "started_at", "word"), ENDS)
def test_every_end_has_slurms_word(
    outcome: Outcome, exit_class: ExitClass, started_at: float | None, word: str
) -> None:
    ended = SESSION._replace(phase=Phase.ENDED, outcome=outcome, exit_class=exit_class, started_at=started_at)
    assert slurm_state(ended) == word


def test_nodes_devices_and_groups(face: Face) -> None:
    for name in ("n2", "n1"):
        face.node(name, gpus=2).register()
    assert [node["name"] for node in face.get("/api/v1/nodes")] == ["n1", "n2"]
    shown = face.get("/api/v1/nodes/n1")
    assert (shown["node"]["state"], shown["node"]["cpus"], shown["node"]["devices"]) == ("up", 8.0, 2)
    assert [device["uuid"] for device in shown["devices"]] == ["SIM-n1-0", "SIM-n1-1"]
    assert [device["uuid"] for device in face.get("/api/v1/devices")] == [
        "SIM-n1-0", "SIM-n1-1", "SIM-n2-0", "SIM-n2-1",
    ]  # fmt: skip
    (group,) = face.get("/api/v1/groups")
    assert (group["name"], group["order"], group["placement"], group["nodes"]) == ("default", "fifo", "pack", 2)


def test_only_a_silent_node_can_be_confirmed_dead(face: Face) -> None:
    face.node().register()
    assert problem(face.request("POST", "/api/v1/nodes/n1/confirm-dead")) == (409, "node_alive")
    assert problem(face.request("POST", "/api/v1/nodes/n9/confirm-dead")) == (404, "no_such_node")


def test_who_did_a_thing_is_named_alike_everywhere(face: Face) -> None:
    id_ = face.submit(as_="ann")["id"]
    face.post(f"/api/v1/sessions/{id_}/cancel")
    again = face.post(f"/api/v1/sessions/{id_}/requeue")["id"]
    assert [one["by"] for one in face.get(f"/api/v1/sessions/{id_}/history")][:2] == ["user:ann", "user:admin"]
    (first, *_) = face.get(f"/api/v1/sessions/{again}/history")
    assert (first["by"], face.get(f"/api/v1/sessions/{again}")["owner"]) == ("user:admin", "ann")


def test_what_is_held_has_no_place_in_the_queue(face: Face) -> None:
    waiting, held = face.submit()["id"], face.submit(hold=True)["id"]
    for path in ("", "/explain"):
        assert face.get(f"/api/v1/sessions/{waiting}{path}")["position"] == 1
        assert face.get(f"/api/v1/sessions/{held}{path}")["position"] is None
    assert face.post(f"/api/v1/sessions/{held}/release")["position"] == 2
    codes = [one["code"] for one in face.get(f"/api/v1/sessions/{waiting}/explain")["blockers"]]
    assert "held" not in codes


def test_a_script_is_shown_with_its_session(face: Face) -> None:
    content = b"#!/bin/sh\necho $1\n"
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    good(face.request("PUT", f"/api/v1/blobs/{digest}", content=content))
    made = face.submit(script=digest, command=["one"], nodes=2, ranks_per_node=3)
    assert (made["script"], made["command"], made["nodes"], made["ranks"]) == (digest, ["one"], 2, 6)
    assert face.submit()["script"] is None


@pytest.mark.parametrize("phase", ["starting", "running", "stopping"])
def test_explain_says_that_a_node_is_silent_under_what_is_live(served: Served, phase: str) -> None:
    node = served.node().register()
    id_ = served.submit(ranks_per_node=2)["id"]
    orders = node.orders()
    if phase != "starting":
        for kind in (FactKind.ACCEPTED, FactKind.READY):
            node.exchange(*(fact(order.token, kind) for order in orders))
    if phase == "stopping":
        good(served.client.post(f"/api/v1/sessions/{id_}/cancel"))
    before = served.get(f"/api/v1/sessions/{id_}/explain")
    assert (before["phase"], before["blockers"]) == (phase, [])
    served.tx(lambda tx: tx.set_node_state(["n1"], NodeState.UNREACHABLE, tx.now + 1))
    found = served.get(f"/api/v1/sessions/{id_}/explain")
    (blocker,) = found["blockers"]
    assert (blocker["code"], blocker["counts"]) == ("node_unreachable", {"ranks": 2})
    assert "node n1 has not been heard" in found["summary"]
    assert "corral node confirm-dead n1" in blocker["message"]
    assert len(found["missing"]) == (0 if phase == "running" else 2)
