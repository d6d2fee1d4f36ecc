"""Passes that look ahead: planned starts rest on known ends, nobody breaks one, and nobody waits for ever."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.model.node import Device, Node, ResourceGroup
from corral.model.resources import GpuRequest
from corral.model.spec import SessionSpec
from corral.scheduling.ahead.promises import new_starts
from corral.scheduling.cycle import cycle
from corral.scheduling.engine.room import NodeRoom
from corral.scheduling.places import Grant, RankPlace
from corral.scheduling.plan import Plan, check
from corral.scheduling.snapshot import Promise, Reservation, Running, Snapshot, Waiting, shape_of
from tests.unit.test_scheduling import NOW, a_node, a_spec, codes, gpus, placed

HOUR = 3600


def waiting(number: int, spec: SessionSpec, **changes) -> Waiting:
    limit, grace = spec.time_limit_s, spec.grace_s
    row = Waiting(f"s{number}", number, 1, 1, 0, "ann", spec.project, NOW, shape_of(spec), None, limit, grace_s=grace)
    return row._replace(**changes)


def on(node: Node, cpus: int = 1, device: Device | None = None) -> RankPlace:
    grants = () if device is None else (Grant(device.uuid, 1000, device.capacity_mib),)
    return RankPlace(node.name, node.epoch, node.run_id, 1000 * cpus, 64, grants)


def running(id_: str, ends_at: float | None, *ranks: RankPlace, group: str = "default") -> Running:
    return Running(id_, 0, 1, 1, group, "bob", "default", 0, shape_of(a_spec()), ranks, NOW - 10, NOW - 9, ends_at)


def using(nodes: Sequence[Node], ran: Iterable[Running]) -> list[Node]:
    """The nodes with what these hold on them."""
    used: defaultdict[str, list[RankPlace]] = defaultdict(list)
    for one in ran:
        for rank in one.ranks:
            used[rank.node].append(rank)
    return [
        replace(
            node,
            cpu_used_milli=sum(rank.cpu_milli for rank in used[node.name]),
            memory_used_mib=sum(rank.memory_mib for rank in used[node.name]),
        )
        for node in nodes
    ]


def held(devices: Mapping[str, Sequence[Device]], ran: Iterable[Running]) -> dict[str, list[Device]]:
    taken: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
    for one in ran:
        for rank in one.ranks:
            for grant in rank.grants:
                taken[grant.uuid][0] += grant.share_milli
                taken[grant.uuid][1] += grant.vram_mib
    return {
        name: [replace(one, used_milli=taken[one.uuid][0], used_mib=taken[one.uuid][1]) for one in ones]
        for name, ones in devices.items()
    }


def picture(
    line: Sequence[Waiting],
    nodes: Sequence[Node],
    ran: Sequence[Running] = (),
    devices: Mapping[str, Sequence[Device]] | None = None,
    *groups: ResourceGroup,
    **changes,
) -> Snapshot:
    listed = {group.name: group for group in groups or (ResourceGroup("default"),)}
    plain = Snapshot(NOW, using(nodes, ran), held(devices or {}, ran), line, listed, running=ran)
    return replace(plain, **changes)


def backfill(kind: str, **options) -> ResourceGroup:
    return ResourceGroup("default", options={"backfill": kind, **options})


# one pass, by hand


def test_the_first_in_line_has_its_start_planned_and_short_ones_pass_it() -> None:
    nodes = [a_node("n1", cpus=4), a_node("n2", cpus=4)]
    ran = [running("r", NOW + HOUR, on(nodes[0], 4))]
    line = [
        waiting(0, a_spec(4, nodes=2)),
        waiting(1, a_spec(1)),
        waiting(2, a_spec(2, time_limit_s=HOUR - 30)),
        waiting(3, a_spec(1, time_limit_s=HOUR - 29)),
    ]
    plan = cycle(picture(line, nodes, ran))
    assert placed(plan) == {"s2": ["n2"]}, "the others would still run then"
    start = plan.planned["s0"]
    assert (start.at, start.group, [rank.node for rank in start.ranks]) == (NOW + HOUR, "default", ["n1", "n2"])
    (full, why) = plan.refusals["s1"]
    assert (full.code, why.code, why.counts) == ("not_enough_cpus", "would_delay", {"nodes": 1})
    assert "s0" in why.message
    assert codes(plan, "s3") == codes(plan, "s1")


def test_whoever_leaves_enough_for_the_planned_start_may_start_and_stay() -> None:
    node = a_node("n1", cpus=8)
    ran = [running("r", NOW + HOUR, on(node, 6))]
    line = [waiting(0, a_spec(5)), waiting(1, a_spec(2)), waiting(2, a_spec(1))]
    plan = cycle(picture(line, [node], ran))
    assert placed(plan) == {"s1": ["n1"]}
    assert codes(plan, "s2") == {"not_enough_cpus"}
    assert plan.planned["s0"].at == NOW + HOUR


def test_room_that_is_freed_for_somebody_is_no_room_to_come_for_others() -> None:
    nodes = [a_node("n1", cpus=4), a_node("n2", cpus=4)]
    going = running("going", NOW + 30, on(nodes[0], 4))._replace(stopping=True, preempted_for="s9")
    stays = running("stays", NOW + HOUR, on(nodes[1], 4))
    line = [waiting(0, a_spec(4)), waiting(9, a_spec(4, time_limit_s=600, grace_s=0), room_by=NOW + 60)]
    assert cycle(picture(line, nodes, [going, stays])).planned["s0"].at == NOW + 630, "once the claimant has ended"
    unlimited = [line[0], waiting(9, a_spec(4), room_by=NOW + 60)]
    assert cycle(picture(unlimited, nodes, [going, stays])).planned["s0"].at == NOW + HOUR
    assert cycle(picture(line[:1], nodes, [going, stays])).planned["s0"].at == NOW + HOUR, "nobody knows of it"
    for_nobody = going._replace(preempted_for=None)
    assert cycle(picture(line, nodes, [for_nobody, stays])).planned["s0"].at == NOW + 30


def test_whom_room_is_freed_for_starts_when_it_is_free() -> None:
    nodes = [a_node("n1", cpus=4), a_node("n2", cpus=4)]
    going = running("going", NOW + 30, on(nodes[0], 4))._replace(stopping=True, preempted_for="s0")
    stays = running("stays", NOW + HOUR, on(nodes[1], 4))
    line = [waiting(0, a_spec(4, time_limit_s=600, grace_s=0), room_by=NOW + 60), waiting(1, a_spec(4))]
    plan = cycle(picture(line, nodes, [going, stays], None, backfill("conservative")))
    assert (plan.planned["s0"].at, plan.planned["s1"].at) == (NOW + 30, NOW + 630), "promised once, not twice"


def test_without_backfill_whoever_fits_starts_and_nothing_is_planned() -> None:
    nodes = [a_node("n1", cpus=4), a_node("n2", cpus=4)]
    ran = [running("r", NOW + HOUR, on(nodes[0], 4))]
    line = [waiting(0, a_spec(4, nodes=2)), waiting(1, a_spec(1))]
    plan = cycle(picture(line, nodes, ran, None, backfill("none")))
    assert placed(plan) == {"s1": ["n2"]}
    assert plan.planned == {}


def test_conservative_plans_for_those_behind_too_up_to_its_depth() -> None:
    node = a_node("n1", cpus=4)
    ran = [running("r", NOW + HOUR, on(node, 3))]
    line = [
        waiting(0, a_spec(4, time_limit_s=HOUR - 30)),
        waiting(1, a_spec(4, time_limit_s=HOUR - 30)),
        waiting(2, a_spec(4, time_limit_s=HOUR - 30)),
        waiting(3, a_spec(1, time_limit_s=HOUR)),
    ]
    plan = cycle(picture(line, [node], ran, None, backfill("conservative", backfill_depth=2)))
    assert {id_: start.at - NOW for id_, start in plan.planned.items()} == {"s0": HOUR, "s1": 2 * HOUR}
    assert codes(plan, "s3") == {"would_delay"}


def test_what_one_was_told_before_more_was_promised_is_not_told_to_another() -> None:
    nodes = [a_node("n1", cpus=4), a_node("n2", cpus=4)]
    ran = [running("r1", NOW + 100, on(nodes[0], 3)), running("r2", NOW + 20, on(nodes[1], 3))]
    line = [
        waiting(0, a_spec(4, on_nodes=("n1",))),
        waiting(1, a_spec(1, on_nodes=("n1",), time_limit_s=150, grace_s=0)),
        waiting(2, a_spec(4, on_nodes=("n2",))),
        waiting(3, a_spec(1, on_nodes=("n1",), time_limit_s=50, grace_s=0)),
    ]
    plan = cycle(picture(line, nodes, ran, None, backfill("conservative")))
    assert {id_: start.at - NOW for id_, start in plan.planned.items()} == {"s0": 100, "s2": 20}
    assert placed(plan) == {"s3": ["n1"]}, "it has ended when that room is promised"


def test_a_late_end_is_not_past_and_an_unknown_one_never_comes() -> None:
    node = a_node("n1", cpus=4)
    late = cycle(picture([waiting(0, a_spec(4))], [node], [running("r", NOW - 5, on(node, 4))]))
    assert late.planned["s0"].at > NOW
    unknown = cycle(picture([waiting(0, a_spec(4)), waiting(1, a_spec(1))], [node], [running("r", None, on(node, 3))]))
    assert unknown.planned == {}
    assert placed(unknown) == {"s1": ["n1"]}


def test_after_its_patience_nodes_are_kept_for_the_first_in_line() -> None:
    nodes = [a_node("n1", cpus=4), a_node("n2", cpus=4)]
    ran = [running("r", None, on(nodes[0], 3)), running("q", None, on(nodes[1], 1))]
    line = [waiting(0, a_spec(4), submitted_at=NOW - 601), waiting(1, a_spec(1)), waiting(2, a_spec(1))]
    group = ResourceGroup("default", options={"backfill_patience": 600.0})
    plan = cycle(picture(line, nodes, ran, None, group))
    assert placed(plan) == {"s1": ["n1"]}, "the second node is nearer to being free"
    assert codes(plan, "s2") == {"not_enough_cpus", "would_delay"}
    assert plan.planned == {}
    patient = cycle(picture([line[0]._replace(submitted_at=NOW - 599), *line[1:]], nodes, ran, None, group))
    assert set(placed(patient)) == {"s1", "s2"}


@pytest.mark.parametrize(("late_s", "starts"), [(60, True), (HOUR, False)])
def test_nothing_is_planned_on_who_never_ends(late_s: int, starts: bool) -> None:
    nodes = [a_node("n1", cpus=4), a_node("n2", cpus=4)]
    ran = [running("stuck", NOW - late_s, on(nodes[0], 4)), running("r", None, on(nodes[1], 2))]
    line = [waiting(0, a_spec(4), submitted_at=NOW - 2 * HOUR), waiting(1, a_spec(1))]
    plan = cycle(picture(line, nodes, ran))
    assert placed(plan) == ({"s1": ["n2"]} if starts else {}), "the first in line would wait for ever"
    assert set(plan.planned) == ({"s0"} if starts else set())


def test_who_could_not_start_on_empty_nodes_is_in_nobodys_way() -> None:
    node = a_node("n1", cpus=4)
    line = [waiting(0, a_spec(9), submitted_at=0.0), waiting(1, a_spec(4)), waiting(2, a_spec(1))]
    plan = cycle(picture(line, [node], [running("r", NOW + HOUR, on(node, 3))]))
    assert set(plan.planned) == {"s1"}
    assert codes(plan, "s2") == {"would_delay"}


def test_each_group_has_its_own_first_and_strangers_to_groups_respect_all() -> None:
    nodes = [a_node("n1", cpus=4), a_node("n2", cpus=4, group="gpu")]
    ran = [running("r", NOW + HOUR, on(nodes[0], 3)), running("q", NOW + 2 * HOUR, on(nodes[1], 3), group="gpu")]
    line = [
        waiting(0, a_spec(4, group="gpu")),
        waiting(1, a_spec(4, group="default")),
        waiting(2, a_spec(1)),
        waiting(3, a_spec(1, time_limit_s=HOUR)),
    ]
    groups = (ResourceGroup("default"), ResourceGroup("gpu"))
    plan = cycle(picture(line, nodes, ran, None, *groups))
    assert {id_: (start.at - NOW, start.group) for id_, start in plan.planned.items()} == {
        "s0": (2 * HOUR, "gpu"),
        "s1": (HOUR, "default"),
    }
    assert placed(plan) == {"s3": ["n2"]}
    assert codes(plan, "s2") == {"would_delay"}


def test_a_line_of_which_it_is_not_known_who_runs_goes_no_further_than_its_first() -> None:
    node = a_node("n1", cpus=4)
    ran = [running("r", NOW + HOUR, on(node, 3))]
    line = [waiting(0, a_spec(4)), waiting(1, a_spec(1, time_limit_s=60))]
    plan = cycle(picture(line, [node], ran, unread=frozenset({"default"})))
    assert (plan.placements, plan.more, set(plan.refusals)) == ((), True, {"s0"})
    again = cycle(picture(line, [node], ran))
    assert placed(again) == {"s1": ["n1"]}


def test_gpus_that_are_promised_are_told_from_those_that_are_not() -> None:
    node = a_node("n1", cpus=16)
    ones = gpus("n1", 4)
    ran = [running("r", NOW + HOUR, on(node, 1, ones[3]))]
    line = [
        waiting(0, a_spec(1, gpu=GpuRequest(count=4), time_limit_s=HOUR)),
        waiting(1, a_spec(1, gpu=GpuRequest())),
        waiting(2, a_spec(1, gpu=GpuRequest(share_milli=500), time_limit_s=HOUR - 30)),
        waiting(3, a_spec(1)),
    ]
    plan = cycle(picture(line, [node], ran, {"n1": ones}))
    assert set(placed(plan)) == {"s2", "s3"}
    assert codes(plan, "s1") == {"would_delay"}


# from pass to pass


def following(snapshot: Snapshot, **changes) -> tuple[Snapshot, Plan]:
    """The snapshot with what a pass on it promises, as it is after these changes; and the plan made then."""
    then = replace(snapshot, planned=new_starts(snapshot, cycle(snapshot)).after, **changes)
    return then, cycle(then)


def told(snapshot: Snapshot, plan: Plan) -> dict[str, float]:
    return {id_: one.told - NOW for id_, one in new_starts(snapshot, plan).after.items()}


def two_full() -> tuple[list[Node], list[Running]]:
    nodes = [a_node("n1", cpus=4), a_node("n2", cpus=4)]
    return nodes, [running("r1", NOW + 100, on(nodes[0], 4)), running("r2", NOW + 200, on(nodes[1], 4))]


def test_one_who_could_start_earlier_leaves_what_one_behind_was_promised() -> None:
    nodes, ran = two_full()
    line = [waiting(0, a_spec(4, time_limit_s=1000)), waiting(1, a_spec(4, on_nodes=("n2",), time_limit_s=1000))]
    before = picture(line, nodes, ran, None, backfill("conservative"))
    there, plan = following(before, nodes=using(nodes, ran[:1]), running=ran[:1], waiting=line[:1])
    assert placed(plan) == {"s0": ["n2"]}, "nobody was promised it who waits"
    there, plan = following(before, nodes=using(nodes, ran[:1]), running=ran[:1])
    assert placed(plan) == {"s1": ["n2"]}
    (why,) = [one for one in plan.refusals["s0"] if one.code == "would_delay"]
    assert "session s1, whose start is promised" in why.message
    assert (told(there, plan), plan.put_off) == ({"s0": 100}, {})
    assert placed(cycle(replace(there, planned={}))) == {"s0": ["n2"]}, "if nothing was promised"


def test_a_promise_on_a_node_that_takes_nothing_any_more_is_made_anew() -> None:
    nodes, ran = two_full()
    before = picture([waiting(0, a_spec(4))], nodes, ran)
    away, plan = following(before, nodes=[replace(before.nodes[0], schedulable=False), before.nodes[1]])
    assert told(away, plan) == {"s0": 200}
    assert plan.put_off["s0"].startswith("node n1: ")
    gone, plan = following(before, nodes=before.nodes[1:])
    assert (told(gone, plan), plan.put_off) == ({"s0": 200}, {"s0": "node n1 is gone"})
    assert new_starts(gone, plan).put_off == plan.put_off


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"reservations": [Reservation("maint", ("n1",), NOW + 150, NOW + 9000)]}, "reserved from "),
        ({"running": [running("r1", NOW + 5000, on(a_node("n1"), 4))]}, "those who run there go on for longer"),
        ({"waiting": [waiting(0, a_spec(9)), waiting(1, a_spec(4), priority=1)]}, None),
        ({"groups": {"default": backfill("none")}}, None),
    ],
)
def test_what_is_from_outside_may_put_it_off(change: dict, why: str | None) -> None:
    nodes, ran = two_full()
    before = picture([waiting(1, a_spec(4, on_nodes=("n1",)))], nodes, ran)
    after, plan = following(before, **change)
    if why is None:
        assert not plan.put_off, "nothing was held for it"
    else:
        assert plan.put_off["s1"].startswith(why)
        assert new_starts(after, plan).put_off == plan.put_off


def test_a_late_end_moves_a_promise_a_minute_at_a_time_and_a_little_is_not_told() -> None:
    node = a_node("n1", cpus=4)
    before = picture([waiting(0, a_spec(4))], [node], [running("r", NOW + 10, on(node, 4))])
    late = replace(before, planned=new_starts(before, cycle(before)).after, now=NOW + 12)
    starts = new_starts(late, cycle(late))
    assert (starts.after["s0"].told, starts.after["s0"].at, dict(starts.put_off)) == (NOW + 10, NOW + 70, {})
    again = replace(late, planned=starts.after, now=NOW + 69)
    assert new_starts(again, cycle(again)).noted == {}
    later = replace(late, planned=starts.after, now=NOW + 71)
    starts = new_starts(later, cycle(later))
    assert (starts.after["s0"].told, set(starts.put_off)) == (NOW + 130, {"s0"})


def test_who_had_no_turn_keeps_what_was_promised() -> None:
    nodes, ran = two_full()
    line = [waiting(0, a_spec(4)), waiting(1, a_spec(4, time_limit_s=50))]
    before = picture(line, nodes, ran, None, backfill("conservative"))
    unread, plan = following(before, unread=frozenset({"default"}))
    assert told(unread, plan) == {"s0": 100, "s1": 200}


# reservations


def reserved(*nodes: str, starts: float, ends: float, **whose) -> Reservation:
    return Reservation("maint", nodes, NOW + starts, NOW + ends, **whose)


@pytest.mark.parametrize(
    ("limit", "starts"),
    [(HOUR - 30, True), (HOUR - 29, False), (None, False)],
)
def test_nobody_starts_what_would_run_into_a_reservation(limit: int | None, starts: bool) -> None:
    keep = reserved("n1", starts=HOUR, ends=2 * HOUR)
    plan = cycle(picture([waiting(0, a_spec(1, time_limit_s=limit))], [a_node()], reservations=[keep]))
    assert bool(plan.placements) is starts
    if not starts:
        (why,) = plan.refusals["s0"]
        assert (why.code, why.counts) == ("reserved", {"nodes": 1})
        assert "maint" in why.message
        assert plan.planned["s0"].at == NOW + 2 * HOUR


def test_those_a_reservation_names_may_use_it_and_others_go_elsewhere() -> None:
    keep = reserved("n1", starts=-1, ends=HOUR, owners=("eve",), projects=("p",))
    nodes = [a_node("n1"), a_node("n2", cpus=1)]
    line = [
        waiting(0, a_spec(2)),
        waiting(1, a_spec(2), owner="eve"),
        waiting(2, a_spec(2, project="p")),
        waiting(3, a_spec(1)),
    ]
    plan = cycle(picture(line, nodes, reservations=[keep]))
    assert placed(plan) == {"s1": ["n1"], "s2": ["n1"], "s3": ["n2"]}
    assert codes(plan, "s0") == {"reserved", "not_enough_cpus"}
    assert plan.planned["s0"].at == NOW + HOUR


def test_a_planned_start_keeps_clear_of_reservations() -> None:
    node = a_node("n1", cpus=4)
    ran = [running("r", NOW + HOUR, on(node, 4))]
    keep = reserved("n1", starts=2 * HOUR, ends=3 * HOUR)
    line = [waiting(0, a_spec(4, time_limit_s=HOUR - 30)), waiting(1, a_spec(4, time_limit_s=HOUR))]
    plan = cycle(picture(line, [node], ran, None, backfill("conservative"), reservations=[keep]))
    assert {id_: start.at - NOW for id_, start in plan.planned.items()} == {"s0": HOUR, "s1": 3 * HOUR}


# any cluster, any line

SPECS = st.builds(
    lambda cpus, nodes, ranks, gpu, limit, exclusive: a_spec(
        cpus, nodes=nodes, ranks_per_node=ranks, gpu=gpu, time_limit_s=limit, exclusive=exclusive, grace_s=0
    ),
    st.integers(1, 4),
    st.integers(1, 3),
    st.sampled_from([1, 1, 1, 2]),
    st.sampled_from([None, None, GpuRequest(), GpuRequest(count=2), GpuRequest(share_milli=400)]),
    st.sampled_from([None, 50, 100, 100, 200, 400]),
    st.sampled_from([False, False, False, False, True]),
)
KEPT = st.builds(
    lambda node, starts, length, mine: Reservation(
        f"r{node}{starts}", (f"n{node}",), NOW + starts, NOW + starts + length, ("ann",) if mine else ()
    ),
    st.integers(1, 4),
    st.sampled_from([-10, 0, 60, 150]),
    st.sampled_from([40, 120]),
    st.booleans(),
)


def a_cluster(count: int = 4) -> tuple[list[Node], dict[str, list[Device]]]:
    nodes = [a_node(f"n{number}", cpus=4 + number % 2) for number in range(1, count + 1)]
    return nodes, {node.name: gpus(node.name, number % 3) for number, node in enumerate(nodes)}


def until(one: Waiting, at: float) -> float:
    return math.inf if one.time_limit_s is None else at + one.time_limit_s + one.grace_s


def started(plan: Plan, at: float) -> list[Running]:
    return [
        Running(one.session.id, one.session.ordinal, 1, 1, one.group, one.session.owner, one.session.project, 0,
                one.session.shape, one.ranks, at, at,
                None if math.isinf(until(one.session, at)) else until(one.session, at))
        for one in plan.placements
    ]  # fmt: skip


def some_run(specs: Sequence[SessionSpec], nodes: list[Node], devices: dict[str, list[Device]]) -> list[Running]:
    """Those of these that find room on empty nodes."""
    line = [waiting(number, spec, id=f"r{number}") for number, spec in enumerate(specs)]
    return started(cycle(picture(line, nodes, (), devices, backfill("none"))), NOW)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(SPECS, max_size=6),
    st.lists(SPECS, min_size=1, max_size=8),
    st.lists(KEPT, max_size=2, unique_by=lambda one: one.id),
    st.sampled_from(["easy", "conservative"]),
)
def test_what_is_planned_has_room_whatever_started(
    there: list[SessionSpec], line: list[SessionSpec], kept: list[Reservation], kind: str
) -> None:
    nodes, devices = a_cluster()
    ran = some_run(there, nodes, devices)
    rows = [waiting(number, spec) for number, spec in enumerate(line)]
    snapshot = picture(rows, nodes, ran, devices, backfill(kind), reservations=kept)
    plan = cycle(snapshot)
    assert check(snapshot, plan) == []
    spans = [(NOW, until(one.session, NOW), one.session, one.ranks) for one in plan.placements]
    by_id = {one.id: one for one in rows}
    spans += [(start.at, until(by_id[id_], start.at), by_id[id_], start.ranks) for id_, start in plan.planned.items()]
    for begin, _, _, _ in spans:
        assert begin >= NOW
        then = [ranks for start, end, _, ranks in spans if start <= begin < end]
        then += [one.ranks for one in ran if one.ends_at is None or one.ends_at > begin]
        rooms = {node.name: NodeRoom(node, devices[node.name]) for node in nodes}
        for ranks in then:
            for rank in ranks:
                assert rooms[rank.node].fits([rank]), (begin, rank)
                rooms[rank.node].take(rank)
    for begin, end, one, ranks in spans:
        for keep in kept:
            mine = one.owner in keep.owners
            apart = end <= keep.starts_at or begin >= keep.ends_at or keep.ends_at <= NOW
            assert mine or apart or not {rank.node for rank in ranks} & set(keep.nodes)


@settings(max_examples=40, deadline=None)
@given(st.lists(SPECS, min_size=2, max_size=8), SPECS)
def test_a_planned_start_is_the_earliest_there_is(there: list[SessionSpec], head: SessionSpec) -> None:
    nodes, devices = a_cluster()
    ran = some_run(there, nodes, devices)
    plan = cycle(picture([waiting(0, head)], nodes, ran, devices))
    ends = sorted({one.ends_at for one in ran if one.ends_at is not None})

    def fits(at: float) -> bool:
        left = [one for one in ran if one.ends_at is None or one.ends_at > at]
        gone = cycle(picture([waiting(0, head)], nodes, left, devices, backfill("none")))
        return bool(gone.placements)

    first = next((at for at in [NOW, *ends] if fits(at)), None)
    told = NOW if plan.placements else plan.planned["s0"].at if plan.planned else None
    assert told == first


Job = tuple[SessionSpec, int, float]  # what, how long after the one before it, which part of its limit it takes


class World:
    """Sessions that come, run for as long as they do, and end; a pass at each event. What one pass promises the next
    one knows; `forgets` leaves that out."""

    def __init__(self, kind: str, patience: float = 24.0 * HOUR, **options) -> None:
        self.nodes, self.devices = a_cluster()
        self.group = backfill(kind, backfill_patience=patience, **({"backfill_depth": 50} | options))
        self.now = NOW
        self.line: list[Waiting] = []
        self.ran: list[Running] = []
        self.ends: dict[str, float] = {}
        self.promised: Mapping[str, Promise] = {}
        self.told: dict[str, list[float]] = defaultdict(list)
        self.put_off: dict[str, list[str]] = defaultdict(list)
        self.began: dict[str, float] = {}

    def turn(self, lengths: Mapping[str, float]) -> Plan:
        snapshot = picture(self.line, self.nodes, self.ran, self.devices, self.group)
        snapshot = replace(snapshot, now=self.now, planned=self.promised)
        plan = cycle(snapshot)
        assert check(snapshot, plan) == []
        starts = new_starts(snapshot, plan)
        self.promised = starts.after
        for id_, one in starts.after.items():
            self.told[id_].append(one.told)
        for id_, why in starts.put_off.items():
            self.put_off[id_].append(why)
        for one in started(plan, self.now):
            self.ran.append(one)
            self.began[one.id] = self.now
            self.ends[one.id] = self.now + lengths[one.id]
        self.line = [one for one in self.line if one.id not in self.began]
        return plan

    def could_start(self, one: Waiting) -> bool:
        return bool(cycle(picture([one], self.nodes, (), self.devices)).placements)

    def end_by(self, at: float) -> None:
        self.now = at
        self.ran = [one for one in self.ran if self.ends[one.id] > at]

    def run(self, jobs: Sequence[Job]) -> None:
        lengths: dict[str, float] = {}
        arrivals: list[tuple[float, Waiting]] = []
        at = NOW
        for number, (spec, gap, part) in enumerate(jobs):
            at += gap
            row = waiting(number, spec, submitted_at=at)
            lengths[row.id] = part * (spec.time_limit_s or 150)
            arrivals.append((at, row))
        for _ in range(400):
            self.line += [row for moment, row in arrivals if moment <= self.now]
            arrivals = [one for one in arrivals if one[0] > self.now]
            self.turn(lengths)
            moments = [moment for moment, _ in arrivals] + [self.ends[one.id] for one in self.ran]
            if not moments:
                return
            self.end_by(min(moments))


LIMITED = SPECS.map(lambda spec: spec if spec.time_limit_s else replace(spec, time_limit_s=100))


def jobs_of(specs: st.SearchStrategy[SessionSpec]) -> st.SearchStrategy[list[Job]]:
    return st.lists(st.tuples(specs, st.integers(0, 60), st.floats(0.05, 1.0)), min_size=3, max_size=25)


@settings(max_examples=60, deadline=None)
@given(jobs_of(LIMITED), st.sampled_from(["easy", "conservative"]), st.sampled_from([2, 50]))
def test_nobody_starts_later_than_he_was_first_told(jobs: list[Job], kind: str, depth: int) -> None:
    """Everybody keeps his limit and nothing comes from outside: conservative keeps what it told anybody, easy what it
    told the first."""
    world = World(kind, backfill_depth=depth)
    world.run(jobs)
    assert not any(map(world.could_start, world.line)), "everybody that could ever start did"
    assert world.put_off == {}
    for id_, told in world.told.items():
        assert told == sorted(told, reverse=True), "a planned start is never put off"
        assert world.began[id_] <= told[-1] + 1e-6


@settings(max_examples=30, deadline=None)
@given(jobs_of(SPECS), st.sampled_from(["easy", "conservative"]))
def test_first_in_line_a_planned_start_is_kept_and_nobody_starves(jobs: list[Job], kind: str) -> None:
    """Some have no time limit: then somebody may come before others of whom no start could be planned until then. Whose
    start is put off for that is told why."""
    world = World(kind, patience=120.0)
    world.run(jobs)
    assert not any(map(world.could_start, world.line)), "everybody that could ever start did"
    for id_, told in world.told.items():
        if id_ not in world.put_off:
            assert told == sorted(told, reverse=True)
            assert world.began[id_] <= told[-1] + 1e-6
