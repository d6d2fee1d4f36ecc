"""What a pass decided: who goes where, who does not and why. `check` holds a plan against its snapshot independently
of how it was made."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from corral.model.node import Node
from corral.model.resources import GpuRequest
from corral.scheduling.engine.room import MESSAGES, NodeRoom, amounts_of, excluded, share_of, suits
from corral.scheduling.pins import kept_for
from corral.scheduling.places import RankPlace
from corral.scheduling.reserving import in_the_way
from corral.scheduling.snapshot import Reservation, Running, Snapshot, Waiting


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
    """These are to be stopped, so that the claimant finds room; `ranks` is where. Without victims: it waits for room
    that comes free anyway."""

    claimant: Waiting
    victims: tuple[Running, ...]
    group: str
    ranks: tuple[RankPlace, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """`more`: there may be room for sessions that the pass did not come to. `planned` by session id; `put_off` says why
    a start that was promised is not kept."""

    placements: tuple[Placed, ...] = ()
    refusals: Mapping[str, tuple[Refusal, ...]] = field(default_factory=dict[str, tuple[Refusal, ...]])
    more: bool = False
    planned: Mapping[str, PlannedStart] = field(default_factory=dict[str, PlannedStart])
    preemptions: tuple[Preemption, ...] = ()
    put_off: Mapping[str, str] = field(default_factory=dict[str, str])


def check(snapshot: Snapshot, plan: Plan) -> list[str]:
    """What is wrong with a plan: each placement is judged anew, in the plan's order, by the rules of `room` and by what
    its session asked for, whatever made the plan."""
    times = Counter(placed.session.id for placed in plan.placements)
    wrong = [f"{id_} placed {count} times" for id_, count in times.items() if count > 1]
    rooms = _Rooms(snapshot)
    waiting = {one.id: one for one in snapshot.waiting}
    for placed in plan.placements:
        if waiting.get(placed.session.id) != placed.session:
            wrong.append(f"{placed.session.id} was not waiting")
        if placed.session.id in plan.refusals:
            wrong.append(f"{placed.session.id} is placed and refused")
        wrong += [f"{placed.session.id}: {why}" for why in (*_wrong_ranks(placed), *rooms.take(placed))]
    return wrong


def _wrong_ranks(placed: Placed) -> Iterator[str]:
    """Whether a gang is whole, and each rank gets what it asked for."""
    shape, on_node = placed.session.shape, Counter(rank.node for rank in placed.ranks)
    if len(placed.ranks) != shape.nodes * shape.ranks_per_node:
        yield f"it has {len(placed.ranks)} ranks"
    if len(on_node) != shape.nodes or any(count != shape.ranks_per_node for count in on_node.values()):
        yield f"it is not on {shape.nodes} nodes with {shape.ranks_per_node} ranks each"
    if shape.group is not None and placed.group != shape.group:
        yield f"it is in group {placed.group}"


class _Rooms:
    """Each node as it is after the placements so far."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._nodes = {node.name: node for node in snapshot.nodes}
        self._rooms: dict[str, NodeRoom] = {}
        self._taken_alone: dict[str, str] = {}
        self._kept = kept_for(snapshot.pins, snapshot.devices, self._nodes)

    def take(self, placed: Placed) -> Iterator[str]:
        group = self._snapshot.groups.get(placed.group)
        if group is None or group.paused:
            yield f"group {placed.group} takes no sessions"
        if (keeps := self._reserved_for_others(placed)) is not None:
            yield f"it would run into reservation {keeps.id}"
        for place in self._kept.get(placed.session.id, ()):
            self._room(self._nodes[place.node]).give_back([place])
        by_node: dict[str, list[RankPlace]] = {}
        for rank in placed.ranks:
            by_node.setdefault(rank.node, []).append(rank)
        for name, ranks in by_node.items():
            yield from self._take_on(name, ranks, placed)

    def _reserved_for_others(self, placed: Placed) -> Reservation | None:
        one, now = placed.session, self._snapshot.now
        until = math.inf if one.time_limit_s is None else now + one.time_limit_s + one.grace_s
        nodes = [rank.node for rank in placed.ranks]
        return in_the_way(self._snapshot.reservations, nodes, one.owner, one.project, now, until)

    def _room(self, node: Node) -> NodeRoom:
        if node.name not in self._rooms:
            self._rooms[node.name] = NodeRoom(node, self._snapshot.devices.get(node.name, ()))
        return self._rooms[node.name]

    def _take_on(self, name: str, ranks: Sequence[RankPlace], placed: Placed) -> Iterator[str]:
        node, shape = self._nodes.get(name), placed.session.shape
        if node is None:
            yield f"there is no node {name}"
            return
        room = self._room(node)
        if (why := excluded(node, shape, self._snapshot.now)) is not None:
            yield f"node {name}: {why}"
        if node.group != placed.group:
            yield f"node {name} is in group {node.group}, not {placed.group}"
        if name in self._taken_alone:
            yield f"node {name} is {self._taken_alone[name]}'s alone"
        if shape.exclusive:
            self._taken_alone[name] = placed.session.id
            if not room.idle:
                yield f"node {name} is not idle"
        for number, rank in enumerate(ranks):
            if (rank.cpu_milli, rank.memory_mib) != amounts_of(shape, node, number):
                yield f"node {name}: a rank gets {rank.cpu_milli} milli-CPUs and {rank.memory_mib} MiB"
            yield from (f"node {name}: {why}" for why in _wrong_grants(rank, shape.resources.gpu, room))
        if not room.fits(ranks):
            yield f"node {name} is over-committed, or was another when this was planned"
            return
        for rank in ranks:
            room.take(rank)


def _wrong_grants(rank: RankPlace, asked: GpuRequest | None, room: NodeRoom) -> Iterator[str]:
    devices = {one.device.uuid: one.device for one in room.devices}
    wanted = 0 if asked is None else asked.count
    if len({grant.uuid for grant in rank.grants}) != wanted or len(rank.grants) != wanted:
        yield f"a rank gets {len(rank.grants)} GPUs"
    for grant in rank.grants:
        device = devices.get(grant.uuid)
        if device is None or asked is None or not suits(device, asked):
            yield f"GPU {grant.uuid} is not there, or not of the kind asked for"
        elif (grant.share_milli, grant.vram_mib) != share_of(device, asked):
            yield f"of GPU {grant.uuid} a rank gets {grant.share_milli} thousandths and {grant.vram_mib} MiB"
