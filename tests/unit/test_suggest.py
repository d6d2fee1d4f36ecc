"""The smallest single change with which a session would start now."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from corral.model.node import ResourceGroup
from corral.model.resources import GpuRequest, Resources
from corral.scheduling.explaining.explain import fits_now
from corral.scheduling.explaining.suggest import suggest
from corral.scheduling.snapshot import Shape, Snapshot, shape_of
from tests.unit.test_scheduling import a_node, a_snapshot, a_spec, gpus

A100, L4 = ("A100", "sm_80", 80_000), ("L4", "sm_89", 24_000)


def told(snapshot: Snapshot, spec: object) -> dict[str, str | None]:
    return {one.option: one.value for one in suggest(snapshot, shape_of(spec))}  # pyright: ignore[reportArgumentType]


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
    assert told(fleet, a_spec(1, 64, GpuRequest(1, 100, vram_mib=100_000))) == {}
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
    for one in suggest(fleet, shape):
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
