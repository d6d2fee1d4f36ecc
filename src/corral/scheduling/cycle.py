"""One scheduling pass: snapshot and policies in, plan out.

    1. order    each group's waiting sessions by its order policy
    2. admit    leave out what a condition holds back (later: quotas, dependencies)
    3. fit      for each node: out of the question, or room enough?
    4. score    the group's placement policy ranks the nodes that fit
    5. gang     all ranks or none

A shape that did not fit cannot fit later in the same pass, since room only shrinks: equal requests behind it get the
same answer without being tried. So a pass costs (placements + distinct shapes) x nodes, not waiting x nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from corral.scheduling.ordering import Policies, ordered
from corral.scheduling.plan import Placed, Plan, Refusal, refusal
from corral.scheduling.room import NodeRoom, RankPlace, excluded
from corral.scheduling.snapshot import Shape, Snapshot

MAX_PLACEMENTS = 500  # per pass: what one transaction commits while others wait for its locks


def cycle(snapshot: Snapshot, max_placements: int = MAX_PLACEMENTS) -> Plan:
    """The plan for one pass. Deterministic: equal snapshots give equal plans."""
    rooms = [NodeRoom(node, snapshot.devices.get(node.name, ())) for node in snapshot.nodes]
    placements: list[Placed] = []
    refusals: dict[str, tuple[Refusal, ...]] = {}
    hopeless: dict[Shape, tuple[Refusal, ...]] = {}
    for waiting, policies in ordered(snapshot, refusals):
        if len(placements) >= max_placements:
            break
        answer = hopeless.get(waiting.shape)
        if answer is None:
            found = _place(waiting.shape, rooms, policies, snapshot.now)
            if isinstance(found, Placement):
                placements.append(Placed(waiting, found.group, found.ranks))
                continue
            answer = hopeless[waiting.shape] = found
        refusals[waiting.id] = answer
    answered = len(placements) + len(refusals) == len(snapshot.waiting)
    more = not answered or any(id_ not in refusals for id_ in snapshot.last_read)
    return Plan(tuple(placements), refusals, more)


class Placement(NamedTuple):
    group: str
    ranks: tuple[RankPlace, ...]


def _place(
    shape: Shape, rooms: Sequence[NodeRoom], policies: Mapping[str, Policies], now: float
) -> Placement | tuple[Refusal, ...]:
    """All ranks of a shape, within one group, taken from the rooms; or every reason, with nothing taken."""
    reasons: Counter[str] = Counter()
    candidates: dict[str, list[NodeRoom]] = {}
    for room in rooms:
        why = excluded(room.node, shape, now)
        if why is None and room.node.group in policies:
            candidates.setdefault(room.node.group, []).append(room)
        else:
            reasons[why or "group_unknown"] += 1
    for group, members in sorted(candidates.items()):
        members.sort(key=lambda room: (-policies[group].placement(room), room.node.name))
        taken: list[tuple[NodeRoom, list[RankPlace]]] = []
        for room in members:
            places = room.place(shape)
            if isinstance(places, str):
                reasons[places] += 1
                continue
            taken.append((room, places))
            if len(taken) == shape.nodes:
                return Placement(group, tuple(place for _, places in taken for place in places))
        for room, places in taken:
            room.give_back(places)
        if taken:
            reasons["not_enough_nodes"] += len(taken)
    if not rooms:
        return (refusal("no_nodes", {}),)
    return tuple(refusal(code, {"nodes": count}) for code, count in sorted(reasons.items()))
