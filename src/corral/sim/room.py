"""The simulated fleet's room: the engine's `Fleet` places, one `NodeRoom` per node holds the same in plain numbers,
from which a node is copied to think on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from corral.model.node import Node
from corral.scheduling.claiming.contention import Amounts, Places, copied
from corral.scheduling.engine.room import NodeRoom, excluded
from corral.scheduling.fleet import Fleet
from corral.scheduling.policies.registry import placement_policy
from corral.scheduling.snapshot import Shape
from corral.sim.fleets import Machines


class FleetRoom:
    """What `contention.Room` and `backfill` ask, and nodes that come and go. A node that is out takes nothing new."""

    def __init__(self, machines: Machines, placement: str, absent: Sequence[str] = ()) -> None:
        self._machines = machines
        nodes = [replace(node, schedulable=node.name not in absent) for node in machines.nodes]
        self._nodes = {node.name: node for node in nodes}
        self.out = set(absent)
        policy = placement_policy(placement)
        self._fleet = Fleet(nodes, machines.devices, {node.group: policy for node in nodes})
        self._rooms = {node.name: NodeRoom(node, machines.devices[node.name]) for node in nodes}
        self._open: dict[Shape, frozenset[str]] = {}
        self._asked: tuple[Shape | None, frozenset[str]] = None, frozenset()

    @property
    def nodes(self) -> Sequence[Node]:
        return list(self._nodes.values())

    def node(self, name: str) -> Node:
        return self._nodes[name]

    @property
    def capacity(self) -> Amounts:
        """All that the nodes have together which are in, or have left and are not empty yet."""
        nodes = [node for node in self._nodes.values() if node.name not in self.out or self._busy(node)]
        return Amounts(
            sum(node.cpu_milli for node in nodes),
            sum(node.memory_mib for node in nodes),
            1000 * sum(len(self._machines.devices[node.name]) for node in nodes),
        )

    def _busy(self, node: Node) -> bool:
        room = self._rooms[node.name]
        held = room.cpu_free_milli < node.cpu_milli or room.memory_free_mib < node.memory_mib
        return held or any(one.free_milli < 1000 for one in room.devices)

    def expect(self, shapes: Iterable[Shape]) -> None:
        """What is to come, for placement policies that look ahead."""
        self._fleet.expect(Counter(shapes))

    def place(self, shape: Shape) -> Places | None:
        found = self._fleet.place(shape)
        if found is None:
            return None
        for place in found.ranks:
            self._rooms[place.node].take(place)
        return found.ranks

    def take(self, places: Places) -> None:
        self._fleet.take(places)
        for place in places:
            self._rooms[place.node].take(place)

    def give_back(self, places: Places) -> None:
        self._fleet.give_back(places)
        for place in places:
            self._rooms[place.node].give_back((place,))

    def trial(self, node: str) -> NodeRoom:
        return copied(self._rooms[node])

    def open_to(self, node: Node, shape: Shape) -> bool:
        if shape is not self._asked[0]:  # asked of one shape for node after node
            if shape not in self._open:
                open_ = (one.name for one in self._nodes.values() if excluded(one, shape, 0.0) is None)
                self._open[shape] = frozenset(open_)
            self._asked = shape, self._open[shape]
        return node.name in self._asked[1]

    def set_in(self, name: str, present: bool) -> None:
        """A node joins, or leaves: what runs on it is the caller's to end."""
        node = self._nodes[name] = replace(self._nodes[name], schedulable=present)
        self._rooms[name].node = node
        (self.out.discard if present else self.out.add)(name)
        self._fleet.set_node(node)
        self._open.clear()
        self._asked = None, frozenset()
