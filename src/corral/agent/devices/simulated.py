"""Simulated GPUs: how people try Corral without hardware, and how it is tested. Same port as real ones."""

from __future__ import annotations

from collections.abc import Sequence

from corral.model.node import DeviceInventory
from corral.model.resources import SimulatedGpu
from corral.model.session import Why


class SimulatedDevices:
    """A fleet as `parse_fleet` reads it, numbered through; always clean, never busy."""

    def __init__(self, node: str, fleet: Sequence[SimulatedGpu]) -> None:
        kinds = [kind for kind in fleet for _ in range(kind.count)]
        self._devices = tuple(
            DeviceInventory(
                uuid=f"SIM-{node}-{index}",
                index=index,
                vendor="simulated",
                model=kind.model,
                arch=kind.arch,
                total_mib=kind.memory_mib,
                simulated=True,
            )
            for index, kind in enumerate(kinds)
        )

    async def inventory(self) -> tuple[DeviceInventory, ...]:
        return self._devices

    async def check(self, token: str, uuids: Sequence[str]) -> Why | None:
        mine = {device.uuid for device in self._devices}
        missing = [uuid for uuid in uuids if uuid not in mine]
        return Why("device_missing", f"device {missing[0]} is not on this node") if missing else None
