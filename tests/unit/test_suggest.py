"""The smallest single change with which a session would start now."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from corral.model.node import ResourceGroup
from corral.model.quota import Amounts, Claimant, Held, Quota, Quotas
from corral.model.resources import GpuRequest, Resources
from corral.scheduling.cycle import cycle
from corral.scheduling.explaining.explain import fits_now
from corral.scheduling.explaining.suggest import submitted_anew, suggest
from corral.scheduling.snapshot import Reservation, Shape, Snapshot, Waiting, shape_of
from tests.unit.test_heads import HOUR, on, picture, running, waiting
from tests.unit.test_scheduling import NOW, a_node, a_snapshot, a_spec, gpus

A100, L4 = ("A100", "sm_80", 80_000), ("L4", "sm_89", 24_000)


def told(snapshot: Snapshot, spec: object) -> dict[str, str | None]:
    return {one.option: one.value for one in suggest(snapshot, asking(shape_of(spec)))}  # pyright: ignore[reportArgumentType]


def asking(shape: Shape, owner: str = "ann", limit_s: int | None = None) -> Waiting:
    return Waiting("asked", 0, 1, 1, 0, owner, "default", NOW, shape, time_limit_s=limit_s)


def a_fleet() -> Snapshot:
    nodes = [a_node("n1", 8, 16384), a_node("n2", 16, 8192, cpu_used_milli=4000), a_node("n3", 4, 65536)]
    devices = {"n1": gpus("n1", 4, *A100), "n2": gpus("n2", 2, *L4)}
    devices["n1"][0] = replace(devices["n1"][0], used_milli=600, used_mib=40_000)
    return a_snapshot([], nodes, devices)


def test_each_thing_alone_is_made_smaller_only_as_far_as_needed() -> None:
    fleet = a_fleet()
    assert told(fleet, a_spec(12, 8192)) == {}
    assert told(fleet, a_spec(14, 4096)) == {"cpus": "12"}
    assert told(fleet, a_spec(12, 9000)) == {"cpus": "8", "memory": "8GiB"}
    assert told(fleet, a_spec(1, 64, nodes=5)) == {"nodes": "3"}
    assert told(fleet, a_spec(5, 64, nodes=3)) == {"cpus": "4", "nodes": "2"}
    assert told(fleet, a_spec(1, 64, GpuRequest(4, model="A100"))) == {"gpus": "3"}
    assert told(fleet, a_spec(1, 64, GpuRequest(2, model="H100"))) == {"gpu-model": "L4"}
    assert told(fleet, a_spec(1, 64, GpuRequest(1, 900, model="L4"))) == {}
    assert told(fleet, a_spec(1, 64, on_labels={"rack": "a"})) == {"on rack": None}
    assert told(fleet, a_spec(10, 64, on_nodes=("n1",))) == {"cpus": "8", "node": None}
    assert told(fleet, a_spec(10, 64, not_nodes=("n2",))) == {"cpus": "8", "not-node": None}


def test_a_share_or_a_smaller_memory_of_a_gpu() -> None:
    fleet = a_snapshot([], [a_node()], {"n1": gpus("n1", 1, *A100)})
    used = replace(fleet.devices["n1"][0], used_milli=600, used_mib=40_000)
    fleet = replace(fleet, devices={"n1": [used]})
    assert told(fleet, a_spec(1, 64, GpuRequest(1, 500))) == {"gpus": "0.4"}
    assert told(fleet, a_spec(1, 64, GpuRequest(1, 100, vram_mib=100_000))) == {"vram": "39GiB"}
    idle = a_snapshot([], [a_node()], {"n1": gpus("n1", 1, *L4)})
    assert told(idle, a_spec(1, 64, GpuRequest(1, vram_mib=40_000))) == {"vram": "24000MiB"}


def test_the_largest_gpu_that_is_free_is_named_though_larger_ones_are_in_use() -> None:
    devices = {"n1": [*gpus("n1", 1, *A100), replace(gpus("n1", 2, *L4)[1], capacity_mib=24_000)]}
    devices["n1"][0] = replace(devices["n1"][0], used_milli=1000, used_mib=80_000)
    fleet = a_snapshot([], [a_node()], devices)
    assert told(fleet, a_spec(1, 64, GpuRequest(1, vram_mib=90_000))) == {"vram": "24000MiB"}


def test_a_group_that_is_paused_offers_nothing() -> None:
    nodes = [a_node("n1", 4), a_node("n2", 8, group="paused")]
    fleet = a_snapshot([], nodes, groups=("default", "paused"))
    fleet = replace(fleet, groups={**fleet.groups, "paused": ResourceGroup("paused", paused=True)})
    assert told(fleet, a_spec(9, 64)) == {"cpus": "4"}


def test_nothing_is_suggested_when_two_things_would_have_to_change() -> None:
    assert told(a_fleet(), a_spec(100, 100_000)) == {}


SPECS = st.builds(
    lambda cpus, memory, count, share, model, nodes, ranks: Shape(
        None,
        Resources(cpus * 1000, memory, GpuRequest(count if share == 1000 else 1, share, 0, model) if count else None),
        nodes, ranks, False, (), (), (), "process",
    ),
    st.integers(1, 20), st.sampled_from([64, 5000, 20_000, 70_000]), st.integers(0, 5),
    st.sampled_from([1000, 1000, 700, 300]), st.sampled_from([None, "A100", "L4", "H100"]), st.integers(1, 4),
    st.integers(1, 3),
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(SPECS, st.lists(st.integers(0, 12_000), min_size=3, max_size=3))
def test_what_is_suggested_fits_and_a_little_more_of_it_does_not(shape: Shape, used: list[int]) -> None:
    fleet = a_fleet()
    nodes = [
        replace(node, cpu_used_milli=min(node.cpu_milli, cpu)) for node, cpu in zip(fleet.nodes, used, strict=True)
    ]
    fleet = replace(fleet, nodes=nodes)
    for one in suggest(fleet, asking(shape)):
        assert fits_now(fleet, one.shape)
        more = one.shape
        if one.option == "cpus":
            step = 1000 if one.shape.resources.cpu_milli >= 1000 else 1
            more = replace(more, resources=replace(more.resources, cpu_milli=more.resources.cpu_milli + step))
        elif one.option == "nodes":
            more = replace(more, nodes=more.nodes + 1)
        elif one.option == "gpus" and more.resources.gpu is not None and more.resources.gpu.whole:
            gpu = replace(more.resources.gpu, count=more.resources.gpu.count + 1)
            more = replace(more, resources=replace(more.resources, gpu=gpu))
        else:
            continue
        assert not fits_now(fleet, more)


# --- what else keeps it


def limited(fleet: Snapshot, *quotas: Quota, **used: int) -> Snapshot:
    return replace(fleet, quotas=Quotas(quotas, held=(Held(Claimant("ann", "default", "default"), Amounts(**used)),)))


def test_less_that_a_quota_lets_in_and_that_has_room() -> None:
    fleet = limited(a_fleet(), Quota("q", owner="ann", limits={"cpu_milli": 10_000}), cpu_milli=4000)
    assert told(fleet, a_spec(7, 64)) == {"cpus": "6"}
    assert told(fleet, a_spec(4, 64, nodes=2)) == {"cpus": "3", "nodes": "1"}
    assert told(fleet, a_spec(2, 64, ranks_per_node=4)) == {"cpus": "1", "ranks-per-node": "3"}
    assert told(fleet, a_spec(6, 64)) == {}
    full = limited(a_fleet(), Quota("q", owner="ann", limits={"sessions": 1}), sessions=1)
    assert told(full, a_spec(7, 64)) == {}, "no smaller session would start"


def test_fewer_gpus_or_less_memory_of_them() -> None:
    quota = Quota("q", owner="*", limits={"gpu_milli": 2500, "vram_mib": 150_000})
    assert told(limited(a_fleet(), quota), a_spec(1, 64, GpuRequest(3, model="A100"))) == {"gpus": "1"}
    half = limited(a_fleet(), Quota("q", owner="*", limits={"gpu_milli": 300}))
    assert told(half, a_spec(1, 64, GpuRequest(1, 500))) == {"gpus": "0.3"}
    little = limited(a_fleet(), Quota("q", owner="*", limits={"vram_mib": 10_000}))
    assert told(little, a_spec(1, 64, GpuRequest(1, 100, vram_mib=20_000)))["vram"] == "9GiB"


def test_another_group_where_it_is_let_in_and_that_has_room() -> None:
    nodes = [
        a_node("n1", 8),
        a_node("n2", 8, group="other"),
        a_node("n3", 2, group="small"),
        a_node("n4", 8, group="p"),
    ]
    fleet = a_snapshot([], nodes, groups=("default", "other", "small", "p"))
    fleet = replace(fleet, groups={**fleet.groups, "p": ResourceGroup("p", paused=True)})
    shut = Quota("q", owner="ann", group="default", limits={"sessions": 0})
    assert told(limited(fleet, shut), a_spec(4, 64, group="default")) == {"group": "other"}
    both = [shut, Quota("r", owner="ann", group="other", limits={"sessions": 0})]
    assert told(limited(fleet, *both), a_spec(4, 64, group="default")) == {}


def test_what_would_delay_somebody_in_front_is_no_way_out() -> None:
    """Eight CPUs are free, and twelve promised from in an hour on: four may be taken for longer than that."""
    node = a_node("n1", 16)
    head = waiting(0, a_spec(12, 64), id="head")
    fleet = picture([head], [node], [running("r", NOW + HOUR, on(node, 8))])
    assert told(fleet, a_spec(9, 64)) == {"cpus": "4"}
    assert [one.value for one in suggest(fleet, asking(shape_of(a_spec(9, 64)), limit_s=60))] == ["8"]


LINES = st.lists(
    st.tuples(SPECS, st.sampled_from(["ann", "bob"]), st.sampled_from([None, 600]), st.integers(0, 2)), max_size=6
)
QUOTAS = st.lists(
    st.tuples(
        st.fixed_dictionaries({}, optional={
            "owner": st.sampled_from(["ann", "bob", "*"]), "group": st.sampled_from(["default", "other", "*"]),
            "project": st.just("default"),
        }).filter(bool),
        st.dictionaries(st.sampled_from(["cpu_milli", "gpu_milli", "vram_mib", "memory_mib", "sessions"]),
                        st.integers(0, 10), min_size=1, max_size=2),
    ), max_size=3,
)  # fmt: skip
UNITS = {"cpu_milli": 2500, "gpu_milli": 600, "vram_mib": 30_000, "memory_mib": 3000, "sessions": 1}


@settings(max_examples=200, deadline=None)
@given(LINES, QUOTAS, SPECS, st.sampled_from([None, "default", "other"]), st.lists(st.integers(0, 12_000), min_size=3,
       max_size=3), st.booleans(), st.sampled_from(["easy", "conservative", "none"]))  # fmt: skip
def test_whatever_is_suggested_is_placed_by_the_next_pass(
    line: list[tuple[Shape, str, int | None, int]], said: list[tuple[dict[str, str], dict[str, int]]], shape: Shape,
    group: str | None, used: list[int], reserved: bool, backfill: str,
) -> None:  # fmt: skip
    fleet = a_fleet()
    nodes = [replace(node, cpu_used_milli=min(node.cpu_milli, cpu), group="other" if node.name == "n3" else "default")
             for node, cpu in zip(fleet.nodes, used, strict=True)]  # fmt: skip
    others = [
        Waiting(f"w{number}", number, 1, 1, priority, owner, "default", NOW, one, time_limit_s=limit)
        for number, (one, owner, limit, priority) in enumerate(line)
    ]
    quotas = [
        replace(Quota(f"q{n}", limits={name: value * UNITS[name] for name, value in limits.items()}), **scope)
        for n, (scope, limits) in enumerate(said)
    ]
    groups = {name: ResourceGroup(name, "priority", options={"backfill": backfill}) for name in ("default", "other")}
    kept = [Reservation("m", ("n1",), NOW + 300, NOW + 900)] if reserved else []
    fleet = limited(replace(fleet, nodes=nodes, waiting=others, groups=groups, reservations=kept), *quotas, sessions=1)
    asked = asking(replace(shape, group=group), limit_s=600)._replace(ordinal=3.5)  # pyright: ignore[reportArgumentType]
    for one in suggest(fleet, asked):
        at_the_end, anew = submitted_anew(fleet, asked)
        applied = replace(at_the_end, waiting=[*at_the_end.waiting[:-1], anew._replace(shape=one.shape)])
        in_place = replace(fleet, waiting=[*fleet.waiting, asked._replace(shape=one.shape)])
        for snapshot in (applied, in_place):
            assert "asked" in {placed.session.id for placed in cycle(snapshot).placements}, one
