"""Holds the preemptions of a plan against its snapshot, independently of how they were made: who may claim, who may be
stopped for it, that it is enough, that nobody is stopped in vain, and that who is in front still starts as planned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator

from corral.scheduling.ahead.ends import TOO_LATE_S
from corral.scheduling.ahead.heads import until_s
from corral.scheduling.engine.room import NodeRoom, excluded
from corral.scheduling.pins import kept_for, present
from corral.scheduling.places import RankPlace
from corral.scheduling.plan import Plan, Preemption
from corral.scheduling.policies.group_options import group_options
from corral.scheduling.snapshot import Snapshot
from corral.scheduling.stopping.ground import ROOM_MARGIN_S

OVERDUE_S = 30.0


def check_preemptions(snapshot: Snapshot, plan: Plan) -> list[str]:
    """What is wrong with them."""
    wrong: list[str] = []
    times = Counter(one.claimant.id for one in plan.preemptions)
    stops = Counter(victim.id for one in plan.preemptions for victim in one.victims)
    wrong += [f"{id_} has others stopped {count} times" for id_, count in times.items() if count > 1]
    wrong += [f"{id_} is stopped {count} times" for id_, count in stops.items() if count > 1]
    rooms = _Rooms(snapshot, plan)
    for one in plan.preemptions:
        told = (*_of_claimant(snapshot, plan, one), *_of_victims(snapshot, one), *rooms.look(one))
        wrong += [f"{one.claimant.id}: {why}" for why in told]
    return wrong


def _of_claimant(snapshot: Snapshot, plan: Plan, one: Preemption) -> Iterator[str]:
    if one.claimant not in snapshot.waiting or one.claimant.id not in plan.refusals:
        yield "it was not waiting, or not refused"
    if one.claimant.room_by is not None and one.claimant.room_by > snapshot.now:
        yield "others stop for it already"
    if one.claimant.shape.group not in (None, one.group):
        yield f"group {one.group} is not the one it asked for"


def _of_victims(snapshot: Snapshot, one: Preemption) -> Iterator[str]:
    options = group_options(snapshot.groups[one.group])
    for victim in one.victims:
        if victim not in snapshot.running or victim.stopping or victim.group != one.group:
            yield f"{victim.id} does not run in {one.group}"
        if not (options["preemptible"] == "yes" if victim.preemptible is None else victim.preemptible):
            yield f"{victim.id} is not to be stopped for others"
        if victim.preemptions >= options["preemption_budget"]:
            yield f"{victim.id} was stopped often enough"
        if snapshot.now - (victim.started_at or victim.placed_at) < options["preemption_min_runtime"]:
            yield f"{victim.id} has hardly begun"
        ahead = one.claimant.priority - victim.priority
        if options["preemption"] == "priority" and ahead < options["preemption_gap"]:
            yield f"{victim.id} has no weaker claim"
        same = (one.claimant.owner, one.claimant.project) == (victim.owner, victim.project)
        if options["preemption"] == "none" or (options["preemption"] == "fair-share" and same):
            yield f"{victim.id} may not be stopped for it"


class _Rooms:
    """The nodes as the pass leaves them, with what comes free anyway."""

    def __init__(self, snapshot: Snapshot, plan: Plan) -> None:
        self._snapshot = snapshot
        self._nodes = {node.name: node for node in snapshot.nodes}
        self._rooms = {name: NodeRoom(node, snapshot.devices.get(name, ())) for name, node in self._nodes.items()}
        self._kept = kept_for(snapshot.pins, snapshot.devices, self._nodes)
        self._plan = plan
        self._gone: set[str] = set()
        self._ends = [(until_s(one.session, snapshot.now), one.session.id, one.ranks) for one in plan.placements]
        self._ends += [
            (one.ends_at, one.id, one.ranks) for one in snapshot.running
            if one.ends_at is not None and one.preempted_for is None and one.ends_at > snapshot.now - TOO_LATE_S
            and not (one.stopping and one.ends_at + OVERDUE_S >= snapshot.now)
        ]  # fmt: skip
        for placed in plan.placements:
            self._move(self._kept.pop(placed.session.id, ()), free=True)
            self._move(placed.ranks, free=False)
        for one in snapshot.running:
            late = one.ends_at is not None and one.ends_at + OVERDUE_S < snapshot.now
            if one.stopping and one.preempted_for is None and not late:
                self._move(one.ranks, free=True)

    def look(self, one: Preemption) -> Iterator[str]:
        shape = one.claimant.shape
        by_node = Counter(rank.node for rank in one.ranks)
        if len(by_node) != shape.nodes or set(by_node.values()) != {shape.ranks_per_node}:
            yield "its places are not what it asked for"
        for name in by_node:
            if excluded(self._nodes[name], shape, self._snapshot.now) is not None:
                yield f"node {name} is out of the question"
        self._move(self._kept.pop(one.claimant.id, ()), free=True)
        for victim in one.victims:
            self._move(victim.ranks, free=True)
        if not self._fit(by_node, one):
            yield "it would not fit even then"
        yield from self._in_vain(by_node, one)
        self._move(one.ranks, free=False)
        self._gone.update(victim.id for victim in one.victims)
        grace_s = max((victim.grace_s for victim in one.victims), default=0)
        until = until_s(one.claimant, self._snapshot.now + grace_s + ROOM_MARGIN_S)
        yield from self._delayed(one, until)
        self._ends.append((until, one.claimant.id, one.ranks))

    def _delayed(self, one: Preemption, until: float) -> Iterator[str]:
        """Those that had their turn before it, whose planned starts are not kept by all that ends until then."""
        turn = {id_: number for number, id_ in enumerate(self._plan.refusals)}
        mine = {rank.node for rank in one.ranks}
        for id_, start in self._plan.planned.items():
            if id_ == one.claimant.id or turn.get(id_, 0) >= turn.get(one.claimant.id, 0) or start.at >= until:
                continue
            ended = [
                place for at, who, ranks in self._ends if at <= start.at and who not in self._gone for place in ranks
            ]
            self._move(ended, free=True)
            for name in mine & {rank.node for rank in start.ranks}:
                if not self._rooms[name].fits([rank for rank in start.ranks if rank.node == name]):
                    yield f"it would delay {id_}, which is before it, on {name}"
            self._move(ended, free=False)

    def _in_vain(self, nodes: Collection[str], one: Preemption) -> Iterator[str]:
        for victim in one.victims:
            self._move(victim.ranks, free=False)
            if self._fit_anew(nodes, one):
                yield f"{victim.id} would be stopped in vain"
            self._move(victim.ranks, free=True)

    def _fit(self, nodes: Iterable[str], one: Preemption) -> bool:
        return all(self._rooms[name].fits([rank for rank in one.ranks if rank.node == name]) for name in nodes)

    def _fit_anew(self, nodes: Iterable[str], one: Preemption) -> bool:
        taken: list[RankPlace] = []
        for name in nodes:
            places = self._rooms[name].place(one.claimant.shape)
            if isinstance(places, str):
                self._move(taken, free=True)
                return False
            taken += places
        self._move(taken, free=True)
        return True

    def _move(self, places: Iterable[RankPlace], *, free: bool) -> None:
        for place in places:
            room = self._rooms.get(place.node)
            there = present(place, self._snapshot.devices.get(place.node, ()))
            if room is not None:
                room.give_back([there]) if free else room.take(there)
