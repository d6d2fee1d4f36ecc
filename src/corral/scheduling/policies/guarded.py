"""A placement policy that is not Corral's own, at work behind a guard: what it does wrong is noted once, and from then
on its group takes nothing for the rest of the pass. The other groups never notice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from corral.scheduling.engine.pool import Floats, Pool, Rows
from corral.scheduling.policies.atwork import AT_WORK, said
from corral.scheduling.policies.score import Demand, PlacementPolicy, Scorer
from corral.scheduling.snapshot import Shape

T = TypeVar("T")


def guarded(policy: PlacementPolicy, note: Callable[[str], None], name: str = "a placement policy") -> PlacementPolicy:
    """The same policy; `note` is called with the first thing that goes wrong."""
    return lambda pool, demand: _Guarded(policy, note, name, pool, demand)


class _Guarded(Scorer):
    may_fail = True

    def __init__(
        self, policy: PlacementPolicy, note: Callable[[str], None], name: str, pool: Pool, demand: Demand
    ) -> None:
        super().__init__(pool, demand)
        self._note = note
        self._name = name
        self._failed = False
        self._inner = self._ask(lambda: policy(pool, demand), None)
        self.by_shape = bool(getattr(self._inner, "by_shape", True))  # pyright: ignore[reportAttributeAccessIssue]

    def score(self, rows: Rows | slice, shape: Shape) -> Floats:
        nothing = np.full(len(self.pool.room[rows]), -np.inf)
        return self._ask(lambda: self._scores(rows, shape, len(nothing)), nothing)

    def choose(self, scores: Floats, count: int) -> Sequence[int]:
        return self._ask(lambda: self._chosen(scores, count), ())

    def device(self, row: int, columns: Sequence[int], shape: Shape) -> int:
        return self._ask(lambda: self._device(row, columns, shape), columns[0])

    def devices(self, row: int, columns: Sequence[int], count: int) -> Sequence[int]:
        return self._ask(lambda: self._devices(row, columns, count), columns[:count])

    def _scores(self, rows: Rows | slice, shape: Shape, count: int) -> Floats:
        scores = np.asarray(self._policy().score(rows, shape), dtype=float)
        if scores.shape != (count,) or not np.isfinite(scores).all():
            raise ValueError("its scores are not one finite number for each row")
        return scores

    def _chosen(self, scores: Floats, count: int) -> Sequence[int]:
        rows = [int(row) for row in self._policy().choose(scores, count)]
        fitting = all(0 <= row < len(scores) and scores[row] > -np.inf for row in rows)
        if len(rows) > count or len(set(rows)) < len(rows) or not fitting:
            raise ValueError("it chose nodes that do not fit, one twice, or too many")
        return rows

    def _device(self, row: int, columns: Sequence[int], shape: Shape) -> int:
        column = int(self._policy().device(row, columns, shape))
        if column not in columns:
            raise ValueError("it chose a device without room")
        return column

    def _devices(self, row: int, columns: Sequence[int], count: int) -> Sequence[int]:
        chosen = [int(column) for column in self._policy().devices(row, columns, count)]
        if len(chosen) != count or len(set(chosen)) < count or not set(chosen) <= set(columns):
            raise ValueError("it chose devices that are not idle, one twice, or not as many as were asked for")
        return chosen

    def _policy(self) -> Scorer:
        if self._inner is None:
            raise ValueError("it made no scorer")
        return self._inner

    def _ask(self, answer: Callable[[], T], otherwise: T) -> T:
        if self._failed:
            return otherwise
        try:
            AT_WORK.name = self._name
            return answer()
        except BaseException as error:  # a stranger's code may raise anything
            self._failed = True
            self._note(f"its placement policy failed: {said(error)}"[:500])
            return otherwise
        finally:
            AT_WORK.name = None
