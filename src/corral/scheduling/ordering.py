"""Whose turn it is: the waiting sessions of all groups in one line, each group's in the order that its policy says."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from corral.model.faults import Invalid
from corral.model.node import ResourceGroup
from corral.scheduling.plan import Refusal, refusal
from corral.scheduling.policies.order import ORDERS, OrderPolicy
from corral.scheduling.policies.score import PLACEMENTS, PlacementPolicy
from corral.scheduling.snapshot import Snapshot, Waiting


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


def ordered(
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
            refusals.update({one.id: (refusal("group_unknown", {}),) for one in members})
        else:
            order = ORDERS["fifo"] if name is None else usable[name].order
            lines.append(order(members, snapshot.now))
    return [(one, usable) for one in heapq.merge(*lines, key=lambda one: one.ordinal)]
