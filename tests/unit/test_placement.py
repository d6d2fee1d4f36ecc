"""What each placement policy prefers, on fleets small enough to see why."""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.model.node import Device, Node, NodeState, ResourceGroup
from corral.model.resources import GpuRequest, Resources
from corral.scheduling.cycle import cycle
from corral.scheduling.engine.pool import Pool
from corral.scheduling.fleet import Fleet
from corral.scheduling.policies.guarded import guarded
from corral.scheduling.policies.score import PLACEMENTS, Pack
from corral.scheduling.policies.topology import Topology
from corral.scheduling.policies.usefulness import STEP_MILLI, STEPS, Usefulness
from corral.scheduling.snapshot import Preferred, Shape, Snapshot, Waiting


def a_node(
    name: str, cpus: int = 16, gpus: int = 0, model: str = "A100", rack: str | None = None
) -> tuple[Node, list[Device]]:
    node = Node(name, "g", NodeState.UP, True, 1, "b", "r", "i", "h", "0", "127.0.0.1", cpus * 1000, 65536)
    node = replace(node, labels={"rack": rack} if rack else {})
    return node, [Device(name, f"{name}/{index}", index, model, None, 80_000) for index in range(gpus)]


def a_shape(gpu: GpuRequest | int | None = None, cpus: float = 1, nodes: int = 1, ranks: int = 1) -> Shape:
    request = GpuRequest(share_milli=gpu) if isinstance(gpu, int) else gpu
    return Shape("g", Resources(int(cpus * 1000), 64, request), nodes, ranks, False, (), (), (), "process")


def a_fleet(policy: str, *made: tuple[Node, list[Device]], demand: dict[Shape, float] | None = None) -> Fleet:
    nodes = [node for node, _ in made]
    return Fleet(nodes, {node.name: devices for node, devices in made}, {"g": PLACEMENTS[policy]}, 0.0, demand)


def went(fleet: Fleet, *shapes: Shape) -> list[str]:
    """The GPU each got, or the node where it asked for none."""
    found: list[str] = []
    for shape in shapes:
        placement = fleet.place(shape)
        assert placement is not None
        found += [rank.grants[0].uuid if rank.grants else rank.node for rank in placement.ranks]
    return found


def test_spread_takes_the_emptiest_node_and_gpu() -> None:
    fleet = a_fleet("spread", a_node("n1", gpus=2), a_node("n2", gpus=2))
    assert went(fleet, *[a_shape(300)] * 5) == ["n1/0", "n2/0", "n1/1", "n2/1", "n1/0"]


def test_round_robin_goes_on_where_it_stopped_and_passes_by_who_is_full() -> None:
    fleet = a_fleet("round-robin", a_node("n1", 4), a_node("n2", 1), a_node("n3", 4))
    assert went(fleet, *[a_shape()] * 5) == ["n1", "n2", "n3", "n1", "n3"]


def test_round_robin_goes_on_from_pass_to_pass() -> None:
    nodes = [a_node(name)[0] for name in ("n1", "n2", "n3")]
    group = ResourceGroup("g", placement="round-robin")
    found: list[str] = []
    blocked = Waiting("s0", 0, 1, 1, 0, "admin", "default", 0.0, a_shape(cpus=100))
    for number in range(7, 12):
        row = Waiting(f"s{number}", number, 1, 1, 0, "admin", "default", 0.0, a_shape())
        plan = cycle(Snapshot(0.0, nodes, {}, [blocked, row], {"g": group}, turns={"g": found[-1]} if found else {}))
        found += [rank.node for rank in plan.placements[0].ranks]
    assert found == ["n1", "n2", "n3", "n1", "n2"]
    gone = Snapshot(0.0, nodes, {}, [row], {"g": group}, turns={"g": "n1a"})
    assert [rank.node for rank in cycle(gone).placements[0].ranks] == ["n2"], "it left after it had its turn"


@pytest.mark.parametrize("policy", sorted(PLACEMENTS))
def test_nodes_where_it_went_wrong_are_last_and_never_barred(policy: str) -> None:
    fleet = a_fleet(policy, *(a_node(name, 4, rack="r") for name in ("n1", "n2", "n3")))
    for shunned, count in (({"n1", "n3"}, 1), ({"n2"}, 2), ({"n1", "n2"}, 3)):
        placement = fleet.place(a_shape(nodes=count), (), shunned)
        assert placement is not None
        assert len({rank.node for rank in placement.ranks} - shunned) == min(count, 3 - len(shunned))
        fleet.give_back(placement.ranks)
    assert fleet.place(a_shape(cpus=5), (), {"n1"}) is None


def test_a_fresh_node_of_another_group_comes_before_one_where_it_went_wrong() -> None:
    (one, _), (two, _) = a_node("n1"), a_node("n2")
    fleet = Fleet([one, replace(two, group="h")], {}, {"g": PLACEMENTS["pack"], "h": PLACEMENTS["pack"]}, 0.0)
    anywhere = replace(a_shape(), group=None)
    assert [fleet.place(anywhere, (), shunned).group for shunned in ({"n1"}, {"n2"}, set())] == ["h", "g", "g"]  # pyright: ignore


RACKS = ("a", "b", "a", "c", "b")


def preferred(*racks: str, nodes: tuple[str, ...] = ()) -> Preferred:
    return Preferred(tuple(("rack", rack) for rack in racks), nodes)


def went_to(fleet: Fleet, shape: Shape, what: Preferred | None, shunned: Sequence[str] = ()) -> list[str]:
    """Where it goes; the room is given back."""
    placement = fleet.place(shape, (), frozenset(shunned), what)
    assert placement is not None
    fleet.give_back(placement.ranks)
    return [rank.node for rank in placement.ranks]


@pytest.mark.parametrize("policy", sorted(PLACEMENTS))
def test_nodes_that_meet_more_of_what_is_preferred_come_first(policy: str) -> None:
    fleet = a_fleet(policy, *(a_node(f"n{n}", 4, rack=rack) for n, rack in enumerate(RACKS)))
    racks = {f"n{n}": rack for n, rack in enumerate(RACKS)}

    def where(count: int, *asked: str) -> str:
        return "".join(racks[name] for name in went_to(fleet, a_shape(nodes=count), preferred(*asked)))

    assert [where(1, rack) for rack in "abc"] == ["a", "b", "c"]
    assert where(1, "nowhere", "c", "a") == "c", "of labels that are met alike the first counts most"
    assert where(3, "b") in ("bba", "bbc"), "as many of a gang as there are"
    assert where(5, "c", "b") == "cbbaa"
    assert len(where(2, "nowhere")) == 2
    assert went_to(fleet, a_shape(nodes=2), preferred("a", nodes=("n3", "gone"))) in (["n3", "n0"], ["n3", "n2"])
    assert went_to(fleet, a_shape(), preferred("c", nodes=("gone",))) == ["n3"]
    assert fleet.place(a_shape(cpus=5), (), frozenset(), preferred("a")) is None


def test_more_labels_come_before_an_earlier_one() -> None:
    nodes = [replace(a_node(f"n{number}")[0], labels=dict.fromkeys(keys, "x")) for number, keys in enumerate(LABELS)]
    fleet = Fleet(nodes, {}, {"g": PLACEMENTS["pack"]}, 0.0)
    found: list[str] = []
    for _ in nodes:
        (name,) = went_to(fleet, a_shape(), Preferred((("p", "x"), ("q", "x"), ("r", "x"))), found)
        found.append(name)
    assert [LABELS[int(name[1:])] for name in found] == ["pqr", "pq", "pr", "qr", "p", "q", "r", ""]


LABELS = ("", "p", "q", "r", "pq", "qr", "pqr", "pr")


def test_among_equals_the_policy_decides_and_nodes_where_it_went_wrong_are_last_all_the_same() -> None:
    fleet = a_fleet("pack", *(a_node(f"n{n}", 4, rack=rack) for n, rack in enumerate(RACKS)))
    full = fleet.place(replace(a_shape(), on_nodes=("n2",)))
    assert full is not None
    assert went_to(fleet, a_shape(), None) == ["n2"]
    assert went_to(fleet, a_shape(), preferred("a")) == ["n2"]
    assert went_to(fleet, a_shape(), preferred("b")) == ["n1"]
    assert went_to(fleet, a_shape(), preferred("a"), ("n0", "n2")) == ["n1"]
    assert went_to(fleet, a_shape(cpus=4), preferred("a")) == ["n0"], "there is no room on n2"


def test_a_session_for_any_group_goes_to_the_one_that_meets_more() -> None:
    (one, _), (two, _) = a_node("n1", rack="a"), a_node("n2", rack="b")
    policies = {"g": PLACEMENTS["pack"], "h": PLACEMENTS["pack"]}
    fleet = Fleet([one, replace(two, group="h")], {}, policies, 0.0)
    anywhere = replace(a_shape(), group=None)
    assert [went_to(fleet, anywhere, what) for what in (preferred("b"), preferred("a"), preferred("c"), None)] == [
        ["n2"], ["n1"], ["n1"], ["n1"],
    ]  # fmt: skip
    assert went_to(fleet, anywhere, preferred("b"), ("n2",)) == ["n1"]
    assert fleet.place(anywhere, ("h",), frozenset(), preferred("b")).group == "g"  # pyright: ignore


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_preference_keeps_nobody_from_starting(data: st.DataObject) -> None:
    """Placed with it wherever placed without it, all of it or nothing, and on as many of such nodes as have room."""
    policy = data.draw(st.sampled_from(sorted(PLACEMENTS)))
    racks = data.draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=6))
    made = [a_node(f"n{n}", data.draw(st.sampled_from([1, 2, 4])), rack=rack) for n, rack in enumerate(racks)]
    fleet, plain = a_fleet(policy, *made), a_fleet(policy, *made)
    for _ in range(data.draw(st.integers(1, 6))):
        shape = a_shape(cpus=data.draw(st.sampled_from([1, 2])), nodes=data.draw(st.integers(1, 3)))
        what = preferred(*data.draw(st.lists(st.sampled_from("abcd"), max_size=3, unique=True)))
        room = {name for name, fits in zip(fleet.pools()["g"].row_of, fleet.fitting(shape)["g"], strict=True) if fits}
        found, without = fleet.place(shape, (), frozenset(), what), plain.place(shape)
        assert (found is None) == (len(room) < shape.nodes)
        if without is not None:
            plain.give_back(without.ranks)
        assert (found is None) == (without is None)
        if found is None:
            continue
        plain.take(found.ranks)
        names = {rank.node for rank in found.ranks}
        assert names <= room and len(names) == shape.nodes
        met = [any(("rack", racks[int(name[1:])]) == one for one in what.labels) for name in sorted(room)]
        got = sum(any(("rack", racks[int(name[1:])]) == one for one in what.labels) for name in names)
        assert got == min(sum(met), shape.nodes)


def test_round_robin_gives_a_gang_the_next_nodes() -> None:
    fleet = a_fleet("round-robin", a_node("n1"), a_node("n2"), a_node("n3"))
    assert went(fleet, a_shape(nodes=2), a_shape(nodes=2)) == ["n1", "n2", "n3", "n1"]


def test_pack_puts_a_share_on_the_fullest_node_and_gpu() -> None:
    fleet = a_fleet("pack", a_node("n1", gpus=2), a_node("n2", gpus=2))
    assert went(fleet, a_shape(500), a_shape(300), a_shape(300), a_shape(200)) == ["n1/0", "n1/0", "n1/1", "n1/0"]


def test_a_share_goes_where_it_leaves_what_others_can_use() -> None:
    """600 and 400 fill a GPU. Beside 500, 400 would leave a tenth that nothing asks for, so it goes to the 600."""
    demand = {a_shape(600): 10.0, a_shape(400): 10.0, a_shape(500): 10.0}
    fleet = a_fleet("least-fragmentation", a_node("n1", gpus=2), demand=demand)
    assert went(fleet, a_shape(500), a_shape(600), a_shape(400), a_shape(500)) == ["n1/0", "n1/1", "n1/1", "n1/0"]


def test_a_bad_pair_is_not_made_while_there_is_an_idle_gpu() -> None:
    demand = {a_shape(600): 10.0, a_shape(400): 10.0, a_shape(300): 1.0}
    fleet = a_fleet("least-fragmentation", a_node("n1", gpus=2), demand=demand)
    assert went(fleet, a_shape(600), a_shape(300)) == ["n1/0", "n1/1"]


def test_nodes_stay_whole_for_those_who_need_them_whole() -> None:
    demand = {a_shape(GpuRequest(count=4)): 1.0, a_shape(GpuRequest()): 10.0}
    fleet = a_fleet("least-fragmentation", a_node("n1", gpus=4), a_node("n2", gpus=3), demand=demand)
    assert went(fleet, *[a_shape(GpuRequest())] * 3) == ["n2/0", "n2/1", "n2/2"]


def test_nodes_stay_whole_though_nothing_is_known_of_what_will_come() -> None:
    fleet = a_fleet("least-fragmentation", a_node("n1", gpus=4), a_node("n2", gpus=3))
    assert went(fleet, a_shape(300), *[a_shape(GpuRequest())] * 2, a_shape(300)) == ["n2/0", "n2/1", "n2/2", "n2/0"]


def test_a_kind_that_much_is_asked_of_is_left_to_those_who_need_it() -> None:
    demand = {a_shape(GpuRequest(model="H100")): 5.0, a_shape(GpuRequest()): 5.0}
    fleet = a_fleet(
        "least-fragmentation", a_node("n1", gpus=2, model="H100"), a_node("n2", gpus=2, model="A100"), demand=demand
    )
    assert went(fleet, a_shape(GpuRequest()), a_shape(GpuRequest(model="H100"))) == ["n2/0", "n1/0"]


def test_work_without_gpus_goes_where_it_strands_none() -> None:
    demand = {a_shape(GpuRequest(), cpus=8): 5.0, a_shape(cpus=8): 5.0}
    fleet = a_fleet("least-fragmentation", a_node("n1", 16, gpus=2), a_node("n2", 24, gpus=2), demand=demand)
    assert went(fleet, a_shape(cpus=8)) == ["n2"]


def test_without_gpus_least_fragmentation_packs() -> None:
    fleet = a_fleet("least-fragmentation", a_node("n1"), a_node("n2"))
    assert went(fleet, *[a_shape()] * 3) == ["n1"] * 3


def racks(*sizes: int) -> list[tuple[Node, list[Device]]]:
    """Nodes of one CPU: rack a with so many, rack b with so many, …"""
    return [
        a_node(f"{rack}{number}", 1, rack=rack)
        for rack, size in zip("abcd", sizes, strict=False)
        for number in range(size)
    ]


def test_topology_puts_a_gang_into_the_rack_with_least_to_spare() -> None:
    fleet = a_fleet("topology", *racks(4, 2, 3))
    assert went(fleet, a_shape(nodes=2)) == ["b0", "b1"]
    assert went(fleet, a_shape(nodes=3)) == ["c0", "c1", "c2"]


def test_topology_spans_as_few_racks_as_will_do() -> None:
    fleet = a_fleet("topology", *racks(2, 3, 1), a_node("n1", 1))
    assert went(fleet, a_shape(nodes=4)) == ["b0", "b1", "b2", "c0"]
    assert fleet.place(a_shape(nodes=4)) is None


def test_topology_packs_what_fits_one_node() -> None:
    fleet = a_fleet("topology", a_node("n1", 8), a_node("n2", 4))
    assert went(fleet, a_shape(), a_shape(cpus=4), a_shape()) == ["n1", "n1", "n1"]


def halls(**racks_of: tuple[int, ...]) -> list[tuple[Node, list[Device]]]:
    """Nodes of one CPU: in each room racks of so many."""
    return [
        (replace(node, name=f"{room}{node.name}", labels={"rack": f"{room}{node.labels['rack']}", "room": room}), [])
        for room, sizes in racks_of.items()
        for node, _ in racks(*sizes)
    ]


@pytest.mark.parametrize(
    ("nodes", "label", "expected"),
    [
        (2, "rack,room", ["ub0", "ub1"]),
        (4, "rack,room", ["ua0", "ua1", "ua2", "ua3"]),
        (5, "rack,room", ["va0", "va1", "va2", "vb0", "vb1"]),
        (7, "rack,room", ["ua0", "ua1", "ua2", "ua3", "ub0", "ub1", "uc0"]),
        (8, "rack,room", ["ua0", "ua1", "ua2", "ua3", "ub0", "ub1", "uc0", "va0"]),
        (5, "room", ["va0", "va1", "va2", "vb0", "vb1"]),
        (4, "rack", ["ua0", "ua1", "ua2", "ua3"]),
        (6, "rack", ["ua0", "ua1", "ua2", "ua3", "ub0", "ub1"]),
        (3, "no-such-label", ["ua0", "ua1", "ua2"]),
    ],
)
def test_topology_knows_several_levels(nodes: int, label: str, expected: list[str]) -> None:
    made = halls(u=(4, 2, 1), v=(3, 3))
    policy = partial(Topology, label=label)
    fleet = Fleet([node for node, _ in made], {}, {"g": policy}, 0.0)
    assert went(fleet, a_shape(nodes=nodes)) == expected


def idle(*indices: int) -> Fleet:
    node, devices = a_node("n1", 64, gpus=8)
    busy = [replace(one, used_milli=0 if one.index in indices else 1000) for one in devices]
    return Fleet([node], {"n1": busy}, {"g": PLACEMENTS["topology"]}, 0.0)


@pytest.mark.parametrize(
    ("there", "count", "expected"),
    [
        ((0, 1, 2, 3, 4, 5, 6, 7), 2, [0, 1]),
        ((1, 2, 4, 5), 2, [4, 5]),  # 1 and 2 are of two pairs
        ((0, 1, 2, 3, 6, 7), 2, [6, 7]),  # the four stays whole
        ((0, 1, 2, 3, 6, 7), 4, [0, 1, 2, 3]),
        ((0, 3, 5), 2, [0, 3]),  # in one four
        ((2, 3, 4, 5), 4, [2, 3, 4, 5]),
        ((0, 2, 3, 4, 7), 3, [0, 2, 3]),
        ((0, 1, 2, 3, 5, 6, 7), 1, [5]),  # whose neighbour is busy already
        ((3, 4), 2, [3, 4]),
        ((0, 1, 2, 3, 4, 5, 6, 7), 8, [0, 1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_topology_takes_neighbouring_gpus(there: tuple[int, ...], count: int, expected: list[int]) -> None:
    placement = idle(*there).place(a_shape(GpuRequest(count)))
    assert placement is not None
    assert [grant.uuid for grant in placement.ranks[0].grants] == [f"n1/{index}" for index in expected]


def test_ranks_of_a_node_get_neighbours_each() -> None:
    placement = idle(*range(8)).place(a_shape(GpuRequest(2), ranks=3))
    assert placement is not None
    assert [[grant.uuid[-1] for grant in rank.grants] for rank in placement.ranks] == [
        ["0", "1"],
        ["2", "3"],
        ["4", "5"],
    ]


@pytest.mark.parametrize("chosen", [[0], [0, 0], [0, 9], [1, 0, 2], None])
def test_a_strange_policys_choice_of_gpus_is_held_to_what_is_idle(chosen: list[int] | None) -> None:
    class Strange(Pack):
        def devices(self, row: int, columns: Sequence[int], count: int) -> Sequence[int]:
            return chosen  # pyright: ignore[reportReturnType]

    noted: list[str] = []
    node, devices = a_node("n1", gpus=4)
    fleet = Fleet([node], {"n1": devices}, {"g": guarded(Strange, noted.append)}, 0.0)
    placement = fleet.place(a_shape(GpuRequest(2)))
    assert placement is not None and [grant.uuid for grant in placement.ranks[0].grants] == ["n1/0", "n1/1"]
    assert len(noted) == 1


def test_ranks_on_one_node_each_see_what_those_before_took() -> None:
    demand = {a_shape(400): 1.0, a_shape(600): 1.0}
    fleet = a_fleet("least-fragmentation", a_node("n1", gpus=2), demand=demand)
    assert sorted(went(fleet, a_shape(400, ranks=4))) == ["n1/0", "n1/0", "n1/1", "n1/1"]
    assert fleet.place(a_shape(400)) is None


def test_the_policy_in_the_documentation_works() -> None:
    page = (Path(__file__).parents[2] / "docs" / "scheduling.md").read_text()
    example = re.search(r"```python\n(from [^`]*class FewestCpus[^`]*)```", page)
    assert example
    names: dict[str, Any] = {}
    exec(example[1], names)
    made = [a_node("n1", 8), a_node("n2", 4), a_node("n3", 2)]
    fleet = Fleet([node for node, _ in made], {}, {"g": names["FewestCpus"]})
    assert went(fleet, a_shape(), a_shape(cpus=3), a_shape()) == ["n3", "n2", "n2"]


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.integers(1, 1000), st.integers(1, 100), min_size=1, max_size=6), st.integers(0, 3))
def test_free_gpu_is_never_worth_more_than_it_is_nor_less_for_being_more(shares, several) -> None:
    node, devices = a_node("n1", gpus=4)
    demand = {a_shape(share if share < 1000 else GpuRequest()): float(times) for share, times in shares.items()}
    if several:
        demand[a_shape(GpuRequest(count=several + 1))] = 1.0
    useful = Usefulness(Pool([node], {"n1": devices}), demand)
    site = useful.site(useful.base, np.array([16_000]), np.array([65_536]))
    free = np.arange(0, 1001, STEP_MILLI)
    worth = useful.of_free(site, free[:, None])[:, 0]
    assert worth[0] == 0 and (worth <= free + 1e-6).all()
    assert (np.diff(worth) >= -1e-6).all()
    smallest = min(-(-share // STEP_MILLI) for share in shares)
    assert (worth[:smallest] == 0).all() and (worth[smallest:] > 0).all()
    assert len(worth) == STEPS + 1


@pytest.mark.parametrize("policy", sorted(PLACEMENTS))
def test_what_is_given_back_is_as_good_as_new(policy) -> None:
    made = [a_node("n1", gpus=2), a_node("n2", gpus=2)]
    wanted = [a_shape(300), a_shape(GpuRequest(count=2)), a_shape(700)]
    demand = dict.fromkeys(wanted, 1.0)
    used, fresh = (a_fleet(policy, *made, demand=demand) for _ in range(2))
    for shape in wanted:
        placement = used.place(shape)
        assert placement is not None
        used.give_back(placement.ranks)
    if policy != "round-robin":  # whose turn it is has moved on
        assert went(used, *wanted) == went(fresh, *wanted)
    assert used.refusals(a_shape(GpuRequest(count=3))) == fresh.refusals(a_shape(GpuRequest(count=3)))
