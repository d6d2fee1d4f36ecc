"""What may be moved in a cluster as it is now, and for whom: `defragment` on a snapshot.

Goals are the sessions that wait, in their groups' order, then room that somebody wants to see free. Whoever may be
stopped for others may move, if it runs; one that stops anyway, or holds room that is not proven free, is left alone.
`wrong_moves` holds the moves to the rules of `plan.check`, one after the other. Nothing is stopped here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from corral.model.node import Device, Node, ResourceGroup
from corral.model.resources import WHOLE_GPU_MILLI, GpuRequest, Resources
from corral.scheduling.claiming.contention import Contender, Places, copied
from corral.scheduling.engine.room import NodeRoom, excluded
from corral.scheduling.fleet import Fleet
from corral.scheduling.limits import Admission
from corral.scheduling.moving.defragment import Defragmentation, Goal, Move, defragment
from corral.scheduling.moving.holdings import Holdings
from corral.scheduling.ordering import groups_of, ordered
from corral.scheduling.places import RankPlace
from corral.scheduling.plan import Placed, Plan, Refusal, check
from corral.scheduling.policies.group_options import group_options
from corral.scheduling.snapshot import Running, Shape, Snapshot, Waiting

ROOM = "room-"  # how goals are called that no session stands behind


@dataclass(frozen=True, slots=True)
class Wanted:
    """So many whole `gpus` of one node are to be free, `count` times; 0: room for who waits is all. `group`: of it."""

    moves: int = 10
    moves_per_goal: int = 3
    gpus: int = 0
    count: int = 1
    group: str | None = None


class SnapshotRoom:
    """The free room of a snapshot, as `contention.Room`."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._nodes = {node.name: node for node in snapshot.nodes}
        self._now = snapshot.now
        usable = groups_of(snapshot.groups.values()).usable
        placements = {name: chosen.placement for name, chosen in usable.items()}
        demand = Counter(one.shape for one in snapshot.waiting)
        self._fleet = Fleet(snapshot.nodes, snapshot.devices, placements, snapshot.now, demand)
        self._rooms = {node.name: NodeRoom(node, snapshot.devices.get(node.name, ())) for node in snapshot.nodes}
        self._usable = set(usable)

    @property
    def nodes(self) -> Sequence[Node]:
        return list(self._nodes.values())

    def place(self, shape: Shape) -> Places | None:
        found = self._fleet.place(shape)
        if found is None:
            return None
        self._move(found.ranks, 1)
        return found.ranks

    def take(self, places: Places) -> None:
        self._fleet.take(places)
        self._move(places, 1)

    def give_back(self, places: Places) -> None:
        self._fleet.give_back(places)
        self._move(places, -1)

    def _move(self, places: Places, sign: int) -> None:
        for place in places:
            room = self._rooms[place.node]
            room.take(place) if sign > 0 else room.give_back((place,))

    def trial(self, node: str) -> NodeRoom:
        return copied(self._rooms[node])

    def open_to(self, node: Node, shape: Shape) -> bool:
        mine = node.group in self._usable and shape.group in (None, node.group)
        return mine and excluded(node, shape, self._now) is None


def plan_moves(snapshot: Snapshot, wanted: Wanted) -> Defragmentation:
    """The moves that would give the most urgent goals room now."""
    goals = [*_waiting(snapshot, wanted.group), *_room(wanted)]
    there = {node.name for node in snapshot.nodes}
    held = [_contender(one, snapshot) for one in snapshot.running if all(rank.node in there for rank in one.ranks)]
    return defragment(goals, Holdings(held), SnapshotRoom(snapshot), most_moves=wanted.moves,
                      most_per_goal=wanted.moves_per_goal)  # fmt: skip


def _waiting(snapshot: Snapshot, group: str | None) -> Iterator[Goal]:
    """Those whom nothing but room keeps back, in the order of their turns."""
    admission = Admission(snapshot.quotas, snapshot.nodes, snapshot.devices)
    refusals: dict[str, tuple[Refusal, ...]] = {}
    for one, _ in ordered(snapshot, refusals):
        awaited = one.room_by is not None and one.room_by > snapshot.now  # others stop for it already
        if group in (None, one.shape.group) and not awaited and not admission.refusals(one):
            yield Goal(one.id, one.shape)


def _room(wanted: Wanted) -> Iterator[Goal]:
    if wanted.gpus:
        shape = Shape(wanted.group, Resources(0, 0, GpuRequest(wanted.gpus)), 1, 1, False, (), (), (), "process")
        yield from (Goal(f"{ROOM}{number}", shape) for number in range(1, wanted.count + 1))


def _contender(one: Running, snapshot: Snapshot) -> Contender:
    """Less is moved rather than more, of equal ones whoever came last."""
    options = group_options(snapshot.groups.get(one.group) or ResourceGroup(one.group))
    may = options["preemptible"] == "yes" if one.preemptible is None else one.preemptible
    may &= one.preemptions < options["preemption_budget"]
    may &= (one.started_at or snapshot.now) + options["preemption_min_runtime"] <= snapshot.now
    moves = may and one.started_at is not None and not one.stopping and one.shape.group in (None, one.group)
    held = sum(grant.share_milli for rank in one.ranks for grant in rank.grants)
    held += sum(rank.cpu_milli for rank in one.ranks) / WHOLE_GPU_MILLI
    return Contender(one.id, one.shape, one.ranks, not moves, held - one.ordinal / 1e9)


def wrong_moves(snapshot: Snapshot, found: Defragmentation) -> list[str]:
    """What is wrong with a plan, by the rules for placing: each move into room that is free before anybody of the same
    goal has left, each goal into what is free then."""
    wrong: list[str] = []
    running = {one.id: one for one in snapshot.running}
    goals = {goal.id: (goal, places) for goal, places in found.won}
    by_goal: dict[str, list[Move]] = {}
    for move in found.moves:
        by_goal.setdefault(move.goal, []).append(move)
    for id_, (goal, places) in goals.items():
        moves = by_goal.pop(id_, [])
        wrong += [f"{move.id} is not where it is" for move in moves if running[move.id].ranks != move.here]
        placed = [(move.id, running[move.id].shape, move.there) for move in moves]
        wrong += _wrong_places(snapshot, placed)
        snapshot = _after(snapshot, (place for move in moves for place in move.there), 1)
        snapshot = _after(snapshot, (place for move in moves for place in move.here), -1)
        wrong += _wrong_places(snapshot, [(goal.id, goal.shape, places)])
        snapshot = _after(snapshot, places, 1)
    return wrong + [f"{id_} got no room, and others move for it" for id_ in by_goal]


def _wrong_places(snapshot: Snapshot, placed: Sequence[tuple[str, Shape, Places]]) -> list[str]:
    groups = {node.name: node.group for node in snapshot.nodes}
    waiting = [Waiting(id_, n, 1, 0, 0, "", "", 0.0, shape) for n, (id_, shape, _) in enumerate(placed)]
    placements = [
        Placed(one, groups.get(places[0].node, ""), places)
        for one, (_, _, places) in zip(waiting, placed, strict=True)
    ]  # fmt: skip
    return check(replace(snapshot, waiting=waiting), Plan(tuple(placements)))


def _after(snapshot: Snapshot, places: Iterable[RankPlace], sign: int) -> Snapshot:
    nodes = {node.name: node for node in snapshot.nodes}
    devices: dict[str, Sequence[Device]] = dict(snapshot.devices)
    for place in places:
        node, grants = nodes[place.node], {grant.uuid: grant for grant in place.grants}
        nodes[place.node] = replace(
            node,
            cpu_used_milli=node.cpu_used_milli + sign * place.cpu_milli,
            memory_used_mib=node.memory_used_mib + sign * place.memory_mib,
        )
        devices[place.node] = [
            replace(
                device,
                used_milli=device.used_milli + sign * grants[device.uuid].share_milli,
                used_mib=device.used_mib + sign * grants[device.uuid].vram_mib,
            )
            if device.uuid in grants
            else device
            for device in devices.get(place.node, ())
        ]
    return replace(snapshot, nodes=list(nodes.values()), devices=devices)
