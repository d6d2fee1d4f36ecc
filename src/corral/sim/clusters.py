"""A cluster as its control plane shows it: the sessions that it had, its nodes and their devices."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from corral.model.faults import Invalid
from corral.model.node import Device, Node, NodeState
from corral.sim.fleets import Machines


@dataclass(frozen=True, slots=True)
class Cluster:
    """`sessions` as `corral ps -o json` prints them, `nodes` and `devices` likewise."""

    sessions: str
    nodes: Iterable[Mapping[str, Any]] = ()
    devices: Iterable[Mapping[str, Any]] = ()

    def machines(self) -> Machines:
        """All nodes, whatever their state is now."""
        devices: dict[str, list[Device]] = {}
        for one in self.devices:
            device = Device(one["node"], one["uuid"], one["index"], one["model"], one["arch"], one["capacity_mib"])
            devices.setdefault(device.node, []).append(device)
        nodes = sorted((_node(one) for one in self.nodes), key=lambda node: node.name)
        if not nodes:
            raise Invalid("no_fleet", "the control plane has no nodes; name a fleet with --nodes or --fleet")
        return Machines(tuple(nodes), {node.name: tuple(devices.get(node.name, ())) for node in nodes})


def _node(one: Mapping[str, Any]) -> Node:
    return Node(
        one["name"], one["group"], NodeState.UP, True, 0, "-", "-", "-", "-", "-", "-",
        cpu_milli=round(one["cpus"] * 1000), memory_mib=one["memory_mib"],
    )  # fmt: skip


def of_the_last(length_s: float | None, sessions: Iterable[Mapping[str, Any]]) -> str:
    """Of sessions, newest first, those that were submitted in so much time before the newest; as JSON text."""
    return json.dumps([*_of_the_last(length_s, sessions)])


def _of_the_last(length_s: float | None, sessions: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    newest: datetime | None = None
    for one in sessions:
        at = datetime.fromisoformat(one["submitted_at"])
        newest = at if newest is None or at > newest else newest
        if length_s is not None and at < newest - timedelta(seconds=length_s):
            return
        yield one
