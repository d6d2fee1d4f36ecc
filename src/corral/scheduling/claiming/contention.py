"""Who should run now, when those who run may be stopped: the smallest set of changes that gives the better claims room.

    1. wanted   the line from the best claim on, as far as the fleet's amounts reach; what cannot be stopped comes first
    2. kept     wanted sessions that run stay where they are
    3. room     each wanted newcomer takes free room; where there is none, the fewest sessions that are behind it in the
                line and not wanted stop, on the nodes where that is cheapest
    4. moved    if the caller allows it, a session with a weaker claim that is wanted too makes way and starts elsewhere
    5. filled   if the caller allows it and a wanted one did not get in after all: whoever fits starts in what is free

Nobody stops for a newcomer that does not get in or has the weaker claim, and nobody stops whose room nobody takes.
Knows no clock, no run times and no order of its own: the order of the line is the claim. The room it is given is left
as the answer says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from corral.model.node import Node
from corral.model.resources import WHOLE_GPU_MILLI
from corral.scheduling.engine.room import DeviceRoom, NodeRoom
from corral.scheduling.places import RankPlace
from corral.scheduling.snapshot import Shape

Places = tuple[RankPlace, ...]


class Room(Protocol):
    """The free room of a fleet while it is decided."""

    @property
    def nodes(self) -> Sequence[Node]: ...

    def place(self, shape: Shape) -> Places | None:
        """All ranks, taken; None if they do not fit."""
        ...

    def take(self, places: Places) -> None: ...

    def give_back(self, places: Places) -> None: ...

    def trial(self, node: str) -> NodeRoom:
        """A copy of one node's free room, to think on."""
        ...

    def open_to(self, node: Node, shape: Shape) -> bool:
        """Whether the shape may run there at all, whatever is free."""
        ...


@dataclass(frozen=True, slots=True)
class Contender:
    """A session that wants to run. `places` is where it runs, nothing when it waits; one that is `pinned` may not be
    stopped now (minimum runtime, budget of preemptions); of equal victims the one with the lowest `cost` stops."""

    id: str
    shape: Shape
    places: Places = ()
    pinned: bool = False
    cost: float = 0.0


class Amounts(NamedTuple):
    cpu_milli: int
    memory_mib: int
    gpu_milli: int

    def covers(self, need: Amounts) -> bool:
        return (
            need.cpu_milli <= self.cpu_milli and need.memory_mib <= self.memory_mib and need.gpu_milli <= self.gpu_milli
        )

    def less(self, need: Amounts) -> Amounts:
        return Amounts(
            self.cpu_milli - need.cpu_milli, self.memory_mib - need.memory_mib, self.gpu_milli - need.gpu_milli
        )


@dataclass(frozen=True, slots=True)
class Contention:
    """Stop these, then start those. A session in both moves."""

    stops: tuple[str, ...] = ()
    starts: tuple[tuple[str, Places], ...] = ()


def copied(room: NodeRoom) -> NodeRoom:
    """A node's room to think on."""
    copy = NodeRoom(room.node, ())
    copy.cpu_free_milli, copy.memory_free_mib = room.cpu_free_milli, room.memory_free_mib
    copy.devices = [DeviceRoom(one.device, one.free_milli, one.free_mib) for one in room.devices]
    return copy


def need_of(shape: Shape) -> Amounts:
    """What a shape takes of the fleet, all ranks together."""
    ranks = shape.nodes * shape.ranks_per_node
    gpu = shape.resources.gpu
    milli = 0 if gpu is None else gpu.count * (gpu.share_milli if not gpu.whole else WHOLE_GPU_MILLI)
    return Amounts(ranks * shape.resources.cpu_milli, ranks * shape.resources.memory_mib, ranks * milli)


def by_group(nodes: Iterable[Node]) -> list[list[Node]]:
    """The nodes of each group, in the order in which a shape is tried on them: all its nodes are of one."""
    groups: dict[str, list[Node]] = {}
    for node in nodes:
        groups.setdefault(node.group, []).append(node)
    return [groups[name] for name in sorted(groups)]


def contend(
    line: Callable[[], Iterable[Contender]],
    running: Sequence[Contender],
    room: Room,
    capacity: Amounts,
    shapes: int,
    *,
    may_move: bool = False,
    may_fill: bool = True,
) -> Contention:
    """The changes to make now. `line` answers everybody, `running` those of them that run, both best claim first;
    `capacity` is the fleet's, `shapes` how many different shapes the line may hold (so that reading it can end)."""
    wanted, newcomers, places_in_line = _wanted(line(), running, capacity, shapes)
    if not newcomers:
        return Contention()
    losers = [one for one in reversed(running) if not one.pinned and one.id not in wanted]
    kept = [one for one in reversed(running) if one.id in wanted and not one.pinned]
    change = _Change(room, places_in_line, losers, kept if may_move else [])
    admitted = [change.admit(newcomer) for newcomer in newcomers]
    if may_fill and not all(admitted):
        change.fill(line(), shapes)
    return change.result()


def _wanted(
    line: Iterable[Contender], running: Sequence[Contender], capacity: Amounts, shapes: int
) -> tuple[set[str], list[Contender], dict[str, int]]:
    """Those that the fleet's amounts reach for; those of them that do not run yet; and where in the line these and
    those that run stand, as far as it was read: whoever is not named is behind them all."""
    left = capacity
    for one in running:
        if one.pinned:
            left = left.less(need_of(one.shape))
    wanted: set[str] = set()
    newcomers: list[Contender] = []
    positions: dict[str, int] = {}
    hopeless: set[Shape] = set()
    for position, one in enumerate(line):
        if one.places:
            positions[one.id] = position
        if one.pinned or one.shape in hopeless:
            continue
        need = need_of(one.shape)
        if not left.covers(need):
            hopeless.add(one.shape)
            if len(hopeless) >= shapes:
                break
            continue
        left = left.less(need)
        wanted.add(one.id)
        if not one.places:
            positions[one.id] = position
            newcomers.append(one)
    return wanted, newcomers, positions


class _Change:
    """The answer while it grows."""

    def __init__(
        self, room: Room, positions: Mapping[str, int], losers: list[Contender], kept: list[Contender]
    ) -> None:
        self.room = room
        self.positions = positions
        self.losers = losers
        self.kept = kept
        self.stops: list[str] = []
        self.starts: dict[str, Places] = {}

    def admit(self, newcomer: Contender) -> bool:
        places = self.room.place(newcomer.shape)
        if places is None:
            places = self._instead_of(newcomer, self.losers)
        if places is None and self.kept:
            places = self._moving(newcomer)
        if places is not None:
            self.starts[newcomer.id] = places
        return places is not None

    def fill(self, line: Iterable[Contender], shapes: int) -> None:
        """Room that is free lies idle for nobody; who starts in it may be stopped as soon as the others get in."""
        full: set[Shape] = set()
        for one in line:
            if one.places or one.id in self.starts or one.shape in full:
                continue
            places = self.room.place(one.shape)
            if places is not None:
                self.starts[one.id] = places
                continue
            full.add(one.shape)
            if len(full) >= shapes:
                return

    def _moving(self, newcomer: Contender) -> Places | None:
        before = len(self.stops)
        places = self._instead_of(newcomer, [*self.losers, *self.kept])
        gone = set(self.stops[before:])
        movers = [one for one in self.kept if one.id in gone]
        self.kept = [one for one in self.kept if one.id not in gone]
        for one in sorted(movers, key=self._position):
            elsewhere = self.room.place(one.shape) or self._instead_of(one, self.losers)
            if elsewhere is not None:
                self.starts[one.id] = elsewhere
        return places

    def _position(self, one: Contender) -> float:
        return self.positions.get(one.id, math.inf)

    def _instead_of(self, newcomer: Contender, victims: list[Contender]) -> Places | None:
        """The newcomer's places after the cheapest of the victims behind it have stopped; None, with nobody stopped, if
        that is not enough. One ahead of it may not be wanted: what it needs is kept for somebody stronger."""
        behind = [one for one in victims if self._position(one) > self._position(newcomer)]
        chosen = cheapest_victims(newcomer.shape, behind, self.room)
        if chosen is None:
            return None
        for victim in chosen:
            self.room.give_back(victim.places)
        places = self.room.place(newcomer.shape)
        if places is None:
            for victim in chosen:
                self.room.take(victim.places)
            return None
        ids = {victim.id for victim in chosen}
        self.stops += [victim.id for victim in chosen]
        self.losers = [one for one in self.losers if one.id not in ids]
        return places

    def result(self) -> Contention:
        return Contention(tuple(self.stops), tuple(self.starts.items()))


def cheapest_victims(shape: Shape, victims: Sequence[Contender], room: Room) -> list[Contender] | None:
    """Who must stop so that the shape fits: on each node as few as can be, then the nodes where it costs least, all
    of one group. `victims` in the order in which they would stop if all cost the same."""
    on_node: dict[str, list[Contender]] = {}
    for victim in victims:
        for node in {place.node for place in victim.places}:
            on_node.setdefault(node, []).append(victim)
    order = {victim.id: number for number, victim in enumerate(victims)}
    groups = [_in_group(shape, nodes, on_node, order, room) for nodes in by_group(room.nodes)]
    found = [chosen for chosen in groups if chosen is not None]
    return min(found, key=lambda chosen: (len(chosen), sum(one.cost for one in chosen)), default=None)


def _in_group(
    shape: Shape, nodes: Iterable[Node], on_node: dict[str, list[Contender]], order: dict[str, int], room: Room
) -> list[Contender] | None:
    offers: list[tuple[int, float, int, str, list[Contender]]] = []
    for node in nodes:
        if not room.open_to(node, shape):
            continue
        needed = needed_on(node.name, shape, on_node.get(node.name, []), room)
        if needed is not None:
            cost = sum(victim.cost for victim in needed)
            weakest = -min((order[victim.id] for victim in needed), default=0)
            offers.append((len(needed), cost, -weakest, node.name, needed))
    if len(offers) < shape.nodes:
        return None
    offers.sort(key=lambda offer: offer[:4])
    chosen: dict[str, Contender] = {}
    for *_, needed in offers[: shape.nodes]:
        chosen.update((victim.id, victim) for victim in needed)
    return list(chosen.values())


def needed_on(node: str, shape: Shape, victims: Sequence[Contender], room: Room) -> list[Contender] | None:
    """The victims of one node that must stop: stop in order until it fits, then let back whoever is not in the way."""
    trial = room.trial(node)
    stopped: list[Contender] = []
    ours = trial.has_room_for(shape)
    for victim in victims:
        if ours:
            break
        trial.give_back(place for place in victim.places if place.node == node)
        stopped.append(victim)
        ours = trial.has_room_for(shape)
    if not ours:
        return None
    for victim in list(stopped[:-1]):
        back = [place for place in victim.places if place.node == node]
        if trial.fits(back):
            for place in back:
                trial.take(place)
            if trial.has_room_for(shape):
                stopped.remove(victim)
            else:
                trial.give_back(back)
    return stopped
