"""A pass: what is placed fits, what does not says why, and equal requests cost one look."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.model.node import Device, Node, NodeState, ResourceGroup
from corral.model.resources import GpuRequest, Resources
from corral.model.spec import SessionSpec
from corral.scheduling import fleet as fleet_module
from corral.scheduling.cycle import cycle
from corral.scheduling.engine.room import Grant, NodeRoom, RankPlace
from corral.scheduling.explaining.explain import explain
from corral.scheduling.plan import Placed, Plan, check
from corral.scheduling.snapshot import Snapshot, Waiting, shape_of

NOW = 1000.0


def a_node(name: str = "n1", cpus: int = 8, memory_mib: int = 16384, **changes) -> Node:
    base = Node(
        name, "default", NodeState.UP, True, 1, "boot", "run", "inc", "hw", "0", "127.0.0.1", cpus * 1000, memory_mib
    )
    return replace(base, **changes)


def gpus(node: str, count: int, model: str = "A100", arch: str = "sm_80", mib: int = 80_000) -> list[Device]:
    return [Device(node, f"{node}-{index}", index, model, arch, mib) for index in range(count)]


def a_spec(cpus: float = 1, memory_mib: int = 64, gpu: GpuRequest | None = None, **changes) -> SessionSpec:
    return SessionSpec(command=("x",), resources=Resources(int(cpus * 1000), memory_mib, gpu), **changes)


def waiting(number: int, spec: SessionSpec) -> Waiting:
    return Waiting(f"s{number}", number, 1, 1, 0, "admin", "default", NOW, shape_of(spec))


def a_snapshot(specs, nodes=None, devices=None, groups=("default",)) -> Snapshot:
    nodes = [a_node()] if nodes is None else nodes
    rows = [waiting(number, spec) for number, spec in enumerate(specs)]
    return Snapshot(NOW, nodes, devices or {}, rows, {name: ResourceGroup(name) for name in groups})


def placed(plan: Plan) -> dict[str, list[str]]:
    return {one.session.id: [rank.node for rank in one.ranks] for one in plan.placements}


def codes(plan: Plan, session: str) -> set[str]:
    return {refusal.code for refusal in plan.refusals[session]}


def test_oldest_first_and_what_does_not_fit_stops_nobody_else() -> None:
    plan = cycle(a_snapshot([a_spec(9), a_spec(2), a_spec(6), a_spec(1)]))
    assert list(placed(plan)) == ["s1", "s2"]
    assert codes(plan, "s0") == codes(plan, "s3") == {"not_enough_cpus"}


def test_pack_fills_the_fullest_node_first() -> None:
    nodes = [a_node("n1"), a_node("n2", cpu_used_milli=4000)]
    assert placed(cycle(a_snapshot([a_spec(1)] * 4, nodes))) == {f"s{number}": ["n2"] for number in range(4)}


def test_a_gang_is_placed_whole_on_as_many_nodes_or_not_at_all() -> None:
    two = [a_node("n1", cpus=2), a_node("n2", cpus=2)]
    plan = cycle(a_snapshot([a_spec(2, nodes=3), a_spec(2, nodes=2)], two))
    assert placed(plan) == {"s1": ["n1", "n2"]}
    assert "not_enough_nodes" in codes(plan, "s0")


def test_ranks_on_one_node_share_its_room() -> None:
    plan = cycle(a_snapshot([a_spec(3, ranks_per_node=2), a_spec(3, ranks_per_node=1)]))
    assert placed(plan) == {"s0": ["n1", "n1"]}


def test_whole_gpus_go_to_one_session_only_and_shares_pack_on_one_device() -> None:
    devices = {"n1": gpus("n1", 2)}
    specs = [a_spec(gpu=GpuRequest(share_milli=500)), a_spec(gpu=GpuRequest(share_milli=300)), a_spec(gpu=GpuRequest())]
    plan = cycle(a_snapshot(specs, devices=devices))
    used = {one.session.id: one.ranks[0].grants[0] for one in plan.placements}
    assert used["s0"].uuid == used["s1"].uuid != used["s2"].uuid
    assert (used["s0"].vram_mib, used["s2"].vram_mib) == (40_000, 80_000)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (GpuRequest(model="H100"), "no_such_gpu"),
        (GpuRequest(arch="sm_90"), "no_such_gpu"),
        (GpuRequest(vram_mib=90_000), "no_such_gpu"),
        (GpuRequest(count=3), "not_enough_gpus"),
    ],
)
def test_a_gpu_no_node_has_is_told_at_once(request_, code) -> None:
    snapshot = a_snapshot([], devices={"n1": gpus("n1", 2)})
    told = explain(snapshot, shape_of(a_spec(gpu=request_)))
    assert told.infeasible and [refusal.code for refusal in told.refusals] == [code]


def test_waiting_for_room_is_not_infeasible() -> None:
    told = explain(a_snapshot([], [a_node(cpu_used_milli=8000)]), shape_of(a_spec()))
    assert not told.infeasible and not told.fits_now
    assert [refusal.code for refusal in told.refusals] == ["not_enough_cpus"]


def test_with_no_node_known_nothing_is_called_infeasible() -> None:
    told = explain(a_snapshot([], []), shape_of(a_spec(10_000)))
    assert not told.infeasible and [refusal.code for refusal in told.refusals] == ["no_nodes"]


@pytest.mark.parametrize(
    ("changes", "spec", "code"),
    [
        ({"state": NodeState.UNREACHABLE}, a_spec(), "node_unreachable"),
        ({"schedulable": False}, a_spec(), "node_not_schedulable"),
        ({"backoff_until": NOW + 5}, a_spec(), "node_backing_off"),
        ({}, a_spec(on_nodes=("other",)), "other_node_asked_for"),
        ({}, a_spec(not_nodes=("n1",)), "node_excluded"),
        ({}, a_spec(on_labels={"rack": "r1"}), "label_missing"),
        ({}, a_spec(runtime="container"), "no_such_runtime"),
        ({"cpu_used_milli": 1000}, a_spec(exclusive=True), "node_in_use"),
    ],
)
def test_every_blocker_has_its_own_reason(changes, spec, code) -> None:
    assert codes(cycle(a_snapshot([spec], [a_node(**changes)])), "s0") == {code}


def test_an_exclusive_session_holds_the_whole_node() -> None:
    plan = cycle(a_snapshot([a_spec(1, exclusive=True), a_spec(1)]))
    assert placed(plan) == {"s0": ["n1"]}
    assert plan.placements[0].ranks[0].cpu_milli == 8000


def test_a_group_with_a_broken_policy_holds_back_its_own_sessions_only() -> None:
    nodes = [a_node("n1"), a_node("n2", group="other")]
    snapshot = a_snapshot([a_spec(group="other"), a_spec(group="default")], nodes)
    groups = {"default": ResourceGroup("default"), "other": ResourceGroup("other", order="no-such-policy")}
    plan = cycle(replace(snapshot, groups=groups))
    assert placed(plan) == {"s1": ["n1"]}
    assert codes(plan, "s0") == {"group_broken"}


def test_a_session_without_a_group_goes_to_any() -> None:
    nodes = [a_node("n1", cpus=1), a_node("n2", cpus=4, group="other")]
    assert placed(cycle(a_snapshot([a_spec(4)], nodes, groups=("default", "other")))) == {"s0": ["n2"]}


def test_equal_requests_that_cannot_fit_are_tried_once(monkeypatch) -> None:
    tried: list[object] = []
    real = fleet_module.Fleet.place
    monkeypatch.setattr(
        fleet_module.Fleet, "place", lambda fleet, shape, *more: tried.append(shape) or real(fleet, shape)
    )
    plan = cycle(a_snapshot([a_spec(9)] * 500))
    assert len(plan.refusals) == 500 and len(tried) == 1


def test_a_place_on_an_older_epoch_no_longer_fits() -> None:
    plan = cycle(a_snapshot([a_spec()]))
    rebooted = NodeRoom(a_node(epoch=2), [])
    assert not rebooted.fits(plan.placements[0].ranks)
    assert NodeRoom(a_node(), []).fits(plan.placements[0].ranks)


specs = st.builds(
    a_spec,
    cpus=st.sampled_from([0.5, 1, 2, 4]),
    memory_mib=st.sampled_from([64, 4096]),
    gpu=st.none()
    | st.builds(GpuRequest, count=st.integers(1, 3))
    | st.builds(GpuRequest, share_milli=st.sampled_from([100, 250, 700])),
    nodes=st.integers(1, 3),
    ranks_per_node=st.integers(1, 2),
    exclusive=st.booleans(),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(specs, max_size=12), st.lists(st.tuples(st.integers(1, 8), st.integers(0, 3)), min_size=1, max_size=4))
def test_no_plan_is_ever_wrong(wanted, fleet) -> None:
    nodes = [a_node(f"n{number}", cpus=cpus) for number, (cpus, _) in enumerate(fleet)]
    devices = {f"n{number}": gpus(f"n{number}", count) for number, (_, count) in enumerate(fleet)}
    snapshot = a_snapshot(wanted, nodes, devices)
    plan = cycle(snapshot)
    assert check(snapshot, plan) == []
    assert cycle(snapshot) == plan
    assert set(placed(plan)) | set(plan.refusals) == {one.id for one in snapshot.waiting}


# --- plan.check, which knows nothing of how a plan was made


def a_plan(spec: SessionSpec, *ranks: RankPlace, group: str = "default", number: int = 0) -> Plan:
    return Plan((Placed(waiting(number, spec), group, ranks),))


def a_rank(node: str = "n1", cpus: float = 1, memory_mib: int = 64, *grants: Grant, **changes) -> RankPlace:
    return replace(RankPlace(node, 1, "run", int(cpus * 1000), memory_mib, grants), **changes)


TWO = [a_node("n1"), a_node("n2", group="other", labels={"rack": "r1"})]
A_GPU = GpuRequest(model="A100")
HALF = GpuRequest(share_milli=500)


@pytest.mark.parametrize(
    ("spec", "ranks", "why"),
    [
        (a_spec(8), [a_rank(cpus=8), a_rank(cpus=8)], "it has 2 ranks"),
        (a_spec(nodes=2), [a_rank(), a_rank()], "it is not on 2 nodes"),
        (a_spec(9), [a_rank(cpus=9)], "over-committed"),
        (a_spec(), [a_rank(cpus=2)], "a rank gets 2000 milli-CPUs"),
        (a_spec(), [a_rank(memory_mib=32)], "a rank gets 1000 milli-CPUs and 32 MiB"),
        (a_spec(), [a_rank("n9")], "there is no node n9"),
        (a_spec(), [a_rank("n2")], "is in group other, not default"),
        (a_spec(), [a_rank(epoch=2)], "was another when this was planned"),
        (a_spec(), [a_rank(run_id="older")], "was another when this was planned"),
        (a_spec(on_labels={"rack": "r1"}), [a_rank()], "label_missing"),
        (a_spec(on_nodes=("n2",)), [a_rank()], "other_node_asked_for"),
        (a_spec(not_nodes=("n1",)), [a_rank()], "node_excluded"),
        (a_spec(runtime="container"), [a_rank()], "no_such_runtime"),
        (a_spec(gpu=A_GPU), [a_rank()], "a rank gets 0 GPUs"),
        (a_spec(), [a_rank("n1", 1, 64, Grant("n1-0", 1000, 80_000))], "a rank gets 1 GPUs"),
        (a_spec(gpu=GpuRequest(2)), [a_rank("n1", 1, 64, *[Grant("n1-0", 1000, 80_000)] * 2)], "a rank gets 2 GPUs"),
        (a_spec(gpu=A_GPU), [a_rank("n1", 1, 64, Grant("n1-1", 1000, 24_000))], "not of the kind asked for"),
        (a_spec(gpu=A_GPU), [a_rank("n1", 1, 64, Grant("n1-9", 1000, 80_000))], "GPU n1-9 is not there"),
        (a_spec(gpu=A_GPU), [a_rank("n1", 1, 64, Grant("n1-0", 900, 80_000))], "gets 900 thousandths"),
        (a_spec(gpu=HALF), [a_rank("n1", 1, 64, Grant("n1-0", 500, 50_000))], "500 thousandths and 50000 MiB"),
        (a_spec(exclusive=True), [a_rank()], "a rank gets 1000 milli-CPUs"),
    ],
)
def test_the_check_finds_what_is_wrong_with_a_place(spec, ranks, why) -> None:
    devices = {"n1": [gpus("n1", 1)[0], Device("n1", "n1-1", 1, "L4", "sm_89", 24_000)]}
    snapshot = a_snapshot([spec], TWO, devices, groups=("default", "other"))
    assert why in " / ".join(check(snapshot, a_plan(spec, *ranks)))


def test_the_check_finds_a_plan_that_is_wrong_as_a_whole() -> None:
    plan = cycle(a_snapshot([a_spec(8)]))
    full = a_snapshot([a_spec(8)], [a_node(cpu_used_milli=1000)])
    assert check(full, plan) == ["s0: node n1 is over-committed, or was another when this was planned"]
    assert "s0 placed 2 times" in check(a_snapshot([a_spec(8)]), Plan(plan.placements * 2))
    assert check(a_snapshot([]), plan) == ["s0 was not waiting"]
    assert check(a_snapshot([a_spec(8)]), replace(plan, refusals={"s0": ()})) == ["s0 is placed and refused"]
    for groups in ((), ("other",)):
        assert check(a_snapshot([a_spec(8)], groups=groups), plan) == ["s0: group default takes no sessions"]
    paused = replace(a_snapshot([a_spec(8)]), groups={"default": ResourceGroup("default", paused=True)})
    assert check(paused, plan) == ["s0: group default takes no sessions"]
    other = a_snapshot([a_spec(8, group="other")], groups=("default", "other"))
    moved = Plan((replace(plan.placements[0], session=other.waiting[0]),))
    assert check(other, moved) == ["s0: it is in group default", "s0: node n1: other_group"]


def test_the_check_lets_nobody_join_a_session_that_wants_its_node_alone() -> None:
    alone, nothing = a_spec(1, 64, exclusive=True), a_spec(0, 0, A_GPU)
    whole = a_rank("n1", 8, 16384)
    joining = a_rank("n1", 0.001, 0, Grant("n1-0", 1000, 80_000))
    snapshot = a_snapshot([alone, nothing], devices={"n1": gpus("n1", 1)})
    both = [Placed(snapshot.waiting[0], "default", (whole,)), Placed(snapshot.waiting[1], "default", (joining,))]
    assert "s1: node n1 is s0's alone" in check(snapshot, Plan(tuple(both)))
    assert "s0: node n1 is not idle" in check(snapshot, Plan(tuple(reversed(both))))
    plan = cycle(snapshot)
    assert placed(plan) == {"s0": ["n1"]} and codes(plan, "s1") == {"not_enough_cpus"}


def test_ranks_that_want_a_node_alone_share_it_among_themselves() -> None:
    spec = a_spec(2, 1000, GpuRequest(), exclusive=True, ranks_per_node=3, nodes=2)
    nodes = [a_node("n1"), a_node("n2", cpus=6)]
    plan = cycle(a_snapshot([spec, a_spec(0, 0)], nodes, {name: gpus(name, 4) for name in ("n1", "n2")}))
    assert placed(plan) == {"s0": ["n1"] * 3 + ["n2"] * 3} or placed(plan) == {"s0": ["n2"] * 3 + ["n1"] * 3}
    held = [(rank.node, rank.cpu_milli, rank.memory_mib) for rank in plan.placements[0].ranks]
    others = [(name, 2000, 1000) for name in ("n1", "n1", "n2", "n2")]
    assert sorted(held) == sorted([("n1", 4000, 14_384), ("n2", 2000, 14_384), *others])
    nodes[0] = a_node("n1", cpus=5)
    plan = cycle(a_snapshot([spec], nodes, {name: gpus(name, 4) for name in ("n1", "n2")}))
    assert codes(plan, "s0") == {"not_enough_cpus", "not_enough_nodes"}
