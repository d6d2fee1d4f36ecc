"""What may be moved in a cluster as it is now, and for whom: `defragment` on a snapshot.

Goals are the sessions that wait, in their groups' order, then room that somebody wants to see free. Whoever may be
stopped for others may move, if it runs; one that stops anyway, or holds room that is not proven free, is left alone.
Nobody goes where it would run into a reservation, or be when somebody in front of the goal is planned to start there
(`yielding`). `wrong_moves` holds the moves to the rules of `plan.check`, one after the other. Nothing is stopped here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from corral.model.node import Device, Node, ResourceGroup
from corral.model.resources import WHOLE_GPU_MILLI, GpuRequest, Resources
from corral.scheduling.claiming.contention import Contender, Places, copied
from corral.scheduling.engine.room import NodeRoom, excluded
from corral.scheduling.fleet import Fleet
from corral.scheduling.limits import Admission
from corral.scheduling.moving.defragment import Defragmentation, Goal, Move, defragment
from corral.scheduling.moving.holdings import Holdings
from corral.scheduling.moving.yielding import Yielding
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
    yielding = Yielding(snapshot)
    goals = [*_waiting(snapshot, wanted.group, yielding), *_room(wanted, yielding)]
    there = {node.name for node in snapshot.nodes}
    held = [_contender(one, snapshot) for one in snapshot.running if all(rank.node in there for rank in one.ranks)]
    return defragment(goals, Holdings(held), SnapshotRoom(snapshot), most_moves=wanted.moves,
                      most_per_goal=wanted.moves_per_goal)  # fmt: skip


def _waiting(snapshot: Snapshot, group: str | None, yielding: Yielding) -> Iterator[Goal]:
    """Those whom nothing but room keeps back, in the order of their turns."""
    admission = Admission(snapshot.quotas, snapshot.nodes, snapshot.devices)
    refusals: dict[str, tuple[Refusal, ...]] = {}
    for one, _ in ordered(snapshot, refusals):
        awaited = one.room_by is not None and one.room_by > snapshot.now  # others stop for it already
        if group in (None, one.shape.group) and not awaited and not admission.refusals(one):
            yield Goal(one.id, yielding.of_goal(one), partial(yielding.of_mover, one.id))


def _room(wanted: Wanted, yielding: Yielding) -> Iterator[Goal]:
    if wanted.gpus:
        shape = Shape(wanted.group, Resources(0, 0, GpuRequest(wanted.gpus)), 1, 1, False, (), (), (), "process")
        names = [f"{ROOM}{number}" for number in range(1, wanted.count + 1)]
        yield from (Goal(name, shape, partial(yielding.of_mover, name)) for name in names)


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
    yielding = Yielding(snapshot)
    waiting = {one.id: one for one in snapshot.waiting}
    for id_, (goal, places) in goals.items():
        moves = by_goal.pop(id_, [])
        wrong += [f"{move.id} is not where it is" for move in moves if running[move.id].ranks != move.here]
        placed = [(yielding.again(running[move.id]), move.there) for move in moves]
        wrong += _wrong_places(snapshot, placed)
        snapshot = _after(snapshot, (place for move in moves for place in move.there), 1)
        snapshot = _after(snapshot, (place for move in moves for place in move.here), -1)
        wrong += _wrong_places(snapshot, [_as_asked(goal, waiting, yielding, places)])
        snapshot = _after(snapshot, places, 1)
    wrong += _delayed(snapshot, found, yielding)
    return wrong + [f"{id_} got no room, and others move for it" for id_ in by_goal]


def _as_asked(goal: Goal, waiting: Mapping[str, Waiting], yielding: Yielding, places: Places) -> tuple[Waiting, Places]:
    one = waiting.get(goal.id)
    if one is not None:
        return yielding.late(one), places
    return Waiting(goal.id, 0, 1, 0, 0, "", "", 0.0, goal.shape, time_limit_s=0, grace_s=0), places


def _wrong_places(snapshot: Snapshot, placed: Sequence[tuple[Waiting, Places]]) -> list[str]:
    groups = {node.name: node.group for node in snapshot.nodes}
    placements = [Placed(one, groups.get(places[0].node, ""), places) for one, places in placed]
    return check(replace(snapshot, waiting=[one for one, _ in placed]), Plan(tuple(placements)))


def _delayed(after: Snapshot, found: Defragmentation, yielding: Yielding) -> Iterator[str]:
    """Those who did not win, whose planned start finds its room taken by who moved, or by who won and was behind."""
    won = {goal.id: places for goal, places in found.won}
    stays = {move.id: move.there for move in found.moves}
    for id_, start in yielding.planned.items():
        if id_ in won:
            continue
        names = {rank.node for rank in start.ranks}
        ended = [one.ranks for one in after.running
                 if one.id not in stays and one.ends_at is not None and one.ends_at <= start.at]  # fmt: skip
        ended += [places for other, places in won.items()
                  if other.startswith(ROOM) or yielding.turn[other] < yielding.turn[id_]
                  or yielding.until(other) <= start.at]  # fmt: skip
        ended += [there for mover, there in stays.items() if yielding.mover_until(mover) <= start.at]
        then = _after(after, (place for places in ended for place in places), -1)
        for node in then.nodes:
            ranks = [rank for rank in start.ranks if rank.node == node.name]
            if node.name in names and not NodeRoom(node, then.devices.get(node.name, ())).fits(ranks):
                yield f"{id_} would not start on {node.name} as planned"


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
