"""When a session that waits will start: a guess that says what it rests on, or none.

    now      there is room, and nobody before it
    stops    others would be stopped for it: when they have had their grace
    lately   those who run and those before it take as much of their time limits as such sessions took lately, or as
             long where they have none; a pass is made on that, in which everybody before it has its start planned
    limits   the same where nothing ended lately: everybody takes all its time
    pace     too far back to plan: as many before it start in as long as it took lately

Where quotas may keep it, it is when it starts in the `course` that things take by `lately` or `limits`, in which they
count as in every pass; there is no pace then, and where that tells nothing, no estimate (`unknown_why`).
`latest` is the planned start, by limits alone, where there is one. Pure: makes passes on snapshots that are made up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

from corral.model.node import ResourceGroup
from corral.model.quota import TIME, Claimant, Quota
from corral.model.wording import number_of, span
from corral.scheduling.cycle import cycle
from corral.scheduling.explaining.course import quotas_counting, start_in_course
from corral.scheduling.limits import Admission
from corral.scheduling.ordering import line_of
from corral.scheduling.plan import Plan, Refusal
from corral.scheduling.snapshot import Running, Snapshot, Waiting

MOST_PLANNED = 50  # before it: beyond that its pace says more, and costs less
MOST_TRIES = 3
SHORTEST_S = 1.0


class Ended(NamedTuple):
    """A session that ran and ended: when it started and ended, and the limit it had."""

    started_at: float
    ended_at: float
    time_limit_s: int | None


class Lately(NamedTuple):
    """What those who ended lately were like. `part`: of its time limit a session took so much; `ran_s`: without a limit
    so long; `gap_s`: from one start to the next."""

    part: float | None = None
    ran_s: float | None = None
    gap_s: float | None = None


class Estimate(NamedTuple):
    """`at`: seconds since 1970."""

    at: float
    basis: str
    message: str
    latest: float | None = None


def lately_of(ended: Iterable[Ended]) -> Lately:
    listed = list(ended)
    parts = [min(1.0, (one.ended_at - one.started_at) / one.time_limit_s) for one in listed if one.time_limit_s]
    ran = [one.ended_at - one.started_at for one in listed if one.time_limit_s is None]
    starts = sorted(one.started_at for one in listed)
    gap = (starts[-1] - starts[0]) / (len(starts) - 1) if len(starts) > 1 else None
    return Lately(_mean(parts), _mean(ran), gap)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def estimate(
    snapshot: Snapshot, asked: Waiting, lately: Lately, position: int | None = None, plan: Plan | None = None
) -> Estimate | None:
    """Of a session of the snapshot's line, or of one that would be its last. `position` is its place in it; `plan` what
    a pass makes of them, if that is known."""
    snapshot = standing_in(snapshot, asked)
    plan = plan or cycle(snapshot)
    if _placed(plan, asked.id):
        return Estimate(snapshot.now, "now", "there is room for it, and nobody before it")
    if victims := next((one.victims for one in plan.preemptions if one.claimant.id == asked.id), ()):
        return _after(victims, snapshot.now)
    known = lately.part is not None or lately.ran_s is not None
    if counting := quotas_counting(snapshot, asked):
        return _under_quotas(snapshot, asked, lately if known else None, counting)
    start = plan.planned.get(asked.id)
    latest = None if start is None else start.at
    guessed = _guess(_as_lately(snapshot, lately, asked.id) if known else snapshot, asked.id)
    if guessed is not None:
        return Estimate(guessed if latest is None else min(guessed, latest), *_basis(known), latest)
    if latest is not None:
        return Estimate(latest, *_basis(False), latest)
    if lately.gap_s is not None and position is not None:
        return Estimate(snapshot.now + position * lately.gap_s, "pace",
                        f"{position - 1} are before it, and lately one started every {span(lately.gap_s)}")  # fmt: skip
    return None


def _after(victims: Sequence[Running], now: float) -> Estimate:
    grace_s = max(one.grace_s for one in victims)
    who = number_of(len(victims), "session")
    return Estimate(now + grace_s, "stops", f"{who} would be stopped for it, with a grace of at most {span(grace_s)}")


def _under_quotas(
    snapshot: Snapshot, asked: Waiting, lately: Lately | None, counting: Sequence[Quota]
) -> Estimate | None:
    admission = Admission(snapshot.quotas, snapshot.nodes, snapshot.devices)
    line = [one for one in snapshot.waiting if not admission.never(one)]
    if all(one.id != asked.id for one in line):
        return None
    foreseen = replace(snapshot, waiting=line)
    at = start_in_course(foreseen if lately is None else _as_lately(foreseen, lately, asked.id), asked.id)
    if at is None:
        return None
    basis, message = _basis(lately is not None)
    return Estimate(at, basis, f"{message}; {_named(counting)} counted")


def _named(quotas: Sequence[Quota]) -> str:
    return f"quota{'' if len(quotas) == 1 else 's'} {', '.join(one.name for one in quotas)}"


def unknown_why(snapshot: Snapshot, asked: Waiting) -> str:
    """Why there is no estimate of a session that stands in line, or would."""
    counting = quotas_counting(standing_in(snapshot, asked), asked)
    if counting:
        return f"no end is known, or near enough, by which {_named(counting)} would let it in and there is room"
    return "no end is known that would make room"


def _basis(known: bool) -> tuple[str, str]:
    if known:
        return "lately", "if those who run, and those before it, take as much of their time as such sessions did lately"
    return "limits", "if everybody takes all of its time limit"


def standing_in(snapshot: Snapshot, asked: Waiting) -> Snapshot:
    """With the session in the line: the last to come, and just now, if it is not there."""
    if any(one.id == asked.id for one in snapshot.waiting):
        return snapshot
    last = max((one.ordinal for one in snapshot.waiting), default=0)
    submitted_at = asked.submitted_at or snapshot.now
    return replace(snapshot, waiting=[*snapshot.waiting, asked._replace(ordinal=last + 1, submitted_at=submitted_at)])


def _placed(plan: Plan, id_: str) -> bool:
    return any(one.session.id == id_ for one in plan.placements)


def _guess(snapshot: Snapshot, id_: str) -> float | None:
    """When it starts in a pass in which everybody before it has its start planned."""
    asked = next(one for one in snapshot.waiting if one.id == id_)
    line = line_of(asked.shape.group, snapshot.groups)
    before = (one for one in snapshot.waiting if line_of(one.shape.group, snapshot.groups) == line)
    if sum(1 for _ in islice(before, MOST_PLANNED + 1)) > MOST_PLANNED and asked.ordinal > _nth(snapshot, line):
        return None
    groups = {name: _planning(group) for name, group in snapshot.groups.items()}
    plan = cycle(replace(snapshot, groups=groups, planned={}))
    start = plan.planned.get(id_)
    return snapshot.now if _placed(plan, id_) else None if start is None else start.at


def _nth(snapshot: Snapshot, line: str | None) -> int:
    """The ordinal of the last one of the line that is still near its front."""
    members = (one.ordinal for one in snapshot.waiting if line_of(one.shape.group, snapshot.groups) == line)
    return max(islice(members, MOST_PLANNED))


def _planning(group: ResourceGroup) -> ResourceGroup:
    own: dict[str, Any] = {"backfill": "conservative", "backfill_depth": MOST_PLANNED, "preemption": "none"}
    return replace(group, options={**group.options, **own})


def _as_lately(snapshot: Snapshot, lately: Lately, asked: str) -> Snapshot:
    """However short such sessions were lately, its limit keeps the one asked about out of what is reserved."""
    as_it_is = {asked} if snapshot.reservations else set[str]()
    return replace(
        snapshot,
        running=[_ending(one, snapshot.now, lately) for one in snapshot.running],
        waiting=[one if one.id in as_it_is else _taking(one, lately) for one in snapshot.waiting],
    )


def _ending(one: Running, now: float, lately: Lately) -> Running:
    began = one.started_at or one.placed_at
    ran_s = max(0.0, now - began)
    if one.ends_at is None:
        if lately.ran_s is None:
            return one
        left_s = max(lately.ran_s - ran_s, 0.0) or ran_s  # who has outlived the others lives on for as long again
        return one._replace(ends_at=now + left_s)
    whole_s = one.ends_at - began
    part = 1.0 if lately.part is None or one.stopping else lately.part
    left_s = part * whole_s - ran_s
    return one._replace(ends_at=now + (left_s if left_s > 0 else max(0.0, one.ends_at - now) / 2))


def _taking(one: Waiting, lately: Lately) -> Waiting:
    limit_s: float = math.inf if one.time_limit_s is None else one.time_limit_s
    if one.time_limit_s is not None and lately.part is not None:
        limit_s = lately.part * one.time_limit_s
    elif one.time_limit_s is None and lately.ran_s is not None:
        limit_s = lately.ran_s
    return one if math.isinf(limit_s) else one._replace(time_limit_s=int(max(SHORTEST_S, limit_s)), grace_s=0)


def shorter_time_s(snapshot: Snapshot, asked: Waiting, plan: Plan | None = None) -> int | None:
    """Where those before it, reservations, or how long a quota lets one take are in its way: the longest time limit
    with which it would start now. None: there is none, or it needs none."""
    snapshot = standing_in(snapshot, asked)
    plan = plan or cycle(snapshot)
    in_the_way = bool(in_its_way(plan, asked.id))
    if not in_the_way and all(one.code != "quota_time" for one in plan.refusals.get(asked.id, ())):
        return None
    starts = [start.at for start in plan.planned.values()] + [one.starts_at for one in snapshot.reservations]
    limits = {_whole(at - snapshot.now - asked.grace_s) for at in starts if at > snapshot.now}
    most = _longest_let_in(snapshot, asked)
    limits = {min(one, most) for one in limits if one > 0} | ({int(most)} if math.isfinite(most) else set[int]())
    shorter = [int(one) for one in limits if asked.time_limit_s is None or one < asked.time_limit_s]
    for limit_s in sorted(shorter, reverse=True)[:MOST_TRIES]:
        tried = [one._replace(time_limit_s=limit_s) if one.id == asked.id else one for one in snapshot.waiting]
        if _placed(cycle(replace(snapshot, waiting=tried)), asked.id):
            return limit_s
    return None


def _longest_let_in(snapshot: Snapshot, asked: Waiting) -> float:
    """The longest time limit that the quotas leave it, in the group where that is longest."""
    quotas = snapshot.quotas
    if all(TIME not in quota.limits for quota in quotas.listed):
        return math.inf
    groups = list(snapshot.groups) if asked.shape.group is None else [asked.shape.group]
    claimants = [Claimant(asked.owner, asked.project, group) for group in groups]
    return max((
        min((quota.limits[TIME] for quota, _ in quotas.of(one) if TIME in quota.limits), default=math.inf)
        for one in claimants
    ), default=math.inf)  # fmt: skip


def in_its_way(plan: Plan, id_: str) -> tuple[Refusal, ...]:
    """Of the reasons why it does not start, those that are about others' starts and reservations."""
    return tuple(one for one in plan.refusals.get(id_, ()) if one.code in ("would_delay", "reserved"))


def _whole(limit_s: float) -> int:
    """In whole minutes, of which a limit has at least some."""
    return int(limit_s // 60 * 60) if limit_s >= 120 else int(limit_s)
