"""Arrays over REST: one id for many members, each of which is there before it has a row of its own."""

from typing import Any

import pytest

from corral.model.session import FactKind
from corral.ports import SessionFilter, Tx
from corral.reconcile.placement import claim, place_pass
from tests.api.face import Face, Node, fact, problem

PATH = "/api/v1/sessions"
ALL = SessionFilter(members=True)


def array(face: Face, indices: str = "0-9", as_: str = "ann", **fields: Any) -> str:
    return face.submit(as_, array=indices, **fields)["id"]


def place(face: Face) -> None:
    """One pass, as a manager's loop makes it."""
    assert face.client.portal is not None
    face.client.portal.call(place_pass, face.store, "manager:test")


@pytest.fixture
def node(face: Face) -> Node:
    return face.node().register()


def run_all(face: Face, node: Node, code: int = 0) -> list[str]:
    """Let everything that is placed run to its end; which sessions that was."""
    face.tx(claim_all)
    ran: list[str] = []
    for order in node.exchange().orders:
        if order.launch is not None:
            ran.append(order.launch.session)
            kinds = (FactKind.ACCEPTED, FactKind.READY)
            facts = [fact(order.token, kind) for kind in kinds]
            node.exchange(*facts, fact(order.token, FactKind.RESULT, code), fact(order.token, FactKind.EXITED))
    return ran


def claim_all(tx: Tx) -> None:
    claim(tx, tx.in_phase("placed", 500), "manager:test")


def test_an_array_is_one_session_that_counts_its_members(face: Face) -> None:
    made = face.submit("ann", array="0-99%8", name="sweep")
    assert (made["kind"], made["phase"], made["name"]) == ("array", "pending", "sweep")
    assert made["array"] == {
        "indices": "0-99", "size": 100, "throttle": 8, "phases": {"pending": 100}, "outcomes": {},
    }  # fmt: skip
    assert face.get(f"{PATH}/{made['id']}", as_="ann") == made
    listed = face.get(PATH, as_="ann")["sessions"]
    assert [one["id"] for one in listed] == [made["id"]]
    assert listed[0]["array"]["size"] == 100
    assert face.get(f"{PATH}/last", as_="ann")["id"] == made["id"]


def test_a_member_is_there_before_it_has_a_row(face: Face) -> None:
    id_ = array(face, "0-9")
    for written in (f"{id_}[7]", f"{id_}_7", f"{id_[:5]}[7]", "last[7]", f"{id_.upper()}[007]"):
        member = face.get(f"{PATH}/{written}", as_="ann")
        assert (member["id"], member["phase"], member["array"]) == (f"{id_}[7]", "pending", None)
        assert member["member"] == {"array": id_, "index": 7}
    assert [one["code"] for one in member["refusals"]] == ["array_turn"]
    explained = face.get(f"{PATH}/{id_}[7]/explain", as_="ann")
    assert "array_turn" in [one["code"] for one in explained["blockers"]]
    assert explained["position"] is None
    assert [one["fact"] for one in face.get(f"{PATH}/{id_}[7]/history", as_="ann")] == ["submitted"]
    assert face.get(f"{PATH}/{id_}[7]/attempts", as_="ann") == []
    assert face.get(f"{PATH}/{id_}[7]/spec", as_="ann")["array"] == "0-9"
    assert problem(face.request("GET", f"{PATH}/{id_}[7]/logs", "ann")) == (409, "not_started")
    assert face.get(f"{PATH}/{id_}[7]/wait?timeout_s=0", as_="ann")["phase"] == "pending"


TANGLED = ",".join(f"{n}-9000:{n + 3}" for n in range(300))


@pytest.mark.parametrize(
    ("indices", "code"),
    [
        *((bad, "bad_array") for bad in ("5-1", "a-b", "0-9%0", "-1", "0--3", "", "0-9%", "0-9%x")),
        *((bad, "bad_array") for bad in ("0-9:0", "1-2-3", "0-9%-2", "9999999999", "0-9,", "٣", TANGLED)),
        ("0-1000000", "array_too_large"),
        ("0-499999,500000-1000000", "array_too_large"),
    ],
)
def test_indices_that_make_no_sense_are_refused(face: Face, indices: str, code: str) -> None:
    refused = face.request("POST", PATH, json={"command": ["true"], "array": indices})
    assert problem(refused) == (422, code)
    assert "--array" in refused.json()["detail"]


def test_the_largest_array_is_one_row(face: Face) -> None:
    made = face.submit("ann", array="0-999999")
    assert made["array"]["phases"] == {"pending": 1_000_000}
    assert face.get(f"{PATH}/{made['id']}[999999]", as_="ann")["phase"] == "pending"
    assert face.tx(lambda tx: len(tx.list_sessions(ALL))) == 0


def test_ranges_that_interleave_and_overlap_are_one_array_of_each_index_once(face: Face) -> None:
    made = face.submit("ann", array="1-9:2,0-8:2,3-5,7%2", hold=True)
    assert (made["array"]["indices"], made["array"]["size"]) == ("0-8:2,1-9:2,3-5", 10)
    for index in (0, 5, 9):
        assert face.get(f"{PATH}/{made['id']}[{index}]", as_="ann")["member"]["index"] == index
    assert problem(face.request("GET", f"{PATH}/{made['id']}[10]", "ann"))[0] == 404
    assert face.submit("ann", array="0-999999:3,1-999999:3,0-999999:6")["array"]["size"] == 666_667


def test_indices_are_kept_in_order_and_in_short(face: Face) -> None:
    made = face.submit("ann", array="20-30:2, 5,0-3:7%3")
    assert (made["array"]["indices"], made["array"]["size"]) == ("0,5,20-30:2", 8)
    assert face.get(f"{PATH}/{made['id']}[22]", as_="ann")["member"]["index"] == 22
    assert problem(face.request("GET", f"{PATH}/{made['id']}[21]", "ann")) == (404, "no_such_member")


@pytest.mark.parametrize(
    ("written", "problem_"),
    [
        ("[10]", (404, "no_such_member")),
        ("[x]", (422, "bad_member_id")),
        ("[-1]", (422, "bad_member_id")),
        ("[]", (422, "bad_member_id")),
        ("[1][2]", (422, "bad_member_id")),
        ("[0-4]", (422, "bad_member_id")),
        ("[99999999999]", (422, "bad_member_id")),
        ("[1", (404, "no_such_session")),
        ("_", (404, "no_such_session")),
    ],
)
def test_what_names_no_member_is_refused(face: Face, written: str, problem_: tuple[int, str]) -> None:
    id_ = array(face)
    for how, path in (("GET", ""), ("POST", "/cancel"), ("GET", "/logs"), ("GET", "/explain"), ("GET", "/history")):
        assert problem(face.request(how, f"{PATH}/{id_}{written}{path}", "ann")) == problem_


def test_a_plain_session_has_no_members(face: Face) -> None:
    id_ = face.submit("ann")["id"]
    assert problem(face.request("GET", f"{PATH}/{id_}[0]", "ann")) == (404, "no_such_member")
    assert problem(face.request("GET", f"{PATH}?array={id_}", "ann")) == (404, "no_such_member")


def test_what_is_about_one_launch_asks_for_a_member(face: Face) -> None:
    id_ = array(face)
    for path in ("logs", "attempts", "launches"):
        refused = face.request("GET", f"{PATH}/{id_}/{path}", "ann")
        assert problem(refused) == (422, "is_array")
        assert f"{id_}[0]" in refused.json()["detail"]


def test_others_arrays_are_not_there(face: Face) -> None:
    id_ = array(face)
    for name in (id_, f"{id_}[3]", id_[:6]):
        assert problem(face.request("GET", f"{PATH}/{name}", "bob")) == (404, "no_such_session")
        assert problem(face.request("POST", f"{PATH}/{name}/cancel", "bob")) == (404, "no_such_session")
    assert face.get(PATH, as_="bob")["sessions"] == []
    assert face.get(f"{PATH}?members=1", as_="bob")["sessions"] == []
    assert face.get("/api/v1/events:page", as_="bob")["events"] == []
    assert [one["session"] for one in face.get("/api/v1/events:page", as_="ann")["events"]] == [id_]


def test_members_get_rows_as_far_as_the_throttle_lets_them(face: Face, node: Node) -> None:
    id_ = array(face, "0-9%3")
    place(face)
    assert face.get(f"{PATH}/{id_}", as_="ann")["array"]["phases"] == {"pending": 7, "placed": 3}
    assert run_all(face, node) == [f"{id_}[{index}]" for index in range(3)]
    place(face)
    shown = face.get(f"{PATH}/{id_}", as_="ann")["array"]
    assert shown["phases"] == {"ended": 3, "pending": 4, "placed": 3}
    assert shown["outcomes"] == {"succeeded": 3}


def test_it_ends_as_the_first_member_that_did_not_end_well(face: Face, node: Node) -> None:
    id_ = array(face, "0-2%1")
    for code in (0, 7, 9):
        place(face)
        assert len(run_all(face, node, code)) == 1
    place(face)
    ended = face.get(f"{PATH}/{id_}", as_="ann")
    assert (ended["phase"], ended["outcome"], ended["exit_code"], ended["exit_class"]) == ("ended", "failed", 7, "user")
    assert ended["array"]["outcomes"] == {"succeeded": 1, "failed": 2}
    assert face.get(f"{PATH}/{id_}/wait?timeout_s=5", as_="ann")["phase"] == "ended"
    assert [one["fact"] for one in face.get(f"{PATH}/{id_}/history", as_="ann")] == ["submitted", "ended"]
    assert face.get("/api/v1/doctor")["findings"] == []


def test_listing_members_goes_page_by_page(face: Face, node: Node) -> None:
    id_ = array(face, "0-9%3")
    other = face.submit("ann")["id"]
    place(face)
    seen: list[str] = []
    cursor = ""
    while True:
        page = face.get(f"{PATH}?members=1&limit=4{cursor}", as_="ann")
        seen += [one["id"] for one in page["sessions"]]
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
    assert seen == [other, *(f"{id_}[{index}]" for index in range(9, -1, -1))]
    assert [one["id"] for one in face.get(PATH, as_="ann")["sessions"]] == [other, id_]
    own = face.get(f"{PATH}?array={id_}&phase=placed", as_="ann")["sessions"]
    assert [one["id"] for one in own] == [f"{id_}[{index}]" for index in (2, 1, 0)]
    assert [one["id"] for one in face.get(f"{PATH}?phase=ended", as_="ann")["sessions"]] == []
    assert [one["id"] for one in face.get(f"{PATH}?phase=running", as_="ann")["sessions"]] == [id_]


def test_cancelling_all_ends_members_without_rows_at_once(face: Face, node: Node) -> None:
    id_ = array(face, "0-99%2")
    place(face)
    shown = face.post(f"{PATH}/{id_}/cancel", as_="ann")
    assert (shown["phase"], shown["outcome"], shown["exit_code"]) == ("ended", "cancelled", 130)
    assert shown["array"]["outcomes"] == {"cancelled": 100}
    assert face.tx(lambda tx: len(tx.list_sessions(ALL))) == 2, "no row was made to be cancelled"
    assert face.post(f"{PATH}/{id_}/cancel", as_="ann") == shown, "idempotent"
    member = face.get(f"{PATH}/{id_}[50]", as_="ann")
    assert (member["phase"], member["outcome"], member["exit_code"]) == ("ended", "cancelled", 130)
    assert problem(face.request("POST", f"{PATH}/{id_}[50]/hold", "ann")) == (409, "not_pending")
    assert face.post(f"{PATH}/{id_}[50]/cancel", as_="ann")["phase"] == "ended"
    again = face.post(f"{PATH}/{id_}[50]/requeue", as_="ann")
    assert (again["requeue_of"], again["phase"]) == (f"{id_}[50]", "pending")
    assert face.get(f"{PATH}/{again['id']}/spec", as_="ann")["environment"]["CORRAL_ARRAY_INDEX"] == "50"


def test_cancelling_one_before_it_has_a_row_is_kept(face: Face, node: Node) -> None:
    id_ = array(face, "0-3%1")
    shown = face.post(f"{PATH}/{id_}[1]/cancel", as_="ann")
    assert (shown["id"], shown["phase"], shown["outcome"]) == (f"{id_}[1]", "ended", "cancelled")
    ran: list[str] = []
    for _ in range(4):
        place(face)
        ran += run_all(face, node)
    assert ran == [f"{id_}[{index}]" for index in (0, 2, 3)]
    ended = face.get(f"{PATH}/{id_}", as_="ann")
    assert (ended["outcome"], ended["exit_code"]) == ("cancelled", 130)
    assert ended["array"]["outcomes"] == {"succeeded": 3, "cancelled": 1}


def test_a_held_member_lets_others_go_first(face: Face, node: Node) -> None:
    id_ = array(face, "0-2%1")
    assert face.post(f"{PATH}/{id_}[0]/hold", as_="ann")["wanted"] == "hold"
    place(face)
    assert run_all(face, node) == [f"{id_}[1]"]
    face.post(f"{PATH}/{id_}[0]/release", as_="ann")
    place(face)
    assert run_all(face, node) == [f"{id_}[0]"]


def test_holding_and_releasing_all(face: Face, node: Node) -> None:
    id_ = array(face, "0-4%2", hold=True)
    place(face)
    assert face.get(f"{PATH}/{id_}", as_="ann")["array"]["phases"] == {"pending": 5}
    assert face.post(f"{PATH}/{id_}/release", as_="ann")["wanted"] == "run"
    place(face)
    assert face.get(f"{PATH}/{id_}", as_="ann")["array"]["phases"] == {"pending": 3, "placed": 2}
    assert face.post(f"{PATH}/{id_}/hold", as_="ann")["wanted"] == "hold"
    run_all(face, node)
    place(face)
    assert face.get(f"{PATH}/{id_}", as_="ann")["array"]["phases"] == {"pending": 3, "ended": 2}
    face.post(f"{PATH}/{id_}/release", as_="ann")
    place(face)
    assert face.get(f"{PATH}/{id_}", as_="ann")["array"]["phases"] == {"pending": 1, "ended": 2, "placed": 2}


def test_an_update_reaches_members_with_rows_and_without(face: Face, node: Node) -> None:
    id_ = array(face, "0-4%1")
    place(face)
    face.request("PATCH", f"{PATH}/{id_}", "ann", json={"priority": 5, "time": "2h"})
    with_row, without = (face.get(f"{PATH}/{id_}[{index}]", as_="ann") for index in (0, 3))
    assert (with_row["priority"], with_row["time_limit_s"]) == (0, 7200), "it is placed, and its priority stays"
    assert (without["priority"], without["time_limit_s"]) == (5, 7200)
    one = face.request("PATCH", f"{PATH}/{id_}[4]", "ann", json={"priority": 9}).json()
    assert (one["id"], one["priority"]) == (f"{id_}[4]", 9)
    assert problem(face.request("PATCH", f"{PATH}/{id_}", "ann", json={"group": "none"})) == (404, "group_unknown")


def test_how_many_live_at_once_may_change(face: Face, node: Node) -> None:
    id_ = array(face, "0-9%4")
    path = f"{PATH}/{id_}"
    place(face)

    def told(throttle: int) -> tuple[int | None, int]:
        answer = face.request("PATCH", path, "ann", json={"throttle": throttle})
        assert answer.status_code == 200, answer.text
        place(face)
        turned = face.tx(lambda tx: [one for one in tx.sessions(tx.live_members(id_)).values()
                                     if one.id not in tx.still_dependent([one.id])])  # fmt: skip
        return answer.json()["array"]["throttle"], len(turned)

    assert told(2) == (2, 4), "whoever has begun goes on"
    assert told(2) == (2, 4)
    assert told(6) == (6, 6)
    assert told(0) == (None, 10)
    lines = [one["detail"] for one in face.get(f"{path}/history", as_="ann") if one["fact"] == "throttle"]
    assert lines == [{"from": 4, "to": 2}, {"from": 2, "to": 6}, {"from": 6, "to": None}]
    assert problem(face.request("PATCH", f"{path}[3]", "ann", json={"throttle": 1})) == (422, "not_an_array")
    assert face.get(f"{path}[9]", as_="ann")["id"] == f"{id_}[9]"


def test_members_that_wait_for_room_give_their_turn_back(face: Face) -> None:
    id_ = array(face, "0-9%4")
    place(face)  # there is no node: four have their turn, and wait
    answer = face.request("PATCH", f"{PATH}/{id_}", "ann", json={"throttle": 1, "preemptible": False})
    assert answer.status_code == 200, answer.text
    place(face)
    waiting = {index: face.get(f"{PATH}/{id_}[{index}]", as_="ann")["refusals"] for index in (0, 1, 9)}
    assert [waiting[index][0]["code"] for index in (1, 9)] == ["array_throttle"] * 2
    assert "of its array 1 may live at once" in waiting[1][0]["message"]
    assert "array_throttle" not in {one["code"] for one in waiting[0]}
    assert {face.get(f"{PATH}/{id_}[{index}]", as_="ann")["preemptible"] for index in (0, 9)} == {False}


def test_requeue_of_an_ended_array_is_a_new_one(face: Face, node: Node) -> None:
    id_ = array(face, "0-1")
    face.post(f"{PATH}/{id_}/cancel", as_="ann")
    again = face.post(f"{PATH}/{id_}/requeue", as_="ann")
    assert (again["requeue_of"], again["phase"], again["array"]["size"]) == (id_, "pending", 2)
    assert again["id"] != id_


@pytest.mark.parametrize(("kind", "code", "starts"), [
    ("ok", 0, True), ("ok", 1, False), ("notok", 1, True), ("notok", 0, False), ("any", 1, True), ("any", 0, True),
])  # fmt: skip
def test_what_waits_for_an_array_waits_for_all_of_it(
    face: Face, node: Node, kind: str, code: int, starts: bool
) -> None:
    id_ = array(face, "0-1%1")
    child = face.submit("ann", after=f"{id_}:{kind}")["id"]
    place(face)
    run_all(face, node, 0)
    place(face)
    assert face.get(f"{PATH}/{child}", as_="ann")["refusals"][0]["code"] == "dependency"
    run_all(face, node, code)
    for _ in range(3):
        place(face)
    shown = face.get(f"{PATH}/{child}", as_="ann")
    assert shown["phase"] == ("placed" if starts else "ended")
    if not starts:
        assert shown["reason"]["code"] == "dependency_failed"


def test_waiting_for_one_member(face: Face, node: Node) -> None:
    id_ = array(face, "0-2%1")
    child = face.submit("ann", after=f"{id_}[1]")["id"]
    place(face)
    run_all(face, node)
    place(face)
    assert face.get(f"{PATH}/{child}", as_="ann")["phase"] == "pending"
    assert run_all(face, node) == [f"{id_}[1]"]
    for _ in range(2):
        place(face)
    assert face.get(f"{PATH}/{child}", as_="ann")["phase"] == "placed"
    assert problem(face.request("POST", PATH, "ann", json={"command": ["x"], "after": f"{id_}[9]"}))[0] == 404


@pytest.mark.parametrize("fails", [False, True])
def test_an_array_waits_for_others(face: Face, node: Node, fails: bool) -> None:
    first = face.submit("ann")["id"]
    id_ = array(face, "0-2", after=first)
    place(face)
    shown = face.get(f"{PATH}/{id_}", as_="ann")
    assert (shown["array"]["phases"], shown["refusals"][0]["code"]) == ({"pending": 3}, "dependency")
    assert face.get(f"{PATH}/{id_}[0]", as_="ann")["refusals"][0]["code"] == "dependency"
    run_all(face, node, int(fails))
    place(face)
    shown = face.get(f"{PATH}/{id_}", as_="ann")
    if fails:
        assert (shown["outcome"], shown["reason"]["code"]) == ("cancelled", "dependency_failed")
        assert face.get(f"{PATH}/{id_}[1]", as_="ann")["reason"]["code"] == "dependency_failed"
    else:
        assert shown["array"]["phases"] == {"placed": 3}


def test_a_key_is_for_one_request(face: Face) -> None:
    body = {"command": ["true"], "array": "0-3"}
    made = face.post(PATH, body, "ann", headers={"Idempotency-Key": "k"})
    assert face.post(PATH, body, "ann", headers={"Idempotency-Key": "k"}) == made
    for other in ({**body, "array": "0-4"}, {"command": ["true"]}):
        refused = face.request("POST", PATH, "ann", json=other, headers={"Idempotency-Key": "k"})
        assert problem(refused) == (409, "idempotency_conflict")
    face.post(PATH, {"command": ["true"]}, "ann", headers={"Idempotency-Key": "plain"})
    refused = face.request("POST", PATH, "ann", json=body, headers={"Idempotency-Key": "plain"})
    assert problem(refused) == (409, "idempotency_conflict")


def test_arrays_and_sessions_in_one_batch(face: Face) -> None:
    asked = [{"command": ["a"]}, {"command": ["b"], "array": "0-3"}, {"command": ["c"]}]
    made = face.post("/api/v1/sessions:batch", {"sessions": asked}, "ann")["sessions"]
    assert [(one["command"], one["kind"]) for one in made] == [(["a"], "batch"), (["b"], "array"), (["c"], "batch")]
    refused = face.request("POST", "/api/v1/sessions:batch", "ann", json={"sessions": [*asked, {"array": "x"}]})
    assert problem(refused)[0] == 422
    assert len(face.get(PATH, as_="ann")["sessions"]) == 3


def test_the_ranges_of_one_requests_arrays_are_bounded_together(face: Face) -> None:
    """To count tangled ones takes a moment for each array, and while one request is read no other is answered."""
    ranges = ",".join(f"{4 * n}-999999999:999983" for n in range(180))
    many = {"sessions": [{"command": ["true"], "array": ranges}] * 60}
    refused = face.request("POST", "/api/v1/sessions:batch", "ann", json=many)
    assert (problem(refused), "10800 ranges" in refused.json()["detail"]) == ((422, "too_many"), True)
    assert len(face.post("/api/v1/sessions:batch", {"sessions": many["sessions"][:2]}, "ann")["sessions"]) == 2


def test_only_asking_tells_of_each_member(face: Face, node: Node) -> None:
    plan = face.post("/api/v1/sessions:plan", {"command": ["true"], "array": "0-99"}, "ann")
    assert (plan["fits_now"], plan["members"]) == (True, 100)
    refused = face.request("POST", PATH, "ann", json={"command": ["true"], "array": "0-99", "cpus": 1000})
    assert problem(refused) == (409, "infeasible")
    assert face.get(PATH, as_="ann")["sessions"] == []


def test_members_are_counted_before_they_have_rows(face: Face, node: Node) -> None:
    array(face, "0-99%2")
    place(face)
    page = face.request("GET", "/metrics").text
    assert 'phase="pending"} 98' in page, page


def test_a_group_with_members_to_come_is_not_deleted(face: Face) -> None:
    face.post("/api/v1/groups", {"name": "g"})
    id_ = array(face, "0-4", group="g")
    assert problem(face.request("DELETE", "/api/v1/groups/g"))[0] == 409
    face.post(f"{PATH}/{id_}/cancel", as_="ann")
    assert face.request("DELETE", "/api/v1/groups/g").status_code == 200
