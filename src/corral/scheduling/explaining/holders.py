"""Who uses up the quotas that keep a session waiting. Tells of everybody: what of it the caller may know is `api`'s."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from corral.model.quota import HELD, NOTHING, Amounts, Bucket, Claimant, Quota, used_under
from corral.scheduling.limits import amounts_of, asked
from corral.scheduling.snapshot import Snapshot, Waiting


class Holder(NamedTuple):
    """One session and what it holds under a quota; `until` is when it surely gives that back."""

    quota: str
    id: str
    owner: str
    amounts: Amounts
    until: float | None


def holders(snapshot: Snapshot, one: Waiting) -> list[Holder]:
    """Of each quota that does not let it in now, in the group it asks for or in any, those under it; who holds most of
    what is short first."""
    found: list[Holder] = []
    for quota, bucket, short in _in_the_way(snapshot, one):
        under = [
            held for held in _holding(snapshot, quota, bucket) if any(getattr(held.amounts, name) for name in short)
        ]
        found += sorted(under, key=lambda held: ([-getattr(held.amounts, name) for name in short], held.id))
    return found


def _in_the_way(snapshot: Snapshot, one: Waiting) -> Iterator[tuple[Quota, Bucket, list[str]]]:
    """Each with what there is too little of."""
    asks = asked(one.shape, snapshot.nodes, snapshot.devices)
    groups = [one.shape.group] if one.shape.group is not None else [None, *sorted(snapshot.groups)]
    seen: set[tuple[str, Bucket]] = set()
    for group in groups:
        for quota, bucket in snapshot.quotas.of(Claimant(one.owner, one.project, group)):
            if (quota.name, bucket) in seen:
                continue
            seen.add((quota.name, bucket))
            would = used_under(quota, snapshot.quotas).get(bucket, NOTHING).plus(asks)
            short = [name for name in HELD if name in quota.limits and getattr(asks, name)
                     and getattr(would, name) > quota.limits[name]]  # fmt: skip
            if short:
                yield quota, bucket, short


def _holding(snapshot: Snapshot, quota: Quota, bucket: Bucket) -> Iterator[Holder]:
    capacity = {one.uuid: one.capacity_mib for ones in snapshot.devices.values() for one in ones}
    for run in snapshot.running:
        if quota.bucket(Claimant(run.owner, run.project, run.group), snapshot.quotas.domains) == bucket:
            yield Holder(quota.name, run.id, run.owner, amounts_of(run.ranks, capacity), run.ends_at)
    for id_, (claimant, amounts) in snapshot.quotas.pinned.items():
        if quota.bucket(claimant, snapshot.quotas.domains) == bucket:
            yield Holder(quota.name, id_, claimant.owner, amounts, None)
