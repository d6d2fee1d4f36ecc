"""Questions about quotas: which there are, and what is held and waits of what they limit. Part of ports.Reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

from corral.model.faults import Invalid
from corral.model.quota import HELD, NO_QUOTAS, NOTHING, Amounts, Claimant, Held, Quota, Quotas
from corral.scheduling.limits import asked
from corral.store import quota_sql, rows

Rows = Callable[..., list[Any]]
T = TypeVar("T")


def quotas(ask: Rows, now: float, *, held: bool = True, owners: Iterable[str] | None = None) -> Quotas:
    """All there are. Where there is none nothing is added up."""
    listed = tuple(_quota(row) for row in ask(quota_sql.QUOTAS))
    if not listed:
        return NO_QUOTAS
    found = Quotas(listed, _domains(ask))
    limited = held and any(name in quota.limits for quota in listed for name in HELD)
    return _with_held(ask, now, found, owners) if limited else found


def all_held(ask: Rows, now: float) -> Quotas:
    return _with_held(ask, now, Quotas(tuple(_quota(row) for row in ask(quota_sql.QUOTAS)), _domains(ask)), None)


def _domains(ask: Rows) -> dict[str, str]:
    return {row[0]: row[1] for row in ask(quota_sql.DOMAINS)}


def _with_held(ask: Rows, now: float, found: Quotas, owners: Iterable[str] | None) -> Quotas:
    """What these owners hold, or everybody."""
    of: dict[str, Any] = {} if owners is None else {"owners": sorted(set(owners))}
    held, holding = (
        (quota_sql.QUOTA_HELD_OF, quota_sql.QUOTA_HOLDING_OF) if of else (quota_sql.QUOTA_HELD, quota_sql.QUOTA_HOLDING)
    )
    sessions = {tuple(row[:3]): row[3] for row in ask(holding, **of)}
    # Between the two statements somebody may be placed under quotas that are not locked here: counted by the next look.
    sums = tuple(_held(row[:3], (*row[3:], sessions.get(tuple(row[:3]), 0))) for row in ask(held, **of))
    pinned = {row[0]: _held(row[1:4], (*row[4:], 1)) for row in ask(quota_sql.QUOTA_PINNED)}
    for row in ask(quota_sql.QUOTA_CLAIMING, now=now):
        if (claimed := _claimed(row)) is not None:
            pinned[row[0]] = Held(claimed.claimant, claimed.amounts.at_least(pinned.get(row[0], NO_ONE).amounts))
    return found._replace(held=sums, pinned=pinned)


NO_ONE = Held(Claimant("", ""), NOTHING)


def _claimed(row: rows.Row) -> Held | None:
    """What one asks for at least that others stop for; None: its spec cannot be read."""
    try:
        shape = rows.shape_in(row[1])
    except (Invalid, ValueError):
        return None
    return Held(Claimant(row[2], row[3], shape.group or row[4]), asked(shape, (), {}))


def waiting_of(ask: Rows, owners: Iterable[str] | None) -> list[tuple[Claimant, int]]:
    """How many wait, by whose they are: of these owners, or of everybody."""
    found = (
        ask(quota_sql.QUOTA_WAITING) if owners is None else ask(quota_sql.QUOTA_WAITING_OF, owners=sorted(set(owners)))
    )
    return [(Claimant(row[0], row[1], row[2]), int(row[3])) for row in found]


def quota_columns(quota: Quota) -> dict[str, Any]:
    return {
        "name": quota.name,
        "owner": quota.owner,
        "project": quota.project,
        "domain": quota.domain,
        "grp": quota.group,
        "limits": rows.dumps(dict(quota.limits)),
        "version": quota.version,
    }


def decoded(row: dict[str, Any]) -> dict[str, Any]:
    """A row of the ledger with its documents read; None: it cannot be."""
    above = _decoded(row["above"], list[tuple[tuple[str, ...], dict[str, int]]])
    return row | {"limits": _decoded(row["limits"], dict[str, int]), "above": above}


def _quota(row: rows.Row) -> Quota:
    """One that cannot be read lets in nobody until it is set anew: what it said is not guessed."""
    limits = _decoded(row[5], dict[str, int])
    return Quota(*row[:5], limits={"sessions": 0} if limits is None else limits, version=row[6])


def _decoded(text: str, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None


def _held(claimant: rows.Row, amounts: rows.Row) -> Held:
    return Held(Claimant(*claimant), Amounts(*map(int, amounts)))
