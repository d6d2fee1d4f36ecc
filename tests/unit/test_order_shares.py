"""Order by shares: the promises of dominant resource fairness on small cases, and fair share's tree and memory."""

import math
from collections import Counter, defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.model.node import Device, Node, NodeState, ResourceGroup
from corral.model.resources import GpuRequest, Resources
from corral.model.spec import SessionSpec
from corral.scheduling.cycle import cycle
from corral.scheduling.policies.options import complete
from corral.scheduling.policies.order import Capacity, OrderView
from corral.scheduling.policies.registry import ORDERS
from corral.scheduling.policies.shares import demand, drf, drf_shares, fair_shares
from corral.scheduling.snapshot import Snapshot, Usage, Waiting, shape_of

NOW = 1e6
CAPACITY = Capacity(1, 100_000, 100_000, 0, 0.0)
Demand = tuple[int, int]  # milli-CPUs and MiB of one task


def one(number: int, owner: str, cpu_milli: int = 1000, memory_mib: int = 1, **changes) -> Waiting:
    gpu = changes.pop("gpu", None)
    spec = SessionSpec(command=("x",), resources=Resources(cpu_milli, memory_mib, gpu), **changes.pop("spec", {}))
    return Waiting(f"s{number}", number, 1, 1, 0, owner, "default", NOW, shape_of(spec))._replace(**changes)


def view_of(policy: str, waiting: list[Waiting], usage=(), capacity: Capacity = CAPACITY, **options) -> OrderView:
    return OrderView(NOW, waiting, complete(ORDERS[policy].options, options, policy), usage, capacity)


def picks(policy: str, waiting: list[Waiting], taken: bool = True, **options) -> list[str]:
    turns = ORDERS[policy].turns(view_of(policy, waiting, **options))
    found = [next(turns)]
    try:
        while True:
            found.append(turns.send(taken))
    except StopIteration:
        return [w.owner for w in found]


# --- dominant resource fairness


def filled(demands: dict[str, Demand], tasks: int = 110, *, go_on: bool = False) -> Counter[str]:
    """How many tasks each owner gets, filling until the first that does not fit, as in the paper, or on."""
    names = sorted(demands)
    waiting = [
        one(n * len(names) + k, name, *demands[name]) for n in range(tasks) for k, name in enumerate(names)
    ]  # everyone has more than would ever fit
    turns = drf(view_of("drf", waiting))
    cpu, memory = CAPACITY.cpu_milli, CAPACITY.memory_mib
    got: Counter[str] = Counter()
    answer: bool | None = None
    try:
        while True:
            pick = turns.send(answer)
            need = demands[pick.owner]
            answer = need[0] <= cpu and need[1] <= memory
            if answer:
                cpu, memory = cpu - need[0], memory - need[1]
                got[pick.owner] += 1
            elif not go_on:
                return got
    except StopIteration:
        return got


def share(need: Demand) -> float:
    return max(need[0] / CAPACITY.cpu_milli, need[1] / CAPACITY.memory_mib)


def runs_with(need: Demand, count: int, of: Demand) -> float:
    """How many tasks of one kind the room of so many of another would hold."""
    return min(count * of[0] / need[0], count * of[1] / need[1])


a_demand = st.tuples(st.integers(1000, 4000), st.integers(1000, 4000))
demands_of_some = st.lists(a_demand, min_size=2, max_size=4).map(lambda found: dict(zip("abcd", found, strict=False)))


def test_the_example_of_the_paper() -> None:
    """9 CPUs and 18 GB; A's tasks take <1 CPU, 4 GB>, B's <3 CPUs, 1 GB>: A runs three and B two (section 4.1)."""
    needs = {"a": (1000, 4), "b": (3000, 1)}
    node = Node("n", "default", NodeState.UP, True, 1, "b", "r", "i", "h", "0", "127.0.0.1", 9000, 18)
    rows = [one(n, "ab"[n % 2], *needs["ab"[n % 2]]) for n in range(20)]
    plan = cycle(Snapshot(NOW, [node], {}, rows, {"default": ResourceGroup("default", "drf")}))
    assert Counter(placed.session.owner for placed in plan.placements) == {"a": 3, "b": 2}


@settings(deadline=None)
@given(demands_of_some, st.booleans())
def test_sharing_incentive(demands: dict[str, Demand], go_on: bool) -> None:
    """Nobody gets less than with a cluster split evenly, but for the size of a task."""
    got = filled(demands, go_on=go_on)
    largest = max(map(share, demands.values()))
    for name, need in demands.items():
        assert got[name] * share(need) >= (1 - largest) / len(demands) - largest


@settings(deadline=None)
@given(demands_of_some)
def test_envy_freeness(demands: dict[str, Demand]) -> None:
    """Nobody could run more with what another got, but for the size of a task."""
    got = filled(demands)
    largest = max(map(share, demands.values()))
    for name, need in demands.items():
        for other, theirs in demands.items():
            assert runs_with(need, got[other], theirs) <= got[name] + largest / share(need) + 1e-9


@settings(deadline=None)
@given(demands_of_some, a_demand)
def test_strategy_proofness(demands: dict[str, Demand], lie: Demand) -> None:
    """Who asks for another shape than it needs runs no more of what it needs, but for the size of a task or two."""
    honest = filled(demands)["a"]
    true = demands["a"]
    lied = filled(demands | {"a": lie})["a"]
    slack = 2 * max(map(share, [*demands.values(), lie])) / share(true)
    assert math.floor(runs_with(true, lied, lie)) <= honest + math.ceil(slack)


def test_weights_divide_the_cluster() -> None:
    waiting = [one(n, "ab"[n % 2]) for n in range(60)]
    assert Counter(picks("drf", waiting, weights={"a": 2})[:30]) == {"a": 20, "b": 10}


def test_what_runs_already_counts() -> None:
    usage = [Usage("default", "a", "default", cpu_milli=10_000)]
    waiting = [one(n, "ab"[n % 2]) for n in range(40)]
    assert picks("drf", waiting, usage=usage)[:10] == ["b"] * 10


def test_a_refused_pick_is_not_held_against_its_owner() -> None:
    waiting = [one(n, "ab"[n % 2]) for n in range(6)]
    usage = [Usage("default", "b", "default", cpu_milli=500)]
    assert picks("drf", waiting, taken=False, usage=usage) == ["a", "a", "a", "b", "b", "b"]
    assert picks("drf", waiting, usage=usage) == ["a", "b", "a", "b", "a", "b"]


def test_by_project() -> None:
    waiting = [one(n, "ann", project="xy"[n >= 4]) for n in range(8)]
    turns = drf(view_of("drf", waiting, by="project"))
    found = [next(turns)] + [turns.send(True) for _ in range(7)]
    assert [w.project for w in found] == ["x", "y"] * 4


def test_own_priorities_order_ones_own() -> None:
    waiting = [one(n, "ab"[n % 2], priority=n) for n in range(6)]
    turns = drf(view_of("drf", waiting))
    found = [next(turns)] + [turns.send(True) for _ in range(5)]
    assert [w.id for w in found] == ["s4", "s5", "s2", "s3", "s0", "s1"]


def test_demand_counts_gpus_by_time_or_memory_and_whole_nodes() -> None:
    capacity = Capacity(2, 16_000, 2000, 4000, 80_000.0)

    def of(gpu: GpuRequest | None = None, **spec) -> tuple[float, float, float]:
        return demand(one(0, "a", gpu=gpu, spec=spec).shape, capacity)

    assert of(GpuRequest(count=2)) == (1000, 1, 2000)
    assert of(GpuRequest(share_milli=250)) == (1000, 1, 250)
    assert of(GpuRequest(share_milli=0, vram_mib=40_000)) == (1000, 1, 500)
    assert of(nodes=2, ranks_per_node=3) == (6000, 6, 0)
    assert of(exclusive=True) == (8000, 1000, 2000)


def test_shares_are_shown_lowest_first() -> None:
    usage = [Usage("g", "a", "x", cpu_milli=50_000), Usage("g", "b", "x", 10_000, 90_000), Usage("g", "b", "y", 1000)]
    options = complete(ORDERS["drf"].options, {"weights": {"a": 3}}, "drf")
    a, b = drf_shares(usage, CAPACITY, options)
    assert (a.owner, a.weight, a.entitled, a.used) == ("a", 3.0, 0.75, 0.5)
    assert (b.owner, b.entitled, b.used, b.level) == ("b", 0.25, 0.9, 0.9)


# --- fair share


def fair(waiting: list[Waiting], usage=(), **options) -> list[tuple[str, str]]:
    turns = ORDERS["fair-share"].turns(view_of("fair-share", waiting, usage, **options))
    found = [next(turns)] + [turns.send(True) for _ in range(len(waiting) - 1)]
    return [(w.project, w.owner) for w in found]


def test_projects_share_first_then_owners_within() -> None:
    waiting = [one(n, "abc"[n % 3], project="p" if n % 3 < 2 else "q") for n in range(12)]
    found = fair(waiting)
    assert Counter(found[:8]) == {("p", "a"): 2, ("p", "b"): 2, ("q", "c"): 4}


def test_who_used_less_goes_first_until_it_has_caught_up() -> None:
    waiting = [one(n, "ab"[n % 2], cpu_milli=1000) for n in range(20)]
    usage = [Usage("default", "a", "default", cpu_s=4 * 3600.0)]
    assert [owner for _, owner in fair(waiting, usage)][:7] == ["b", "b", "b", "b", "a", "b", "a"]


def test_a_pick_is_charged_by_its_time_limit() -> None:
    waiting = [one(n, "ab"[n % 2], time_limit_s=60 if n % 2 else 600) for n in range(24)]
    assert Counter(owner for _, owner in fair(waiting)[:11]) == {"a": 1, "b": 10}


def test_weights_of_projects_and_owners() -> None:
    waiting = [one(n, "ab"[n % 2], project="pq"[n // 2 % 2]) for n in range(160)]
    found = Counter(fair(waiting, project_weights={"p": 3}, owner_weights={"a": 4})[:40])
    by_project: defaultdict[str, int] = defaultdict(int)
    for (project, _), count in found.items():
        by_project[project] += count
    assert by_project == {"p": 30, "q": 10}
    assert found["p", "a"] == 24 and found["q", "a"] == 8


def test_effective_shares() -> None:
    usage = [
        Usage("g", "a", "p", gpu_s=100.0), Usage("g", "b", "p", gpu_s=300.0), Usage("g", "c", "q", cpu_s=2000.0),
    ]  # fmt: skip
    options = complete(ORDERS["fair-share"].options, {"project_weights": {"p": 3}}, "fair-share")
    shares = {(one.project, one.owner): one for one in fair_shares(usage, options)}
    assert [round(shares[key].entitled, 3) for key in sorted(shares)] == [0.375, 0.375, 0.25]
    assert [round(shares[key].used, 3) for key in sorted(shares)] == [0.2, 0.6, 0.2]
    assert fair_shares(usage, options)[0][:2] == ("p", "a")
    assert fair_shares([], options) == []
    assert sum(one.entitled for one in fair_shares(usage, options)) == pytest.approx(1)


def test_projects_share_within_the_project_that_they_are_in() -> None:
    """Three quarters to vision, of that two thirds to detect; who submits to vision itself stands beside these."""
    who = (("vision/detect/yolo", "a"), ("vision/detect", "b"), ("vision/track", "c"), ("vision", "d"), ("speech", "e"))
    waiting = [one(n * 5 + k, owner, project=project) for n in range(480) for k, (project, owner) in enumerate(who)]
    weights = {"vision": 3, "vision/detect": 4}
    found = Counter(fair(waiting, project_weights=weights)[:480])
    assert found == {
        ("speech", "e"): 120, ("vision/track", "c"): 60, ("vision", "d"): 60,
        ("vision/detect", "b"): 120, ("vision/detect/yolo", "a"): 120,
    }  # fmt: skip


def test_what_was_used_in_a_project_counts_for_all_above_it() -> None:
    usage = [Usage("default", "z", "vision/old", gpu_s=50 * 3600.0)]
    waiting = [one(n * 2 + k, "a", project=name) for n in range(200) for k, name in enumerate(("vision/new", "speech"))]
    found = [project for project, _ in fair(waiting, usage, cpu_cost=1)]
    assert found[:50] == ["speech"] * 50, "until speech has used as much as all of vision"
    assert Counter(found[50:150]) == {"speech": 50, "vision/new": 50}


projects = st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map("/".join)
weights = st.dictionaries(projects, st.sampled_from((0.5, 1.0, 2.0, 7.0)), max_size=6)


@settings(deadline=None)
@given(
    st.dictionaries(st.tuples(projects, st.sampled_from("xyz")), st.floats(0.1, 1e6), min_size=1, max_size=12), weights
)
def test_entitlements_beside_one_another_are_those_of_what_they_are_in(spent, project_weights) -> None:
    usage = [Usage("default", owner, project, gpu_s=gpu_s) for (project, owner), gpu_s in spent.items()]
    shares = fair_shares(
        usage, complete(ORDERS["fair-share"].options, {"project_weights": project_weights}, "fair-share")
    )
    owners = [share for share in shares if share.owner is not None]
    assert {(share.project, share.owner) for share in owners} == spent.keys()
    assert sum(share.entitled for share in owners) == pytest.approx(1)
    assert sum(share.used for share in owners) == pytest.approx(1)
    for inner in (share for share in shares if share.owner is None):
        below = [one for one in owners if f"{one.project}/".startswith(f"{inner.project}/")]
        assert sum(one.entitled for one in below) == pytest.approx(inner.entitled)
        assert sum(one.used for one in below) == pytest.approx(inner.used)


@settings(deadline=None)
@given(
    st.lists(st.tuples(projects, st.sampled_from("xyz")), min_size=1, max_size=8, unique=True),
    weights,
    st.integers(1, 60),
)
def test_nobody_starves_in_the_tree_and_nobody_gets_ahead(who, project_weights, rounds) -> None:
    """With equal tasks: of what its parent got each gets its weight's part, and at most one more."""
    waiting = [one(n * len(who) + k, owner, project=name) for n in range(rounds) for k, (name, owner) in enumerate(who)]
    found = fair(waiting, project_weights=project_weights)
    assert Counter(found) == dict.fromkeys(who, rounds), "everybody gets a turn for everything"
    got = Counter[str]()
    first = found[:rounds]  # nobody has run dry yet
    for project, owner in first:
        got[f"{project}#{owner}"] += 1
        parts = project.split("/")
        for depth in range(len(parts) + 1):
            got["/".join(parts[:depth])] += 1
    nodes = {"/".join(name.split("/")[:depth]) for name, _ in who for depth in range(1, name.count("/") + 2)}
    for parent in {"", *nodes}:
        inside = [name for name in nodes if name.rpartition("/")[0] == parent]
        below = {name: project_weights.get(name, 1.0) for name in inside}
        below |= {f"{name}#{owner}": 1.0 for name, owner in who if name == parent}
        for name, weight in below.items():
            assert got[name] <= got[parent] * weight / sum(below.values()) + 1


def test_a_pass_of_a_fair_share_group_alternates() -> None:
    node = Node("n", "default", NodeState.UP, True, 1, "b", "r", "i", "h", "0", "127.0.0.1", 4000, 18)
    rows = [one(n, "a" if n < 10 else "b") for n in range(20)]
    groups = {"default": ResourceGroup("default", "fair-share")}
    plan = cycle(Snapshot(NOW, [node], {"n": [Device("n", "u", 0, "A100", None, 80_000)]}, rows, groups))
    assert Counter(placed.session.owner for placed in plan.placements) == {"a": 2, "b": 2}
