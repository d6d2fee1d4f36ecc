"""The questions whose answers are lists of what there is, in order. Part of ports.Reads, which says how they answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from corral.model.array import Array, Tally
from corral.model.session import Session
from corral.records import SessionFilter, Unreadable


class Lists(Protocol):
    """Newest first, page by page. What cannot be read is left out, or told of as `Unreadable`."""

    def list_sessions(self, what: SessionFilter) -> list[Session]: ...
    def listed(self, what: SessionFilter) -> list[Session | Unreadable]:
        """As `list_sessions`, with those whose row cannot be read."""
        ...

    def unreadable(self, ids: Iterable[str]) -> list[Unreadable]:
        """The same, arrays too, as they are listed."""
        ...

    def named(self, name: str, owner: str | None, limit: int) -> list[str]:
        """Ids of the newest sessions and arrays of this name, of some thousands of the owner's, or of everybody's."""
        ...

    def list_arrays(self, what: SessionFilter) -> list[tuple[Array, Tally]]: ...
    def listed_arrays(self, what: SessionFilter) -> list[tuple[Array, Tally] | Unreadable]:
        """With those whose row cannot be read."""
        ...

    def unmade(self, what: SessionFilter) -> list[Session]:
        """Members without rows, as they would be listed."""
        ...

    def ledger(self, *, alike: bool = True) -> Iterable[tuple[str, Mapping[str, Any]]]:
        """Every row that model.invariants looks at, as (table, row). Without `alike`, of the sessions that are over
        and not of an array one for each story: if nothing is wrong in these, nothing is in all."""
        ...

    def ledger_counts(self) -> dict[str, int]:
        """How many rows of each kind `ledger` has."""
        ...

    def unreadable_sessions(self) -> dict[str, str]:
        """Every session whose stored row cannot be read, with the error."""
        ...
