"""Where a rank is, or is to be: a node, and what it holds there."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Grant:
    """Part of a device for one rank."""

    uuid: str
    share_milli: int
    vram_mib: int


@dataclass(frozen=True, slots=True)
class RankPlace:
    """One rank on one node, with exactly what it will hold there."""

    node: str
    epoch: int
    run_id: str
    cpu_milli: int
    memory_mib: int
    grants: tuple[Grant, ...] = ()
