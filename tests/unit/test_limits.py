"""What quotas let in: in one pass, whoever asks, and whatever order they come in."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.model.faults import Invalid
from corral.model.node import Device, Node, NodeState, ResourceGroup
from corral.model.quota import Amounts, Claimant, Held, Quota, Quotas, checked, domain_of, limits_of
from corral.model.resources import GpuRequest, Resources
from corral.model.spec import SessionSpec
from corral.scheduling.cycle import cycle
from corral.scheduling.explaining.explain import explain_waiting
from corral.scheduling.limits import Admission, amounts_of, asked, check_limits, within
from corral.scheduling.places import RankPlace
from corral.scheduling.plan import Plan, Preemption, check
from corral.scheduling.snapshot import Running, Snapshot, Waiting, shape_of
from corral.scheduling.stopping.preemption_check import check_preemptions

NOW = 1000.0
GPU_MIB = 80_000
UNITS = {"cpu_milli": 1000, "gpu_milli": 500, "sessions": 1, "vram_mib": GPU_MIB}


def node(name: str = "n1", group: str = "default", cpus: int = 64) -> Node:
    return Node(name, group, NodeState.UP, True, 1, "b", "r", "i", "h", "", "127.0.0.1", cpus * 1000, 2**20)


def gpus(on: str, count: int) -> list[Device]:
    return [Device(on, f"{on}-{number}", number, "A100", None, GPU_MIB) for number in range(count)]


def one(number: int, owner: str = "ann", project: str = "default", *, cpus: int = 1, gpu: GpuRequest | None = None,
        limit_s: int | None = None, **spec) -> Waiting:  # fmt: skip
    wanted = SessionSpec(("x",), project=project, resources=Resources(cpus * 1000, 16, gpu), **spec)
    return Waiting(f"s{number}", number, 1, 1, 0, owner, project, NOW, shape_of(wanted), time_limit_s=limit_s)


def quota(name: str = "q", **fields) -> Quota:
    scope = {kind: fields.pop(kind) for kind in ("owner", "project", "domain", "group") if kind in fields}
    return Quota(name, **scope, limits=fields)


def picture(waiting: list[Waiting], *quotas: Quota, nodes: list[Node] | None = None, held=(), **fields) -> Snapshot:
    nodes = nodes or [node()]
    return Snapshot(
        NOW,
        nodes,
        {one.name: gpus(one.name, 8) for one in nodes},
        waiting,
        {one.group: ResourceGroup(one.group) for one in nodes},
        quotas=Quotas(tuple(quotas), held=tuple(held), **fields),
    )


def placed(snapshot: Snapshot) -> list[str]:
    plan = cycle(snapshot)
    assert check(snapshot, plan) == check_limits(snapshot, plan) == []
    return [one.session.id for one in plan.placements]


def codes(snapshot: Snapshot) -> dict[str, list[str]]:
    return {id_: [why.code for why in told] for id_, told in cycle(snapshot).refusals.items()}


# --- whom a quota is about


@pytest.mark.parametrize(
    ("scope", "claimant", "bucket"),
    [
        ({"owner": "ann"}, ("ann", "p", None), ()),
        ({"owner": "ann"}, ("bob", "p", None), None),
        ({"owner": "*"}, ("bob", "p", None), ("bob",)),
        ({"project": "vision"}, ("ann", "vision/detect", None), ()),
        ({"project": "vision"}, ("ann", "visionary", None), None),
        ({"project": "vision"}, ("vision", "other", None), None),
        ({"owner": "vision"}, ("vision/x", "other", None), None),
        ({"project": "*"}, ("ann", "vision/detect", None), ("vision/detect",)),
        ({"group": "gpu"}, ("ann", "p", None), None),
        ({"group": "gpu"}, ("ann", "p", "gpu"), ()),
        ({"owner": "*", "group": "gpu"}, ("ann", "p", "gpu"), ("ann",)),
        ({"owner": "ann", "group": "*"}, ("ann", "p", "gpu"), ("gpu",)),
        ({"domain": "lab"}, ("ann", "vision/detect", None), ()),
        ({"domain": "default"}, ("ann", "speech", None), ()),
        ({"domain": "*"}, ("ann", "vision", None), ("lab",)),
    ],
)
def test_which_sessions_fall_under_a_quota(scope, claimant, bucket) -> None:
    assert quota(**scope, sessions=1).bucket(Claimant(*claimant), {"vision": "lab"}) == bucket


def test_a_project_is_of_the_domain_of_the_nearest_above_it() -> None:
    domains = {"vision": "lab", "vision/detect": "shop"}
    assert [domain_of(name, domains) for name in ("vision", "vision/x", "vision/detect/y", "speech")] == [
        *("lab", "lab", "shop", "default")
    ]


# --- one pass


def test_what_is_held_and_what_is_placed_counts_together() -> None:
    held = [Held(Claimant("ann", "default", "default"), Amounts(cpu_milli=2000, sessions=2))]
    waiting = [one(number, "ann") for number in range(4)]
    assert placed(picture(waiting, quota(owner="ann", cpu_milli=4000), held=held)) == ["s0", "s1"]
    assert placed(picture(waiting, quota(owner="ann", sessions=3), held=held)) == ["s0"]
    assert placed(picture(waiting, quota(owner="bob", cpu_milli=0), held=held)) == ["s0", "s1", "s2", "s3"]


def test_who_is_held_back_stands_in_nobodys_way() -> None:
    """Of one shape, too: the first that finds no room speaks for all, the first over its quota for itself."""
    waiting = [one(0, "ann"), one(1, "bob"), one(2, "ann"), one(3, "cyd")]
    snapshot = picture(waiting, quota(owner="ann", sessions=0))
    assert placed(snapshot) == ["s1", "s3"]
    assert codes(snapshot) == {"s0": ["quota_sessions"], "s2": ["quota_sessions"]}


def test_every_reason_is_told_with_its_numbers() -> None:
    quotas = (
        quota("a", owner="ann", cpu_milli=4000, gpu_milli=1000),
        quota("b", project="vision", cpu_milli=5000),
        quota("c", domain="lab", sessions=1),
        quota("d", group="default", memory_mib=10**6),
    )
    held = [Held(Claimant("ann", "vision/x", "default"), Amounts(3000, 16, 1000, GPU_MIB, 1))]
    waiting = one(1, "ann", "vision/y", cpus=3, gpu=GpuRequest(), group="default")
    told = cycle(picture([waiting], *quotas, held=held, domains={"vision": "lab"})).refusals["s1"]
    assert [why.code for why in told] == ["quota_owner", "quota_owner", "quota_project", "quota_sessions"]
    assert told[0].counts == {"limit": 4000, "used": 3000, "asked": 3000}
    assert told[0].message == (
        "quota a: owner ann may hold 4 CPUs at once, this asks for 3 CPUs, it holds 3 CPUs: there is room once it "
        "holds 2 CPUs less"
    )
    assert "project vision may hold 5 CPUs" in told[2].message and "domain lab may hold 1 session " in told[3].message


def test_a_share_counts_as_the_larger_of_its_parts() -> None:
    shares = [one(number, gpu=GpuRequest(share_milli=250, vram_mib=GPU_MIB // 2)) for number in range(3)]
    assert placed(picture(shares, quota(owner="ann", gpu_milli=1000))) == ["s0", "s1"]
    whole = [one(number, gpu=GpuRequest()) for number in range(3)]
    assert placed(picture(whole, quota(owner="ann", vram_mib=2 * GPU_MIB))) == ["s0", "s1"]


def test_an_exclusive_session_counts_as_what_it_holds() -> None:
    waiting = [one(0, exclusive=True), one(1)]
    assert placed(picture(waiting, quota(owner="ann", cpu_milli=10_000))) == ["s1"]


def test_a_session_that_names_no_group_goes_where_its_quota_lets_it() -> None:
    nodes = [node("n1", "cheap"), node("n2", "dear")]
    waiting = [one(0), one(1), one(2, group="cheap"), one(3, "bob")]
    snapshot = picture(waiting, quota(owner="ann", group="cheap", sessions=1), nodes=nodes)
    plan = cycle(snapshot)
    assert {found.session.id: found.group for found in plan.placements} == {"s0": "cheap", "s1": "dear", "s3": "cheap"}
    assert [why.code for why in plan.refusals["s2"]] == ["quota_sessions"]
    shut = picture(
        waiting, quota("q", owner="ann", group="cheap", sessions=0), quota("r", owner="ann", group="dear", sessions=0),
        nodes=nodes,
    )  # fmt: skip
    assert placed(shut) == ["s3"]
    assert not explain_waiting(shut, waiting[0]).fits_now
    assert [why.code for why in explain_waiting(shut, waiting[0]).refusals] == ["quota_sessions", "quota_sessions"]


def test_a_larger_one_held_back_does_not_hold_back_a_smaller_one() -> None:
    waiting = [one(0, cpus=5), one(1, cpus=3)]
    assert placed(picture(waiting, quota(owner="ann", cpu_milli=4000))) == ["s1"]


def test_a_limit_below_what_is_held_lets_in_nothing() -> None:
    held = [Held(Claimant("ann", "default", "default"), Amounts(cpu_milli=9000, sessions=9))]
    snapshot = picture([one(0)], quota(owner="ann", cpu_milli=4000), held=held)
    assert placed(snapshot) == []
    assert cycle(snapshot).refusals["s0"][0].counts == {"limit": 4000, "used": 9000, "asked": 1000}


def test_what_is_pinned_for_a_session_counts_once() -> None:
    """As held for everybody else, and for itself as the room that it will have."""
    pinned = {"s0": Held(Claimant("ann", "default", "default"), Amounts(cpu_milli=2000, memory_mib=16, sessions=1))}
    limit = quota(owner="ann", cpu_milli=3000)
    waiting = [one(1, cpus=2), one(0, cpus=2), one(2, cpus=1)]
    assert placed(picture(waiting, limit, pinned=pinned)) == ["s0", "s2"]
    assert placed(picture([one(1, cpus=2)], limit, pinned=pinned)) == []
    held = [Held(Claimant("ann", "default", "default"), Amounts(cpu_milli=2000, sessions=1))]
    assert placed(picture([one(0, cpus=2)], limit, pinned=pinned, held=held)) == [], (
        "another took its allowance meanwhile"
    )


def test_nobody_is_stopped_for_what_a_quota_would_not_let_in() -> None:
    here = replace(node(cpus=2), cpu_used_milli=2000, memory_used_mib=32)
    runs = [
        Running(f"r{number}", number, 1, 4, "default", "bob", "default", 0, shape_of(SessionSpec(("x",))),
                (RankPlace("n1", 1, "r", 1000, 16),), NOW - 500, NOW - 500)
        for number in range(2)
    ]  # fmt: skip
    urgent = [one(number + 5, "ann")._replace(priority=9) for number in range(2)]
    options = {"preemption": "priority", "backfill": "none"}
    groups = {"default": ResourceGroup("default", "priority", options=options)}
    open_to_all = replace(picture(urgent, nodes=[here]), groups=groups, running=runs)
    assert [found.claimant.id for found in cycle(open_to_all).preemptions] == ["s5", "s6"]
    limited = replace(open_to_all, quotas=Quotas((quota(owner="ann", sessions=1),)))
    assert [found.claimant.id for found in cycle(limited).preemptions] == ["s5"]


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.tuples(st.sampled_from(("ann", "cyd")), st.integers(1, 4)), min_size=1, max_size=8),
    st.sampled_from(("cpu_milli", "sessions")), st.integers(0, 8), st.integers(0, 2),
)  # fmt: skip
def test_pass_after_pass_no_more_have_others_stopped_than_a_quota_lets_in(asking, what, limit, running) -> None:
    """Those for whom others stop count from then on: in the same pass, and in those that follow."""
    unit = UNITS[what]
    runs = [
        Running(f"r{number}", number, 1, 4, "default", "bob", "default", 0, shape_of(SessionSpec(("x",))),
                (RankPlace("n1", 1, "r", 1000, 16),), NOW - 500, NOW - 500)
        for number in range(16)
    ]  # fmt: skip
    here = replace(node(cpus=16), cpu_used_milli=16_000, memory_used_mib=256)
    waiting = [one(number + 50, owner, cpus=cpus)._replace(priority=9) for number, (owner, cpus) in enumerate(asking)]
    held = [Held(Claimant("ann", "default", "default"), Amounts(cpu_milli=1000 * running, sessions=running))]
    options = {"preemption": "priority", "backfill": "none"}
    groups = {"default": ResourceGroup("default", "priority", options=options)}
    snapshot = picture(waiting, quota(owner="ann", **{what: limit * unit}), nodes=[here], held=held)
    snapshot = replace(snapshot, groups=groups, running=runs)
    for _ in range(4):
        plan = cycle(snapshot)
        assert check(snapshot, plan) == check_limits(snapshot, plan) == check_preemptions(snapshot, plan) == []
        pinned, going = dict(snapshot.quotas.pinned), {}
        for claim in plan.preemptions:
            found = claim.claimant
            pinned[found.id] = Held(Claimant(found.owner, found.project), asked(found.shape, (), {}))
            going |= {victim.id: found.id for victim in claim.victims}
        line = [was._replace(room_by=NOW + 60) if was.id in pinned else was for was in snapshot.waiting]
        ran = [
            was._replace(stopping=True, preempted_for=going[was.id]) if was.id in going else was
            for was in snapshot.running
        ]
        snapshot = replace(snapshot, quotas=snapshot.quotas._replace(pinned=pinned), waiting=line, running=ran)
    claimed = [getattr(amounts, what) for (owner, *_), amounts in snapshot.quotas.pinned.values() if owner == "ann"]
    assert not claimed or sum(claimed) + running * unit <= limit * unit


def test_a_plan_that_has_others_stopped_for_too_many_is_wrong() -> None:
    snapshot = picture([one(0), one(1)], quota(owner="ann", sessions=1))
    places = (RankPlace("n1", 1, "r", 1000, 16),)
    claims = tuple(Preemption(found, (), "default", places) for found in snapshot.waiting)
    assert check_limits(snapshot, Plan(preemptions=claims[:1])) == []
    assert check_limits(snapshot, Plan(preemptions=claims)) == ["owner ann would hold 2 sessions of 1 (quota q)"]


def test_what_can_never_be_is_told_apart() -> None:
    snapshot = picture([], quota(owner="ann", cpu_milli=2000, time_limit_s=60), quota("r", project="x", sessions=0))
    assert explain_waiting(snapshot, one(0, cpus=3, limit_s=60)).infeasible
    assert explain_waiting(snapshot, one(0, cpus=2)).infeasible, "without a time limit"
    assert explain_waiting(snapshot, one(0, cpus=2, limit_s=61)).infeasible
    assert explain_waiting(snapshot, one(0, project="x", limit_s=1)).infeasible
    assert explain_waiting(snapshot, one(0, cpus=2, limit_s=60)).fits_now
    assert explain_waiting(snapshot, one(0, "bob", cpus=3)).fits_now
    busy = picture([], quota(owner="ann", cpu_milli=2000),
                   held=[Held(Claimant("ann", "default", "default"), Amounts(2000))])  # fmt: skip
    found = explain_waiting(busy, one(0))
    assert (found.fits_now, found.infeasible, [why.code for why in found.refusals]) == (False, False, ["quota_owner"])


def test_without_quotas_nothing_is_asked() -> None:
    assert Admission(Quotas()).refusals(one(0)) == ()


# --- whatever comes


OWNERS, PROJECTS = ("ann", "bob", "cyd"), ("vision", "vision/detect", "speech")
limits = st.dictionaries(
    st.sampled_from(("cpu_milli", "gpu_milli", "sessions", "vram_mib")), st.integers(0, 6), min_size=1
)
scopes = st.fixed_dictionaries(
    {},
    optional={
        "owner": st.sampled_from((*OWNERS, "*")),
        "project": st.sampled_from((*PROJECTS, "*")),
        "domain": st.sampled_from(("lab", "default", "*")),
        "group": st.sampled_from(("default", "other", "*")),
    },
).filter(bool)
sessions = st.builds(
    lambda owner, project, cpus, gpu, group: (owner, project, cpus, gpu, group),
    st.sampled_from(OWNERS), st.sampled_from(PROJECTS), st.integers(1, 3),
    st.sampled_from((None, GpuRequest(), GpuRequest(share_milli=500))), st.sampled_from((None, "default", "other")),
)  # fmt: skip


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(scopes, limits), max_size=4), st.lists(sessions, max_size=12), st.integers(0, 3))
def test_nobody_is_let_in_above_a_quota_and_nobody_held_back_below_one(said, asking, running) -> None:
    quotas = [
        Quota(f"q{number}", **scope, limits={name: value * UNITS[name] for name, value in limit.items()})
        for number, (scope, limit) in enumerate(said)
    ]
    waiting = [one(number, owner, project, cpus=cpus, gpu=gpu, group=group)
               for number, (owner, project, cpus, gpu, group) in enumerate(asking)]  # fmt: skip
    held = [Held(Claimant("ann", "vision", "default"), Amounts(1000 * running, 16, 0, 0, running))]
    snapshot = picture(waiting, *quotas, nodes=[node("n1"), node("n2", "other")], held=held, domains={"vision": "lab"})
    plan = cycle(snapshot)
    assert check(snapshot, plan) == check_limits(snapshot, plan) == []
    capacity = {device.uuid: GPU_MIB for listed in snapshot.devices.values() for device in listed}
    after = [Held(Claimant(p.session.owner, p.session.project, p.group), amounts_of(p.ranks, capacity))
             for p in plan.placements]  # fmt: skip
    full = Quotas(tuple(quotas), {"vision": "lab"}, (*held, *after))
    for session in waiting:
        told = plan.refusals.get(session.id, ())
        if told and all(why.code.startswith("quota") for why in told):
            assert explain_waiting(picture([], *quotas, nodes=list(snapshot.nodes), held=full.held,
                                           domains={"vision": "lab"}), session).refusals  # fmt: skip
    assert {p.session.id for p in within(snapshot.quotas, plan.placements, (
        device for listed in snapshot.devices.values() for device in listed
    ))} == {p.session.id for p in plan.placements}  # fmt: skip


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 8), st.sampled_from((None, 1, 3)))
def test_what_is_asked_is_never_more_than_what_is_held(nodes, ranks, cpus, count) -> None:
    gpu = None if count is None else GpuRequest(count=count)
    waiting = one(0, cpus=cpus, gpu=gpu, nodes=nodes, ranks_per_node=min(ranks, 2))
    snapshot = picture([waiting], nodes=[node(f"n{number}") for number in range(4)])
    capacity = {device.uuid: GPU_MIB for listed in snapshot.devices.values() for device in listed}
    for found in cycle(snapshot).placements:
        least = asked(waiting.shape, snapshot.nodes, snapshot.devices)
        assert all(less <= more for less, more in zip(least, amounts_of(found.ranks, capacity), strict=True))


# --- what may be said


def test_limits_as_people_write_them() -> None:
    given = {"cpus": "1.5", "memory": "4GiB", "gpus": 0.5, "vram": "80GB", "sessions": 3, "waiting": "10", "time": "2h"}
    assert limits_of(given) == {
        "cpu_milli": 1500, "memory_mib": 4096, "gpu_milli": 500, "vram_mib": 76294, "sessions": 3, "waiting": 10,
        "time_limit_s": 7200,
    }  # fmt: skip
    assert limits_of({"cpus": None, "gpus": 0}) == {"gpu_milli": 0}
    for option, value in (("cpus", "many"), ("gpus", "A100:2"), ("sessions", -1), ("sessions", 1.5), ("disk", 1),
                          ("cpus", True), ("memory", "99999999999TiB")):  # fmt: skip
        with pytest.raises(Invalid):
            limits_of({option: value})


@pytest.mark.parametrize(
    "wrong",
    [
        Quota("", owner="ann", limits={"sessions": 1}),
        Quota("a b", owner="ann", limits={"sessions": 1}),
        Quota("q", limits={"sessions": 1}),
        Quota("q", owner="", limits={"sessions": 1}),
        Quota("q", owner="a\x00b", limits={"sessions": 1}),
        Quota("q", owner="ann"),
        Quota("q", owner="ann", limits={"disk": 1}),
        Quota("q", owner="ann", limits={"sessions": -1}),
        Quota("q", owner="ann", limits={"cpu_milli": 2**60}),
        Quota("q", owner="ann", limits={"time_limit_s": 0}),
    ],
)
def test_a_quota_that_makes_no_sense_is_refused(wrong: Quota) -> None:
    with pytest.raises(Invalid):
        checked(wrong)
