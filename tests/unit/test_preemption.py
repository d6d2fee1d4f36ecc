"""Who is stopped for whom: the smallest set with least lost work, by a strict order of claims, within bounds."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.model.node import Device, Node, NodeState, ResourceGroup
from corral.model.resources import GpuRequest, Resources
from corral.model.spec import SessionSpec
from corral.scheduling.cycle import cycle
from corral.scheduling.places import Grant, RankPlace
from corral.scheduling.plan import Plan, Preemption, check
from corral.scheduling.snapshot import Pin, Reservation, Running, Snapshot, Waiting, shape_of
from corral.scheduling.stopping.preemption import MAX_CLAIMANTS
from corral.scheduling.stopping.preemption_check import check_preemptions

NOW = 10_000.0
WHOLE = 1000
BY_PRIORITY: dict[str, Any] = {"preemption": "priority", "backfill": "none"}
BY_SHARE: dict[str, Any] = {"preemption": "fair-share", "backfill": "none"}


def a_node(name: str = "n1", cpus: int = 8, **changes) -> Node:
    node = Node(name, "default", NodeState.UP, True, 1, "boot", "run", "inc", "hw", "0", "h", cpus * 1000, 16_384)
    return replace(node, **changes)


def a_spec(cpus: float = 1, gpus: int = 0, **changes) -> SessionSpec:
    gpu = GpuRequest(count=gpus) if gpus else None
    return SessionSpec(command=("x",), resources=Resources(int(cpus * 1000), 64, gpu), **changes)


def waiting(name: str, spec: SessionSpec, priority: int = 0, number: int = 0, owner: str = "ann", **more) -> Waiting:
    return Waiting(name, number, 1, 1, priority, owner, "default", NOW, shape_of(spec), **more)


def running(
    name: str, *ranks: RankPlace, priority: int = 0, since: float = 1000.0, owner: str = "bob", **more
) -> Running:
    shape = shape_of(a_spec(ranks[0].cpu_milli / 1000, len(ranks[0].grants), nodes=len({one.node for one in ranks})))
    began = NOW - since
    fields = {"ordinal": 0, "started_at": began} | more
    return Running(
        id=name, attempt=1, seq=4, group="default", owner=owner, project="default", priority=priority, shape=shape,
        ranks=ranks, placed_at=began, **fields,
    )  # fmt: skip


def a_rank(node: str = "n1", cpus: float = 1, *gpus: int) -> RankPlace:
    grants = tuple(Grant(f"{node}-{index}", WHOLE, 80_000) for index in gpus)
    return RankPlace(node, 1, "run", int(cpus * 1000), 64, grants)


def a_picture(
    line: list[Waiting],
    held: list[Running],
    nodes: list[Node] | None = None,
    gpus: int = 0,
    *,
    pins: Sequence[Pin] = (),
    **options: Any,
) -> Snapshot:
    """Nodes whose used room is what these hold, and what is pinned."""
    nodes = [a_node()] if nodes is None else nodes
    places = [place for one in held for place in one.ranks] + [pin.place for pin in pins]
    used = {(grant.uuid): grant for place in places for grant in place.grants}
    devices = {
        node.name: [
            Device(node.name, uuid, index, "A100", "sm_80", 80_000, *((80_000, WHOLE) if uuid in used else (0, 0)))
            for index in range(gpus)
            for uuid in [f"{node.name}-{index}"]
        ]
        for node in nodes
    }
    rows = [
        replace(
            node,
            cpu_used_milli=sum(place.cpu_milli for place in places if place.node == node.name),
            memory_used_mib=sum(place.memory_mib for place in places if place.node == node.name),
        )
        for node in nodes
    ]
    group = ResourceGroup("default", options=BY_PRIORITY | options)
    return Snapshot(NOW, rows, devices, line, {"default": group}, running=held, pins=pins)


def planned(snapshot: Snapshot) -> Plan:
    plan = cycle(snapshot)
    assert check(snapshot, plan) == []
    assert check_preemptions(snapshot, plan) == []
    return plan


def stopped(snapshot: Snapshot) -> dict[str, list[str]]:
    preemptions = planned(snapshot).preemptions
    return {one.claimant.id: sorted(victim.id for victim in one.victims) for one in preemptions if one.victims}


def test_the_weaker_one_is_stopped_and_the_claimant_is_not_placed_yet() -> None:
    snapshot = a_picture([waiting("c", a_spec(8), 5)], [running("v", a_rank(cpus=8))])
    plan = planned(snapshot)
    assert plan.placements == () and "c" in plan.refusals
    (one,) = plan.preemptions
    assert (one.claimant.id, [victim.id for victim in one.victims], one.group) == ("c", ["v"], "default")
    assert [(rank.node, rank.cpu_milli) for rank in one.ranks] == [("n1", 8000)]


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({}, {"preemption": "none"}),
        ({"priority": 5}, {}),
        ({"priority": 6}, {}),
        ({"priority": 1}, {"preemption_gap": 5}),
        ({"since": 59.0}, {}),
        ({"since": 599.0}, {"preemption_min_runtime": "10m"}),
        ({"preemptions": 3}, {}),
        ({"preemptions": 0}, {"preemption_budget": 0}),
        ({"preemptible": False}, {}),
        ({}, {"preemptible": "no"}),
        ({"stopping": True, "preempted_for": "other"}, {}),
        ({"owner": "ann"}, {"preemption": "fair-share"}),
    ],
)
def test_nobody_is_stopped_who_may_not_be(changes, options) -> None:
    held = [running("v", a_rank(cpus=8), **changes)]
    assert stopped(a_picture([waiting("c", a_spec(8), 5)], held, **options)) == {}


def test_who_says_so_may_be_stopped_where_others_may_not() -> None:
    held = [running("v", a_rank(cpus=8), preemptible=True)]
    assert stopped(a_picture([waiting("c", a_spec(8), 5)], held, preemptible="no")) == {"c": ["v"]}


def test_nobody_is_stopped_for_who_fits_or_for_nothing() -> None:
    assert stopped(a_picture([waiting("c", a_spec(2), 5)], [running("v", a_rank(cpus=6))])) == {}
    assert stopped(a_picture([waiting("c", a_spec(9), 5)], [running("v", a_rank(cpus=8))])) == {}
    held = [running("v", a_rank(cpus=4)), running("w", a_rank(cpus=4), priority=5)]
    assert stopped(a_picture([waiting("c", a_spec(8), 5)], held)) == {}


def test_least_lost_work_and_no_more_than_are_in_the_way() -> None:
    held = [
        running("old", a_rank(cpus=2), since=9000.0),
        running("young", a_rank(cpus=2), since=100.0),
        running("small", a_rank(cpus=1), since=100.0),
        running("big", a_rank(cpus=3), since=5000.0),
    ]
    assert stopped(a_picture([waiting("c", a_spec(2), 5)], held)) == {"c": ["young"]}
    assert stopped(a_picture([waiting("c", a_spec(3), 5)], held)) == {"c": ["small", "young"]}
    assert stopped(a_picture([waiting("c", a_spec(6), 5)], held)) == {"c": ["big", "small", "young"]}


def test_one_who_has_done_little_may_go_instead_of_many() -> None:
    held = [running(f"s{number}", a_rank(cpus=1), since=3000.0) for number in range(4)]
    held.append(running("one", a_rank(cpus=4), since=400.0))
    assert stopped(a_picture([waiting("c", a_spec(4), 5)], held)) == {"c": ["one"]}


def test_the_cheapest_node_is_chosen_and_free_room_is_used() -> None:
    held = [running("a", a_rank("n1", 8), since=5000.0), running("b", a_rank("n2", 4), since=5000.0)]
    assert stopped(a_picture([waiting("c", a_spec(8), 5)], held, [a_node("n1"), a_node("n2")])) == {"c": ["b"]}


def test_whole_gpus_are_freed() -> None:
    held = [running("a", a_rank("n1", 1, 0, 1), since=5000.0), running("b", a_rank("n1", 1, 2), since=100.0)]
    assert stopped(a_picture([waiting("c", a_spec(1, 2), 5)], held, gpus=4)) == {"c": ["b"]}
    assert stopped(a_picture([waiting("c", a_spec(1, 3), 5)], held, gpus=4)) == {"c": ["a"]}


def test_a_gang_goes_whole_and_is_counted_whole() -> None:
    nodes = [a_node("n1"), a_node("n2"), a_node("n3")]
    gang = running("gang", a_rank("n1", 8), a_rank("n2", 8), since=300.0)
    lone = running("lone", a_rank("n3", 8), since=400.0)
    assert stopped(a_picture([waiting("c", a_spec(8), 5)], [gang, lone], nodes)) == {"c": ["lone"]}
    assert stopped(a_picture([waiting("c", a_spec(8, nodes=2), 5)], [gang, lone], nodes)) == {"c": ["gang", "lone"]}
    three = stopped(a_picture([waiting("c", a_spec(8, nodes=3), 5)], [gang, lone], nodes))
    assert three == {"c": ["gang", "lone"]}


def test_an_exclusive_session_empties_its_node() -> None:
    held = [running("a", a_rank("n1", 1)), running("b", a_rank("n2", 1), priority=9)]
    line = [waiting("c", a_spec(1, exclusive=True), 5)]
    assert stopped(a_picture(line, held, [a_node("n1"), a_node("n2")])) == {"c": ["a"]}


def test_labels_and_closed_nodes_count() -> None:
    held = [running("a", a_rank("n1", 8)), running("b", a_rank("n2", 8), since=9000.0)]
    nodes = [a_node("n1", schedulable=False), a_node("n2", labels={"rack": "r"})]
    assert stopped(a_picture([waiting("c", a_spec(8), 5)], held, nodes)) == {"c": ["b"]}
    assert stopped(a_picture([waiting("c", a_spec(8, on_labels={"rack": "x"}), 5)], held, nodes)) == {}


def test_room_that_comes_anyway_is_waited_for_unless_it_is_late() -> None:
    coming = running("going", a_rank(cpus=4), stopping=True, ends_at=NOW + 5)
    held = [coming, running("v", a_rank(cpus=4))]
    assert stopped(a_picture([waiting("c", a_spec(4), 5)], held)) == {}
    assert stopped(a_picture([waiting("c", a_spec(4), 5), waiting("d", a_spec(4), 5, 1)], held)) == {"d": ["v"]}
    late = [coming._replace(ends_at=NOW - 100), held[1]]
    assert stopped(a_picture([waiting("c", a_spec(4), 5)], late)) == {"c": ["v"]}


def test_nobody_else_is_stopped_while_others_stop_for_it() -> None:
    going = running("v", a_rank(cpus=4), stopping=True, preempted_for="c", ends_at=NOW + 5)
    held = [going, running("w", a_rank(cpus=4))]
    snapshot = a_picture([waiting("c", a_spec(4), 5, room_by=NOW + 30)], held)
    plan = planned(snapshot)
    assert not [one for one in plan.preemptions if one.victims]
    told = plan.refusals["c"][0]
    assert (told.code, told.counts) == ("preempting", {"sessions": 1})
    assert told.message == "1 session stops for it; room is expected by 1970-01-01T02:47:10Z"
    assert stopped(a_picture([waiting("c", a_spec(4), 5, room_by=NOW - 1)], held)) == {"c": ["w"]}


def test_what_one_is_to_get_is_nobody_elses() -> None:
    held = [running("v", a_rank(cpus=8), since=900.0), running("w", a_rank("n2", 8))]
    line = [waiting("c", a_spec(6), 5), waiting("d", a_spec(2), 5, 1), waiting("e", a_spec(2), 5, 2)]
    snapshot = a_picture(line, held, [a_node("n1"), a_node("n2")])
    assert stopped(snapshot) == {"c": ["v"], "e": ["w"]}  # d fits beside c in the room that comes


def test_a_pin_is_room_for_its_owner_alone() -> None:
    pin = Pin("c", a_rank(cpus=8), NOW + 60)
    alone = a_picture([waiting("c", a_spec(8), 5, room_by=NOW + 5)], [], pins=[pin])
    assert [placed.session.id for placed in planned(alone).placements] == ["c"]
    other = a_picture([waiting("d", a_spec(8), 9)], [], pins=[pin])
    plan = planned(other)
    assert plan.placements == ()
    assert plan.preemptions == ()
    assert [(why.code, why.counts) for why in plan.refusals["d"]] == [("pinned", {"nodes": 1})]
    both = a_picture([waiting("d", a_spec(8), 9), waiting("c", a_spec(8), 5, 1, room_by=NOW + 5)], [], pins=[pin])
    assert [placed.session.id for placed in planned(both).placements] == ["c"]


def test_what_is_left_of_a_pin_is_free_to_those_behind() -> None:
    pin = Pin("c", a_rank(cpus=8), NOW + 60)
    line = [waiting("c", a_spec(5), 5, room_by=NOW + 5), waiting("d", a_spec(3), 0, 1)]
    assert [placed.session.id for placed in planned(a_picture(line, [], pins=[pin])).placements] == ["c", "d"]


def test_a_second_try_counts_what_the_first_one_freed() -> None:
    pin = Pin("c", a_rank("n1", 8), NOW + 60)
    held = [running("v", a_rank("n2", 8)), running("w", a_rank("n3", 8), since=500.0)]
    nodes = [a_node("n1"), a_node("n2"), a_node("n3")]
    line = [waiting("c", a_spec(8, nodes=2), 5, room_by=NOW - 1)]
    assert stopped(a_picture(line, held, nodes, pins=[pin])) == {"c": ["w"]}


def test_a_device_that_is_gone_frees_nothing() -> None:
    snapshot = a_picture([waiting("c", a_spec(1, 1), 5)], [running("v", a_rank("n1", 1, 0))], gpus=1)
    gone = replace(snapshot, devices={"n1": [replace(snapshot.devices["n1"][0], present=False)]})
    assert planned(gone).preemptions == ()


def test_nobody_is_passed_over_for_ever_for_whose_claims_there_are_no_victims() -> None:
    """Each of the first asks for more than all that may go hold, and something else."""
    first = [waiting(f"c{number:02}", a_spec(7 + number / 100), 9, number) for number in range(2 * MAX_CLAIMANTS)]
    last = waiting("last", a_spec(2), 5, 99)
    held = [running("v", a_rank(cpus=4)), running("stays", a_rank(cpus=4), preemptible=False)]
    snapshot = a_picture([*first, last], held)
    found = [stopped(replace(snapshot, now=NOW + second)) for second in range(30)]
    assert {"last": ["v"]} in found
    assert stopped(a_picture([*first[: MAX_CLAIMANTS // 2 - 1], last], held)) == {"last": ["v"]}


def test_claimants_are_tried_in_turn_and_not_without_bound() -> None:
    held = [running(f"v{number}", a_rank(cpus=0.1)) for number in range(80)]
    line = [waiting(f"c{number:03}", a_spec((number + 1) / 100), 5, number) for number in range(60)]
    found = stopped(a_picture(line, held))
    assert list(found) == sorted(found) and 1 < len(found) <= MAX_CLAIMANTS and max(found) < "c016"


# --- by share


def shares(held: list[Running], line: list[Waiting], **options) -> dict[str, list[str]]:
    return stopped(a_picture(line, held, **(BY_SHARE | options)))


def test_who_holds_more_than_its_share_makes_way_for_who_stays_within() -> None:
    held = [running(f"b{number}", a_rank(cpus=2), owner="bob", since=1000.0 - number) for number in range(4)]
    assert shares(held, [waiting("c", a_spec(2))]) == {"c": ["b3"]}
    assert shares(held, [waiting("c", a_spec(4))]) == {"c": ["b2", "b3"]}
    assert shares(held, [waiting("c", a_spec(5))]) == {}  # more than its half
    assert shares(held, [waiting("c", a_spec(2), owner="bob")]) == {}


def test_nobody_is_brought_below_its_share_but_by_one_session() -> None:
    held = [running("b0", a_rank(cpus=5), owner="bob"), running("a0", a_rank(cpus=2), owner="ann")]
    line = [waiting("c", a_spec(2), owner="ann"), waiting("d", a_spec(1), owner="eve", number=1)]
    assert shares([*held, running("e0", a_rank(cpus=1), owner="eve")], line[:1]) == {}  # 4 of 8, of three owners
    assert shares(held, line[:1]) == {"c": ["b0"]}


def test_weights_of_the_order_are_the_weights_of_shares() -> None:
    held = [running(f"b{number}", a_rank(cpus=2), owner="bob") for number in range(4)]
    snapshot = a_picture([waiting("c", a_spec(4))], held, **BY_SHARE)
    group = replace(snapshot.groups["default"], order="fair-share", order_options={"owner_weights": {"bob": 3.0}})
    assert planned(replace(snapshot, groups={"default": group})).preemptions == ()


def test_nobody_is_stopped_for_who_would_run_into_a_reservation() -> None:
    held = [running("v", a_rank(cpus=8))]
    snapshot = a_picture([waiting("c", a_spec(8), 5, time_limit_s=100)], held)
    soon = Reservation("r", ("n1",), NOW + 90, NOW + 200)
    assert stopped(replace(snapshot, reservations=[soon])) == {}
    assert stopped(replace(snapshot, reservations=[soon._replace(owners=("ann",))])) == {"c": ["v"]}
    assert stopped(replace(snapshot, reservations=[soon._replace(starts_at=NOW + 200)])) == {"c": ["v"]}


def test_who_has_gone_when_a_reservation_begins_claims_behind_one_who_has_not() -> None:
    late, soon = waiting("late", a_spec(8), 5), waiting("soon", a_spec(8), 5, 1, time_limit_s=60)
    snapshot = a_picture([late, soon], [running("v", a_rank(cpus=8))])
    kept = Reservation("r", ("n1",), NOW + 600, NOW + 1200)
    assert stopped(replace(snapshot, reservations=[kept])) == {"soon": ["v"]}


def test_the_next_pass_follows_at_once_where_who_runs_was_not_read() -> None:
    snapshot = a_picture([waiting("c", a_spec(8), 5)], [running("v", a_rank(cpus=8))])
    unread = replace(snapshot, running=(), unread=frozenset({"default"}))
    assert cycle(unread).more
    assert cycle(unread).preemptions == ()
    assert not cycle(replace(unread, groups={"default": ResourceGroup("default", options={"backfill": "none"})})).more


def test_shares_are_those_of_the_tree_of_projects() -> None:
    """`lab/a` and `lab/b` share what `lab` has beside `other`: ann's half of it is a quarter of the whole."""
    held = [running(f"b{n}", a_rank(cpus=2), owner="bob")._replace(project="lab/b") for n in range(4)]
    line = [waiting("c", a_spec(2)), waiting("d", a_spec(3), number=1), waiting("e", a_spec(1), number=2, owner="eve")]
    line = [line[0]._replace(project="lab/a"), line[1]._replace(project="lab/a"), line[2]._replace(project="other")]
    assert set(shares(held, [line[0], line[2]])) == {"c", "e"}
    assert set(shares(held, [line[1], line[2]])) == {"e"}


def test_room_that_was_freed_is_used_where_it_is_and_no_reservation_is_run_into() -> None:
    """The emptiest node is reserved; the session goes where others were stopped for it."""
    pin = Pin("c", a_rank("n1", 8), NOW + 60)
    line = [waiting("c", a_spec(4), 5, room_by=NOW + 5, time_limit_s=100)]
    snapshot = a_picture(
        line, [running("v", a_rank("n2", 2))], [a_node("n1"), a_node("n2")], pins=[pin], backfill="easy"
    )
    snapshot = replace(snapshot, reservations=[Reservation("r", ("n2",), NOW + 50, NOW + 500)])
    assert [[rank.node for rank in one.ranks] for one in planned(snapshot).placements] == [["n1"]]
    both = replace(snapshot, reservations=[Reservation("r", ("n1", "n2"), NOW + 50, NOW + 500)])
    assert planned(both).placements == ()


# --- behind those in front


def behind(**changes: Any) -> Snapshot:
    """The first in line starts when the one that may not be stopped has ended; another may be stopped before."""
    held = [
        running("r", a_rank(cpus=6), priority=9, ends_at=NOW + 600),
        running("v", a_rank(cpus=2), ends_at=NOW + 500),
    ]
    fields: dict[str, Any] = {"cpus": 8, "limit_s": None, "backfill": "easy"} | changes
    line = [waiting("h", a_spec(fields["cpus"]), 8), waiting("c", a_spec(2), 5, 1, time_limit_s=fields["limit_s"])]
    snapshot = a_picture(line, held, backfill=fields["backfill"])
    return replace(snapshot, groups={"default": replace(snapshot.groups["default"], order="priority")})


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {}),
        ({"limit_s": 3600}, {}),
        ({"limit_s": 480}, {"c": ["v"]}),  # with its grace and the time until its room is there, gone by then
        ({"limit_s": 545}, {}),
        ({"cpus": 6}, {"c": ["v"]}),  # there is room for both
        ({"backfill": "none"}, {"c": ["v"]}),  # nothing was promised
        ({"backfill": "conservative"}, {}),
    ],
)
def test_nobody_has_others_stopped_to_the_delay_of_who_is_in_front(changes, expected) -> None:
    snapshot = behind(**changes)
    plan = planned(snapshot)
    assert stopped(snapshot) == expected
    assert ("h" in plan.planned) == (changes.get("backfill") != "none")


@pytest.mark.parametrize(("backfill", "starts"), [("easy", False), ("none", True)])
def test_elsewhere_who_has_room_kept_delays_nobody_in_front_either(backfill: str, starts: bool) -> None:
    held = [running("r", a_rank(cpus=6), priority=9), running("q", a_rank("n2", 2), priority=9, ends_at=NOW + 600)]
    line = [
        waiting("h", a_spec(8, on_nodes=("n2",)), 8),
        waiting("c", a_spec(4), 5, 1, room_by=NOW - 1),
    ]
    pin = Pin("c", a_rank(cpus=2), NOW + 60)
    snapshot = a_picture(line, held, [a_node("n1"), a_node("n2")], pins=[pin], backfill=backfill)
    snapshot = replace(snapshot, groups={"default": replace(snapshot.groups["default"], order="priority")})
    assert [placed.session.id for placed in planned(snapshot).placements] == ["c"] * starts


def test_a_plan_that_delays_who_is_in_front_is_wrong() -> None:
    snapshot = behind()
    plan = cycle(snapshot)
    victim = next(one for one in snapshot.running if one.id == "v")
    claimant = next(one for one in snapshot.waiting if one.id == "c")
    claim = Preemption(claimant, (victim,), "default", victim.ranks)
    assert check_preemptions(snapshot, replace(plan, preemptions=(claim,))) == [
        "c: it would delay h, which is before it, on n1"
    ]


JOBS = st.tuples(st.integers(1, 8), st.integers(0, 9), st.sampled_from([None, 100, 700, 5000]), st.integers(0, 2))


@settings(deadline=None, max_examples=150)
@given(
    st.lists(JOBS, max_size=8), st.lists(JOBS, max_size=8), st.sampled_from(["easy", "conservative"]), st.integers(2, 8)
)
def test_whoever_has_others_stopped_those_in_front_start_as_planned(ran, line, backfill, depth) -> None:
    nodes = [a_node("n0"), a_node("n1"), a_node("n2")]
    left, held = {node.name: 8 for node in nodes}, []
    for number, (cpus, priority, ends, where) in enumerate(ran):
        if left[f"n{where}"] >= cpus:
            left[f"n{where}"] -= cpus
            place = a_rank(f"n{where}", cpus)
            held.append(running(f"r{number}", place, priority=priority, ends_at=None if ends is None else NOW + ends))
    waits = [waiting(f"w{number}", a_spec(cpus, nodes=1 + extra // 2), priority, number, time_limit_s=limit)
             for number, (cpus, priority, limit, extra) in enumerate(line)]  # fmt: skip
    snapshot = a_picture(waits, held, nodes, backfill=backfill, backfill_depth=depth)
    snapshot = replace(snapshot, groups={"default": replace(snapshot.groups["default"], order="priority")})
    plan = planned(snapshot)
    turn = list(plan.refusals)
    for one in plan.preemptions:
        in_front = [start for id_, start in plan.planned.items() if turn.index(id_) < turn.index(one.claimant.id)]
        if one.claimant.time_limit_s is None:
            for start in in_front:
                room = Counter({node.name: node.cpu_milli for node in nodes})
                stay = [held_ for held_ in held if held_.ends_at is None or held_.ends_at > start.at]
                gone = {victim.id for found in plan.preemptions for victim in found.victims}
                taken = [rank for found in stay if found.id not in gone for rank in found.ranks]
                for rank in (*taken, *one.ranks, *start.ranks):
                    room[rank.node] -= rank.cpu_milli
                assert min(room.values()) >= 0
