"""What those are told whose room is kept for somebody else: the nodes that would have room, but for that."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

from corral.model.spec import SessionSpec
from corral.scheduling.engine.room import NodeRoom, excluded
from corral.scheduling.pins import kept_for
from corral.scheduling.places import RankPlace
from corral.scheduling.plan import Plan, Refusal, refusal
from corral.scheduling.snapshot import Shape, Snapshot, shape_of

MOST_NODES = 32  # with pins, of which a pass tells what they are to others
MOST_ANSWERS = 200


def with_pins_told(snapshot: Snapshot, plan: Plan) -> Plan:
    """The plan whose refusals tell apart the nodes that have room enough, but keep it for somebody else."""
    if not snapshot.pins or not plan.refusals:
        return plan
    rooms = _rooms(snapshot, plan)
    owners = {pin.owner for pin in snapshot.pins}
    retold: dict[int, tuple[Refusal, ...]] = {}
    waiting = {one.id: one for one in snapshot.waiting}
    refusals = dict(plan.refusals)
    for id_, answer in plan.refusals.items():
        if id_ in owners:
            continue
        if id(answer) not in retold and len(retold) < MOST_ANSWERS:
            retold[id(answer)] = _retold(answer, waiting[id_].shape, rooms, snapshot.now)
        refusals[id_] = retold.get(id(answer), answer)
    return replace(plan, refusals=refusals)


def pinned_nodes(snapshot: Snapshot, spec: SessionSpec, id_: str) -> int:
    """On how many nodes there would be room for that session, if none were kept there for others."""
    others = replace(snapshot, pins=[pin for pin in snapshot.pins if pin.owner != id_])
    return _kept_from(shape_of(spec), _rooms(others, Plan()), snapshot.now).total()


def _rooms(snapshot: Snapshot, plan: Plan) -> list[tuple[NodeRoom, NodeRoom]]:
    """Nodes with pins as the pass leaves them, and as they would be without."""
    placed = {one.session.id for one in plan.placements}
    kept: defaultdict[str, list[RankPlace]] = defaultdict(list)
    for owner, places in kept_for(snapshot.pins, snapshot.devices).items():
        for place in places:
            kept[place.node] += [place] if owner not in placed else []
    rooms: list[tuple[NodeRoom, NodeRoom]] = []
    taken = [rank for one in plan.placements for rank in one.ranks if rank.node in kept]
    for node in snapshot.nodes:
        if not kept.get(node.name) or len(rooms) >= MOST_NODES:
            continue
        pair = (
            NodeRoom(node, snapshot.devices.get(node.name, ())),
            NodeRoom(node, snapshot.devices.get(node.name, ())),
        )
        for room in pair:
            for rank in taken:
                if rank.node == node.name:
                    room.take(rank)
        pair[1].give_back(kept[node.name])
        rooms.append(pair)
    return rooms


def _retold(
    answer: tuple[Refusal, ...], shape: Shape, rooms: Sequence[tuple[NodeRoom, NodeRoom]], now: float
) -> tuple[Refusal, ...]:
    moved = _kept_from(shape, rooms, now)
    counts = {one.code: one.counts.get("nodes", 0) for one in answer}
    moved = Counter({code: min(number, counts.get(code, 0)) for code, number in moved.items()})
    if not moved.total():
        return answer
    left = [
        refusal(one.code, {"nodes": one.counts["nodes"] - moved[one.code]}) if moved[one.code] else one
        for one in answer
        if moved[one.code] < one.counts.get("nodes", 0) or not moved[one.code]
    ]
    return (*left, refusal("pinned", {"nodes": moved.total()}))


def _kept_from(shape: Shape, rooms: Sequence[tuple[NodeRoom, NodeRoom]], now: float) -> Counter[str]:
    """The nodes that have room for the shape, but for what is kept there, by what seems to be missing."""
    found: Counter[str] = Counter()
    for full, without in rooms:
        if excluded(full.node, shape, now) is not None:
            continue
        code = full.place(shape)
        if not isinstance(code, str):
            full.give_back(code)
            continue
        places = without.place(shape)
        if not isinstance(places, str):
            without.give_back(places)
            found[code] += 1
    return found
