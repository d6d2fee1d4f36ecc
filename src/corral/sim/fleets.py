"""The simulated fleet: from words (`8x8xV100:32GB`) or from a table of nodes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from corral.model.faults import Invalid
from corral.model.node import Device, Node, NodeState
from corral.model.resources import SimulatedGpu, parse_cpu_milli, parse_fleet, parse_memory_mib
from corral.model.wording import number_of
from corral.sim.files import Row, rows

MOST_NODES = 100_000
MOST_DEVICES = 1_000_000
AMPLE = 2**30  # of what a fleet says nothing about; never the reason that something does not fit
_KIND = re.compile(r"^(\d{1,9})x(.+)$")
_CPUS = re.compile(r"^([0-9.]+m?)cpus?$")


class PerNode(NamedTuple):
    """The most GPUs and the most CPUs that one node has; 0 where that is not known, or none."""

    gpus: int
    cpus: int


UNKNOWN = PerNode(0, 0)


@dataclass(frozen=True, slots=True)
class Machines:
    """Nodes in name order and the devices of each."""

    nodes: tuple[Node, ...]
    devices: Mapping[str, tuple[Device, ...]]

    @property
    def gpus(self) -> int:
        return sum(len(devices) for devices in self.devices.values())

    @property
    def per_node(self) -> PerNode:
        gpus = max((len(devices) for devices in self.devices.values()), default=0)
        return PerNode(gpus, max(node.cpu_milli // 1000 for node in self.nodes))


def machines_of(words: str) -> Machines:
    """`8x8xV100:32GB` is eight nodes with eight GPUs each; `+96cpus` and `+512GiB` say the rest of a node, `4x64cpus`
    nodes without GPUs. Kinds are joined by commas."""
    kinds = [_kind(part.strip()) for part in words.split(",")]
    _bounded(
        sum(count for count, *_ in kinds), sum(count * sum(gpu.count for gpu in gpus) for count, _, _, gpus in kinds)
    )
    nodes: list[Node] = []
    devices: dict[str, tuple[Device, ...]] = {}
    for count, cpu_milli, memory_mib, gpus in kinds:
        for _ in range(count):
            name = f"node-{len(nodes):05d}"
            nodes.append(_node(name, cpu_milli, memory_mib))
            devices[name] = _devices(name, gpus)
    return Machines(tuple(nodes), devices)


def _kind(part: str) -> tuple[int, int, int, tuple[SimulatedGpu, ...]]:
    found = _KIND.match(part)
    if not found or int(found[1]) < 1:
        raise Invalid(
            "bad_fleet", f"{part!r} is not NODESxGPUSxMODEL:MEMORY; write for example 8x8xV100:32GB or 4x64cpus"
        )
    gpus: tuple[SimulatedGpu, ...] = ()
    rest: dict[str, int] = {}
    for word in found[2].split("+"):
        cpus = _CPUS.match(word)
        if not cpus and "x" in word:
            gpus += parse_fleet(word)
            continue
        if word.isdecimal():
            which = f"GPUs, like {found[1]}x{word}xA100:80GB, or CPUs, like {found[1]}x{word}cpus"
            raise Invalid("bad_fleet", f"{part!r}: {word} of what? Say which {which}")
        what = "CPUs" if cpus else "memory"
        if what in rest:
            raise Invalid("bad_fleet", f"{part!r} says the {what} of a node twice")
        rest[what] = parse_cpu_milli(cpus[1]) if cpus else parse_memory_mib(word)
    return int(found[1]), rest.get("CPUs", AMPLE), rest.get("memory", AMPLE), gpus


def machines_from(name: str, text: str) -> Machines:
    """A table with the columns sn (or name), cpu_milli, memory_mib, gpu (how many), model, and if wanted gpu_memory_mib
    and group: openb's node list, or one of your own."""
    column = "name" if "name" in text.partition("\n")[0].split(",") else "sn"
    nodes: list[Node] = []
    devices: dict[str, tuple[Device, ...]] = {}
    for row in rows(name, text, (column, "cpu_milli", "memory_mib", "gpu", "model")):
        node = row.text(column).strip()
        if node in devices or not node:
            raise row.wrong(f"node {node!r} is named twice" if node else "the node has no name")
        group = row.values.get("group", "").strip() or "default"
        nodes.append(replace(_node(node, row.whole("cpu_milli"), row.whole("memory_mib")), group=group))
        devices[node] = _devices(node, _gpus(row))
    _bounded(len(nodes), sum(len(one) for one in devices.values()))
    if not nodes:
        raise Invalid("bad_fleet", f"{name}: names no node")
    return Machines(tuple(sorted(nodes, key=lambda node: node.name)), devices)


def _gpus(row: Row) -> tuple[SimulatedGpu, ...]:
    count = row.whole("gpu")
    if not count:
        return ()
    if count > 1024:
        raise row.wrong(f"gpu {count} is more than 1024")
    memory_mib = row.whole("gpu_memory_mib", least=1) if row.values.get("gpu_memory_mib", "").strip() else 16 * 1024
    return (SimulatedGpu(count, row.text("model").strip() or "GPU", memory_mib, None),)


def _bounded(nodes: int, devices: int) -> None:
    if nodes > MOST_NODES or devices > MOST_DEVICES:
        asked = f"{number_of(nodes, 'node')} with {number_of(devices, 'GPU')}"
        raise Invalid("bad_fleet", f"{asked}: at most {MOST_NODES} and {MOST_DEVICES}")


def _node(name: str, cpu_milli: int, memory_mib: int) -> Node:
    return Node(
        name, "default", NodeState.UP, True, 0, "-", "-", "-", "-", "-", "-", cpu_milli=cpu_milli, memory_mib=memory_mib
    )


def _devices(node: str, gpus: tuple[SimulatedGpu, ...]) -> tuple[Device, ...]:
    each = [gpu for gpu in gpus for _ in range(gpu.count)]
    return tuple(
        Device(node, f"{node}/{index}", index, gpu.model, gpu.arch, gpu.memory_mib) for index, gpu in enumerate(each)
    )
