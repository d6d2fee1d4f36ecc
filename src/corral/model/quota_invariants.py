"""What is true of quotas in any state of the ledger: nobody was let in above one. Added up anew from every holding."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from corral.model.quota import HELD, Bucket, Claimant, Quota, gpu_milli

Row = Mapping[str, Any]
Found = Iterator[tuple[str, str, str]]


def check_quotas(tables: Mapping[str, Sequence[Row]], sessions: Mapping[str, Row], held: Sequence[Row]) -> Found:
    """QU1, QU2: what is held under a quota is within it, or was held when it was set lower, and has not grown since.
    What is pinned for a session is looked at when it is let in."""
    if not tables["quota"]:
        return
    domains = {row["project"]: row["domain"] for row in tables["domain"]}
    claimed = [*_of_holdings(tables, sessions, held)]
    capacity = {(row["node"], row["uuid"]): row["capacity_mib"] for row in tables["device"]}
    for row in tables["quota"]:
        if row["limits"] is None or row["above"] is None:
            yield "QU1", row["name"], "it cannot be read, so nobody under it is let in; set it anew"
            continue
        limits: Mapping[str, int] = row["limits"]
        quota = Quota(row["name"], row["owner"], row["project"], row["domain"], row["grp"], limits)
        above = {tuple(bucket): allowed for bucket, allowed in row["above"]}
        for bucket, used in _used(quota, domains, claimed, capacity).items():
            for name in HELD:
                most = max(limits[name], above.get(bucket, {}).get(name, 0)) if name in limits else used[name]
                if used[name] > most:
                    yield "QU1", row["name"], f"{quota.whose(bucket)}: {used[name]} {name} held of {most}"


def _of_holdings(
    tables: Mapping[str, Sequence[Row]], sessions: Mapping[str, Row], held: Iterable[Row]
) -> Iterator[tuple[Claimant, str, Row]]:
    groups = {(row["session"], row["attempt"]): row["grp"] for row in tables["attempt"]}
    for row in held:
        session = sessions[row["session"]]
        group = groups[row["session"], row["attempt"]]
        yield Claimant(session["owner"], session["project"], group), row["session"], row


def _used(
    quota: Quota,
    domains: Mapping[str, str],
    claimed: Iterable[tuple[Claimant, str, Row]],
    capacity: Mapping[tuple[str, str], int],
) -> dict[Bucket, dict[str, int]]:
    used: defaultdict[Bucket, dict[str, int]] = defaultdict(lambda: dict.fromkeys(HELD, 0))
    who: defaultdict[Bucket, set[str]] = defaultdict(set)
    for claimant, session, row in claimed:
        bucket = quota.bucket(claimant, domains)
        if bucket is None:
            continue
        sums = used[bucket]
        for name in ("cpu_milli", "memory_mib", "vram_mib"):
            sums[name] += row[name]
        sums["gpu_milli"] += gpu_milli(
            row["share_milli"], row["vram_mib"], capacity.get((row["node"], row["device"]), 0)
        )
        who[bucket].add(session)
        sums["sessions"] = len(who[bucket])
    return used
