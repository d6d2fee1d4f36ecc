"""All nodes of a fleet, ready to be asked where a shape goes: the engine that a pass and a simulated fleet share.

    fleet = Fleet(nodes, devices, {"default": Pack}, now=0.0)
    placement = fleet.place(shape)         # taken at once; None: it does not fit, and nothing is taken
    fleet.give_back(placement.ranks)       # when it ends; fleet.take(ranks) for what is already there
    fleet.refusals(shape)                  # why not, counted over all nodes

Equal requests are one shape. A shape is judged against every node when it is first met; after that only nodes whose
room changed since it was last tried are judged again. So one Fleet may serve a whole replay, and what a try costs hangs
on how much happened since the last one like it, not on how much waits. A node that is to join later is given from the
start as not schedulable; `set_node` opens it, or takes it out. Its room stays what was taken and given back here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from corral.model.node import Device, Node
from corral.model.resources import WHOLE_GPU_MILLI
from corral.scheduling.places import Grant, RankPlace
from corral.scheduling.plan import Refusal, refusal
from corral.scheduling.policies.scorer import Demand, PlacementPolicy, Scorer
from corral.scheduling.pool import Floats, Pool, Rows
from corral.scheduling.room import amounts_of
from corral.scheduling.snapshot import Shape
from corral.scheduling.standing import FITS, Standing

MAX_SHAPES = 4096  # remembered per group; beyond that all are forgotten and judged anew


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
        self._groups = {name: _Group(Pool(by_group[name], devices, turn), now) for name in sorted(by_group)}
        self._group_of = {node.name: group for group in self._groups.values() for node in group.pool.nodes}
        self.expect(demand or {})

    def expect(self, demand: Demand) -> None:
        """How much each shape counts among those to come, for policies that look ahead. All scores are made anew."""
        for name, group in self._groups.items():
            if name in self._placements:
                group.score_by(self._placements[name](group.pool, demand))

    def place(self, shape: Shape, barred: Container[str] = ()) -> Placement | None:
        """All ranks of a shape, within one group that is not barred to it, taken; or nothing."""
        for name, group in self._groups.items():
            if name not in barred and (shape.group is None or shape.group == name):
                ranks = group.place(shape)
                if ranks is not None:
                    return Placement(name, ranks)
        return None

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
        return tuple(refusal(code, {"nodes": count}) for code, count in sorted(reasons.items()))

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


class _Group:
    """One group's pool, its policy at work, and the shapes met."""

    def __init__(self, pool: Pool, now: float) -> None:
        self.pool = pool
        self.now = now
        self.scorer: Scorer | None = None
        self._standings: dict[Shape, Standing] = {}
        self._scores: Floats = np.zeros(len(pool))  # of a policy that does not look at the shape
        self._scored_at = -1

    def score_by(self, scorer: Scorer) -> None:
        self.scorer = scorer
        self._scored_at = -1
        for standing in self._standings.values():
            standing.scored_at = -1

    def at(self, now: float) -> None:
        before, self.now = self.now, now
        if ((self.pool.backoff_until > before) != (self.pool.backoff_until > now)).any():
            self._standings.clear()

    def set_node(self, node: Node) -> None:
        self.pool.set_node(node)
        self._standings.clear()

    def standing(self, shape: Shape) -> Standing:
        found = self._standings.get(shape)
        if found is None:
            if len(self._standings) >= MAX_SHAPES:
                self._standings.clear()
            found = self._standings[shape] = Standing(self.pool, shape, self.now)
        return found

    def reasons(self, shape: Shape) -> Counter[str]:
        """Every node's answer. Without a policy no node is looked into: what nothing else bars counts as unknown."""
        standing = self.standing(shape)
        counted = standing.bars() if self.scorer is None else standing.reasons()
        left = counted.pop(FITS, 0)
        if left:
            counted["group_unknown" if self.scorer is None else "not_enough_nodes"] += left
        return counted

    def place(self, shape: Shape) -> tuple[RankPlace, ...] | None:
        if self.scorer is None:
            return None
        standing = self.standing(shape)
        rows = self.scorer.choose(self._refreshed(standing, self.scorer), shape.nodes)
        if len(rows) < shape.nodes:
            return None
        return tuple(place for row in rows for place in self._ranks(row, standing, self.scorer))

    def _refreshed(self, standing: Standing, scorer: Scorer) -> Floats:
        """The shape's scores, with every row that changed since they were made judged again."""
        stamp = self.pool.stamp
        if standing.scored_at != stamp:
            rows = self.pool.changed_since(standing.scored_at)
            fitting = np.flatnonzero(standing.fits(rows))
            if isinstance(rows, np.ndarray):
                fitting = rows[fitting]
            standing.scores[rows] = -np.inf
            if len(fitting):
                standing.scores[fitting] = self._score(fitting, standing.shape, scorer)
            standing.scored_at = stamp
        return standing.scores

    def _score(self, rows: Rows, shape: Shape, scorer: Scorer) -> Floats:
        """What the policy says of these rows; made once for all shapes where it does not look at the shape."""
        if scorer.by_shape:
            return scorer.score(rows, shape)
        if self._scored_at != self.pool.stamp:
            stale = self.pool.changed_since(self._scored_at)
            self._scores[stale] = scorer.score(stale, shape)
            self._scored_at = self.pool.stamp
        return self._scores[rows]

    def _ranks(self, row: int, standing: Standing, scorer: Scorer) -> list[RankPlace]:
        """The shape's ranks for a node that fits, each taken before the next is looked for."""
        node, shape = self.pool.nodes[row], standing.shape
        ranks: list[RankPlace] = []
        for number in range(shape.ranks_per_node):
            grants = self._grants(row, standing, scorer)
            ranks.append(RankPlace(node.name, node.epoch, node.run_id, *amounts_of(shape, node, number), grants))
            self.pool.move(ranks[-1:], 1)
        return ranks

    def _grants(self, row: int, standing: Standing, scorer: Scorer) -> tuple[Grant, ...]:
        need, devices = standing.need, self.pool.devices[row]
        if need.gpus < 0:
            return ()
        columns = standing.usable(row)
        if need.whole:
            return tuple(
                Grant(devices[column].uuid, WHOLE_GPU_MILLI, devices[column].capacity_mib)
                for column in columns[: need.gpus]
            )
        column = columns[0] if len(columns) == 1 else scorer.device(row, columns, standing.shape)
        vram = int(need.vram_mib[self.pool.kind[row, column]])
        return (Grant(devices[column].uuid, need.share_milli, vram),)
