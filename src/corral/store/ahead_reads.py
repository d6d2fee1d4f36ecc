"""Questions about what lies ahead: reservations, and planned starts. Part of ports.Reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import msgspec

from corral.model.reservation import ReservationRow
from corral.scheduling.explaining.estimate import Ended
from corral.scheduling.places import Grant, RankPlace
from corral.scheduling.snapshot import Promise, Reservation
from corral.store import ahead_sql, rows

Rows = Callable[..., list[Any]]
LATELY_MOST, LATELY_AMONG = 200, 5000
MOST_PROMISES = 1024  # that are remembered as they were read


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


def planned(ask: Rows, ids: Iterable[str]) -> dict[str, float]:
    return {row[0]: row[1] for row in ask(ahead_sql.PLANNED_OF, ids=list(ids))}


class Kept(msgspec.Struct, array_like=True):
    """What is held for a planned start: from when on, the session's priority then, and of each rank its node, CPUs,
    memory and devices."""

    at: float
    priority: int
    ranks: list[tuple[str, int, int, list[tuple[str, int, int]]]]


def promises(ask: Rows) -> dict[str, Promise]:
    return {row[0]: _promise(row[1], row[2], row[3]) for row in ask(ahead_sql.PLANNED)}


@lru_cache(MOST_PROMISES)
def _promise(told: float, group: str, text: str | None) -> Promise:
    if text is None:
        return Promise(told, told, group)
    kept = msgspec.json.decode(text, type=Kept)
    ranks = (
        RankPlace(node, 0, "", cpu_milli, memory_mib, tuple(Grant(*one) for one in grants))
        for node, cpu_milli, memory_mib, grants in kept.ranks
    )
    return Promise(told, kept.at, group, tuple(ranks), kept.priority)


def kept_text(one: Promise) -> str:
    ranks = [
        (rank.node, rank.cpu_milli, rank.memory_mib, [(of.uuid, of.share_milli, of.vram_mib) for of in rank.grants])
        for rank in one.ranks
    ]
    return rows.dumps(Kept(one.at, one.priority, ranks))


def ended_lately(ask: Rows, group: str) -> list[Ended]:
    found = ask(ahead_sql.ENDED_LATELY, grp=group, window=LATELY_AMONG, limit=LATELY_MOST)
    return [Ended(*row) for row in found]


def _reservation(row: rows.Row) -> ReservationRow:
    name, version, starts_at, ends_at, nodes, owners, projects, *rest = row
    whose = _names(owners), _names(projects)
    return ReservationRow(name, version, starts_at, ends_at, _names(nodes), *whose, *rest)


def _names(text: str) -> tuple[str, ...]:
    return msgspec.json.decode(text, type=tuple[str, ...])
