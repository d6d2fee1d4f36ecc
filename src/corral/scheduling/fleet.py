"""All nodes of a fleet, ready to be asked where a shape goes: the engine that a pass and a simulated fleet share.

    fleet = Fleet(nodes, devices, {"default": Pack}, now=0.0)
    placement = fleet.place(shape)         # taken at once; None: it does not fit, and nothing is taken
    fleet.give_back(placement.ranks)       # when it ends; fleet.take(ranks) for what is already there
    fleet.refusals(shape)                  # why not, counted over all nodes

Equal requests are one shape. A shape is judged against every node when it is first met; after that only nodes that
changed since it was last tried are judged again. So one Fleet may serve a whole replay, or every pass of a manager, and
what a try costs hangs on how much happened since the last one like it, not on how much waits. A node that is to join
later is given from the start as not schedulable; `set_node` opens it, or takes it out. Its room stays what was taken
and given back here. A manager's passes have the database's word instead: `update`, then `begin`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from corral.model.node import Device, Node
from corral.scheduling.engine.pool import Flags, Pool
from corral.scheduling.engine.standing import Standing
from corral.scheduling.group_nodes import GroupNodes
from corral.scheduling.places import RankPlace
from corral.scheduling.plan import Refusal, refusal
from corral.scheduling.policies.scorer import Demand, PlacementPolicy, Scorer
from corral.scheduling.snapshot import Preferred, Shape


class Placement(NamedTuple):
    group: str
    ranks: tuple[RankPlace, ...]


class Fleet:
    """Every group's nodes and how each shape met so far stands with them. `placements` names the policy of each group;
    nodes of a group that it does not name take nothing. `turn` is where policies that take turns begin."""

    def __init__(
        self,
        nodes: Iterable[Node],
        devices: Mapping[str, Sequence[Device]],
        placements: Mapping[str, PlacementPolicy],
        now: float = 0.0,
        demand: Demand | None = None,
        turn: int = 0,
    ) -> None:
        by_group: dict[str, list[Node]] = {}
        for node in nodes:
            by_group.setdefault(node.group, []).append(node)
        self._placements = placements
        self._demand: Demand = {}
        self._groups = {name: GroupNodes(name, Pool(by_group[name], devices, turn), now) for name in sorted(by_group)}
        self._group_of = {node.name: group for group in self._groups.values() for node in group.pool.nodes}
        self.expect(demand or {})

    def expect(self, demand: Demand) -> None:
        """How much each shape counts among those to come, for policies that look ahead. All scores are made anew."""
        self._demand = demand
        for name, group in self._groups.items():
            if name in self._placements:
                group.score_by(self._placements[name], demand)

    def update(self, nodes: Iterable[Node], devices: Mapping[str, Sequence[Device]]) -> bool:
        """These nodes are by now as said here. False: these arrays cannot hold that, and a new Fleet must be made."""
        for node in nodes:
            group = self._group_of.get(node.name)
            if group is None or group.name != node.group or not group.pool.update(node, devices.get(node.name, ())):
                return False
        return True

    @property
    def stamp(self) -> int:
        """Raised by every change."""
        return sum(group.pool.stamp for group in self._groups.values())

    def touched(self) -> list[str]:
        """The nodes whose room was taken or given back here since the last time this was asked."""
        return [name for group in self._groups.values() for name in group.touched()]

    def begin(self, placements: Mapping[str, PlacementPolicy], now: float, demand: Demand, turn: int = 0) -> None:
        """A pass with these policies. Corral's own go on with what they know; those that look ahead do while `demand`
        is the object that it was."""
        self.at(now)
        before, self._placements, self._demand = self._demand, placements, demand
        for name, group in self._groups.items():
            group.pool.turn = turn
            if name in placements:
                group.begin(placements[name], demand, demand is not before)
            else:
                group.scorer = None

    def fits_nowhere(self, shape: Shape, groups: Container[str]) -> bool:
        """Whether it is known, with next to no work, that no node of these groups has room for one node's ranks."""
        return self.most_that_fit(shape, groups, 1) == 0

    def most_that_fit(self, shape: Shape, groups: Container[str], most: int) -> int:
        """More sessions of this shape than these groups have room for, or as many, but at most `most`: what is known of
        that with next to no work."""
        total = 0
        for name, group in self._groups.items():
            if total < most and name in groups and (shape.group is None or shape.group == name):
                total += group.most_that_fit(shape, most)
        return min(total, most)

    def remembered(self) -> tuple[int, int, int]:
        """How many shapes it has met and knows of still, those with scores, and those with reasons."""
        counts = [group.remembered() for group in self._groups.values()]
        return sum(one for one, _, _ in counts), sum(one for _, one, _ in counts), sum(one for _, _, one in counts)

    def scorer(self, group: str) -> Scorer | None:
        """The policy at work in a group that takes sessions."""
        return self._groups[group].scorer

    def place(
        self,
        shape: Shape,
        barred: Container[str] = (),
        shunned: Collection[str] = frozenset(),
        preferred: Preferred | None = None,
    ) -> Placement | None:
        """All ranks of a shape, within one group that is not barred to it, taken; or nothing. Nodes that are shunned
        come last: where it fits without them, it goes there. Of the others those come first that are preferred."""
        for avoided in (shunned, frozenset[str]()) if shunned else (shunned,):
            groups: Iterable[GroupNodes] = self._groups.values()
            if preferred is not None and shape.group is None:
                groups = sorted(groups, key=lambda one: -one.most_met(shape, avoided, preferred))
            for group in groups:
                if group.name not in barred and (shape.group is None or shape.group == group.name):
                    ranks = group.place(shape, avoided, preferred)
                    if ranks is not None:
                        return Placement(group.name, ranks)
        return None

    def had_turns(self, last: Mapping[str, str]) -> None:
        """In each group, which node was the last to be given something: policies that take turns begin after it."""
        for name, node in last.items():
            if name in self._groups:
                self._groups[name].pool.had_turn(node)

    def fitting(self, shape: Shape) -> dict[str, Flags]:
        """The nodes of each group that it may go to, and that takes sessions, on which one node's ranks fit now."""
        groups = ((name, one) for name, one in self._groups.items() if one.scorer is not None)
        return {
            name: one.standing(shape).fits(slice(None)) for name, one in groups if shape.group in (None, name)
        }  # fmt: skip

    def pools(self) -> dict[str, Pool]:
        """Those of the groups that take sessions."""
        return {name: one.pool for name, one in self._groups.items() if one.scorer is not None}

    def standing(self, group: str, shape: Shape) -> Standing:
        return self._groups[group].standing(shape)

    def refusals(self, shape: Shape) -> tuple[Refusal, ...]:
        """Why a shape that found no place found none, by every node's own first reason."""
        reasons: Counter[str] = Counter()
        for name, group in self._groups.items():
            if shape.group is not None and shape.group != name:
                reasons["other_group"] += len(group.pool)
                continue
            reasons.update(group.reasons(shape))
        if not self._groups:
            return (refusal("no_nodes", {}),)
        return tuple([_refusal(code, count) for code, count in sorted(reasons.items())])

    def take(self, ranks: Iterable[RankPlace]) -> None:
        for rank in ranks:
            self._group_of[rank.node].pool.move((rank,), 1)

    def give_back(self, ranks: Iterable[RankPlace]) -> None:
        for rank in ranks:
            self._group_of[rank.node].pool.move((rank,), -1)

    def at(self, now: float) -> None:
        """Time went on: nodes that were backing off may be open again."""
        for group in self._groups.values():
            group.at(now)

    def set_node(self, node: Node) -> None:
        """Its state, labels or runtimes changed. Its name, group, size and devices may not."""
        self._group_of[node.name].set_node(node)


@lru_cache(4096)
def _refusal(code: str, nodes: int) -> Refusal:
    return refusal(code, {"nodes": nodes})
