"""Who stops for whom, and who may start before a planned start: the pure steps, without a replay."""

import math
from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from corral.model.resources import GpuRequest, Resources
from corral.scheduling.ahead.backfill import Ahead
from corral.scheduling.claiming.contention import Contender, Contention, Places, cheapest_victims, contend
from corral.scheduling.snapshot import Shape
from corral.sim.fleets import machines_from, machines_of
from corral.sim.jobs import gpu_shape, shape_of
from corral.sim.room import FleetRoom

FLEET = machines_of("3x4xV100:32GB")


def runs(room: FleetRoom, name: str, gpus: int, *, pinned: bool = False) -> Contender:
    shape = gpu_shape(gpus, 4)
    places = room.place(shape)
    assert places is not None
    return Contender(name, shape, places, pinned, gpus)


def waits(name: str, gpus: int) -> Contender:
    return Contender(name, gpu_shape(gpus, 4))


def decided(room: FleetRoom, line: list[Contender], *, may_move: bool = False) -> Contention:
    running = [one for one in line if one.places]
    shapes = len({one.shape for one in line})
    return contend(lambda: line, running, room, room.capacity, shapes, may_move=may_move)


def test_nobody_stops_where_there_is_room() -> None:
    room = FleetRoom(FLEET, "pack")
    weak = runs(room, "weak", 4)
    change = decided(room, [waits("strong", 8), weak])
    assert change.stops == ()
    assert [name for name, _ in change.starts] == ["strong"]


def test_the_fewest_stop_and_on_one_node() -> None:
    room = FleetRoom(FLEET, "pack")
    small = [runs(room, f"s{n}", 1) for n in range(4)]  # one node, packed
    pair = [runs(room, f"p{n}", 2) for n in range(2)]
    whole = runs(room, "w", 4)
    change = decided(room, [waits("new", 4), whole, *pair, *small])
    assert set(change.stops) == {"s0", "s1", "s2", "s3"}  # the weakest claims, as the order of the line says
    assert [name for name, _ in change.starts] == ["new"]
    change = decided(FleetRoom(FLEET, "pack"), [])
    assert change == Contention()


def test_a_weaker_claim_stops_nobody() -> None:
    room = FleetRoom(FLEET, "pack")
    line = [runs(room, "a", 4), runs(room, "b", 8), waits("new", 4)]
    assert decided(room, line) == Contention()


def test_what_is_pinned_stays_whatever_the_claim() -> None:
    room = FleetRoom(FLEET, "pack")
    pinned, free = runs(room, "pinned", 8, pinned=True), runs(room, "free", 4)
    assert decided(room, [waits("wide", 12), pinned, free]) == Contention()
    change = decided(room, [waits("new", 4), pinned, free])
    assert change.stops == ("free",)


def test_one_that_is_wanted_too_moves_only_where_that_is_allowed() -> None:
    """Two GPUs are free on each of two nodes: a whole node needs one of the halves to go to the other."""
    for may_move in (False, True):
        room = FleetRoom(FLEET, "spread")
        halves = [runs(room, f"h{n}", 2) for n in range(3)]
        assert len({half.places[0].node for half in halves}) == 3
        change = decided(room, [waits("whole", 4), *halves], may_move=may_move)
        if may_move:
            assert len(change.stops) == 1
            assert [name for name, _ in change.starts] == [change.stops[0], "whole"] or set(change.stops) < {
                name for name, _ in change.starts
            }
        else:
            assert change == Contention()


def test_whoever_fits_starts_where_one_moved_and_another_did_not_get_in() -> None:
    """Two GPUs are left on one node: the wanted gang needs one on each of two, the last in line needs one."""
    room = FleetRoom(FLEET, "spread")
    halves = [runs(room, f"h{n}", 2) for n in range(3)]
    gang = Contender("gang", shape_of(Resources(0, 0, GpuRequest()), 2))
    change = decided(room, [waits("whole", 4), *halves, gang, waits("last", 1)], may_move=True)
    started = {name for name, _ in change.starts}
    assert len(change.stops) == 1 and set(change.stops) < started
    assert started - set(change.stops) == {"whole", "last"}


def test_a_gang_starts_whole_or_stops_nobody() -> None:
    room = FleetRoom(FLEET, "pack")
    pinned = runs(room, "pinned", 4, pinned=True)
    weak = [runs(room, "w0", 4), runs(room, "w1", 4)]
    change = decided(room, [waits("gang", 8), pinned, *weak])
    assert set(change.stops) == {"w0", "w1"}
    ((name, places),) = change.starts
    assert name == "gang" and len({place.node for place in places}) == 2


def test_one_ahead_of_a_newcomer_stays_though_its_room_is_meant_for_a_stronger_one() -> None:
    """`wide` is first and finds no room, since what is pinned stays; what is kept for it leaves amounts
    for `behind` and not for those ahead of it, which is no reason to give it their room."""
    for may_move in (False, True):
        room = FleetRoom(FLEET, "spread")
        pinned = [runs(room, f"p{n}", 1, pinned=True) for n in range(2)]
        ahead = [runs(room, "a4", 4), runs(room, "a3", 3), runs(room, "b3", 3)]
        line = [waits("wide", 8), *ahead, waits("behind", 2), *pinned]
        assert decided(room, line, may_move=may_move) == Contention()


class Recorded(FleetRoom):
    """Notes whose room was given back before each place that was found."""

    def __init__(self) -> None:
        super().__init__(FLEET, "pack")
        self._given: list[Places] = []
        self.found: list[tuple[Places, list[Places]]] = []

    def place(self, shape: Shape) -> Places | None:
        places = super().place(shape)
        if places is not None:
            self.found.append((places, self._given))
        self._given = []
        return places

    def give_back(self, places: Places) -> None:
        self._given = [*self._given, places]
        super().give_back(places)


ENTRIES = st.lists(st.tuples(st.integers(1, 12), st.booleans(), st.booleans()), max_size=20)


@settings(max_examples=150, deadline=None)
@given(entries=ENTRIES, may_move=st.booleans())
@example(
    entries=[(1, True, False), (7, False, False), (9, True, False), (1, True, False), (2, False, False)],
    may_move=False,
)
def test_changes_fit_and_stop_only_the_weaker_for_the_stronger(
    entries: list[tuple[int, bool, bool]], may_move: bool
) -> None:
    room = Recorded()
    line: list[Contender] = []
    for number, (gpus, starts, pinned) in enumerate(entries):
        shape = gpu_shape(gpus, 4)
        places = room.place(shape) if starts else None
        line.append(Contender(f"{number:02d}", shape, places or (), pinned and bool(places), gpus))
    room.found.clear()
    change = decided(room, line, may_move=may_move)
    by_id = {one.id: one for one in line}
    started = dict(change.starts)
    for name in change.stops:
        assert by_id[name].places and not by_id[name].pinned
    assert all(not by_id[name].places or name in change.stops for name in started)
    whose = {id(one.places): one.id for one in line}
    given_up: list[str] = []
    for places, left in room.found:  # nobody gives its room to one behind it
        winner = next(name for name, taken in started.items() if taken is places)
        given_up += [whose[id(one)] for one in left]
        assert all(winner < whose[id(one)] for one in left)
    assert sorted(given_up) == sorted(change.stops)
    held = [one.places for one in line if one.places and one.id not in change.stops] + list(started.values())
    fresh = FleetRoom(FLEET, "pack")
    for places in held:
        for node in {place.node for place in places}:
            assert fresh.trial(node).fits([place for place in places if place.node == node])
        fresh.take(places)


TWO_GROUPS = machines_from(
    "fleet.csv",
    "name,cpu_milli,memory_mib,gpu,model,group\n" + "".join(f"n{n},8000,8192,4,A100,{'ab'[n % 2]}\n" for n in range(4)),
)


def test_a_gang_lies_within_one_group() -> None:
    """One node of each group is free: that is no room for two. n0 and n2 are of one group, n1 and n3 of the other."""
    room = FleetRoom(TWO_GROUPS, "pack")
    held = {node: held_on(room, node) for node in ("n0", "n1")}
    gang = gpu_shape(8, 4)
    ahead = Ahead(room, 0.0, [(held["n0"].places, 50.0), (held["n1"].places, 40.0)])
    assert ahead.fits_from(gang, 0.0, 10.0) is None
    planned = ahead.plan(gang, 10.0)
    assert planned is not None and planned.at_s == 40.0
    assert {place.node for place in planned.places} == {"n1", "n3"}
    cheap = [replace(held["n0"], cost=9.0), replace(held["n1"], cost=1.0)]
    assert cheapest_victims(gang, cheap, room) == cheap[1:]
    change = contend(lambda: [Contender("gang", gang), *cheap], cheap, room, room.capacity, 2, may_move=True)
    assert (change.stops, {place.node for place in change.starts[0][1]}) == (("n1",), {"n1", "n3"})


def held_on(room: FleetRoom, node: str) -> Contender:
    shape = replace(gpu_shape(4, 4), on_nodes=(node,))
    places = room.place(shape)
    assert places is not None
    return Contender(node, shape, places)


def test_a_planned_start_counts_on_known_ends_and_on_nothing_else() -> None:
    room = FleetRoom(machines_of("2x4xV100:32GB"), "pack")
    known, unknown = runs(room, "known", 4), runs(room, "unknown", 4)
    ahead = Ahead(room, 0.0, [(known.places, 50.0), (unknown.places, math.inf)])
    planned = ahead.plan(gpu_shape(4, 4), 10.0)
    assert planned is not None and planned.at_s == 50.0
    assert {place.node for place in planned.places} == {known.places[0].node}
    assert ahead.plan(gpu_shape(8, 4), 10.0) is None
    ahead.hold(planned.places, 50.0, 60.0)
    after = ahead.plan(gpu_shape(4, 4), 10.0)
    assert after is not None and after.at_s == 60.0
    ahead.free(planned.places, 50.0, 60.0)
    again = ahead.plan(gpu_shape(4, 4), 10.0)
    assert again is not None and again.at_s == 50.0


def test_cpus_memory_and_shares_are_planned_too() -> None:
    room = FleetRoom(machines_of("1x1xV100:32GB+4cpus+8GiB"), "pack")
    half: Shape = shape_of(Resources(1000, 1024, GpuRequest(share_milli=500)))
    first, second = room.place(half), room.place(half)
    assert first is not None and second is not None
    ahead = Ahead(room, 0.0, [(first, 30.0), (second, 20.0)])
    for shape, at_s in [
        (half, 20.0),
        (shape_of(Resources(1000, 1024, GpuRequest())), 30.0),
        (shape_of(Resources(3000, 1024)), 20.0),
        (shape_of(Resources(1000, 7168)), 20.0),
        (shape_of(Resources(4000, 8192)), 30.0),
    ]:
        planned = ahead.plan(shape, 5.0)
        assert planned is not None and planned.at_s == at_s


def test_a_short_one_fits_before_a_planned_start_and_a_long_one_does_not() -> None:
    room = FleetRoom(machines_of("1x4xV100:32GB"), "pack")
    running = runs(room, "running", 3)
    ahead = Ahead(room, 0.0, [(running.places, 100.0)])
    head = ahead.plan(gpu_shape(4, 4), 50.0)
    assert head is not None and head.at_s == 100.0
    ahead.hold(head.places, 100.0, 150.0)
    assert ahead.fits_from(gpu_shape(1, 4), 0.0, 100.0) is not None
    assert ahead.fits_from(gpu_shape(1, 4), 0.0, 101.0) is None
    assert ahead.fits_from(gpu_shape(1, 4), 150.0, math.inf) is not None
