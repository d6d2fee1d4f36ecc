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
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from corral.model.node import Device, Node
from corral.model.resources import WHOLE_GPU_MILLI
from corral.scheduling.engine.pool import Flags, Floats, Pool, Rows
from corral.scheduling.engine.room import amounts_of
from corral.scheduling.engine.standing import FITS, Bars, Standing
from corral.scheduling.places import Grant, RankPlace
from corral.scheduling.plan import Refusal, refusal
from corral.scheduling.policies.preferred import choose, most_met
from corral.scheduling.policies.scorer import Demand, PlacementPolicy, Scorer
from corral.scheduling.snapshot import Preferred, Shape

MOST_SHAPES = 100_000  # remembered per group: that they fit nowhere, and since when
MOST_BARS = 1000  # combinations of labels, nodes and runtimes that are remembered per group
MOST_SCORES = 2**25  # of one node for one shape, per group, in 8 bytes each
MOST_REASONS = 2**27  # likewise, in one byte each


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
        self._groups = {name: _Group(name, Pool(by_group[name], devices, turn), now) for name in sorted(by_group)}
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
            groups: Iterable[_Group] = self._groups.values()
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


class _Group:
    """One group's pool, its policy at work, and the shapes met."""

    def __init__(self, name: str, pool: Pool, now: float) -> None:
        self.name = name
        self.pool = pool
        self.now = now
        self.scorer: Scorer | None = None
        self._policy: PlacementPolicy | None = None
        self._standings: dict[Shape, Standing] = {}
        self._last: Standing | None = None
        self._bars: dict[tuple[object, ...], Bars] = {}
        self._scored: dict[Standing, None] = {}
        self._reasoned: dict[Standing, None] = {}
        self._scores: Floats = np.zeros(len(pool))  # of a policy that does not look at the shape
        self._scored_at = -1
        self._touched_at = 0

    def score_by(self, policy: PlacementPolicy, demand: Demand) -> None:
        self._policy, self.scorer = policy, policy(self.pool, demand)
        self._scored_at = -1
        for standing in self._scored:
            standing.scored_at = -1

    def begin(self, policy: PlacementPolicy, demand: Demand, is_new: bool) -> None:
        """Go on with the scorer there is, if it is Corral's own and knows what it needs to."""
        scorer = self.scorer
        goes_on = scorer is not None and policy is self._policy and type(scorer) is policy
        if scorer is None or not goes_on or (scorer.looks_ahead and is_new):
            self.score_by(policy, demand)
        else:
            scorer.begin()

    def at(self, now: float) -> None:
        before, self.now = self.now, now
        until = self.pool.backoff_until
        self.pool.note_bars(np.flatnonzero((until > before) != (until > now)).tolist())

    def set_node(self, node: Node) -> None:
        self.pool.set_node(node)

    def remembered(self) -> tuple[int, int, int]:
        return len(self._standings), len(self._scored), len(self._reasoned)

    def touched(self) -> list[str]:
        rows = self.pool.changed_since(self._touched_at)
        self._touched_at = self.pool.stamp
        nodes = self.pool.nodes
        return [nodes[row].name for row in (range(len(nodes)) if isinstance(rows, slice) else rows.tolist())]

    def standing(self, shape: Shape) -> Standing:
        if self._last is not None and self._last.shape is shape:
            found = self._last
        else:
            found = self._last = self._standings.get(shape)
        if found is None:
            if len(self._standings) >= MOST_SHAPES:
                self._forget(self._standings.pop(next(iter(self._standings))))
            found = self._last = self._standings[shape] = Standing(self.pool, shape, self._bars_of(shape))
        found.bars.refresh(self.now)
        return found

    def _bars_of(self, shape: Shape) -> Bars:
        key = (shape.on_labels, shape.on_nodes, shape.not_nodes, shape.runtime)
        found = self._bars.get(key)
        if found is None:
            if len(self._bars) >= MOST_BARS:
                self._bars.pop(next(iter(self._bars)))
            found = self._bars[key] = Bars(self.pool, shape, self.now)
        return found

    def _forget(self, standing: Standing) -> None:
        self._scored.pop(standing, None)
        self._reasoned.pop(standing, None)

    def reasons(self, shape: Shape) -> Counter[str]:
        """Every node's answer. Without a policy no node is looked into: what nothing else bars counts as unknown."""
        standing = self.standing(shape)
        if self.scorer is None:
            counted = standing.reasons_whatever_the_room()
        else:
            if standing not in self._reasoned:
                _make_room(self._reasoned, MOST_REASONS // max(len(self.pool), 1), Standing.forget_reasons)
                self._reasoned[standing] = None
            counted = standing.reasons()
        left = counted.pop(FITS, 0)
        if left:
            counted["group_unknown" if self.scorer is None else "not_enough_nodes"] += left
        return counted

    def most_that_fit(self, shape: Shape, most: int) -> int:
        standing = self._standings.get(shape)
        if standing is None or standing.nowhere_at < 0:
            return most
        standing.bars.refresh(self.now)
        stamp = self.pool.stamp
        if standing.nowhere_at == stamp:
            return 0
        rows = standing.fitting_since(standing.nowhere_at)
        if not len(rows):
            standing.nowhere_at = stamp
            return 0
        return min(most, sum(standing.most_on(row) for row in rows.tolist())) if len(rows) <= most else most

    def _still_nowhere(self, standing: Standing) -> bool:
        """Of a shape that fitted nowhere: whether that holds for the rows that changed since, too."""
        stamp = self.pool.stamp
        if standing.nowhere_at != stamp:
            if len(standing.fitting_since(standing.nowhere_at)):
                return False
            standing.nowhere_at = stamp
        return True

    def most_met(self, shape: Shape, avoided: Collection[str], preferred: Preferred) -> float:
        """How much of what is preferred can be had here; -inf where it does not fit."""
        if self.scorer is None or self.most_that_fit(shape, 1) == 0:
            return -np.inf
        scores = self._without(self._refreshed(self.standing(shape), self.scorer), avoided)
        return most_met(self.pool, scores, shape.nodes, preferred)

    def place(
        self, shape: Shape, avoided: Collection[str] = (), preferred: Preferred | None = None
    ) -> tuple[RankPlace, ...] | None:
        if self.scorer is None:
            return None
        standing = self.standing(shape)
        if standing.nowhere_at >= 0 and self._still_nowhere(standing):
            return None
        scores = self._refreshed(standing, self.scorer)
        left = self._without(scores, avoided) if avoided else scores
        count = shape.nodes
        rows = self.scorer.choose(left, count) if preferred is None else choose(self.scorer, left, count, preferred)
        if len(rows) < shape.nodes:
            nothing = scores.max(initial=-np.inf) == -np.inf
            if nothing and not (self.scorer.may_fail and standing.fits(slice(None)).any()):
                standing.fits_nowhere_now()
                self._scored.pop(standing, None)
            return None
        return tuple(place for row in rows for place in self._ranks(row, standing, self.scorer))

    def _without(self, scores: Floats, avoided: Collection[str]) -> Floats:
        rows = [self.pool.row_of[name] for name in avoided if name in self.pool.row_of]
        if rows:
            scores = scores.copy()
            scores[rows] = -np.inf
        return scores

    def _refreshed(self, standing: Standing, scorer: Scorer) -> Floats:
        """The shape's scores, with every row that changed since they were made judged again."""
        stamp = self.pool.stamp
        scores = standing.scores
        if scores is None:
            _make_room(self._scored, MOST_SCORES // max(len(self.pool), 1), Standing.forget_scores)
            self._scored[standing] = None
            scores = standing.begin_scores()
        if standing.scored_at != stamp:
            rows, fitting = standing.changed_and_fitting(standing.scored_at)
            if fitting is not rows:
                scores[rows] = -np.inf
            if len(fitting):
                scores[fitting] = self._score(fitting, standing.shape, scorer)
            standing.scored_at = stamp
        return scores

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
            columns = scorer.devices(row, columns, need.gpus)
            return tuple(
                Grant(devices[column].uuid, WHOLE_GPU_MILLI, devices[column].capacity_mib) for column in columns
            )
        column = columns[0] if len(columns) == 1 else scorer.device(row, columns, standing.shape)
        return (Grant(devices[column].uuid, need.share_milli, standing.vram_on(row, column)),)


def _make_room(kept: dict[Standing, None], most: int, forget: Callable[[Standing], None]) -> None:
    """The oldest are forgotten where there are too many."""
    while len(kept) >= max(most, 1):
        oldest = next(iter(kept))
        del kept[oldest]
        forget(oldest)
