"""One group's nodes, ready to be asked where a shape goes: a part of a `Fleet`.

Knows the group's pool, its policy at work, and the shapes that were met, as many as may be remembered. A shape's scores
are made when it is first tried, and after that only for nodes that changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection

import numpy as np

from corral.model.node import Node
from corral.model.resources import WHOLE_GPU_MILLI
from corral.scheduling.engine.pool import Floats, Pool, Rows
from corral.scheduling.engine.room import amounts_of
from corral.scheduling.engine.standing import FITS, Bars, Standing
from corral.scheduling.places import Grant, RankPlace
from corral.scheduling.policies.preferred import choose, most_met
from corral.scheduling.policies.scorer import Demand, PlacementPolicy, Scorer
from corral.scheduling.snapshot import Preferred, Shape

MOST_SHAPES = 100_000  # remembered per group: that they fit nowhere, and since when
MOST_BARS = 1000  # combinations of labels, nodes and runtimes that are remembered per group
MOST_SCORES = 2**25  # of one node for one shape, per group, in 8 bytes each
MOST_REASONS = 2**27  # likewise, in one byte each


class GroupNodes:
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
