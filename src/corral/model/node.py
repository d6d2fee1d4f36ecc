"""Nodes, their devices, and the room that is held on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from corral.model.resources import WHOLE_GPU_MILLI


class NodeState(StrEnum):
    UP = "up"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class DeviceInventory:
    """A device as its node reports it. Amounts in MiB; `reserve_mib` is the driver's own and the headroom."""

    uuid: str
    index: int
    vendor: str
    model: str
    arch: str | None
    total_mib: int
    reserve_mib: int = 0
    simulated: bool = False

    @property
    def capacity_mib(self) -> int:
        return self.total_mib - self.reserve_mib


@dataclass(frozen=True, slots=True)
class Inventory:
    """What a node offers: CPUs in milli, memory in MiB, devices, and the runtimes it can start."""

    cpu_milli: int
    memory_mib: int
    devices: tuple[DeviceInventory, ...] = ()
    runtimes: tuple[str, ...] = ("process",)
    containment: str = "marker"
    agent_version: str = ""


@dataclass(frozen=True, slots=True)
class Device:
    """A device's row: what it has and what is held on it."""

    node: str
    uuid: str
    index: int
    model: str
    arch: str | None
    capacity_mib: int
    used_mib: int = 0
    used_milli: int = 0
    present: bool = True

    @property
    def free_mib(self) -> int:
        return self.capacity_mib - self.used_mib

    @property
    def free_milli(self) -> int:
        return WHOLE_GPU_MILLI - self.used_milli


@dataclass(frozen=True, slots=True)
class Node:
    """A node's row. `epoch` is raised only by a registration after a reboot (docs/protocol.md 9)."""

    name: str
    group: str
    state: NodeState
    schedulable: bool
    epoch: int
    boot_id: str
    run_id: str
    incarnation: str
    hardware_id: str
    nonce: str
    address: str
    cpu_milli: int
    memory_mib: int
    cpu_used_milli: int = 0
    memory_used_mib: int = 0
    desired_version: int = 0
    served_version: int = 0
    seen_at: float = 0.0
    registered_at: float = 0.0
    backoff_until: float = 0.0
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    runtimes: tuple[str, ...] = ("process",)
    containment: str = "marker"
    agent_version: str = ""


@dataclass(frozen=True, slots=True)
class Holding:
    """Room one kernel holds: on its node (`device` is None) or on one device of it."""

    token: str
    session: str
    attempt: int
    node: str
    device: str | None = None
    cpu_milli: int = 0
    memory_mib: int = 0
    share_milli: int = 0
    vram_mib: int = 0


@dataclass(frozen=True, slots=True)
class ResourceGroup:
    """A set of nodes with its own policies, and those of their options that were set. A paused one starts nothing new.
    `version` is raised by each change."""

    name: str
    order: str = "fifo"
    placement: str = "pack"
    backend: str = "nodes"
    order_options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    placement_options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    paused: bool = False
    version: int = 1
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
