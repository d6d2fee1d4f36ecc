"""Quotas: what may be held, run and wait at once, by whom, and how much of it is used. Administrators set them;
everybody sees those that he falls under."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
from fastapi import Body, Query, Response

from corral.api.context import Here
from corral.api.inputs import QuotaIn
from corral.api.openapi import json_of, respond
from corral.api.policy import Asking, Caller, Policy, allow, routes
from corral.api.render import EventView, event_view
from corral.model.quota import EACH, HELD, NOTHING, WAITING, Amounts, Bucket, Claimant, Quota, Quotas, limits_of
from corral.ports import Reads, Tx
from corral.reconcile import quotas as intents

router = routes("quotas")


class LimitsView(msgspec.Struct):
    """Null: not limited."""

    cpus: float | None = None
    memory_mib: int | None = None
    gpus: float | None = None
    vram_mib: int | None = None
    sessions: int | None = None
    waiting: int | None = None
    time_limit_s: int | None = None


class UseView(msgspec.Struct):
    """What is held under a quota by those that it counts together; `of` names them. `waiting` is null where the quota
    does not limit it."""

    of: str
    cpus: float
    memory_mib: int
    gpus: float
    vram_mib: int
    sessions: int
    waiting: int | None


class QuotaView(msgspec.Struct):
    """`owner`, `project`, `domain` and `group` say together whom it is about, `*` each one apart. `used` has a line
    for everybody who is counted apart and holds something; others' are shown to administrators only."""

    name: str
    of: str
    owner: str | None
    project: str | None
    domain: str | None
    group: str | None
    limits: LimitsView
    used: list[UseView]
    version: int


@router.get("/api/v1/quotas", responses=json_of(list[QuotaView]))
@allow(Policy.USER)
async def quotas(here: Here, asking: Asking) -> Response:
    """Every quota that the caller falls under, by name; for administrators, all."""
    return respond(await here.store.read("quotas", lambda reads: _views(reads, asking)))


@router.get("/api/v1/quotas/{name}", responses=json_of(QuotaView))
@allow(Policy.USER)
async def quota(here: Here, asking: Asking, name: str) -> Response:
    """One quota, and what is used of it."""
    return respond(await here.store.read("quota", lambda reads: _one(reads, asking, name)))


@router.put("/api/v1/quotas/{name}", responses=json_of(QuotaView))
@allow(Policy.ADMIN)
async def set_quota(here: Here, asking: Asking, name: str, asked: Annotated[QuotaIn, Body()]) -> Response:
    """The quota is exactly this from now on. Below what is held it lets nothing in and stops nothing."""
    limits = limits_of({
        "cpus": asked.cpus, "memory": asked.memory, "gpus": asked.gpus, "vram": asked.vram,
        "sessions": asked.sessions, "waiting": asked.waiting, "time": asked.time,
    })  # fmt: skip
    new = Quota(name, asked.owner, asked.project, asked.domain, asked.group, limits)

    def put(tx: Tx) -> QuotaView:
        intents.put(tx, new, asking.by, asked.version)
        return _one(tx, asking, name)

    return respond(await here.store.tx("set quota", put))


@router.delete("/api/v1/quotas/{name}", responses=json_of(QuotaView))
@allow(Policy.ADMIN)
async def delete_quota(here: Here, asking: Asking, name: str) -> Response:
    """It limits nothing any more; the quota as it was last."""

    def drop(tx: Tx) -> QuotaView:
        last = _one(tx, asking, name)
        intents.delete(tx, name, asking.by)
        return last

    return respond(await here.store.tx("delete quota", drop))


@router.get("/api/v1/quotas/{name}/history", responses=json_of(list[EventView]))
@allow(Policy.ADMIN)
async def quota_history(
    here: Here,
    name: str,
    after: Annotated[int, Query(ge=0, le=2**62)] = 0,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> Response:
    """Every change of the quota, also of one that was deleted. `after` is a version."""

    def look(reads: Reads) -> list[EventView]:
        if "\x00" in name or not reads.quota_version(name):
            raise intents.no_such_quota(name, (one.name for one in reads.quotas(held=False).listed))
        return [event_view(row) for row in reads.quota_history(name, after, limit)]

    return respond(await here.store.read("quota history", look))


def _one(reads: Reads, asking: Caller, name: str) -> QuotaView:
    views = _views(reads, asking)
    found = next((one for one in views if one.name == name), None)
    if found is None:
        raise intents.no_such_quota(name, (one.name for one in views))
    return found


def _views(reads: Reads, asking: Caller) -> list[QuotaView]:
    found = reads.all_held()
    waiting = reads.waiting_of(None) if any(WAITING in one.limits for one in found.listed) else []
    own = None if asking.owner is None else _own(asking.owner, found, waiting)
    return [_view(one, found, waiting, own) for one in found.listed if own is None or _concerns(one, found, own)]


def _own(owner: str, quotas: Quotas, waiting: Iterable[tuple[Claimant, int]]) -> set[Claimant]:
    """Under which names the caller holds something or waits; at least its own."""
    claimants = [held.claimant for held in quotas.all_held()] + [claimant for claimant, _ in waiting]
    return {Claimant(owner, "", None)} | {one for one in claimants if one.owner == owner}


def _concerns(quota: Quota, quotas: Quotas, own: set[Claimant]) -> bool:
    if quota.owner is not None and quota.owner != EACH:
        return any(quota.owner == claimant.owner for claimant in own)
    shared = quota.project in (None, EACH) and quota.domain in (None, EACH)
    return shared or any(quota.bucket(claimant, quotas.domains) is not None for claimant in own)


def _view(
    quota: Quota, quotas: Quotas, waiting: Iterable[tuple[Claimant, int]], own: set[Claimant] | None
) -> QuotaView:
    used: dict[Bucket, Amounts] = {}
    counted: dict[Bucket, int] = {}
    for claimant, amounts in quotas.all_held():
        if (bucket := quota.bucket(claimant, quotas.domains)) is not None:
            used[bucket] = used.get(bucket, NOTHING).plus(amounts)
    for claimant, count in waiting:
        if (bucket := quota.bucket(claimant, quotas.domains)) is not None:
            counted[bucket] = counted.get(bucket, 0) + count
    buckets = used.keys() | counted.keys()
    if EACH not in (quota.owner, quota.project, quota.domain, quota.group):
        buckets |= {()}
    if own is not None:
        buckets &= {quota.bucket(claimant, quotas.domains) for claimant in own} | {()}
    lines = [_use_view(quota, bucket, used.get(bucket, NOTHING), counted.get(bucket, 0)) for bucket in sorted(buckets)]
    scope = (quota.owner, quota.project, quota.domain, quota.group)
    return QuotaView(quota.name, quota.whose(), *scope, _limits_view(quota), lines, quota.version)


def _limits_view(quota: Quota) -> LimitsView:
    shown: dict[str, Any] = dict(quota.limits)
    for name, short in (("cpu_milli", "cpus"), ("gpu_milli", "gpus")):
        if name in shown:
            shown[short] = shown.pop(name) / 1000
    return LimitsView(**shown)


def _use_view(quota: Quota, bucket: Bucket, used: Amounts, waiting: int) -> UseView:
    return UseView(
        quota.whose(bucket), used.cpu_milli / 1000, used.memory_mib, used.gpu_milli / 1000, used.vram_mib,
        used.sessions, waiting if WAITING in quota.limits else None,
    )  # fmt: skip


def use_numbers(reads: Reads) -> list[tuple[str, str, float, float]]:
    """For metrics: quota, what it limits, how much of that is held, and the limit. Of quotas that count apart there
    would be a line for everybody, so there is none."""
    found, numbers = reads.quotas(), list[tuple[str, str, float, float]]()
    for quota in found.listed:
        if EACH in (quota.owner, quota.project, quota.domain, quota.group):
            continue
        view = _view(quota, found, (), None)
        for name in HELD:
            if name in quota.limits:
                short = {"cpu_milli": "cpus", "gpu_milli": "gpus"}.get(name, name)
                numbers.append((quota.name, short, getattr(view.used[0], short), getattr(view.limits, short)))
    return numbers
