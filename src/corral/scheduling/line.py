"""Those of one shape that stand in line, and who of them comes first by whatever an order may go by."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice

from corral.scheduling.policies.order import Need
from corral.scheduling.snapshot import Waiting


class Line:
    """`members`, oldest first. Only `add` and `remove` change it."""

    def __init__(self) -> None:
        self.members: list[Waiting] = []
        self._told: dict[str, Waiting] = {}  # that were told why they wait, or have room made for them
        self._chosen: dict[tuple[frozenset[Need], int], list[Waiting]] = {}

    def add(self, one: Waiting) -> None:
        if not self.members or self.members[-1].ordinal < one.ordinal:
            self.members.append(one)
        else:
            insort(self.members, one, key=_ordinal)
        if one.refused is not None or one.room_by is not None:
            self._told[one.id] = one
        self._chosen.clear()

    def remove(self, one: Waiting) -> None:
        del self.members[bisect_left(self.members, one.ordinal, key=_ordinal)]
        self._told.pop(one.id, None)
        self._chosen.clear()

    def first(self, needs: frozenset[Need], count: int) -> Sequence[Waiting]:
        """The `count` oldest, those told something, and as many as that by each of `needs`."""
        if len(self.members) <= count:
            return self.members
        chosen = self._chosen.get((needs, count))
        if chosen is None:
            found = {one.ordinal: one for one in self._first(needs, count)}
            chosen = self._chosen[needs, count] = [found[ordinal] for ordinal in sorted(found)]
        return chosen

    def _first(self, needs: frozenset[Need], count: int) -> Iterator[Waiting]:
        yield from islice(self.members, count)
        yield from self._told.values()
        if Need.NEWEST in needs:
            yield from self.members[-count:]
        if Need.SHORTEST in needs and any(one.time_limit_s is not None for one in self.members):
            yield from sorted(self.members, key=_limit)[:count]
        if Need.RESTARTED in needs:
            yield from (one for one in self.members if one.attempt > 1)
        if needs & {Need.OWNER, Need.PROJECT, Need.PRIORITY}:
            yield from self._of_each(Need.OWNER in needs, Need.PROJECT in needs, Need.PRIORITY in needs, count)

    def _of_each(self, owner: bool, project: bool, priority: bool, count: int) -> Iterator[Waiting]:
        """The oldest of every owner, project, priority, or combination of these."""
        seen: defaultdict[tuple[object, ...], int] = defaultdict(int)
        for one in self.members:
            key = (owner and one.owner, project and one.project, priority and one.priority)
            seen[key] += 1
            if seen[key] <= count:
                yield one


def _ordinal(one: Waiting) -> int:
    return one.ordinal


def _limit(one: Waiting) -> float:
    return math.inf if one.time_limit_s is None else one.time_limit_s
