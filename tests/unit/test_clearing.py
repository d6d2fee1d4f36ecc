"""What may move in a cluster as it is, for whom: held to the rules for placing, one move after the other."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from corral.model.node import Device, Node, NodeState, ResourceGroup
from corral.model.resources import GpuRequest, Resources
from corral.model.spec import SessionSpec
from corral.scheduling.cycle import cycle
from corral.scheduling.moving.clearing import Wanted, plan_moves, wrong_moves
from corral.scheduling.snapshot import Reservation, Running, Shape, Snapshot, Waiting, shape_of

NOW = 1_000_000.0
GPUS = 4


def a_node(number: int) -> Node:
    where = (f"n{number}", "default", NodeState.UP, True, 1, "boot", "run", "inc", "hw", "0", "127.0.0.1")
    return Node(*where, 64_000, 65_536)


def a_shape(gpus: float) -> Shape:
    request = GpuRequest(int(gpus)) if gpus >= 1 else GpuRequest(share_milli=round(gpus * 1000))
    return shape_of(SessionSpec(command=("x",), resources=Resources(1000, 64, request)))


def waits(number: int, gpus: float) -> Waiting:
    return Waiting(f"w{number}", 1000 + number, 1, 1, 0, "ann", "default", NOW, a_shape(gpus))


def cluster(nodes: int, holders: list[tuple[int, float, bool]], *line: Waiting) -> Snapshot:
    """Each holder is put on its node by a pass of its own, so that what it holds is what it would."""
    machines = [a_node(number) for number in range(nodes)]
    devices = {
        node.name: [Device(node.name, f"{node.name}/{index}", index, "V100", None, 32_000) for index in range(GPUS)]
        for node in machines
    }
    snapshot = Snapshot(NOW, machines, devices, [], {"default": ResourceGroup("default")})
    running: list[Running] = []
    for number, (node, gpus, preemptible) in enumerate(holders):
        shape = replace(a_shape(gpus), on_nodes=(f"n{node % nodes}",))
        one = Waiting(f"r{number}", number, 1, 1, 0, "bob", "default", NOW, shape)
        plan = cycle(replace(snapshot, waiting=[one]))
        for placed in plan.placements:
            ranks = placed.ranks
            running.append(Running(f"r{number}", number, 1, 1, "default", "bob", "default", 0, a_shape(gpus), ranks,
                                   NOW - 100, NOW - 90, preemptible=preemptible))  # fmt: skip
            snapshot = taken(snapshot, running[-1])
    return replace(snapshot, running=running, waiting=list(line))


def taken(snapshot: Snapshot, one: Running) -> Snapshot:
    rank = one.ranks[0]
    held = {grant.uuid: grant for grant in rank.grants}
    nodes = [
        replace(node, cpu_used_milli=node.cpu_used_milli + rank.cpu_milli,
                memory_used_mib=node.memory_used_mib + rank.memory_mib) if node.name == rank.node else node
        for node in snapshot.nodes
    ]  # fmt: skip
    devices = {
        name: [
            replace(device, used_milli=device.used_milli + held[device.uuid].share_milli,
                    used_mib=device.used_mib + held[device.uuid].vram_mib) if device.uuid in held else device
            for device in ones
        ]
        for name, ones in snapshot.devices.items()
    }  # fmt: skip
    return replace(snapshot, nodes=nodes, devices=devices)


def test_one_moves_for_who_waits_and_the_plan_stands() -> None:
    snapshot = cluster(2, [(0, 2, True), (1, 2, True)], waits(0, 4))
    found = plan_moves(snapshot, Wanted())
    assert [(move.here[0].node, move.there[0].node, move.goal) for move in found.moves] == [("n1", "n0", "w0")]
    assert wrong_moves(snapshot, found) == []


def test_room_that_nobody_waits_for_may_be_wanted() -> None:
    snapshot = cluster(2, [(0, 2, True), (1, 2, True)])
    assert not plan_moves(snapshot, Wanted()).won
    found = plan_moves(snapshot, Wanted(gpus=4))
    assert [goal.id for goal, _ in found.won] == ["room-1"] and len(found.moves) == 1
    assert wrong_moves(snapshot, found) == []


def test_who_may_not_be_stopped_stays() -> None:
    snapshot = cluster(2, [(0, 2, False), (1, 2, False)], waits(0, 4))
    assert not plan_moves(snapshot, Wanted()).moves
    unsaid = [one._replace(preemptible=None) for one in snapshot.running]
    assert plan_moves(replace(snapshot, running=unsaid), Wanted()).moves
    groups = {"default": ResourceGroup("default", options={"preemptible": "no"})}
    assert not plan_moves(replace(snapshot, running=unsaid, groups=groups), Wanted()).moves
    stopping = [one._replace(preemptible=True, stopping=True) for one in snapshot.running]
    assert not plan_moves(replace(snapshot, running=stopping), Wanted()).moves


def test_who_was_stopped_often_enough_or_began_just_now_stays() -> None:
    snapshot = cluster(2, [(0, 2, True), (1, 2, True)], waits(0, 4))
    often = [one._replace(preemptions=3) for one in snapshot.running]
    assert not plan_moves(replace(snapshot, running=often), Wanted()).moves
    lately = [one._replace(started_at=NOW - 59) for one in snapshot.running]
    assert not plan_moves(replace(snapshot, running=lately), Wanted()).moves
    options = {"preemption_budget": 4, "preemption_min_runtime": 30}
    lenient = {"default": ResourceGroup("default", options=options)}
    assert plan_moves(replace(snapshot, running=often, groups=lenient), Wanted()).moves
    assert plan_moves(replace(snapshot, running=lately, groups=lenient), Wanted()).moves


def test_nobody_moves_for_one_that_others_stop_for_already() -> None:
    snapshot = cluster(2, [(0, 2, True), (1, 2, True)], waits(0, 4)._replace(room_by=NOW + 1))
    assert not plan_moves(snapshot, Wanted()).moves
    assert plan_moves(replace(snapshot, now=NOW + 1), Wanted()).moves


def test_a_paused_group_moves_nobody() -> None:
    snapshot = cluster(2, [(0, 2, True), (1, 2, True)], waits(0, 4))
    paused = replace(snapshot, groups={"default": ResourceGroup("default", paused=True)})
    assert not plan_moves(paused, Wanted(gpus=4)).moves


def test_a_wrong_plan_is_found() -> None:
    snapshot = cluster(2, [(0, 2, True), (1, 2, True)], waits(0, 4))
    found = plan_moves(snapshot, Wanted())
    (move,) = found.moves
    assert wrong_moves(snapshot, replace(found, moves=()))  # its room is not free yet
    assert wrong_moves(snapshot, replace(found, moves=(replace(move, there=move.here),)))
    assert wrong_moves(snapshot, replace(found, won=()))


@settings(max_examples=60, deadline=None)
@given(
    holders=st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from([0.3, 0.5, 1, 2, 3]), st.booleans()), max_size=14
    ),
    line=st.lists(st.sampled_from([0.6, 1, 2, 4]), max_size=4),
    gpus=st.sampled_from([0, 2, 4]),
)  # fmt: skip
def test_every_plan_stands(holders: list[tuple[int, float, bool]], line: list[float], gpus: int) -> None:
    snapshot = cluster(4, holders, *(waits(number, size) for number, size in enumerate(line)))
    found = plan_moves(snapshot, Wanted(moves=4, gpus=gpus))
    assert wrong_moves(snapshot, found) == []
    assert len(found.moves) <= 4
    may = {one.id for one in snapshot.running if one.preemptible}
    assert {move.id for move in found.moves} <= may


# --- what is left to others


def ending(snapshot: Snapshot, **ends: float) -> Snapshot:
    """With known ends, in seconds from now."""
    ran = [one._replace(ends_at=NOW + ends[one.id]) if one.id in ends else one for one in snapshot.running]
    return replace(snapshot, running=ran)


def test_nobody_moves_to_where_it_would_run_into_a_reservation() -> None:
    snapshot = cluster(2, [(0, 2, True), (1, 2, True)], waits(0, 4))
    (move,) = plan_moves(snapshot, Wanted()).moves
    there = Reservation("m", (move.there[0].node,), NOW + 3600, NOW + 7200)
    (other,) = plan_moves(replace(snapshot, reservations=[there]), Wanted()).moves or (None,)
    assert other is None, "nor is the goal where it would"
    short = replace(snapshot, reservations=[there], waiting=[waits(0, 4)._replace(time_limit_s=600)])
    found = plan_moves(short, Wanted())
    assert [one.there[0].node for one in found.moves] == [move.here[0].node], (
        "the goal is gone by then, the mover is not"
    )
    assert wrong_moves(short, found) == []
    mine = replace(snapshot, reservations=[there._replace(owners=("bob",))])
    assert plan_moves(mine, Wanted()).moves == (move,), "it is for who moves"
    soon = replace(ending(snapshot, r0=600, r1=600), reservations=[there])
    assert plan_moves(soon, Wanted()).moves == (move,), "it is gone by then"


def test_nobody_moves_to_where_somebody_in_front_is_planned_to_start() -> None:
    """The first waits for the whole of n0, where one ends in an hour; another would make room for the second there."""
    holders: list[tuple[int, float, bool]] = [(0, 2, False), (1, 2, True), (2, 3, False)]
    first, second = waits(0, 4), waits(1, 4)
    first = first._replace(shape=replace(first.shape, on_nodes=("n0",)))
    snapshot = cluster(3, holders, first, second)
    assert [(one.id, one.there[0].node) for one in plan_moves(snapshot, Wanted()).moves] == [("r1", "n0")]
    promised = ending(snapshot, r0=3600.0)
    found = plan_moves(promised, Wanted())
    assert found.moves == () and [goal.id for goal in found.given_up] == ["w0", "w1"]
    behind = replace(promised, waiting=[second._replace(ordinal=1), first._replace(ordinal=9999)])
    assert plan_moves(behind, Wanted()).moves != (), "who waits behind the goal is not asked"
    short = ending(promised, r1=600.0)
    found = plan_moves(short, Wanted())
    assert [one.there[0].node for one in found.moves] == ["n0"], "who moves there is gone by then"
    assert wrong_moves(short, found) == []


def test_a_plan_that_delays_who_is_in_front_is_wrong() -> None:
    first, second = waits(0, 4), waits(1, 4)
    first = first._replace(shape=replace(first.shape, on_nodes=("n0",)))
    snapshot = cluster(3, [(0, 2, False), (1, 2, True), (2, 3, False)], first, second)
    found = plan_moves(snapshot, Wanted())
    assert wrong_moves(ending(snapshot, r0=3600.0), found) == ["w0 would not start on n0 as planned"]


@settings(max_examples=80, deadline=None)
@given(
    holders=st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from([0.5, 1, 2, 3]), st.booleans(),
                  st.sampled_from([None, 600, 4000])), max_size=12,
    ),
    line=st.lists(st.tuples(st.sampled_from([0.6, 1, 2, 4]), st.sampled_from([None, 300, 6000])), max_size=4),
    kept=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5000), st.sampled_from(["ann", "bob"])), max_size=2),
    gpus=st.sampled_from([0, 4]), backfill=st.sampled_from(["easy", "conservative", "none"]),
)  # fmt: skip
def test_every_plan_leaves_others_what_is_theirs(holders, line, kept, gpus, backfill) -> None:
    waiting = [waits(number, size)._replace(time_limit_s=limit) for number, (size, limit) in enumerate(line)]
    snapshot = cluster(4, [holder[:3] for holder in holders], *waiting)
    ends = {f"r{number}": float(end) for number, (*_, end) in enumerate(holders) if end is not None}
    reserved = [
        Reservation(f"m{number}", (f"n{node}",), NOW + at, NOW + at + 900, (owner,))
        for number, (node, at, owner) in enumerate(kept)
    ]
    groups = {"default": ResourceGroup("default", options={"backfill": backfill})}
    snapshot = replace(ending(snapshot, **ends), reservations=reserved, groups=groups)
    assert wrong_moves(snapshot, plan_moves(snapshot, Wanted(moves=4, gpus=gpus))) == []
