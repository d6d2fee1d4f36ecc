"""Questions about arrays and their members, those without rows included. Part of ports.Reads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from corral.model.array import Array, Due, Missed, Tally, member, phase_of, tally
from corral.model.lifecycle import ExitClass, Phase, Wanted
from corral.model.session import Session
from corral.ports import SessionFilter, Unreadable
from corral.store import array_sql, listing, rows, sql
from corral.store.connection import Connection

CHUNK = 1000
NO_END = 2**62


class ArrayReads:
    """Reads on one connection. An array whose row cannot be read is left out of the answers."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def _rows(self, statement: str, **parameters: Any) -> list[Any]:
        return self._connection.rows(statement, **parameters)

    def arrays(self, ids: Iterable[str]) -> dict[str, Array]:
        listed = list(ids)
        found = self._rows(array_sql.ARRAYS, ids=listed) if listed else []
        return {one.id: one for row in found if (one := _readable(row)) is not None}

    def tallies(self, arrays: Sequence[Array]) -> dict[str, Tally]:
        counted: defaultdict[str, list[tuple[str, str | None, int]]] = defaultdict(list)
        ids = [array.id for array in arrays if array.ended_at is None]
        for id_, phase, outcome, count in self._rows(array_sql.ARRAY_TALLY, ids=ids) if ids else ():
            counted[id_].append((phase, outcome, count))
        return {array.id: tally(array, counted[array.id]) for array in arrays}

    def list_arrays(self, what: SessionFilter) -> list[tuple[Array, Tally]]:
        """Those that fit, newest first, by the phase of the whole."""
        return list(islice((one for one in self._each_array(what) if not isinstance(one, Unreadable)), what.limit))

    def listed_arrays(self, what: SessionFilter) -> list[tuple[Array, Tally] | Unreadable]:
        return list(islice(self._each_array(what), what.limit))

    def _each_array(self, what: SessionFilter) -> Iterator[tuple[Array, Tally] | Unreadable]:
        live = bool(what.phases) and Phase.ENDED not in what.phases
        for page in self._pages(what, live=live):
            tallies = self.tallies([one for one in page if isinstance(one, Array)])
            for one in page:
                phase = one.phase if isinstance(one, Unreadable) else phase_of(one, tallies[one.id])
                if not what.phases or phase in what.phases:
                    yield one if isinstance(one, Unreadable) else (one, tallies[one.id])

    def unmade(self, what: SessionFilter) -> list[Session]:
        """Members without rows that fit, newest first."""
        return list(islice(self._each_unmade(what), what.limit))

    def _each_unmade(self, what: SessionFilter) -> Iterator[Session]:
        for page in self._pages(what._replace(limit=CHUNK, after=None), unmade=True):
            for array in page:
                if isinstance(array, Unreadable):
                    continue
                phase = Phase.ENDED if array.wanted is Wanted.STOP else Phase.PENDING
                if not what.phases or phase in what.phases:
                    yield from self._unmade_of(array, what.after or NO_END)

    def _unmade_of(self, array: Array, before: int) -> Iterator[Session]:
        high = min(array.size, before - array.ordinal - 1)
        while high > array.reached:
            low = max(array.reached, high - CHUNK)
            there = self._there(array, low, high)
            yield from (member(array, place) for place in range(high - 1, low - 1, -1) if place not in there)
            high = low

    def unreadable(self, ids: Iterable[str]) -> list[Unreadable]:
        return listing.unreadable(self._rows, list(ids))

    def named(self, name: str, owner: str | None, limit: int) -> list[str]:
        return listing.named(self._rows, name, owner, limit)

    def _pages(
        self, what: SessionFilter, *, live: bool = False, unmade: bool = False
    ) -> Iterator[list[Array | Unreadable]]:
        for page in listing.array_pages(self._rows, what, live=live, unmade=unmade):
            found = [listing.array_or_not(row) for row in page]
            yield [one for one in found if listing.has_labels(one, what.labels)]

    def _there(self, array: Array, low: int, high: int) -> set[int]:
        """Of these places, those whose members have rows."""
        first, end = array.ordinal_at(low), array.ordinal_at(high)
        found = self._rows(array_sql.MEMBERS_THERE, first=first, end=end)
        return {row[0] - array.ordinal - 1 for row in found}

    def arrays_due(self, window: int, limit: int) -> list[str]:
        due = [row[0] for row in self._rows(array_sql.ARRAYS_DUE, window=window, limit=limit)]
        if len(due) == limit and len(readable := self.arrays(due)) < limit:  # those that are not must not hide others
            more = [row[0] for row in self._rows(array_sql.ARRAYS_DUE, window=window, limit=NO_END)]
            due = [*readable, *self.arrays(more[limit:])][:limit]
        return due

    def arrays_decided(self, limit: int) -> list[str]:
        return [row[0] for row in self._rows(sql.ARRAYS_DECIDED, limit=limit)]

    def members_due(self, array: Array, window: int, limit: int) -> Due:
        """How many members may get their turn now, and who is next: those with rows, then places without."""
        turned = {row[0]: row[1] for row in self._rows(array_sql.MEMBERS_TURNED, id=array.id)}
        live, pending = sum(turned.values()), turned.get(Phase.PENDING, 0)
        throttle = array.indices.throttle
        room = min(window - pending, NO_END if throttle is None else throttle - live, limit)
        if room <= 0:
            return Due((), (), array.reached)
        waiting = [(row[1], row[0]) for row in self._rows(array_sql.MEMBERS_IN_WAIT, id=array.id, limit=room)]
        places, reached = self._next_places(array, room) if array.wanted is Wanted.RUN else ([], array.reached)
        chosen = sorted([*waiting, *((array.ordinal_at(place), "") for place in places)])[:room]
        taken = [ordinal - array.ordinal - 1 for ordinal, id_ in chosen if not id_]
        if len(taken) < len(places):
            reached = places[len(taken)]
        return Due(tuple(id_ for _, id_ in chosen if id_), tuple(taken), reached)

    def _next_places(self, array: Array, count: int) -> tuple[list[int], int]:
        """The next places without rows, and up to where every place will have one once these do."""
        found: list[int] = []
        at, size = array.reached, array.size
        while at < size and len(found) < count:
            end = min(size, at + CHUNK)
            there = self._there(array, at, end)
            for place in range(at, end):
                if len(found) == count:
                    return found, place
                if place not in there:
                    found.append(place)
            at = end
        return found, at

    def live_members(self, array_id: str) -> list[str]:
        return [row[0] for row in self._rows(array_sql.MEMBERS_LIVE, id=array_id)]

    def first_not_good(self, array: Array) -> Missed | None:
        """Of an array whose members all ended, the first in order that did not end well, and how it ended."""
        found = self._rows(array_sql.MEMBER_NOT_GOOD, id=array.id)
        first = Missed(array.id_with(found[0][0]), found[0][1] or 1, ExitClass(found[0][2])) if found else None
        unmade = self.first_unmade(array)
        if unmade is not None and (not found or unmade.ordinal < found[0][0]):
            return Missed(unmade.id, 130, ExitClass.CANCELLED)
        return first

    def first_unmade(self, array: Array) -> Session | None:
        places = self._next_places(array, 1)[0] if array.unmade else []
        return member(array, places[0]) if places else None

    def has_member(self, array: Array, place: int) -> bool:
        return place < array.reached or place in self._there(array, place, place + 1)


def _readable(row: rows.Row) -> Array | None:
    """Of a row without the names that are listed beside it."""
    found = listing.array_or_not((*row, "", ""))
    return found if isinstance(found, Array) else None
