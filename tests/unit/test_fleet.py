"""The arrays say what plain Python says: the same nodes fit, for the same reasons, and get the same grants."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.model.node import Device, Node, NodeState, ResourceGroup
from corral.model.resources import GpuRequest, Resources
from corral.model.spec import SessionSpec
from corral.scheduling.cycle import cycle
from corral.scheduling.engine import pool as pool_module
from corral.scheduling.engine.pool import Log
from corral.scheduling.engine.room import NodeRoom, excluded
from corral.scheduling.fleet import Fleet, Placement
from corral.scheduling.places import RankPlace
from corral.scheduling.plan import Refusal, check, refusal
from corral.scheduling.policies.score import PLACEMENTS, Pack
from corral.scheduling.snapshot import Shape, Snapshot, Waiting, shape_of

NOW = 1000.0
KINDS = [("A100", "sm_80", 80_000), ("L4", "sm_89", 24_000), ("L4", None, 23_000)]


def pack(room: NodeRoom) -> float:
    """What `Pack` says, of one node in plain Python."""
    used = [
        1 - room.cpu_free_milli / room.node.cpu_milli if room.node.cpu_milli else 1.0,
        1 - room.memory_free_mib / room.node.memory_mib if room.node.memory_mib else 1.0,
    ]
    if room.devices:
        used.append(sum(1000 - device.free_milli for device in room.devices) / (1000 * len(room.devices)))
    return max(used)


def place_plainly(shape: Shape, rooms: Sequence[NodeRoom], groups: set[str]) -> Placement | tuple[Refusal, ...]:
    """A pass's answer for one shape, node by node."""
    reasons: Counter[str] = Counter()
    candidates: dict[str, list[NodeRoom]] = {}
    for room in rooms:
        why = excluded(room.node, shape, NOW)
        if why is None and room.node.group in groups:
            candidates.setdefault(room.node.group, []).append(room)
        else:
            reasons[why or "group_unknown"] += 1
    for group, members in sorted(candidates.items()):
        members.sort(key=lambda room: (-pack(room), room.node.name))
        taken: list[tuple[NodeRoom, list[RankPlace]]] = []
        for room in members:
            places = room.place(shape)
            if isinstance(places, str):
                reasons[places] += 1
                continue
            taken.append((room, places))
            if len(taken) == shape.nodes:
                return Placement(group, tuple(place for _, places in taken for place in places))
        for room, places in taken:
            room.give_back(places)
        reasons["not_enough_nodes"] += len(taken)
    if not rooms:
        return (refusal("no_nodes", {}),)
    return tuple(refusal(code, {"nodes": count}) for code, count in sorted((+reasons).items()))


@st.composite
def devices_of(draw: st.DrawFn, node: str) -> list[Device]:
    listed: list[Device] = []
    for index in range(draw(st.integers(0, 4))):
        model, arch, mib = draw(st.sampled_from(KINDS))
        device = Device(node, f"{node}-{index}", index, model, arch, mib, present=draw(st.integers(0, 9)) > 0)
        used = draw(st.sampled_from([0, 0, 0, 250, 600, 1000]))
        listed.append(replace(device, used_milli=used, used_mib=draw(st.sampled_from([0, mib * used // 1000, 900]))))
    return draw(st.permutations(listed))


@st.composite
def fleets(draw: st.DrawFn) -> tuple[list[Node], dict[str, list[Device]]]:
    nodes: list[Node] = []
    devices: dict[str, list[Device]] = {}
    for number in draw(st.permutations(range(draw(st.integers(0, 6))))):
        name = f"n{number}"
        cpu_milli, memory_mib = (
            draw(st.sampled_from([0, *[2000, 8000] * 4])),
            draw(st.sampled_from([0, *[4096, 16384] * 4])),
        )
        node = Node(
            name,
            draw(st.sampled_from(["a"] * 6 + ["b", "unheard-of"])),
            draw(st.sampled_from([NodeState.UP] * 9 + [NodeState.UNREACHABLE])),
            draw(st.integers(0, 9)) > 0,
            *(1, "boot", "run", "inc", "hw", "0", "127.0.0.1"),
            cpu_milli,
            memory_mib,
            cpu_used_milli=draw(st.sampled_from([0, 1000, 5000])) if cpu_milli == 8000 else 0,
            backoff_until=draw(st.sampled_from([0.0] * 9 + [NOW + 1])),
            labels=draw(st.sampled_from([{}, {"rack": "r1"}, {"rack": "r2", "disk": "fast"}])),
            runtimes=draw(st.sampled_from([("process",)] * 9 + [("container",)])),
        )
        nodes.append(node)
        devices[name] = draw(devices_of(name))
    return nodes, devices


gpus = st.none() | st.builds(
    GpuRequest,
    count=st.integers(1, 3),
    vram_mib=st.sampled_from([0, 0, 30_000]),
    model=st.sampled_from([None, None, "a100", "L4", "L4|A100", "H100"]),
)
shares = st.builds(
    GpuRequest,
    share_milli=st.sampled_from([0, 100, 250, 700]),
    vram_mib=st.sampled_from([5_000, 30_000]),
    model=st.sampled_from([None, None, "A100"]),
    arch=st.sampled_from([None, None, "sm_89"]),
) | st.builds(GpuRequest, share_milli=st.sampled_from([100, 250, 700]))
specs = st.builds(
    SessionSpec,
    command=st.just(("x",)),
    resources=st.builds(
        Resources, st.sampled_from([0, 500, 1000, 4000]), st.sampled_from([0, 64, 4096]), gpus | gpus | shares
    ),
    group=st.sampled_from([*[None] * 6, "a", "b", "c"]),
    nodes=st.sampled_from([1, 1, 1, 2, 3]),
    ranks_per_node=st.sampled_from([1, 1, 1, 2, 3]),
    exclusive=st.sampled_from([False] * 5 + [True]),
    on_labels=st.sampled_from([*[{}] * 7, {"rack": "r1"}]),
    on_nodes=st.sampled_from([*[()] * 7, ("n0", "n1", "n3")]),
    not_nodes=st.sampled_from([*[()] * 7, ("n1", "n2")]),
)
few = st.lists(specs.map(shape_of), min_size=1, max_size=4)
shapes = few.flatmap(lambda distinct: st.lists(st.sampled_from(distinct), min_size=1, max_size=16))


@settings(max_examples=400, deadline=None)
@given(fleets(), shapes, st.data())
def test_arrays_and_plain_python_agree(made, wanted, data) -> None:
    nodes, devices = made
    rooms = [NodeRoom(node, devices[node.name]) for node in nodes]
    fleet = Fleet(nodes, devices, {"a": Pack, "b": Pack}, NOW)
    held: list[tuple[RankPlace, ...]] = []
    for shape in wanted:
        if held and data.draw(st.booleans()):
            ended = held.pop(data.draw(st.integers(0, len(held) - 1)))
            fleet.give_back(ended)
            _move_plainly(rooms, ended)
        expected = place_plainly(shape, rooms, {"a", "b"})
        found = fleet.place(shape)
        if isinstance(expected, Placement):
            assert found == expected
            held.append(expected.ranks)
        else:
            assert found is None
            assert fleet.refusals(shape) == expected


def _move_plainly(rooms: Sequence[NodeRoom], ranks: Sequence[RankPlace]) -> None:
    by_name = {room.node.name: room for room in rooms}
    for rank in ranks:
        by_name[rank.node].give_back([rank])


@settings(max_examples=200, deadline=None)
@given(fleets(), shapes, st.sampled_from(sorted(PLACEMENTS)))
def test_no_policy_makes_a_wrong_plan(made, wanted, placement) -> None:
    nodes, devices = made
    rows = [Waiting(f"s{n}", n, 1, 1, 0, "admin", "default", NOW, shape) for n, shape in enumerate(wanted)]
    groups = {name: ResourceGroup(name, placement=placement) for name in ("a", "b")}
    snapshot = Snapshot(NOW, nodes, devices, rows, groups)
    plan = cycle(snapshot)
    assert check(snapshot, plan) == []
    assert cycle(snapshot) == plan
    assert {one.session.id for one in plan.placements} | set(plan.refusals) == {one.id for one in rows}


def a_fleet(count: int = 3, **changes) -> tuple[list[Node], Mapping[str, list[Device]]]:
    nodes = [
        Node(f"n{number}", "a", NodeState.UP, True, 1, "b", "r", "i", "h", "0", "127.0.0.1", 8000, 16384, **changes)
        for number in range(count)
    ]
    return nodes, {node.name: [Device(node.name, f"{node.name}-g", 0, "A100", None, 80_000)] for node in nodes}


def a_shape(**changes) -> Shape:
    return shape_of(SessionSpec(command=("x",), resources=Resources(1000, 64), **changes))


@given(st.lists(st.integers(0, 9), max_size=60), st.integers(1, 8), st.integers(1, 5), st.data())
def test_a_log_knows_every_row_that_changed_however_long_ago(changed: list[int], most: int, at_once: int, data) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool_module, "MOST_RECENT", most)
        patch.setattr(pool_module, "AT_ONCE", at_once)
        log = Log(10)
        for row in changed:
            log.note(row)
            assert log.few_since(log.stamp - 1) in ([row], None)
        assert log.stamp == len(changed)
        stamp = data.draw(st.integers(-1, len(changed)))
        rows, expected = log.since(stamp), set(changed[max(stamp, 0) :])
    if isinstance(rows, slice):
        assert stamp < 0 or len(expected) > 5
    else:
        assert set(rows.tolist()) == expected and len(rows) == len(expected)
    assert expected <= set(log.each_since(stamp))


def test_a_fleet_kept_for_long_still_knows_its_room() -> None:
    fleet = Fleet(*a_fleet(2), {"a": Pack})
    rare = a_shape(nodes=2)
    assert fleet.place(rare)
    for _ in range(3000):
        placement = fleet.place(a_shape())
        assert placement is not None
        fleet.give_back(placement.ranks)
    for _ in range(7):
        assert fleet.place(rare)
    assert fleet.place(rare) is None


def test_a_node_that_leaves_and_comes_back() -> None:
    nodes, devices = a_fleet(1)
    fleet = Fleet(nodes, devices, {"a": Pack})
    fleet.set_node(replace(nodes[0], schedulable=False))
    assert fleet.place(a_shape()) is None
    assert [one.code for one in fleet.refusals(a_shape())] == ["node_not_schedulable"]
    fleet.set_node(replace(nodes[0], schedulable=True, epoch=2))
    placement = fleet.place(a_shape())
    assert placement and placement.ranks[0].epoch == 2


def test_a_node_that_backs_off_opens_when_time_goes_on() -> None:
    fleet = Fleet(*a_fleet(1, backoff_until=10.0), {"a": Pack}, now=5.0)
    assert fleet.place(a_shape()) is None
    fleet.at(9.0)
    assert fleet.place(a_shape()) is None
    fleet.at(10.0)
    assert fleet.place(a_shape()) is not None
