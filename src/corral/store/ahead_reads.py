"""Questions about what lies ahead: reservations, and planned starts. Part of ports.Reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from corral.model.reservation import ReservationRow
from corral.scheduling.explaining.estimate import Ended
from corral.scheduling.snapshot import Reservation
from corral.store import ahead_sql, rows

Rows = Callable[..., list[Any]]
LATELY_MOST, LATELY_AMONG = 200, 5000


def reservations(ask: Rows, now: float) -> list[ReservationRow]:
    """Those that are not over, soonest first."""
    return [_reservation(row) for row in ask(ahead_sql.RESERVATIONS, now=now)]


def all_reservations(ask: Rows, limit: int) -> list[ReservationRow]:
    """Every one that was made, newest first."""
    return [_reservation(row) for row in ask(ahead_sql.ALL_RESERVATIONS, limit=limit)]


def reserved(found: Iterable[ReservationRow]) -> tuple[Reservation, ...]:
    """As a scheduling pass sees them."""
    return tuple(
        Reservation(one.name, one.nodes, one.starts_at, one.ends_at, one.owners, one.projects) for one in found
    )


def planned(ask: Rows, ids: Iterable[str] | None) -> dict[str, float]:
    found = ask(ahead_sql.PLANNED) if ids is None else ask(ahead_sql.PLANNED_OF, ids=list(ids))
    return {row[0]: row[1] for row in found}


def ended_lately(ask: Rows, group: str) -> list[Ended]:
    found = ask(ahead_sql.ENDED_LATELY, grp=group, window=LATELY_AMONG, limit=LATELY_MOST)
    return [Ended(*row) for row in found]


def _reservation(row: rows.Row) -> ReservationRow:
    name, version, starts_at, ends_at, nodes, owners, projects, *rest = row
    whose = _names(owners), _names(projects)
    return ReservationRow(name, version, starts_at, ends_at, _names(nodes), *whose, *rest)


def _names(text: str) -> tuple[str, ...]:
    return msgspec.json.decode(text, type=tuple[str, ...])
