"""What is said of every node, held against plain Python; and what is said of classes of nodes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings

from corral.model.node import Device, Node, ResourceGroup
from corral.model.resources import GpuRequest
from corral.scheduling.engine.room import NodeRoom, excluded
from corral.scheduling.explaining.explain import explain, survey_of
from corral.scheduling.snapshot import Shape, Snapshot, shape_of
from tests.unit.test_fleet import NOW, fleets, specs
from tests.unit.test_scheduling import a_node, a_snapshot, a_spec, gpus

NOT_MEANT = {"other_group", "other_node_asked_for", "node_excluded"}


def first_of(node: Node, devices: list[Device], shape: Shape, *, full: bool) -> str | None:
    """The one reason that a pass would give."""
    why = excluded(node, shape, None if full else NOW)
    if why is None:
        places = NodeRoom(node, devices, full=full).place(shape)
        why = places if isinstance(places, str) else None
    return why


@settings(max_examples=300, deadline=None)
@given(fleets(), specs.map(shape_of))
def test_a_node_says_all_that_plain_python_says_first_and_fits_where_it_says_nothing(made, shape) -> None:
    nodes, devices = made
    for full in (False, True):
        for node in nodes:
            survey = survey_of(Snapshot(NOW, [node], devices, ()))
            (sight,) = survey.sights(shape, full=full)
            first = first_of(node, devices[node.name], shape, full=full)
            assert (sight.fitting == 1) is (first is None)
            assert first is None or sight.obstacles[first] == 1
            assert not set(sight.obstacles) & NOT_MEANT or set(sight.obstacles) <= NOT_MEANT
        whole = survey_of(Snapshot(NOW, nodes, devices, ()))
        fitting = Counter(node.group for node in nodes if first_of(node, devices[node.name], shape, full=full) is None)
        assert whole.fits(shape, full=full) is any(count >= shape.nodes for count in fitting.values())
        assert sum(sight.fitting for sight in whole.sights(shape, full=full)) == sum(fitting.values())
        assert sum(sight.nodes for sight in whole.sights(shape, full=full)) == len(nodes)


def a_fleet() -> Snapshot:
    nodes = [
        a_node("a0", cpu_used_milli=8000, memory_used_mib=16_384, labels={"rack": "r1"}),
        *(a_node(f"a{number}", cpu_used_milli=8000, memory_used_mib=16_384) for number in (1, 2)),
        a_node("a3"),
        a_node("l0", labels={"rack": "r1"}),
        a_node("c0"),
        a_node("o0", group="other", schedulable=False),
    ]
    devices = {f"a{number}": gpus(f"a{number}", 4) for number in range(4)}
    devices["l0"] = gpus("l0", 2, "L4", "sm_89", 24_000)
    return a_snapshot([], nodes, devices, groups=("default", "other"))


def told(snapshot: Snapshot, spec: object) -> dict[str, tuple[int, int, dict[str, int]]]:
    found = explain(snapshot, shape_of(spec))  # pyright: ignore[reportArgumentType]
    return {
        one.name: (one.nodes, one.fitting, {why.code: why.counts["nodes"] for why in one.refusals})
        for one in found.classes
    }


def test_each_class_says_all_of_its_reasons() -> None:
    assert told(a_fleet(), a_spec(2, 64, GpuRequest(2, model="A100"), on_labels={"rack": "r1"})) == {
        "default, 2xL4": (1, 0, {"no_such_gpu": 1}),
        "default, 4xA100": (4, 0, {"label_missing": 3, "not_enough_cpus": 3, "not_enough_memory": 3}),
        "default, no GPU": (1, 0, {"label_missing": 1, "no_gpus": 1}),
        "other, no GPU": (1, 0, {"label_missing": 1, "no_gpus": 1, "node_not_schedulable": 1}),
    }


def test_of_other_groups_and_nodes_nothing_else_is_said() -> None:
    assert told(a_fleet(), a_spec(100, group="other", on_nodes=("o0",))) == {
        "default, 2xL4": (1, 0, {"other_group": 1}),
        "default, 4xA100": (4, 0, {"other_group": 4}),
        "default, no GPU": (1, 0, {"other_group": 1}),
        "other, no GPU": (1, 0, {"not_enough_cpus": 1}),
    }
    found = explain(a_fleet(), shape_of(a_spec(100, group="other", on_nodes=("o0",))))
    assert found.infeasible and "even empty" in found.classes[-1].refusals[0].message


def test_nodes_that_fit_are_counted_with_their_class() -> None:
    fleet = a_fleet()
    found = explain(fleet, shape_of(a_spec(2, 64, GpuRequest(), nodes=3)))
    assert (found.fits_now, found.infeasible) == (False, False)
    assert [(one.name, one.fitting) for one in found.classes if one.fitting] == [
        ("default, 2xL4", 1), ("default, 4xA100", 1),
    ]  # fmt: skip
    assert {one.code: one.counts["nodes"] for one in found.refusals} == {
        "no_gpus": 2, "node_not_schedulable": 1, "not_enough_cpus": 3, "not_enough_memory": 3, "not_enough_nodes": 2,
    }  # fmt: skip
    assert explain(fleet, shape_of(a_spec(2, 64, GpuRequest(), nodes=2))).refusals == ()


def test_a_group_that_takes_nothing_says_so_beside_its_other_reasons() -> None:
    fleet = a_fleet()
    paused = {**fleet.groups, "default": ResourceGroup("default", paused=True)}
    fleet = replace(fleet, groups=paused)
    assert told(fleet, a_spec(2, 64, GpuRequest(4, model="A100")))["default, 4xA100"] == (
        4, 0, {"group_paused": 4, "not_enough_cpus": 3, "not_enough_memory": 3},
    )  # fmt: skip
