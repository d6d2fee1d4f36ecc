"""Very many distinct requests: a pass sees some of those that fit nowhere, all in turn, and memory is bounded."""

from collections.abc import Sequence
from dataclasses import replace

from corral.model.node import Node, NodeState, ResourceGroup
from corral.model.quota import NO_QUOTAS, Quota, Quotas
from corral.model.resources import Resources
from corral.scheduling import group_nodes
from corral.scheduling.cycle import cycle
from corral.scheduling.fleet import Fleet
from corral.scheduling.kept import picture as picture_module
from corral.scheduling.kept.line import MOST_CHOSEN, Line
from corral.scheduling.kept.picture import QUIET_S, Changed, Mark, Picture
from corral.scheduling.kept.telling import TELL_AGAIN_S, Told
from corral.scheduling.plan import Plan
from corral.scheduling.policies.score import Pack
from corral.scheduling.snapshot import Reservation, Running, Shape, Snapshot, Waiting
from corral.scheduling.stopping.preemption import MAX_CLAIMANTS

GROUPS = {"g": ResourceGroup("g", options={"backfill": "none"})}
MARK = Mark("db", 1, 1)


def a_node(name: str = "n1", cpus: int = 8) -> Node:
    return Node(name, "g", NodeState.UP, True, 1, "boot", "run", "inc", "hw", "", name, 1000 * cpus, 4096)


def a_shape(cpu_milli: int) -> Shape:
    return Shape("g", Resources(cpu_milli, 64), 1, 1, False, (), (), (), "process")


def waits(number: int, shape: Shape, refused: str | None = None) -> Waiting:
    return Waiting(f"s{number}", number, 1, 1, 0, "ann", "default", 0.0, shape, refused)


def a_pass(picture: Picture, now: float) -> tuple[Sequence[Waiting], Plan]:
    picture.merge(Changed(MARK, False), now)
    waiting, last_read = picture.line(GROUPS)
    seen = Snapshot(now, picture.nodes, picture.devices, waiting, GROUPS, last_read)
    return waiting, cycle(seen, fleet=picture.fleet)


def test_of_very_many_shapes_the_oldest_are_seen_and_all_are_in_turn(monkeypatch) -> None:
    monkeypatch.setattr(picture_module, "MOST_HOPELESS", 10)
    line = [(waits(number, a_shape(9000 + number)), 0.0) for number in range(95)]
    picture = Picture()
    picture.merge(Changed(MARK, True, [a_node()], (), line), 0.0)
    seen: set[str] = set()
    waiting, plan = a_pass(picture, 0.0)
    assert len(waiting) == len(plan.refusals) == 95, "what was never judged is"
    for number in range(9):
        waiting, plan = a_pass(picture, float(number + 1))
        assert {f"s{oldest}" for oldest in range(10)} <= {one.id for one in waiting}
        assert len(waiting) == len(plan.refusals) == 20
        seen |= set(plan.refusals)
        assert plan.more == (len(seen) < 95), "whoever was not seen yet is in the next pass"
    assert len(seen) == 95


def test_room_for_one_of_very_many_is_found_at_once(monkeypatch) -> None:
    monkeypatch.setattr(picture_module, "MOST_HOPELESS", 10)
    line = [(waits(number, a_shape(9000 + 10 * number)), 0.0) for number in range(95)]
    picture = Picture()
    picture.merge(Changed(MARK, True, [a_node(), a_node("n2")], (), line), 0.0)
    a_pass(picture, 0.0)
    picture.merge(Changed(MARK, False, [Node("n2", "g", *_up(), 9945, 4096)]), 1.0)
    _, plan = a_pass(picture, 1.0)
    assert [placed.session.id for placed in plan.placements] == ["s0"]
    picture.merge(Changed(MARK, False, gone=["s0"]), 2.0)
    _, plan = a_pass(picture, 2.0)
    assert [placed.session.id for placed in plan.placements] == ["s1"], "it was not taken after all"


def _up() -> tuple[NodeState, bool, int, str, str, str, str, str, str]:
    return NodeState.UP, True, 1, "boot", "run", "inc", "hw", "", "n2"


def test_scores_and_reasons_are_bounded_whatever_is_asked(monkeypatch) -> None:
    monkeypatch.setattr(group_nodes, "MOST_SCORES", 40)
    monkeypatch.setattr(group_nodes, "MOST_REASONS", 40)
    fleet = Fleet([a_node("n1"), a_node("n2")], {}, {"g": Pack})
    whole = Fleet([a_node("n1"), a_node("n2")], {}, {"g": Pack})
    for number in range(200):
        shape = a_shape(1 + number * 300)
        placed, expected = fleet.place(shape), whole.place(shape)
        assert placed == expected
        if placed is not None:
            fleet.give_back(placed.ranks)
            whole.give_back(placed.ranks)
        else:
            assert fleet.refusals(shape) == whole.refusals(shape)
        met, scored, reasoned = fleet.remembered()
        assert met == number + 1 and scored <= 20 and reasoned <= 20
    assert reasoned == 20


def test_who_was_told_the_same_reasons_lately_has_time() -> None:
    told, one = Told(), waits(1, a_shape(1), refused="why")
    assert told.is_news(one, ["not_enough_cpus"], 100.0)
    assert not told.is_news(one, ["not_enough_cpus"], 100.0 + TELL_AGAIN_S - 1)
    assert told.is_news(one, ["not_enough_memory"], 101.0), "another reason is news"
    assert told.is_news(one, ["not_enough_memory"], 101.0 + TELL_AGAIN_S), "and so is the same after a while"
    assert told.is_news(one._replace(refused=None), ["not_enough_memory"], 107.0), "what was not kept was not told"
    assert told.is_news(waits(2, a_shape(1), "why"), ["not_enough_cpus"], 107.0)


def test_a_pass_of_which_nothing_came_is_not_made_again_for_nothing() -> None:
    picture = Picture()
    picture.merge(Changed(MARK, True, [a_node()], (), [(waits(1, a_shape(9000)), 0.0)]), 0.0)
    waiting, _ = a_pass(picture, 0.0)
    picture.settle()
    again, _ = a_pass(picture, 1.0)
    assert again is waiting and picture.is_settled
    picture.merge(Changed(MARK, False, [a_node()], (), [(waits(1, a_shape(9000)), 0.0)]), 2.0)
    assert a_pass(picture, 2.0)[0] is waiting and picture.is_settled, "to be told again what it knows is nothing new"
    assert not (a_pass(picture, QUIET_S + 0.1) and picture.is_settled), "what hangs on the time is looked at at last"

    for changed in (
        Changed(MARK, False, waiting=[(waits(2, a_shape(9000)), 0.0)]),
        Changed(MARK, False, gone=["s2"]),
        Changed(MARK, False, [a_node(cpus=7)]),
    ):
        a_pass(picture, 10.0)
        picture.settle()
        picture.merge(changed, 10.0)
        assert a_pass(picture, 10.0) and not picture.is_settled
    picture.settle()
    picture.line({"g": ResourceGroup("g", "lifo")})
    assert not picture.is_settled, "the groups are others"


def test_the_first_of_every_line_is_seen_whoever_waits_longer_elsewhere(monkeypatch) -> None:
    monkeypatch.setattr(picture_module, "MOST_HOPELESS", 10)
    groups = {name: ResourceGroup(name, options={"backfill": "none"}) for name in ("default", "g")}
    line = [(waits(number, a_shape(9000 + number)), 0.0) for number in range(60)]
    line += [(waits(60 + number, replace(a_shape(9000 + number), group=None)), 0.0) for number in range(30)]
    picture = Picture()
    picture.merge(Changed(MARK, True, [a_node()], (), line), 0.0)
    for number in range(6):
        picture.merge(Changed(MARK, False), float(number))
        waiting, last_read = picture.line(groups)
        cycle(Snapshot(0.0, picture.nodes, picture.devices, waiting, groups, last_read), fleet=picture.fleet)
        assert {"s0", "s60"} <= {one.id for one in waiting}


def test_who_asks_for_another_time_is_seen_where_quotas_are_about_time() -> None:
    """Of one shape that fits nowhere the oldest may take too long for a quota, and then is not the first in line."""
    quotas = Quotas((Quota("short", owner="ann", limits={"time_limit_s": 60}),))
    line = [waits(number, a_shape(9000))._replace(time_limit_s=limit) for number, limit in enumerate((None, None, 50))]
    picture = Picture()
    picture.merge(Changed(MARK, True, [a_node()], (), [(one, 0.0) for one in line]), 0.0)
    a_pass(picture, 0.0)
    assert [one.id for one in picture.line(GROUPS)[0]] == ["s0"]
    assert [one.id for one in picture.line(GROUPS, (), quotas)[0]] == ["s0", "s2"]


def test_of_equal_claims_as_many_are_seen_as_a_pass_looks_for_victims_for() -> None:
    groups = {"g": ResourceGroup("g", options={"backfill": "none", "preemption": "priority"})}
    under_way = [waits(number, a_shape(9000))._replace(room_by=100.0) for number in range(3)]
    line = [*under_way, *(waits(number, a_shape(9000)) for number in range(3, 60))]
    picture = Picture()
    picture.merge(Changed(MARK, True, [a_node()], (), [(one, 0.0) for one in line]), 0.0)
    cycle(Snapshot(0.0, picture.nodes, picture.devices, picture.line(groups)[0], groups), fleet=picture.fleet)
    seen = picture.line(groups)[0]
    assert MAX_CLAIMANTS <= len([one for one in seen if one.room_by is None]) < 20


def test_where_nodes_are_reserved_claims_of_other_lengths_are_seen() -> None:
    groups = {"g": ResourceGroup("g", options={"backfill": "none", "preemption": "priority"})}
    line = [waits(number, a_shape(9000)) for number in range(60)]
    line.append(waits(60, a_shape(9000))._replace(time_limit_s=60))
    picture = Picture()
    picture.merge(Changed(MARK, True, [a_node()], (), [(one, 0.0) for one in line]), 0.0)
    cycle(Snapshot(0.0, picture.nodes, picture.devices, picture.line(groups)[0], groups), fleet=picture.fleet)
    reserved = [Reservation("r", ("n1",), 600.0, 1200.0)]
    assert picture.line(groups, (), NO_QUOTAS, reserved)[0][-1].id == "s60"
    assert picture.line(groups)[0][-1].id != "s60"


def test_a_paused_home_group_says_still_who_comes_first_of_those_that_name_none() -> None:
    groups = {"default": ResourceGroup("default", "lifo", paused=True), "g": GROUPS["g"]}
    line = [waits(number, replace(a_shape(9000), group=None)) for number in range(3)]
    picture = Picture()
    picture.merge(Changed(MARK, True, [a_node()], (), [(one, 0.0) for one in line]), 0.0)
    seen, _ = picture.line(groups)
    cycle(Snapshot(0.0, picture.nodes, picture.devices, seen, groups), fleet=picture.fleet)
    assert {one.id for one in picture.line(groups)[0]} == {"s0", "s2"}


def test_what_may_begin_later_is_no_news_when_it_is_told_again() -> None:
    later = [(waits(number, a_shape(9000)), 100.0) for number in range(3)]
    picture = Picture()
    picture.merge(Changed(MARK, True, [a_node()], (), [*later, (waits(9, a_shape(9000)), 0.0)]), 0.0)
    a_pass(picture, 0.0)
    picture.settle()
    for now in (1.0, 2.0):
        picture.merge(Changed(MARK, False, waiting=later), now)
        assert picture.line(GROUPS) and picture.is_settled
    picture.merge(Changed(MARK, False, waiting=[(one, 50.0) for one, _ in later]), 3.0)
    picture.merge(Changed(MARK, False), 51.0)
    assert len(picture.waiting) == 4, "another time is news"


def test_what_a_line_remembers_is_bounded() -> None:
    line = Line()
    for number in range(50):
        line.add(waits(number, a_shape(1)))
    for count in range(1, 40):
        assert len(line.first(frozenset(), count)) == count
    assert len(line._chosen) <= MOST_CHOSEN


def test_while_passes_place_many_each_sees_the_oldest_and_none_is_forgotten(monkeypatch) -> None:
    monkeypatch.setattr(picture_module, "MANY_PLACED", 2)
    monkeypatch.setattr(picture_module, "MOST_OLDEST", 4)
    nodes = [a_node(f"n{number}", cpus=64) for number in range(2)]
    line = [waits(number, a_shape(1000 + number % 3)) for number in range(40)]
    picture = Picture()
    picture.merge(Changed(MARK, True, nodes, (), [(one, 0.0) for one in line]), 0.0)
    assert len(picture.line(GROUPS)[0]) == 40, "nothing was placed yet: whoever may be passed over is not known"

    others = [Running(f"r{one}", one, 1, 2, "g", "ann", "default", 0, a_shape(1), (), 0.0) for one in (98, 99)]
    picture.merge(Changed(MARK, False, running=others), 1.0)
    assert len(picture.line(GROUPS)[0]) == 40, "others moved: nobody here was placed"
    mine = [one._replace(id=f"s{number}", ordinal=number) for number, one in zip((38, 39), others, strict=True)]
    picture.merge(Changed(MARK, False, running=mine), 1.0)
    waiting, last_read = picture.line(GROUPS)
    assert ([one.id for one in waiting], last_read) == (["s0", "s1", "s2", "s3"], ["s4"])
    seen = Snapshot(1.0, picture.nodes, picture.devices, waiting, GROUPS, last_read)
    plan = cycle(seen, fleet=picture.fleet)
    assert len(plan.placements) == 4 and plan.more
    picture.merge(Changed(MARK, False), 2.0)
    assert len(picture.line(GROUPS)[0]) == 38, "nothing more was placed: all are looked at"
