"""What lies ahead of a session that waits: when it will start, what that rests on, and what time limit would do now."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from corral.api.render import RefusalView
from corral.ports import Reads
from corral.reconcile.placement import PER_SHAPE
from corral.scheduling.cycle import cycle
from corral.scheduling.explaining.estimate import Estimate, estimate, in_its_way, lately_of, shorter_time_s, standing_in
from corral.scheduling.ordering import line_of
from corral.scheduling.snapshot import Snapshot, Waiting


class EstimateView(msgspec.Struct):
    """When it will start, by what is known now. `basis`: `now`, `lately` (as such sessions took lately), `limits` (if
    everybody takes all its time) or `pace` (as many starts as lately). `latest`: not later than this, if those who run
    keep their limits."""

    at: datetime
    basis: str
    message: str
    latest: datetime | None


class Ahead(NamedTuple):
    """`blockers` are starts that it would delay, reservations, and a policy that fails at work; `shorter_s` the time
    limit with which it would start now."""

    estimate: EstimateView | None = None
    blockers: tuple[RefusalView, ...] = ()
    shorter_s: int | None = None


def look_ahead(reads: Reads, waiting: Waiting, position: int | None = None) -> Ahead:
    """Of a session that stands in line, or of one that would be its last."""
    snapshot = standing_in(picture_of(reads), waiting)
    plan = cycle(snapshot)
    broken = tuple(one for one in plan.refusals.get(waiting.id, ()) if one.code == "group_broken")
    lately = lately_of(reads.ended_lately(line_of(waiting.shape.group, snapshot.groups) or ""))
    found = None if broken else estimate(snapshot, waiting, lately, position, plan)
    told = in_its_way(plan, waiting.id)
    return Ahead(
        None if found is None else _view(found),
        tuple(RefusalView(one.code, one.message, dict(one.counts)) for one in (*told, *broken)),
        shorter_time_s(snapshot, waiting, plan) if told else None,
    )


def picture_of(reads: Reads) -> Snapshot:
    """As a pass sees it, with all who run."""
    snapshot = reads.snapshot(PER_SHAPE)
    return replace(snapshot, running=reads.running(sorted(snapshot.groups)), unread=frozenset())


def _view(found: Estimate) -> EstimateView:
    latest = None if found.latest is None else datetime.fromtimestamp(found.latest, UTC)
    return EstimateView(datetime.fromtimestamp(found.at, UTC), found.basis, found.message, latest)
