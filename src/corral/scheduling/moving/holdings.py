"""Who holds room where, and at a glance what a node would offer if some of them went elsewhere.

A glance reads no room closely: it names who would have to go off the devices that are easiest to free, and then who
else may go. What was seen is remembered until somebody comes or goes on that node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from corral.model.resources import GpuRequest
from corral.scheduling.claiming.contention import Contender, Room
from corral.scheduling.engine.room import DeviceRoom, NodeRoom, share_of, suits
from corral.scheduling.places import Grant, RankPlace
from corral.scheduling.snapshot import Shape


class Glance(NamedTuple):
    """`least` have to go, for devices alone, at `cost`; `movers` may, in the order in which it helps."""

    least: int
    cost: float
    movers: Sequence[Contender]


class Holdings:
    """All who hold room. What changes in the room in other ways must be told by `changed`."""

    def __init__(self, held: Iterable[Contender] = ()) -> None:
        self._held: dict[str, Contender] = {}
        self._on_node: dict[str, dict[str, Contender]] = {}
        self._changes: dict[str, int] = {}
        self._seen: dict[tuple[GpuRequest | None, int], dict[str, tuple[int, Glance | None]]] = {}
        for one in held:
            self.put(one)

    def of(self, id_: str) -> Contender:
        return self._held[id_]

    def put(self, one: Contender) -> None:
        """It holds this now, and nothing else."""
        if one.id in self._held:
            self.drop(one.id)
        self._held[one.id] = one
        for place in one.places:
            self._on_node.setdefault(place.node, {})[one.id] = one
        self.changed(one.places)

    def drop(self, id_: str) -> Contender:
        one = self._held.pop(id_)
        for place in one.places:
            self._on_node[place.node].pop(id_, None)
        self.changed(one.places)
        return one

    def changed(self, places: Iterable[RankPlace]) -> None:
        for place in places:
            self._changes[place.node] = self._changes.get(place.node, 0) + 1

    def glances(self, nodes: Iterable[str], shape: Shape, room: Room) -> Iterator[tuple[str, Glance]]:
        """Of the nodes where the shape fits if those who may go do."""
        gpu, ranks = shape.resources.gpu, shape.ranks_per_node
        seen = self._seen.setdefault((gpu, ranks), {})
        for node in nodes:
            changes = self._changes.get(node, 0)
            if node not in seen or seen[node][0] != changes:
                holders = list(self._on_node.get(node, {}).values())
                seen[node] = changes, _glance(room.trial(node), gpu, ranks, holders)
            glance = seen[node][1]
            if glance is not None:
                yield node, glance


def _glance(room: NodeRoom, gpu: GpuRequest | None, ranks: int, holders: Sequence[Contender]) -> Glance | None:
    first: dict[str, Contender] = {}
    if gpu is not None:
        at: dict[str, list[tuple[Grant, Contender]]] = {}
        for one in holders:
            for grant in _grants(one, room.node.name):
                at.setdefault(grant.uuid, []).append((grant, one))
        suitable = (device for device in room.devices if suits(device.device, gpu))
        ways = [_off(device, gpu, at.get(device.device.uuid, ())) for device in suitable]
        ways = sorted((way for way in ways if way is not None), key=len)
        wanted = gpu.count * ranks if gpu.whole else 1
        if len(ways) < wanted:
            return None
        first = {one.id: one for way in ways[:wanted] for one in way}
    rest = [one for one in holders if not one.pinned and one.id not in first]
    rest.sort(key=lambda one: (-one.shape.resources.cpu_milli, -one.shape.resources.memory_mib))
    return Glance(len(first), sum(one.cost for one in first.values()), (*first.values(), *rest))


def _off(device: DeviceRoom, gpu: GpuRequest, holders: Sequence[tuple[Grant, Contender]]) -> Sequence[Contender] | None:
    """Who would go off a device so that it has the part that is asked for; None if those who may are not enough."""
    share_milli, vram_mib = share_of(device.device, gpu)
    short, short_mib = share_milli - device.free_milli, vram_mib - device.free_mib
    if short <= 0 and short_mib <= 0:
        return ()
    off: list[Contender] = []
    for grant, one in sorted(holders, key=lambda pair: (-pair[0].share_milli, -pair[0].vram_mib)):
        if not one.pinned:
            short, short_mib = short - grant.share_milli, short_mib - grant.vram_mib
            off.append(one)
            if short <= 0 and short_mib <= 0:
                return off
    return None


def _grants(one: Contender, node: str) -> Iterator[Grant]:
    return (grant for place in one.places if place.node == node for grant in place.grants)
