"""Who moves where so that others find room: few, each into room that is free before it goes, nobody who may not."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from corral.model.resources import GpuRequest, Resources
from corral.scheduling.claiming.contention import Contender
from corral.scheduling.moving.defragment import Defragmentation, Goal, defragment
from corral.scheduling.moving.holdings import Holdings
from corral.scheduling.snapshot import Shape
from corral.sim.fleets import Machines, machines_of
from corral.sim.jobs import gpu_shape, shape_of
from corral.sim.room import FleetRoom


class Fleet:
    """A room with what is held in it, so that tests can say who is where."""

    def __init__(self, machines: Machines) -> None:
        self.machines = machines
        self.room = FleetRoom(machines, "pack")
        self.held: list[Contender] = []

    def put(self, name: str, shape: Shape, node: str | None = None, *, pinned: bool = False) -> bool:
        only = shape if node is None else replace(shape, on_nodes=(node,))
        places = self.room.place(only)
        if places is not None:
            self.held.append(Contender(name, shape, places, pinned, 1.0))
        return places is not None

    def defragment(self, *goals: Goal, most_moves: int = 10, most_per_goal: int = 3) -> Defragmentation:
        return defragment(
            goals, Holdings(self.held), self.room, most_moves=most_moves, most_per_goal=most_per_goal
        )  # fmt: skip


def gpus(count: int) -> Shape:
    return gpu_shape(count, 4)


def share(milli: int) -> Shape:
    return shape_of(Resources(0, 0, GpuRequest(share_milli=milli)))


def halves() -> Fleet:
    """Two nodes with four GPUs, two of each in use; a third is full."""
    fleet = Fleet(machines_of("3x4xV100:32GB"))
    for node, name, count in (("node-00000", "a", 2), ("node-00001", "b", 2), ("node-00002", "c", 4)):
        assert fleet.put(name, gpus(count), node)
    return fleet


def test_one_moves_so_that_a_whole_node_is_free() -> None:
    found = halves().defragment(Goal("wide", gpus(4)))
    assert [(move.id, move.here[0].node, move.there[0].node, move.goal) for move in found.moves] == [
        ("a", "node-00000", "node-00001", "wide")
    ]
    assert [(goal.id, places[0].node) for goal, places in found.won] == [("wide", "node-00000")]
    assert not found.given_up


def test_who_fits_already_needs_no_move_and_who_never_fits_moves_nobody() -> None:
    found = halves().defragment(Goal("small", gpus(2)), Goal("two nodes", gpu_shape(8, 4)))
    assert not found.moves
    assert [goal.id for goal, _ in found.won] == ["small"]
    assert [goal.id for goal in found.given_up] == ["two nodes"]


def test_nobody_moves_who_may_not_and_not_more_than_are_allowed() -> None:
    fleet = halves()
    fleet.held = [replace(one, pinned=one.id != "c") for one in fleet.held]
    assert not fleet.defragment(Goal("wide", gpus(4))).moves
    assert not halves().defragment(Goal("wide", gpus(4)), most_moves=0).moves
    assert not halves().defragment(Goal("wide", gpus(4)), most_per_goal=0).moves


def test_no_move_goes_where_an_earlier_goal_was_given_room() -> None:
    fleet = Fleet(machines_of("3x4xV100:32GB"))
    for node, name in (("node-00000", "a"), ("node-00001", "b"), ("node-00002", "c")):
        assert fleet.put(name, gpus(2), node)
    found = fleet.defragment(Goal("one", gpus(4)), Goal("two", gpus(4)))
    assert [goal.id for goal, _ in found.won] == ["one"]  # the six in use leave room for one whole node
    assert [goal.id for goal in found.given_up] == ["two"]


def test_shares_go_together_so_that_a_whole_gpu_is_free() -> None:
    fleet = Fleet(machines_of("2x1xV100:32GB"))
    assert fleet.put("a", share(400), "node-00000") and fleet.put("b", share(500), "node-00001")
    found = fleet.defragment(Goal("whole", gpus(1)))
    assert [(move.id, move.there[0].node) for move in found.moves] == [("a", "node-00001")]


def test_a_gang_gets_several_nodes() -> None:
    fleet = Fleet(machines_of("4x4xV100:32GB"))
    for number in range(4):
        assert fleet.put(f"s{number}", gpus(2), f"node-{number:05d}")
    found = fleet.defragment(Goal("gang", gpu_shape(8, 4)))
    assert len(found.moves) == 2
    assert len({place.node for place in found.won[0][1]}) == 2


SIZES = st.lists(st.tuples(st.sampled_from([-700, -500, -300, 1, 1, 2, 3]), st.booleans(), st.booleans()), max_size=30)
GOALS = st.lists(st.sampled_from([-600, 1, 2, 3, 4, 8]), min_size=1, max_size=5)


@settings(max_examples=150, deadline=None)
@given(sizes=SIZES, goals=GOALS, most=st.integers(0, 6))
def test_each_move_goes_to_room_that_is_free_then(
    sizes: list[tuple[int, bool, bool]], goals: list[int], most: int
) -> None:
    """Added up here, device by device, in the order told: first the new room is taken, then the old is left."""
    fleet = Fleet(machines_of("4x4xV100:32GB"))
    for number, (size, pinned, goes) in enumerate(sizes):
        fleet.put(f"s{number}", share(-size) if size < 0 else gpus(size), pinned=pinned)
        if goes and fleet.held:  # holes
            fleet.room.give_back(fleet.held.pop(number % len(fleet.held)).places)
    free = {device.uuid: 1000 for devices in fleet.machines.devices.values() for device in devices}

    def take(places: object, sign: int) -> None:
        for place in places:  # pyright: ignore[reportGeneralTypeIssues, reportUnknownVariableType]
            for grant in place.grants:  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
                free[grant.uuid] -= sign * grant.share_milli  # pyright: ignore[reportUnknownMemberType]
        assert min(free.values()) >= 0

    was = {one.id: one for one in fleet.held}
    for one in fleet.held:
        take(one.places, 1)
    shapes = [share(-size) if size < 0 else gpu_shape(size, 4) for size in goals]
    wanted = [Goal(f"g{number}", shape) for number, shape in enumerate(shapes)]
    found = fleet.defragment(*wanted, most_moves=most, most_per_goal=2)
    assert len(found.moves) <= most
    assert len({move.id for move in found.moves}) == len(found.moves)
    assert [goal for goal in wanted if goal in found.given_up or goal in dict(found.won)] == wanted
    for goal in wanted:
        moves = [move for move in found.moves if move.goal == goal.id]
        assert len(moves) <= 2
        for move in moves:
            assert not was[move.id].pinned and move.here == was[move.id].places
            take(move.there, 1)
        for move in moves:
            take(move.here, -1)
        won = dict(found.won).get(goal)
        assert bool(won) or not moves
        take(won or (), 1)
    rooms = [fleet.room.trial(node.name) for node in fleet.room.nodes]
    assert {one.device.uuid: one.free_milli for room in rooms for one in room.devices} == free
