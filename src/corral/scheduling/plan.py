"""What a pass decided: who goes where, who does not and why. `check` holds a plan against its snapshot independently
of how it was made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from corral.scheduling.places import RankPlace
from corral.scheduling.room import MESSAGES
from corral.scheduling.snapshot import Running, Snapshot, Waiting


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a session does not start now: a code, one line, and how many nodes say so."""

    code: str
    message: str
    counts: Mapping[str, int] = field(default_factory=dict[str, int])


def refusal(code: str, counts: Mapping[str, int]) -> Refusal:
    message = MESSAGES[code]
    nodes = counts.get("nodes")
    return Refusal(code, f"{nodes} {'node' if nodes == 1 else 'nodes'}: {message}" if nodes else message, counts)


@dataclass(frozen=True, slots=True)
class Placed:
    """One session's ranks, in rank order."""

    session: Waiting
    group: str
    ranks: tuple[RankPlace, ...]


class PlannedStart(NamedTuple):
    """When a session that waits is to start, and where, if those who run end by their limits."""

    at: float
    group: str
    ranks: tuple[RankPlace, ...]


class Preemption(NamedTuple):
    """These are to be stopped, so that the claimant finds room; `ranks` is where."""

    claimant: Waiting
    victims: tuple[Running, ...]
    group: str
    ranks: tuple[RankPlace, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """`more`: there may be room for sessions that the pass did not come to. `planned` by session id."""

    placements: tuple[Placed, ...] = ()
    refusals: Mapping[str, tuple[Refusal, ...]] = field(default_factory=dict[str, tuple[Refusal, ...]])
    more: bool = False
    planned: Mapping[str, PlannedStart] = field(default_factory=dict[str, PlannedStart])
    preemptions: tuple[Preemption, ...] = ()


def check(snapshot: Snapshot, plan: Plan) -> list[str]:
    """What is wrong with a plan: over-committed nodes or devices, a session placed twice, a gang short of ranks."""
    wrong: list[str] = []
    waiting = {one.id: one for one in snapshot.waiting}
    cpu: Counter[str] = Counter()
    memory: Counter[str] = Counter()
    share: Counter[tuple[str, str]] = Counter()
    vram: Counter[tuple[str, str]] = Counter()
    times = Counter(placed.session.id for placed in plan.placements)
    wrong += [f"{id_} placed {count} times" for id_, count in times.items() if count > 1]
    for placed in plan.placements:
        shape = placed.session.shape
        if placed.session.id not in waiting:
            wrong.append(f"{placed.session.id} was not waiting")
        if len(placed.ranks) != shape.nodes * shape.ranks_per_node:
            wrong.append(f"{placed.session.id} has {len(placed.ranks)} ranks")
        if len({rank.node for rank in placed.ranks}) != shape.nodes:
            wrong.append(f"{placed.session.id} is not on {shape.nodes} nodes")
        for rank in placed.ranks:
            cpu[rank.node] += rank.cpu_milli
            memory[rank.node] += rank.memory_mib
            for grant in rank.grants:
                share[rank.node, grant.uuid] += grant.share_milli
                vram[rank.node, grant.uuid] += grant.vram_mib
    return wrong + _over_committed(snapshot, cpu, memory, share, vram)


def _over_committed(
    snapshot: Snapshot,
    cpu: Mapping[str, int],
    memory: Mapping[str, int],
    share: Mapping[tuple[str, str], int],
    vram: Mapping[tuple[str, str], int],
) -> list[str]:
    wrong: list[str] = []
    for node in snapshot.nodes:
        if cpu.get(node.name, 0) > node.cpu_milli - node.cpu_used_milli:
            wrong.append(f"{node.name}: CPUs over-committed")
        if memory.get(node.name, 0) > node.memory_mib - node.memory_used_mib:
            wrong.append(f"{node.name}: memory over-committed")
        for device in snapshot.devices.get(node.name, ()):
            key = (node.name, device.uuid)
            if share.get(key, 0) > device.free_milli or vram.get(key, 0) > device.free_mib:
                wrong.append(f"{node.name}/{device.uuid}: over-committed")
    return wrong
