"""Those of one shape that stand in line, and who of them comes first by whatever an order may go by."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from corral.scheduling.policies.order import Need
from corral.scheduling.snapshot import Running, Waiting

MOST_CHOSEN = 4  # answers that are remembered, for as many questions; how many are asked for changes with the room
PARTS = frozenset({Need.OWNER, Need.PROJECT, Need.PRIORITY})


class Line:
    """`members`, oldest first. Only `add` and `remove` change it."""

    def __init__(self) -> None:
        self.members: list[Waiting] = []
        self._told: dict[str, Waiting] = {}  # that were told why they wait, or have room made for them
        self._chosen: dict[tuple[frozenset[Need], int, bool], list[Waiting]] = {}

    def add(self, one: Waiting) -> None:
        if not self.members or self.members[-1].ordinal < one.ordinal:
            self.members.append(one)
        else:
            insort(self.members, one, key=ordinal_of)
        if one.refused is not None or one.room_by is not None:
            self._told[one.id] = one
        self._chosen.clear()

    def remove(self, one: Waiting) -> None:
        del self.members[bisect_left(self.members, one.ordinal, key=ordinal_of)]
        self._told.pop(one.id, None)
        self._chosen.clear()

    def made_for(self) -> int:
        """For how many of them others were stopped: these need nobody else's room, and hide nobody who does."""
        return sum(one.room_by is not None for one in self._told.values())

    def first(self, needs: frozenset[Need], count: int, *, by_limit: bool = False) -> Sequence[Waiting]:
        """The `count` oldest, those told something, and as many as that by each of `needs`, or of each time limit."""
        if len(self.members) <= count:
            return self.members
        key = (needs, count, by_limit)
        chosen = self._chosen.get(key)
        if chosen is None:
            if len(self._chosen) >= MOST_CHOSEN:
                self._chosen.clear()
            found = {one.ordinal: one for one in self._first(*key)}
            chosen = self._chosen[key] = [found[ordinal] for ordinal in sorted(found)]
        return chosen

    def _first(self, needs: frozenset[Need], count: int, by_limit: bool) -> Iterator[Waiting]:
        yield from islice(self.members, count)
        yield from self._told.values()
        if Need.RESTARTED in needs:
            yield from (one for one in self.members if one.attempt > 1)
        limits = by_limit and len({one.time_limit_s for one in self.members}) > 1
        parts = needs & PARTS
        if parts or limits:
            yield from self._of_each(parts, limits, self.members, count)
        if Need.NEWEST in needs:
            yield from self._of_each(parts, limits, reversed(self.members), count)
        if Need.SHORTEST in needs:
            yield from self._of_each(parts, False, sorted(self.members, key=_limit), count)

    def _of_each(self, parts: frozenset[Need], limits: bool, line: Iterable[Waiting], count: int) -> Iterator[Waiting]:
        """The first of every owner, project, priority, time limit, or combination of these."""
        owner, project, priority = (part in parts for part in (Need.OWNER, Need.PROJECT, Need.PRIORITY))
        seen: defaultdict[tuple[object, ...], int] = defaultdict(int)
        for one in line:
            kind = (
                owner and one.owner,
                project and one.project,
                priority and one.priority,
                limits and one.time_limit_s,
            )
            seen[kind] += 1
            if seen[kind] <= count:
                yield one


def ordinal_of(one: Waiting | Running) -> int:
    return one.ordinal


def _limit(one: Waiting) -> float:
    return math.inf if one.time_limit_s is None else one.time_limit_s
