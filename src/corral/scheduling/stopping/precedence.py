"""Whose claim to room is weaker than whose: the strict order by which sessions may be stopped for others.

By priority: whoever is behind by `preemption_gap` points or more. By fair share: of an owner who holds more than its
part of the group, for one who holds no more than its own even with what it claims. A part is the largest of the parts
of CPUs, memory and GPUs; an owner's entitlement is what the tree of projects and the weights of the group's order give
it, among those who hold something or wait. Stopping makes the first owner's part smaller and keeps the second one's
within bounds, so that the one can never claim from the other what it has just lost to it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from corral.model.node import ResourceGroup
from corral.model.resources import WHOLE_GPU_MILLI
from corral.scheduling.places import RankPlace
from corral.scheduling.plan import Plan
from corral.scheduling.policies.group_options import group_options
from corral.scheduling.policies.tree import tree_shares
from corral.scheduling.snapshot import Running, Shape, Snapshot, Waiting

Flags = NDArray[np.bool_]
Amounts = tuple[int, int, int]  # cpu_milli, memory_mib, gpu_milli
Owner = tuple[str, str]  # project, owner
SLACK = 1e-9
NOTHING: Amounts = (0, 0, 0)


def amounts_held(ranks: Iterable[RankPlace]) -> Amounts:
    cpu = memory = gpu = 0
    for rank in ranks:
        cpu, memory = cpu + rank.cpu_milli, memory + rank.memory_mib
        gpu += sum(grant.share_milli for grant in rank.grants)
    return cpu, memory, gpu


def amounts_asked(shape: Shape) -> Amounts:
    asked, gpu, ranks = shape.resources, shape.resources.gpu, shape.nodes * shape.ranks_per_node
    milli = 0 if gpu is None else gpu.count * (WHOLE_GPU_MILLI if gpu.whole else gpu.share_milli)
    return ranks * asked.cpu_milli, ranks * asked.memory_mib, ranks * milli


class Claims(Protocol):
    """One group's. `may_lose`: anybody's claim may be stronger; `key` is equal for equal claims; `going` says of
    victims in this order, each, whether it may still be stopped when those before it are; `accept` notes a decision."""

    def may_lose(self, victim: Running) -> bool: ...
    def part(self, amounts: Amounts) -> float: ...
    def key(self, claimant: Waiting) -> object: ...
    def may(self, claimant: Waiting) -> bool: ...
    def weaker(self, claimant: Waiting, victims: Sequence[Running]) -> Flags: ...
    def going(self, victims: Sequence[Running]) -> list[bool]: ...
    def accept(self, claimant: Waiting, victims: Sequence[Running]) -> None: ...


def claims_of(
    group: ResourceGroup,
    snapshot: Snapshot,
    plan: Plan,
    running: Sequence[Running],
    claimants: Sequence[Waiting],
    capacity: Amounts,
) -> Claims:
    if group_options(group)["preemption"] == "fair-share":
        return _ByShare(group, snapshot, plan, running, capacity)
    best = max((one.priority for one in claimants), default=0)
    return _ByPriority(best, group_options(group)["preemption_gap"], capacity)


def part_of(amounts: Amounts, capacity: Amounts) -> float:
    """The largest of its parts of what the group has; of what it lacks nobody has a part."""
    return max((held / there for held, there in zip(amounts, capacity, strict=True) if there), default=0.0)


class _ByPriority:
    def __init__(self, best: int, gap: float, capacity: Amounts) -> None:
        self._best = best
        self._gap = gap
        self._capacity = capacity
        self._of: tuple[Sequence[Running], NDArray[np.int64]] | None = None

    def may_lose(self, victim: Running) -> bool:
        return victim.priority <= self._best - self._gap

    def part(self, amounts: Amounts) -> float:
        return part_of(amounts, self._capacity)

    def key(self, claimant: Waiting) -> object:
        return claimant.priority

    def may(self, claimant: Waiting) -> bool:
        return True

    def weaker(self, claimant: Waiting, victims: Sequence[Running]) -> Flags:
        if self._of is None or self._of[0] is not victims:
            self._of = victims, np.array([one.priority for one in victims], np.int64)
        return self._of[1] <= claimant.priority - self._gap

    def going(self, victims: Sequence[Running]) -> list[bool]:
        return [True] * len(victims)

    def accept(self, claimant: Waiting, victims: Sequence[Running]) -> None:
        """A priority stays what it is."""


class _ByShare:
    def __init__(
        self, group: ResourceGroup, snapshot: Snapshot, plan: Plan, running: Sequence[Running], capacity: Amounts
    ) -> None:
        self._capacity = capacity
        self._held: defaultdict[Owner, Amounts] = defaultdict(lambda: NOTHING)
        for one in running:
            if not one.stopping:
                self._add(_owner(one), amounts_held(one.ranks), 1)
        for placed in plan.placements:
            if placed.group == group.name:
                self._add(_owner(placed.session), amounts_held(placed.ranks), 1)
        line = [one for one in snapshot.waiting if one.shape.group in (None, group.name)]
        owners = {*self._held, *(_owner(one) for one in line)}
        self._entitled = entitlements(owners, group.order_options)

    def may_lose(self, victim: Running) -> bool:
        owner = _owner(victim)
        return self._is_above(owner, self._held[owner])

    def _add(self, owner: Owner, amounts: Amounts, sign: int) -> None:
        self._held[owner] = _plus(self._held[owner], amounts, sign)

    def _is_above(self, owner: Owner, held: Amounts) -> bool:
        return self.part(held) > self._entitled.get(owner, 0.0) + SLACK

    def part(self, amounts: Amounts) -> float:
        return part_of(amounts, self._capacity)

    def key(self, claimant: Waiting) -> object:
        return _owner(claimant)

    def may(self, claimant: Waiting) -> bool:
        owner = _owner(claimant)
        return not self._is_above(owner, _plus(self._held[owner], amounts_asked(claimant.shape), 1))

    def weaker(self, claimant: Waiting, victims: Sequence[Running]) -> Flags:
        above = {owner for owner, held in self._held.items() if self._is_above(owner, held)} - {_owner(claimant)}
        return np.array([_owner(one) in above for one in victims], bool)

    def going(self, victims: Sequence[Running]) -> list[bool]:
        left: dict[Owner, Amounts] = {}
        found: list[bool] = []
        for one in victims:
            owner = _owner(one)
            held = left.get(owner, self._held[owner])
            found.append(self._is_above(owner, held))
            if found[-1]:
                left[owner] = _plus(held, amounts_held(one.ranks), -1)
        return found

    def accept(self, claimant: Waiting, victims: Sequence[Running]) -> None:
        self._add(_owner(claimant), amounts_asked(claimant.shape), 1)
        for one in victims:
            self._add(_owner(one), amounts_held(one.ranks), -1)


def entitlements(owners: Iterable[Owner], options: Mapping[str, Any]) -> dict[Owner, float]:
    """Each owner's part of the group, as the tree of projects has it, by the weights of the group's order if any."""
    projects: Mapping[str, float] = options.get("project_weights") or {}
    people: Mapping[str, float] = options.get("owner_weights") or {}
    shares = tree_shares(dict.fromkeys(owners, 1.0), projects, people)
    return {(one.project or "", one.owner): one.entitled for one in shares if one.owner is not None}


def _owner(one: Running | Waiting) -> Owner:
    return one.project, one.owner


def _plus(held: Amounts, more: Amounts, sign: int) -> Amounts:
    return held[0] + sign * more[0], held[1] + sign * more[1], held[2] + sign * more[2]
