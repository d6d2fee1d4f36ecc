"""The free room of a fleet while a plan is made: what fits where, why not, and what taking it leaves.

Used twice with the same code: by a scheduling pass on its snapshot, and by the writer on the locked rows just before
the plan is committed, so that what no longer fits is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from corral.model.node import Device, Node, NodeState
from corral.model.resources import WHOLE_GPU_MILLI, GpuRequest
from corral.scheduling.places import Grant, RankPlace
from corral.scheduling.snapshot import Shape


@dataclass(slots=True)
class DeviceRoom:
    """One device's free share (thousandths) and memory (MiB)."""

    device: Device
    free_milli: int
    free_mib: int


class NodeRoom:
    """One node's free room. `full` starts from what it has instead of what is free now."""

    def __init__(self, node: Node, devices: Iterable[Device], *, full: bool = False) -> None:
        self.node = node
        self.cpu_free_milli = node.cpu_milli - (0 if full else node.cpu_used_milli)
        self.memory_free_mib = node.memory_mib - (0 if full else node.memory_used_mib)
        self.devices = [
            DeviceRoom(
                device, WHOLE_GPU_MILLI if full else device.free_milli, device.capacity_mib if full else device.free_mib
            )
            for device in devices
            if device.present
        ]

    @property
    def idle(self) -> bool:
        """Whether nobody holds anything of it."""
        whole = self.cpu_free_milli >= self.node.cpu_milli and self.memory_free_mib >= self.node.memory_mib
        return whole and all(one.free_milli == WHOLE_GPU_MILLI for one in self.devices)

    def place(self, shape: Shape) -> list[RankPlace] | str:
        """The shape's ranks for one node, taken from the room; or the code of what is missing, with nothing taken."""
        places: list[RankPlace] = []
        if shape.exclusive and not self.idle:
            return "node_in_use"
        for number in range(shape.ranks_per_node):
            place = self._place_rank(shape, *amounts_of(shape, self.node, number))
            if isinstance(place, str):
                self.give_back(places)
                return place
            places.append(place)
        return places

    def _place_rank(self, shape: Shape, cpu: int, memory: int) -> RankPlace | str:
        if cpu > self.cpu_free_milli:
            return "not_enough_cpus"
        if memory > self.memory_free_mib:
            return "not_enough_memory"
        grants = self._grants(shape.resources.gpu)
        if isinstance(grants, str):
            return grants
        place = RankPlace(self.node.name, self.node.epoch, self.node.run_id, cpu, memory, tuple(grants))
        self.take(place)
        return place

    def _grants(self, request: GpuRequest | None) -> list[Grant] | str:
        if request is None:
            return []
        suitable = [room for room in self.devices if suits(room.device, request)]
        if not suitable:
            return "no_such_gpu" if self.devices else "no_gpus"
        if request.whole:
            idle = [
                room
                for room in suitable
                if room.free_milli == WHOLE_GPU_MILLI and room.free_mib == room.device.capacity_mib
            ]
            if len(idle) < request.count:
                return "not_enough_gpus"
            return [Grant(room.device.uuid, *share_of(room.device, request)) for room in idle[: request.count]]
        return self._share(suitable, request)

    def _share(self, suitable: Sequence[DeviceRoom], request: GpuRequest) -> list[Grant] | str:
        fitting: list[tuple[int, int, DeviceRoom, int]] = []
        for room in suitable:
            _, vram = share_of(room.device, request)
            if room.free_milli >= request.share_milli and room.free_mib >= vram:
                fitting.append((room.free_milli, room.device.index, room, vram))
        if not fitting:
            return "not_enough_gpu_share"
        _, _, best, vram = min(fitting, key=lambda one: one[:2])
        return [Grant(best.device.uuid, request.share_milli, vram)]

    def has_room_for(self, shape: Shape) -> bool:
        """Whether its ranks of one node could be placed; nothing is taken."""
        places = self.place(shape)
        if isinstance(places, str):
            return False
        self.give_back(places)
        return True

    def fits(self, places: Sequence[RankPlace]) -> bool:
        """Whether all of these still fit together on this node as it is now."""
        if any(place.epoch != self.node.epoch or place.run_id != self.node.run_id for place in places):
            return False
        taken: list[RankPlace] = []
        for place in places:
            rooms = {room.device.uuid: room for room in self.devices}
            ok = place.cpu_milli <= self.cpu_free_milli and place.memory_mib <= self.memory_free_mib
            for grant in place.grants:
                room = rooms.get(grant.uuid)
                ok = (
                    ok and room is not None and grant.share_milli <= room.free_milli and grant.vram_mib <= room.free_mib
                )
            if not ok:
                self.give_back(taken)
                return False
            self.take(place)
            taken.append(place)
        self.give_back(taken)
        return True

    def take(self, place: RankPlace) -> None:
        self._move(place, 1)

    def give_back(self, places: Iterable[RankPlace]) -> None:
        for place in places:
            self._move(place, -1)

    def _move(self, place: RankPlace, sign: int) -> None:
        self.cpu_free_milli -= sign * place.cpu_milli
        self.memory_free_mib -= sign * place.memory_mib
        for grant in place.grants:
            room = next(room for room in self.devices if room.device.uuid == grant.uuid)
            room.free_milli -= sign * grant.share_milli
            room.free_mib -= sign * grant.vram_mib


def suits(device: Device, request: GpuRequest) -> bool:
    """Whether a device is of the kind asked for, whatever is free on it. A model may be several, `A100|H100`."""
    if request.model is not None and device.model.lower() not in request.model.lower().split("|"):
        return False
    if request.arch is not None and request.arch != device.arch:
        return False
    return request.vram_mib <= device.capacity_mib


def amounts_of(shape: Shape, node: Node, number: int) -> tuple[int, int]:
    """Milli-CPUs and MiB that a rank holds, the `number`th of its session's on the node. Nobody goes without any CPU,
    or it could join one who has all of them; who wants the node alone has, with the first rank, what the others leave.
    """
    cpu, memory = max(1, shape.resources.cpu_milli), shape.resources.memory_mib
    if not shape.exclusive or number > 0:
        return cpu, memory
    others = shape.ranks_per_node - 1
    return max(cpu, node.cpu_milli - others * cpu), max(memory, node.memory_mib - others * memory)


def share_of(device: Device, request: GpuRequest) -> tuple[int, int]:
    """What a rank holds of a device that it gets: thousandths of its time, MiB of its memory."""
    if request.whole:
        return WHOLE_GPU_MILLI, device.capacity_mib
    return request.share_milli, request.vram_mib or device.capacity_mib * request.share_milli // WHOLE_GPU_MILLI


def excluded(node: Node, shape: Shape, now: float | None) -> str | None:
    """Why a node is out of the question for a shape whatever its room; None when it is not. `now=None` asks for ever,
    leaving out what passes by itself (unreachable, backing off)."""
    if shape.group is not None and node.group != shape.group:
        return "other_group"
    if shape.on_nodes and node.name not in shape.on_nodes:
        return "other_node_asked_for"
    if node.name in shape.not_nodes:
        return "node_excluded"
    if any(node.labels.get(key) != value for key, value in shape.on_labels):
        return "label_missing"
    if shape.runtime not in node.runtimes:
        return "no_such_runtime"
    if now is None:
        return None
    if node.state is NodeState.UNREACHABLE:
        return "node_unreachable"
    if not node.schedulable:
        return "node_not_schedulable"
    if node.backoff_until > now:
        return "node_backing_off"
    return None


MESSAGES: dict[str, str] = {
    "no_nodes": "no node is registered",
    "other_group": "in another resource group",
    "other_node_asked_for": "another node was asked for",
    "node_excluded": "excluded by --not-node",
    "label_missing": "without the label asked for",
    "no_such_runtime": "does not offer the runtime",
    "node_unreachable": "unreachable just now",
    "node_not_schedulable": "not taking new sessions",
    "node_backing_off": "refused a start a moment ago",
    "node_in_use": "in use, and the session wants it alone",
    "not_enough_cpus": "not enough CPUs free",
    "not_enough_memory": "not enough memory free",
    "no_gpus": "has no GPU",
    "no_such_gpu": "has no GPU of the model, architecture or memory asked for",
    "not_enough_gpus": "not enough idle GPUs",
    "not_enough_gpu_share": "no GPU with enough share and memory free",
    "pinned": "with room that is kept for a session others were stopped for",
    "not_enough_nodes": "fewer nodes fit than the session needs at once",
    "group_unknown": "there is no such resource group",
}
NEVER: Mapping[str, str] = MESSAGES | {
    "not_enough_cpus": "has too few CPUs, even empty",
    "not_enough_memory": "has too little memory, even empty",
    "not_enough_gpus": "has too few such GPUs, even empty",
    "not_enough_gpu_share": "has no GPU that large",
}
