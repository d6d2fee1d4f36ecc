"""Who should move where so that sessions that fit nowhere find room: few moves, each into room that is free then.

    1. goals    shapes that want room, the first first; one that fits already takes it and needs no move
    2. ground   for each goal the nodes where the fewest who may move are in the way
    3. moves    each of these goes to room that is free before it leaves its own, elsewhere; if one of them finds none,
                the next ground is tried, and in the end the goal is given up and nobody moves for it

Moves are made in the order told. Room that a goal was found is kept for it: no later move goes there. Pure: knows no
clock and moves nobody. Who holds what, and what a node looked like at a glance, is `holdings`'.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from corral.model.node import Node
from corral.scheduling.claiming.contention import Contender, Places, Room, by_group, needed_on
from corral.scheduling.engine.room import NodeRoom
from corral.scheduling.moving.holdings import Holdings
from corral.scheduling.places import Grant, RankPlace
from corral.scheduling.snapshot import Shape

MOST_GROUNDS = 8  # tried for one goal
MOST_GLANCES = 24  # nodes that are looked at closely, for each node of a goal
Offer = tuple[int, float, str, list[Contender]]  # how many would move, at what cost, where, who


def as_it_is(one: Contender) -> Shape:
    return one.shape


@dataclass(frozen=True, slots=True)
class Goal:
    """Somebody who wants room, or room that somebody wants to see free. `moves_as`: as what another looks for room that
    moves for it."""

    id: str
    shape: Shape
    moves_as: Callable[[Contender], Shape] = as_it_is


@dataclass(frozen=True, slots=True)
class Move:
    """This session stops, saves its work and goes on there; `goal` is for whom."""

    id: str
    here: Places
    there: Places
    goal: str


@dataclass(frozen=True, slots=True)
class Defragmentation:
    """`won`: goals and the room they have after the moves; `given_up`: goals without."""

    moves: tuple[Move, ...] = ()
    won: tuple[tuple[Goal, Places], ...] = ()
    given_up: tuple[Goal, ...] = ()


def defragment(
    goals: Sequence[Goal], holdings: Holdings, room: Room, *, most_moves: int, most_per_goal: int
) -> Defragmentation:
    """Room and holdings are left as they are after the moves, with what the goals won taken from the room. Nobody moves
    twice."""
    moves: list[Move] = []
    won: list[tuple[Goal, Places]] = []
    given_up: list[Goal] = []
    hopeless: set[Shape] = set()
    for goal in goals:
        found = None
        if goal.shape not in hopeless:
            places = room.place(goal.shape)
            most = min(most_per_goal, most_moves - len(moves))
            found = _made(goal, holdings, room, most) if places is None else ((), places)
        if found is None:
            hopeless.add(goal.shape)
            given_up.append(goal)
            continue
        made, places = found
        for move in made:
            holdings.put(replace(holdings.of(move.id), places=move.there, pinned=True))
        holdings.changed(places)
        moves += made
        won.append((goal, places))
    return Defragmentation(tuple(moves), tuple(won), tuple(given_up))


def _made(goal: Goal, holdings: Holdings, room: Room, most: int) -> tuple[tuple[Move, ...], Places] | None:
    """Room made by at most so many moves, or None with nothing changed."""
    if most <= 0:
        return None
    for nodes, movers in _grounds(goal.shape, holdings, room, most):
        made = _cleared(goal, nodes, movers, room)
        if made is not None:
            return made
    return None


def _grounds(
    shape: Shape, holdings: Holdings, room: Room, most: int
) -> Iterator[tuple[Sequence[str], Sequence[Contender]]]:
    """Where the shape fits once so few have moved: nodes, and who; those first where it costs least."""
    grounds: list[tuple[int, float, tuple[str, ...], tuple[Contender, ...]]] = []
    for nodes in by_group(room.nodes):
        offers = _offers(shape, nodes, holdings, room, most)
        for first in range(min(MOST_GROUNDS, len(offers) - shape.nodes + 1)):
            chosen = offers[first : first + shape.nodes]
            movers = {one.id: one for *_, needed in chosen for one in needed}
            if len(movers) <= most:
                cost = sum(one.cost for one in movers.values())
                grounds.append((len(movers), cost, tuple(node for _, _, node, _ in chosen), tuple(movers.values())))
    grounds.sort(key=lambda ground: ground[:3])
    yield from ((nodes, movers) for _, _, nodes, movers in grounds[:MOST_GROUNDS])


def _offers(shape: Shape, nodes: Sequence[Node], holdings: Holdings, room: Room, most: int) -> list[Offer]:
    """What the nodes offer that look best at a glance."""
    names = [node.name for node in nodes if room.open_to(node, shape)]
    rough = [
        (glance.least, glance.cost, node, glance.movers)
        for node, glance in holdings.glances(names, shape, room)
        if glance.least <= most
    ]
    rough.sort(key=lambda one: one[:3])
    offers: list[Offer] = []
    for _, _, node, movers in rough[: MOST_GLANCES * shape.nodes]:
        needed = needed_on(node, shape, movers, room)
        if needed is not None and len(needed) <= most:
            offers.append((len(needed), sum(one.cost for one in needed), node, needed))
    return sorted(offers, key=lambda offer: offer[:3])


def _cleared(
    goal: Goal, nodes: Sequence[str], movers: Sequence[Contender], room: Room
) -> tuple[tuple[Move, ...], Places] | None:
    """The nodes cleared of these, everybody elsewhere, and the goal in their room; or None with nothing changed."""
    blocked = tuple(_all_of(room.trial(node)) for node in nodes)
    room.take(blocked)
    moves: list[Move] = []
    for one in sorted(movers, key=lambda one: -one.cost):
        there = room.place(goal.moves_as(one))
        if there is None:
            break
        moves.append(Move(one.id, one.places, there, goal.id))
    room.give_back(blocked)
    if len(moves) == len(movers):
        for move in moves:
            room.give_back(move.here)
        places = _on(goal.shape, nodes, room)
        if places is not None:
            room.take(places)
            return tuple(moves), places
        for move in moves:
            room.take(move.here)
    for move in moves:
        room.give_back(move.there)
    return None


def _on(shape: Shape, nodes: Sequence[str], room: Room) -> Places | None:
    found: list[RankPlace] = []
    for node in nodes:
        places = room.trial(node).place(shape)
        if isinstance(places, str):
            return None
        found += places
    return tuple(found)


def _all_of(room: NodeRoom) -> RankPlace:
    """Everything that is free on a node, as one place."""
    grants = tuple(
        Grant(one.device.uuid, one.free_milli, one.free_mib) for one in room.devices if one.free_milli or one.free_mib
    )
    return RankPlace(
        room.node.name, room.node.epoch, room.node.run_id, room.cpu_free_milli, room.memory_free_mib, grants
    )
