"""Resource groups over REST: made, changed, paused and deleted by administrators, seen by everybody."""

from dataclasses import replace
from typing import Any

import pytest

from corral.model.lifecycle import Phase
from corral.reconcile.placement import PER_SHAPE, commit, new_refusals
from corral.scheduling.cycle import cycle
from corral.scheduling.policies.order import OrderPolicy
from corral.scheduling.policies.registry import PolicyKind, offer, withdraw
from tests.api.face import Face, problem

GROUPS = "/api/v1/groups"


def place(face: Face) -> list[str]:
    """One scheduling pass; whom it placed, in the order of their turns."""

    def one_pass(tx: Any) -> list[str]:
        snapshot = tx.snapshot(PER_SHAPE)
        plan = cycle(snapshot)
        commit(tx, plan, new_refusals(snapshot, plan), "manager:test", claiming=True)
        return [placed.session.id for placed in plan.placements]

    return face.tx(one_pass)


def create(face: Face, name: str, **fields: Any) -> dict[str, Any]:
    return face.post(GROUPS, {"name": name} | fields)


def test_a_group_from_its_making_to_its_end(face: Face) -> None:
    made = create(face, "gpu", order="priority", order_options={"ageing": "2"})
    assert made | {"options": {}} == {
        "name": "gpu", "order": "priority", "order_options": {"ageing": 2.0}, "placement": "pack",
        "placement_options": {}, "options": {}, "backend": "nodes", "nodes": 0, "paused": False, "version": 1,
        "problem": None,
    }  # fmt: skip
    changed = face.request("PATCH", f"{GROUPS}/gpu", json={"order_options": {"ageing": None}, "placement": "spread"})
    assert changed.json()["order_options"] == {"ageing": 1.0}, "the default again"
    assert (changed.json()["placement"], changed.json()["version"]) == ("spread", 2)
    assert face.get(f"{GROUPS}/gpu") == {"group": changed.json(), "shares": []}
    assert [one["name"] for one in face.get(GROUPS)] == ["gpu"]
    assert face.post(f"{GROUPS}/gpu/pause")["paused"]
    assert not face.post(f"{GROUPS}/gpu/resume")["paused"]
    gone = face.request("DELETE", f"{GROUPS}/gpu")
    assert (gone.status_code, gone.json()["version"]) == (200, 4)
    assert face.get(GROUPS) == []
    history = face.get(f"{GROUPS}/gpu/history")
    facts = ["group_created", "group_set", "group_paused", "group_resumed", "group_deleted"]
    assert [(one["seq"], one["fact"], one["by"]) for one in history] == [
        (number, fact, "user:admin") for number, fact in enumerate(facts, 1)
    ]
    assert history[1]["detail"]["placement"] == "spread"
    assert face.get(f"{GROUPS}/gpu/history", params={"after": 4}) == history[4:]
    assert face.get("/api/v1/events:page", as_="ann")["events"] == history, "everybody may know"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"name": "x", "order": "best"}, (422, "unknown_policy")),
        ({"name": "x", "placement": "best"}, (422, "unknown_policy")),
        ({"name": "x", "order_options": {"ageing": 1}}, (422, "unknown_option")),
        ({"name": "x", "placement_options": {"rack": 1}}, (422, "unknown_option")),
        ({"name": "x", "order": "priority", "order_options": {"ageing": "fast"}}, (422, "bad_option")),
        ({"name": "x", "order": "drf", "order_options": {"weights": {"ann": -1}}}, (422, "bad_option")),
        ({"name": "x", "order": "drf", "order_options": {"weights": "ann:1,bob:1,ann:2"}}, (422, "bad_option")),
        ({"name": "x", "options": {"backfill": "bad"}}, (422, "bad_option")),
        ({"name": "x", "options": {"speed": 1}}, (422, "unknown_option")),
        ({"name": "x", "order_options": [1]}, (422, "bad_request")),
        ({"name": "x", "order": 1}, (422, "bad_request")),
        ({"name": "x", "backend": "slurm"}, (422, "bad_request")),
        ({"name": "x y"}, (422, "bad_name")),
        ({"name": ""}, (422, "bad_name")),
        ({"name": "x\x00"}, (422, "bad_name")),
        ({"name": "there"}, (409, "group_exists")),
        ({}, (422, "bad_request")),
    ],
)
def test_bad_input_is_one_clear_error(face: Face, body: dict[str, Any], code: tuple[int, str]) -> None:
    create(face, "there")
    assert problem(face.request("POST", GROUPS, json=body)) == code
    change = {name: value for name, value in body.items() if name != "name"}
    if change:
        assert problem(face.request("PATCH", f"{GROUPS}/there", json=change)) == code
    assert face.get(f"{GROUPS}/there")["group"]["version"] == 1


def test_an_unknown_group_is_not_found(face: Face) -> None:
    for name in ("nobody", "x%00y"):
        assert problem(face.request("GET", f"{GROUPS}/{name}")) == (404, "group_unknown")
        assert problem(face.request("GET", f"{GROUPS}/{name}/history")) == (404, "group_unknown")
        assert problem(face.request("PATCH", f"{GROUPS}/{name}", json={"order": "lifo"})) == (404, "group_unknown")
        assert problem(face.request("DELETE", f"{GROUPS}/{name}")) == (404, "group_unknown")
        assert problem(face.request("POST", f"{GROUPS}/{name}/pause")) == (404, "group_unknown")
        assert problem(face.request("POST", f"{GROUPS}/{name}/resume")) == (404, "group_unknown")


def test_only_administrators_change_groups(face: Face) -> None:
    create(face, "gpu")
    for method, path, body in (
        ("POST", GROUPS, {"name": "x"}),
        ("PATCH", f"{GROUPS}/gpu", {"order": "lifo"}),
        ("DELETE", f"{GROUPS}/gpu", None),
        ("POST", f"{GROUPS}/gpu/pause", None),
        ("POST", f"{GROUPS}/gpu/resume", None),
    ):
        assert problem(face.request(method, path, "ann", json=body)) == (403, "not_allowed")
    assert face.get(f"{GROUPS}/gpu", as_="ann")["group"]["version"] == 1


def test_a_group_in_use_is_not_deleted(face: Face) -> None:
    face.node().register()
    answer = face.request("DELETE", f"{GROUPS}/default")
    assert problem(answer) == (409, "group_has_nodes") and "n1" in answer.json()["detail"]
    id_ = face.submit(group="default")["id"]
    face.node(group="other").register()
    assert problem(face.request("DELETE", f"{GROUPS}/default")) == (409, "group_has_sessions")
    face.post(f"/api/v1/sessions/{id_}/cancel")
    assert face.request("DELETE", f"{GROUPS}/default").status_code == 200


def test_a_stale_version_changes_nothing(face: Face) -> None:
    create(face, "gpu")
    face.request("PATCH", f"{GROUPS}/gpu", json={"order": "lifo", "version": 1})
    answer = face.request("PATCH", f"{GROUPS}/gpu", json={"order": "fifo", "version": 1})
    assert problem(answer) == (409, "version_conflict")
    assert face.get(f"{GROUPS}/gpu")["group"]["order"] == "lifo"


def test_a_change_counts_from_the_next_pass(face: Face) -> None:
    face.node().register()
    ids = [face.submit(cpus=5)["id"] for _ in range(3)]
    assert place(face) == ids[:1]
    urgent = face.submit(cpus=3, priority=7)["id"]
    later = face.submit(cpus=3, priority=9)["id"]
    face.request("PATCH", f"{GROUPS}/default", json={"order": "priority"})
    assert face.get(f"/api/v1/sessions/{later}/explain")["position"] == 1
    assert face.get(f"/api/v1/sessions/{urgent}/explain")["position"] == 2
    assert face.get(f"/api/v1/sessions/{ids[2]}/explain")["position"] == 4
    assert face.get(f"/api/v1/sessions/{urgent}")["position"] is None, "it does not go by age alone"
    assert place(face) == [later]


def test_a_paused_group_is_explained(face: Face) -> None:
    face.node().register()
    face.node("n2", group="other").register()
    face.post(f"{GROUPS}/default/pause")
    named, anywhere = face.submit(group="default")["id"], face.submit(cpus=7)["id"]
    assert place(face) == [anywhere]
    assert face.get(f"/api/v1/sessions/{named}")["refusals"][0]["code"] == "group_paused"
    told = face.get(f"/api/v1/sessions/{named}/explain")
    assert (told["fits_now"], told["infeasible"]) == (False, False)
    assert {one["code"] for one in told["blockers"]} >= {"group_paused", "other_group"}
    plan = face.post("/api/v1/sessions:plan", {"command": ["true"], "group": "default"})
    assert not plan["fits_now"]
    face.post(f"{GROUPS}/default/resume")
    assert place(face) == [named]
    assert face.get(f"/api/v1/sessions/{named}")["phase"] == Phase.STARTING


def test_shares_are_shown_and_only_ones_own_to_users(face: Face) -> None:
    face.node(gpus=4).register()
    face.request("PATCH", f"{GROUPS}/default", json={"order": "drf", "order_options": {"weights": "ann:3"}})
    face.submit("ann", cpus=2)
    face.submit("bob", gpus=2)
    place(face)
    shares = face.get(f"{GROUPS}/default")["shares"]
    assert [(one["owner"], one["weight"], one["entitled"], one["used"]) for one in shares] == [
        ("ann", 3, 0.75, 0.25),
        ("bob", 1, 0.25, 0.5),
    ]
    assert [one["owner"] for one in face.get(f"{GROUPS}/default", as_="bob")["shares"]] == ["bob"]
    face.request("PATCH", f"{GROUPS}/default", json={"order": "fair-share"})
    fair = {one["owner"]: one for one in face.get(f"{GROUPS}/default")["shares"]}
    assert fair["bob"]["used"] > fair["ann"]["used"] > 0
    assert fair["ann"]["project"] == "default"


def test_whose_weight_is_what_is_told_to_nobody_else(face: Face) -> None:
    face.node().register()
    weights = {"owner_weights": {"ann": 3, "bob": 2}, "project_weights": {"lab": 2}}
    create(face, "fair", order="fair-share", order_options=weights)
    create(face, "drf", order="drf", order_options={"weights": {"ann": 3}})

    def seen(by: str) -> list[dict[str, Any]]:
        listed = {one["name"]: one["order_options"] for one in face.get(GROUPS, as_=by)}
        shown = face.get(f"{GROUPS}/fair", as_=by)["group"]["order_options"]
        told = face.get(f"{GROUPS}/fair/history", as_=by)[0]["detail"]["order_options"]
        events = face.get("/api/v1/events:page", as_=by)["events"]
        streamed = [one["detail"]["order_options"] for one in events if one["group"] == "fair"]
        assert listed["drf"]["weights"] == ({"ann": 3} if by in ("admin", "ann") else {})
        return [listed["fair"], shown, told, *streamed]

    for by, own in {"admin": {"ann": 3, "bob": 2}, "ann": {"ann": 3}, "bob": {"bob": 2}}.items():
        found = seen(by)
        assert len(found) == 4
        assert [one["owner_weights"] for one in found] == [own] * 4
        assert [one["project_weights"] for one in found] == [{"lab": 2}] * 4


@pytest.mark.parametrize("weight", ["1e-200", "1e-7", "1e10", "0", "-1", "inf", "nan"])
@pytest.mark.parametrize(("order", "option"), [("drf", "weights"), ("fair-share", "owner_weights")])
def test_a_weight_is_within_bounds(face: Face, order: str, option: str, weight: str) -> None:
    body = {"name": "x", "order": order, "order_options": {option: f"ann:{weight}"}}
    answer = face.request("POST", GROUPS, json=body)
    assert problem(answer) == (422, "bad_option") and "between 1e-06 and 1e+09" in answer.json()["detail"]


@pytest.mark.parametrize("order", ["drf", "fair-share"])
def test_a_weight_stored_when_any_was_taken_divides_nothing_by_zero(face: Face, order: str) -> None:
    option = {"drf": "weights", "fair-share": "owner_weights"}[order]
    create(face, "x", order=order, order_options={option: {"ann": 2, "bob": 1}})
    face.node(group="x").register()
    for by in ("ann", "bob"):
        face.submit(by, group="x")
    place(face)
    stored = {option: {"ann": 1e-200, "bob": 5e-324}}
    assert face.tx(lambda tx: tx.set_group(replace(tx.groups()["x"], order_options=stored), 1))
    shown = face.get(f"{GROUPS}/x")
    assert shown["group"]["problem"] is None
    assert {one["owner"]: one["weight"] for one in shown["shares"]} == {"ann": 1e-6, "bob": 1e-6}
    assert [one["entitled"] for one in shown["shares"]] == [0.5, 0.5]


def test_policies_are_listed_with_their_options(face: Face) -> None:
    def broken() -> object:
        raise ImportError("its module is gone")

    offer(PolicyKind.ORDER, "mine", lambda: OrderPolicy("mine", lambda view: iter(()), "My own."))  # pyright: ignore
    offer(PolicyKind.ORDER, "gone", broken)
    try:
        listed = {(one["kind"], one["name"]): one for one in face.get("/api/v1/policies", as_="ann")}
        assert problem(face.request("POST", GROUPS, json={"name": "x", "order": "gone"})) == (422, "policy_broken")
    finally:
        withdraw(PolicyKind.ORDER, "mine")
        withdraw(PolicyKind.ORDER, "gone")
    assert {"fifo", "lifo", "priority", "drf", "fair-share", "shortest-first", "least-attained-service", "mine"} <= {
        name for kind, name in listed if kind == "order"
    }
    assert ("placement", "pack") in listed
    assert listed["order", "mine"]["help"] == "My own."
    assert "its module is gone" in listed["order", "gone"]["problem"]["message"]
    by = {one["name"]: one for one in listed["order", "drf"]["options"]}["by"]
    assert (by["default"], by["choices"]) == ("owner", ["owner", "project"])
    assert all(one["help"] for key, one in listed.items() if key != ("order", "gone"))


def test_a_place_in_line_is_one_rule_for_all(face: Face) -> None:
    """Only who stands in line is counted; to name no group and to name the home group is one line; that it is paused
    moves nobody."""
    face.node().register()
    face.node("n2", group="aside").register()
    face.submit(cpus=8)  # takes its place when a pass is made, which here is never
    parent = face.submit(hold=True)["id"]
    apart = [
        parent,
        face.submit(begin="+2h")["id"],
        face.submit(after=parent)["id"],
        face.submit(group="default", hold=True)["id"],
    ]
    other = face.submit(group="aside")["id"]
    in_line = [face.submit(group=group)["id"] for group in (None, "default", None, "default")]

    def position(id_: str) -> tuple[int | None, int | None]:
        path = f"/api/v1/sessions/{id_}"
        return face.get(path)["position"], face.get(f"{path}/explain")["position"]

    for order in ("fifo", "priority"):
        face.request("PATCH", f"{GROUPS}/default", json={"order": order})
        for verb in ("pause", "resume"):
            face.post(f"{GROUPS}/default/{verb}")
            assert [position(id_)[1] for id_ in in_line] == [2, 3, 4, 5]
            assert [position(id_)[0] for id_ in in_line] == ([2, 3, 4, 5] if order == "fifo" else [None] * 4)
            assert position(other)[1] == 1
            assert [position(id_) for id_ in apart] == [(None, None)] * 4


def test_a_group_whose_policy_went_away_is_shown_broken(face: Face) -> None:
    offer(PolicyKind.ORDER, "mine", lambda: OrderPolicy("mine", lambda view: iter(()), "My own."))  # pyright: ignore
    create(face, "gpu", order="mine")
    withdraw(PolicyKind.ORDER, "mine")
    found = face.get(f"{GROUPS}/gpu")["group"]
    assert found["problem"]["code"] == "unknown_policy" and "mine" in found["problem"]["message"]
    assert face.request("PATCH", f"{GROUPS}/gpu", json={"order": "fifo"}).json()["problem"] is None


def test_a_policy_that_fails_at_work_is_told_before_anything_is_submitted(face: Face) -> None:
    def failing(view: Any) -> Any:
        raise RuntimeError("first\nsecond")
        yield

    offer(PolicyKind.ORDER, "mine", lambda: OrderPolicy("mine", failing, "My own."))
    try:
        face.node().register()
        face.request("PATCH", f"{GROUPS}/default", json={"order": "mine"})
        plan = face.post("/api/v1/sessions:plan", {"command": ["true"]})
        assert (plan["fits_now"], plan["estimate"]) == (False, None)
        (why,) = plan["blockers"]
        assert (why["code"], "RuntimeError: first second" in why["message"]) == ("group_broken", True)
        id_ = face.submit()["id"]
        assert place(face) == []
        told = face.get(f"/api/v1/sessions/{id_}/explain")
        assert (told["blockers"], told["fits_now"], told["estimate"]) == ([why], False, None)
    finally:
        withdraw(PolicyKind.ORDER, "mine")
