"""What lies ahead of a session that waits: when it will start, what that rests on, and what would start it now."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from corral.api.policy import Caller
from corral.api.render import RefusalView
from corral.model.quota import NOTHING
from corral.model.wording import length
from corral.ports import Reads
from corral.reconcile.placement import PER_SHAPE
from corral.scheduling.cycle import cycle, turn_of
from corral.scheduling.explaining.estimate import (
    Estimate,
    estimate,
    in_its_way,
    lately_of,
    shorter_time_s,
    standing_in,
    unknown_why,
)
from corral.scheduling.explaining.holders import Holder, holders
from corral.scheduling.explaining.suggest import submitted_anew, suggest
from corral.scheduling.ordering import line_of
from corral.scheduling.snapshot import Snapshot, Waiting

GROUPS_CLOSED = frozenset(("group_paused", "group_broken", "group_unknown", "other_group"))
MOST_HOLDERS = 20  # of one quota; the others are told together


class EstimateView(msgspec.Struct):
    """When it will start, by what is known now. `basis`: `now`, `stops` (when others, who would be stopped for it, have
    had their grace), `lately` (as such sessions took lately), `limits` (if everybody takes all its time) or `pace` (as
    many starts as lately). `latest`: not later than this, if those who run keep their limits."""

    at: datetime
    basis: str
    message: str
    latest: datetime | None


class ChangeView(msgspec.Struct):
    """One option of `submit` with which it would start now; a null value: without that option."""

    option: str
    value: str | None
    message: str


class HolderView(msgspec.Struct):
    """What of a quota is in use: by a session that the caller may see, or, where that is null, by `sessions` others
    together. `until`: when that is surely given back, if its time limit says so."""

    quota: str
    session: str | None
    sessions: int
    cpus: float
    memory_mib: int
    gpus: float
    vram_mib: int
    until: datetime | None


class Ahead(NamedTuple):
    """`blockers` are starts that it would delay, reservations, and a policy that fails at work; `unknown` says why no
    start is estimated; `changes` would each start it now; `held_by` is who uses up the quotas that keep it."""

    estimate: EstimateView | None = None
    unknown: str | None = None
    blockers: tuple[RefusalView, ...] = ()
    changes: tuple[ChangeView, ...] = ()
    held_by: tuple[HolderView, ...] = ()


def look_ahead(
    reads: Reads, asking: Caller, waiting: Waiting, position: int | None = None, *, possible: bool = True
) -> Ahead:
    """Of a session that stands in line, or of one that would be its last. `possible`: it may start one day as it is."""
    snapshot = standing_in(picture_of(reads), waiting)
    plan = cycle(snapshot)
    if any(placed.session.id == waiting.id for placed in plan.placements) and possible:
        return Ahead(_estimate_view(estimate(snapshot, waiting, lately_of(()), position, plan)))
    broken = tuple(one for one in plan.refusals.get(waiting.id, ()) if one.code == "group_broken")
    lately = lately_of(reads.ended_lately(line_of(waiting.shape.group, snapshot.groups) or ""))
    found = None if broken or not possible else estimate(snapshot, waiting, lately, position, plan)
    closed = {one.code for one in plan.refusals.get(waiting.id, ())} <= GROUPS_CLOSED
    told = (*in_its_way(plan, waiting.id), *broken)
    return Ahead(
        _estimate_view(found),
        None if found is not None or closed or not possible else unknown_why(snapshot, waiting),
        tuple(RefusalView(one.code, one.message, dict(one.counts)) for one in told),
        () if broken else (*_other_requests(snapshot, waiting), *_shorter(shorter_time_s(snapshot, waiting, plan))),
        tuple(_seen_by(asking, holders(snapshot, waiting))),
    )


def without_waiting(reads: Reads, waiting: Waiting, option: str) -> list[ChangeView]:
    """Of one that a condition of its own keeps out of the line, and nothing else: that it would start without."""
    snapshot, anew = submitted_anew(picture_of(reads), waiting)
    turn = turn_of(snapshot, anew.id)
    starts = turn is not None and turn.would_start(anew)
    return [ChangeView(option, None, f"without --{option} it would start now")] if starts else []


def picture_of(reads: Reads) -> Snapshot:
    """As a pass sees it, with all who run."""
    snapshot = reads.snapshot(PER_SHAPE)
    return replace(snapshot, running=reads.running(sorted(snapshot.groups)), unread=frozenset())


def _other_requests(snapshot: Snapshot, waiting: Waiting) -> list[ChangeView]:
    found = [(one.option, one.value) for one in suggest(snapshot, waiting)]
    return [
        ChangeView(option, value, f"{f'without --{option}' if value is None else f'with --{option} {value}'} it would "
                   "start now")
        for option, value in found
    ]  # fmt: skip


def _shorter(limit_s: int | None) -> list[ChangeView]:
    if limit_s is None:
        return []
    text = length(limit_s)
    return [ChangeView("time", text, f"with --time {text} it would start now, before what lies ahead")]


def _seen_by(asking: Caller, found: Iterable[Holder]) -> Iterable[HolderView]:
    """Others' sessions, of which the caller may not know, are told together."""
    by_quota: dict[str, list[Holder]] = {}
    for one in found:
        by_quota.setdefault(one.quota, []).append(one)
    for quota, under in by_quota.items():
        shown = [one for one in under if asking.owner in (None, one.owner)][:MOST_HOLDERS]
        named = {one.id for one in shown}
        rest = [one for one in under if one.id not in named]
        yield from (_holder_view(quota, one.id, [one], one.until) for one in shown)
        if rest:
            yield _holder_view(quota, None, rest, None)


def _holder_view(quota: str, id_: str | None, held: list[Holder], until: float | None) -> HolderView:
    total = NOTHING
    for one in held:
        total = total.plus(one.amounts)
    return HolderView(
        quota, id_, len(held), total.cpu_milli / 1000, total.memory_mib, total.gpu_milli / 1000, total.vram_mib,
        None if until is None else datetime.fromtimestamp(until, UTC),
    )  # fmt: skip


def _estimate_view(found: Estimate | None) -> EstimateView | None:
    if found is None:
        return None
    latest = None if found.latest is None else datetime.fromtimestamp(found.latest, UTC)
    return EstimateView(datetime.fromtimestamp(found.at, UTC), found.basis, found.message, latest)
