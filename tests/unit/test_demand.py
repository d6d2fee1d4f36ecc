"""What is to be expected: who waits, who holds room, who did lately; told anew once it is something else."""

from corral.model.node import Node, NodeState, ResourceGroup
from corral.model.resources import Resources
from corral.scheduling.cycle import cycle
from corral.scheduling.demand import HALF_LIFE_S, Expected, demand_of
from corral.scheduling.kept.picture import Changed, Mark, Picture
from corral.scheduling.places import RankPlace
from corral.scheduling.snapshot import Running, Shape, Snapshot, Waiting

GROUP = ResourceGroup("g", placement="least-fragmentation")


def a_shape(cpus: int) -> Shape:
    return Shape("g", Resources(1000 * cpus, 64), 1, 1, False, (), (), (), "process")


ONE, TWO, THREE = a_shape(1), a_shape(2), a_shape(3)


def waits(number: int, shape: Shape) -> Waiting:
    return Waiting(f"s{number}", number, 1, 1, 0, "ann", "default", 0.0, shape)


def runs(number: int, shape: Shape) -> Running:
    place = RankPlace("n1", 1, "run", shape.resources.cpu_milli, 64)
    return Running(f"s{number}", number, 1, 3, "g", "ann", "default", 0, shape, (place,), 0.0)


def test_who_waits_counts_as_much_as_who_runs() -> None:
    assert demand_of([waits(1, ONE), waits(2, TWO)], [runs(3, ONE)]) == {ONE: 2, TWO: 1}


def test_who_ended_lately_counts_less_and_less() -> None:
    expected = Expected()
    expected.holds_room(ONE)
    assert expected.of({TWO: 1}, 0.0) == {ONE: 1, TWO: 1}
    expected.gave_room_back(ONE, is_over=True)
    assert expected.of({TWO: 1}, 0.0) == {ONE: 1, TWO: 1}
    assert expected.of({TWO: 1}, HALF_LIFE_S) == {ONE: 0.5, TWO: 1}
    assert expected.of({TWO: 1}, 20 * HALF_LIFE_S) == {TWO: 1}


def test_who_is_read_again_counts_once() -> None:
    expected = Expected()
    for _ in range(3):
        expected.holds_room(ONE)
        expected.gave_room_back(ONE, is_over=False)
    expected.holds_room(ONE)
    assert expected.of({}, 0.0) == {ONE: 1}


def test_it_is_the_same_object_until_it_is_something_else() -> None:
    expected = Expected()
    told = expected.of({ONE: 100, TWO: 100}, 0.0)
    assert expected.of({ONE: 110, TWO: 100}, 0.0) is told, "2 % are of other shapes"
    assert expected.of({ONE: 200, TWO: 200}, 0.0) is told, "twice as many of everything is the same"
    other = expected.of({ONE: 100, TWO: 100, THREE: 100}, 0.0)
    assert other == {ONE: 100, TWO: 100, THREE: 100}
    assert expected.of({}, 0.0) == {}
    assert expected.of({ONE: 1}, 0.0) == {ONE: 1}


def test_a_picture_counts_who_waits_runs_and_ran_and_its_scores_go_on() -> None:
    node = Node("n1", "g", NodeState.UP, True, 1, "boot", "run", "inc", "hw", "", "n1", 8000, 4096)
    picture, mark = Picture(), Mark("db", 1, 1)
    line = [(waits(number, THREE), 0.0) for number in range(20)]
    picture.merge(Changed(mark, True, [node], (), line, [runs(90, ONE), runs(91, TWO)]), 0.0)
    assert picture.expected([GROUP]) == {ONE: 1, TWO: 1, THREE: 20}
    assert picture.expected([ResourceGroup("g")]) == {}, "nobody asks"

    def scorer() -> object:
        waiting, last_read = picture.line({"g": GROUP}, ())
        expected = picture.expected([GROUP])
        groups = {"g": GROUP}
        seen = Snapshot(0.0, picture.nodes, picture.devices, waiting, groups, last_read, expected=expected)
        fleet = picture.fleet
        assert cycle(seen, fleet=fleet).placements
        return fleet.scorer("g")

    first = scorer()
    picture.merge(Changed(mark, False, gone=["s90"], waiting=[(waits(20, TWO), 0.0)]), 0.0)
    assert scorer() is first
    picture.merge(Changed(mark, False, waiting=[(waits(number, TWO), 0.0) for number in range(30, 40)]), 0.0)
    assert scorer() is not first
    assert picture.expected([GROUP]) == {ONE: 1, TWO: 12, THREE: 20}
