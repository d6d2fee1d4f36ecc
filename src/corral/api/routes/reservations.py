"""Reservations: nodes that are kept free for a time, for maintenance or for somebody. Administrators make them;
everybody sees them, since everybody waits for them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

import msgspec
from fastapi import Body, Query, Response

from corral.api.context import Here
from corral.api.inputs import ReservationIn
from corral.api.openapi import json_of, respond
from corral.api.policy import Asking, Caller, Policy, allow, routes
from corral.model.reservation import AskedReservation, ReservationRow
from corral.ports import Reads, Tx
from corral.reconcile import reserving as intents

router = routes("reservations")


class ReservationView(msgspec.Struct):
    """`state` is `ahead`, `now`, `over` or `deleted`. Whom it is for are `owners` and `projects`: among the owners each
    caller sees himself, and how many `others` there are. Where there is nobody at all, nobody starts there.
    `conflicts` are sessions that hold room on the nodes and may still be there when it begins, which are left alone:
    how many, and those of them that the caller sees."""

    name: str
    version: int
    state: str
    starts_at: datetime
    ends_at: datetime
    nodes: list[str]
    owners: list[str]
    projects: list[str]
    reason: str
    conflicts: int
    conflicting: list[str]
    made_at: datetime
    made_by: str
    deleted_at: datetime | None
    deleted_by: str | None
    others: int = 0


@router.get("/api/v1/reservations", responses=json_of(list[ReservationView]))
@allow(Policy.USER)
async def reservations(
    here: Here, asking: Asking, every: Annotated[bool, Query(description="also those over or deleted")] = False,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> Response:  # fmt: skip
    """Those that are not over, soonest first; or every one that was made, newest first."""

    def look(reads: Reads) -> list[ReservationView]:
        return _views(reads, reads.all_reservations(limit) if every else reads.reservations()[:limit], asking)

    return respond(await here.store.read("reservations", look))


@router.get("/api/v1/reservations/{name}", responses=json_of(ReservationView))
@allow(Policy.USER)
async def reservation(here: Here, asking: Asking, name: str) -> Response:
    """One that is not over."""
    return respond(
        await here.store.read("reservation", lambda reads: _views(reads, [intents.find(reads, name)], asking)[0])
    )


@router.post("/api/v1/reservations", status_code=201, responses=json_of(ReservationView, 201))
@allow(Policy.ADMIN)
async def create_reservation(here: Here, asking: Asking, asked: Annotated[ReservationIn, Body()]) -> Response:
    """Keep nodes free. From its acknowledgement on nobody starts there what would run into it."""
    wanted = AskedReservation(
        asked.name,
        asked.begin,
        asked.end,
        asked.length,
        tuple(asked.node),
        asked.group,
        asked.nodes,
        tuple(asked.owner),
        tuple(asked.project),
        asked.reason,
    )

    def create(tx: Tx) -> ReservationView:
        return _views(tx, [intents.create(tx, wanted, asking.by)], asking)[0]

    made = await here.store.tx("create reservation", create)
    return respond(made, 201, {"Location": f"/api/v1/reservations/{made.name}"})


@router.delete("/api/v1/reservations/{name}", responses=json_of(ReservationView))
@allow(Policy.ADMIN)
async def delete_reservation(here: Here, asking: Asking, name: str) -> Response:
    """Its nodes are for everybody again; the reservation as it was last."""

    def delete(tx: Tx) -> ReservationView:
        last = _views(tx, [intents.find(tx, name)], asking)[0]
        intents.delete(tx, name, asking.by)
        return last

    return respond(await here.store.tx("delete reservation", delete))


def _views(reads: Reads, found: Sequence[ReservationRow], asking: Caller) -> list[ReservationView]:
    ahead = [one for one in found if _state(one, reads.now) in ("ahead", "now")]
    met = intents.conflicts(reads, ahead)
    return [
        ReservationView(
            one.name,
            one.version,
            _state(one, reads.now),
            _time(one.starts_at),
            _time(one.ends_at),
            list(one.nodes),
            [owner for owner in one.owners if asking.owner in (None, owner)],
            list(one.projects),
            one.reason,
            len(met.get((one.name, one.version), ())),
            [run.id for run in met.get((one.name, one.version), ()) if asking.owner in (None, run.owner)],
            _time(one.made_at),
            one.made_by,
            None if one.deleted_at is None else _time(one.deleted_at),
            one.deleted_by,
            sum(asking.owner not in (None, owner) for owner in one.owners),
        )
        for one in found
    ]


def _state(one: ReservationRow, now: float) -> str:
    if one.deleted_at is not None:
        return "deleted"
    return "over" if one.ends_at <= now else "now" if one.starts_at <= now else "ahead"


def _time(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)
