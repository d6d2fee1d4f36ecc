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

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from corral.model.faults import Invalid
from corral.model.node import ResourceGroup
from corral.scheduling.plan import Placed, Plan, Refusal
from corral.scheduling.policies.order import ORDERS, OrderPolicy
from corral.scheduling.policies.score import PLACEMENTS, PlacementPolicy
from corral.scheduling.room import MESSAGES, NodeRoom, RankPlace, excluded
from corral.scheduling.snapshot import Shape, Snapshot, Waiting

MAX_PLACEMENTS = 500  # per pass: what one transaction commits while others wait for its locks


class Policies(NamedTuple):
    """One group's choices."""

    order: OrderPolicy
    placement: PlacementPolicy


def policies_of(group: ResourceGroup) -> Policies:
    """The group's policies by name; `Invalid` names the one that does not exist."""
    if group.order not in ORDERS:
        raise Invalid("unknown_policy", f"group {group.name}: order policy {group.order!r} is not installed")
    if group.placement not in PLACEMENTS:
        raise Invalid("unknown_policy", f"group {group.name}: placement policy {group.placement!r} is not installed")
    return Policies(ORDERS[group.order], PLACEMENTS[group.placement])


def cycle(snapshot: Snapshot, max_placements: int = MAX_PLACEMENTS) -> Plan:
    """The plan for one pass. Deterministic: equal snapshots give equal plans."""
    rooms = [NodeRoom(node, snapshot.devices.get(node.name, ())) for node in snapshot.nodes]
    placements: list[Placed] = []
    refusals: dict[str, tuple[Refusal, ...]] = {}
    hopeless: dict[Shape, tuple[Refusal, ...]] = {}
    for waiting, policies in _ordered(snapshot, refusals):
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


def _ordered(
    snapshot: Snapshot, refusals: dict[str, tuple[Refusal, ...]]
) -> Sequence[tuple[Waiting, Mapping[str, Policies]]]:
    """Waiting sessions in the order to try them. A group whose policies are broken holds back its own sessions only."""
    usable: dict[str, Policies] = {}
    broken: dict[str, str] = {}
    for group in snapshot.groups.values():
        try:
            usable[group.name] = policies_of(group)
        except Invalid as error:
            broken[group.name] = error.message
    by_group: dict[str | None, list[Waiting]] = {}
    for waiting in snapshot.waiting:
        by_group.setdefault(waiting.shape.group, []).append(waiting)
    lines: list[Sequence[Waiting]] = []
    for name, members in by_group.items():
        if name in broken:
            refusals.update({one.id: (Refusal("group_broken", broken[name]),) for one in members})
        elif name is not None and name not in usable:
            refusals.update({one.id: (_refusal("group_unknown", {}),) for one in members})
        else:
            order = ORDERS["fifo"] if name is None else usable[name].order
            lines.append(order(members, snapshot.now))
    return [(one, usable) for one in heapq.merge(*lines, key=lambda one: one.ordinal)]


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
        return (_refusal("no_nodes", {}),)
    return tuple(_refusal(code, {"nodes": count}) for code, count in sorted(reasons.items()))


def _refusal(code: str, counts: Mapping[str, int]) -> Refusal:
    message = MESSAGES[code]
    nodes = counts.get("nodes")
    return Refusal(code, f"{nodes} {'node' if nodes == 1 else 'nodes'}: {message}" if nodes else message, counts)
