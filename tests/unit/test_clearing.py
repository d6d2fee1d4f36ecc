"""What may move in a cluster as it is, for whom: held to the rules for placing, one move after the other."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from corral.model.node import Device, Node, NodeState, ResourceGroup
from corral.model.resources import GpuRequest, Resources
from corral.model.spec import SessionSpec
from corral.scheduling.cycle import cycle
from corral.scheduling.moving.clearing import Wanted, plan_moves, wrong_moves
from corral.scheduling.snapshot import Running, Shape, Snapshot, Waiting, shape_of

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
