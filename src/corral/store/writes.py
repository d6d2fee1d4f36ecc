"""What every write shares: the statements' way out, locks, hints, and the rows that a lock holds still.

Every write is guarded by the state it expects and its row count is looked at. A count that should be impossible after
the locks were taken raises `Conflict`, which rolls the whole transaction back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NoReturn

from corral.model.session import Kernel, Session
from corral.ports import Deed
from corral.store import node_sql, sql
from corral.store.connection import Connection
from corral.store.faults import Conflict, MovedMeanwhile
from corral.store.reads import SqlReads


class Writes(SqlReads):
    """A transaction that somebody else begins and commits. Rows of sessions that nobody else can change (it has locked
    them, or it is alone) are read once, and again only after it wrote them itself."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.hints: dict[str, None] = {}
        self.deeds = Counter[Deed]()
        self._locked: set[str] = set()
        self._held_sessions: dict[str, Session] = {}
        self._held_kernels: dict[str, list[Kernel]] = {}
        self._desired: dict[str, int] = {}

    def hint(self, *channels: str) -> None:
        self.hints.update(dict.fromkeys(channels))

    def lock(self, nodes: Iterable[str], sessions: Iterable[str]) -> None:
        """Lock node rows by name, then session rows by id: the one order everywhere."""
        if names := sorted(set(nodes)):
            self._rows(node_sql.LOCK_NODES, names=names)
        if ids := sorted(set(sessions) - self._locked):
            self._rows(sql.LOCK_SESSIONS, ids=ids)
            self._locked.update(ids)
        self.forget_now()  # time may have passed while others held these

    def begin_again(self, why: str) -> NoReturn:
        raise MovedMeanwhile(why)

    def sessions(self, ids: Iterable[str]) -> dict[str, Session]:
        wanted = set(ids)
        held = self._held_sessions
        found = super().sessions(wanted - held.keys()) if wanted - held.keys() else {}
        held.update((id_, found[id_]) for id_ in self._still(found.keys()))
        found.update((id_, held[id_]) for id_ in wanted & held.keys())
        return dict(sorted(found.items(), key=_by_ordinal))

    def kernels(self, ids: Iterable[str]) -> dict[str, list[Kernel]]:
        wanted = set(ids)
        held = self._held_kernels
        found = super().kernels(wanted - held.keys()) if wanted - held.keys() else {}
        held.update((id_, found.get(id_, [])) for id_ in self._still(wanted) - held.keys())
        found.update((id_, held[id_]) for id_ in wanted & held.keys() if held[id_])
        return dict(sorted(found.items()))

    def _still(self, ids: AbstractSet[str]) -> AbstractSet[str]:
        """Those whose rows nobody else can change until this transaction ends."""
        return ids if self._connection.alone else ids & self._locked

    def _forget(self, ids: Iterable[str]) -> None:
        """These sessions' rows, or their kernels', were written: what is known of them is old."""
        for id_ in ids:
            self._held_sessions.pop(id_, None)
            self._held_kernels.pop(id_, None)

    def _run(self, statement: str, **parameters: Any) -> int:
        return self._connection.run(statement, **parameters)

    def _each(self, statement: str, parameters: Sequence[Mapping[str, Any]]) -> list[int]:
        """Run once per parameter set; the row count of each."""
        return self._connection.each(statement, parameters)

    def _all(self, statement: str, parameters: Sequence[Mapping[str, Any]]) -> None:
        """Run once per parameter set, each of which must change exactly one row."""
        changed = self._connection.many(statement, parameters)
        _expect(statement, changed, len(parameters))

    def _whole(self, statement: str, expected: int, **parameters: Any) -> None:
        """Run a statement that names a list of rows and must change exactly `expected`."""
        if expected:
            _expect(statement, self._run(statement, **parameters), expected)

    def _raise_desired(self, nodes: Iterable[str]) -> Mapping[str, int]:
        """The desired versions under which this transaction changes what these nodes are told."""
        wanted = set(nodes)
        if missing := sorted(wanted - self._desired.keys()):
            self._desired.update((row[0], row[1]) for row in self._rows(node_sql.RAISE_DESIRED, names=missing))
        if unknown := wanted - self._desired.keys():
            raise Conflict(f"node {min(unknown)} has no row")
        return self._desired


def _expect(statement: str, changed: int, expected: int) -> None:
    if changed != expected:
        raise Conflict(f"{changed} of {expected} rows as expected: {statement.split('WHERE')[0].strip()[:60]}")


def _by_ordinal(item: tuple[str, Session]) -> int:
    return item[1].ordinal
