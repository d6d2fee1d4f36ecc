"""Which of the nodes that fit is best: the one with the highest score; equal scores go by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from corral.scheduling.room import NodeRoom

PlacementPolicy = Callable[[NodeRoom], float]


def pack(room: NodeRoom) -> float:
    """The fullest node first, judged by its scarcest resource, so that whole nodes stay free for large requests."""
    used = [
        1 - room.cpu_free_milli / room.node.cpu_milli if room.node.cpu_milli else 1.0,
        1 - room.memory_free_mib / room.node.memory_mib if room.node.memory_mib else 1.0,
    ]
    if room.devices:
        used.append(sum(1000 - device.free_milli for device in room.devices) / (1000 * len(room.devices)))
    return max(used)


PLACEMENTS: Mapping[str, PlacementPolicy] = {"pack": pack}
