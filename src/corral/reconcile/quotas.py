"""What administrators ask of quotas, and what placing and submitting are held to: synchronous transaction bodies.

There is no second count of what is held that could differ from the holdings: whoever places locks the quotas that his
sessions fall under, adds up what is held now, and places what is within. Two managers that place at once under one
quota so follow one another; under none they do not meet. A quota that is set counts from its acknowledgement: whoever
places holds his groups, and setting takes them all first. One that is set below what is held stops nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from corral.model.faults import Invalid, NotFound, Refused
from corral.model.lifecycle import Phase, Wanted
from corral.model.node import Device
from corral.model.quota import (
    HELD,
    LONGEST_SCOPE,
    LONGEST_SHOWN,
    NO_QUOTAS,
    WAITING,
    Bucket,
    Claimant,
    Quota,
    Quotas,
    checked,
    used_under,
)
from corral.model.session import Session
from corral.model.spec import SessionSpec
from corral.model.wording import like
from corral.ports import PLACE, Above, NewSession, Reads, Tx
from corral.scheduling.limits import Admission, told_together, within
from corral.scheduling.plan import Placed, Refusal
from corral.scheduling.snapshot import Waiting, preferred_of, shape_of


def put(tx: Tx, asked: Quota, by: str, version: int | None = None) -> Quota:
    """The quota is as asked for from now on, made if there was none. `version`: only while it is at this one."""
    asked = checked(asked)
    _hold_still(tx, [asked.name])
    before = find(tx, asked.name)
    if version is not None and version != (0 if before is None else before.version):
        at = "is not there" if before is None else f"is at version {before.version}"
        raise Refused("version_conflict", f"quota {asked.name} {at}, not {version}; look again and repeat",
                      subject=asked.name)  # fmt: skip
    if before is not None and replace(asked, version=before.version) == before:
        return before
    after = replace(asked, version=tx.quota_version(asked.name) + 1)
    _write(tx, after, None if before is None else before.version)
    tx.note_quota(after.name, after.version, "quota_set", by, told(after))
    tx.hint(PLACE)
    return after


def delete(tx: Tx, name: str, by: str) -> Quota:
    """It limits nothing any more; its history stays."""
    _hold_still(tx, [name])
    found = find(tx, name)
    if found is None:
        raise no_such_quota(name, (one.name for one in tx.quotas(held=False).listed))
    if not tx.drop_quota(name, found.version):
        raise _moved(name)
    tx.note_quota(name, found.version + 1, "quota_deleted", by, {})
    tx.hint(PLACE)
    return found


def configure(tx: Tx, quotas: Sequence[Quota], domains: Mapping[str, str], by: str) -> None:
    """What a file says, and nothing that it does not speak of. Said again it changes nothing."""
    if domains:
        assign(tx, domains, by)
    for quota in quotas:
        put(tx, quota, by)


def assign(tx: Tx, domains: Mapping[str, str], by: str) -> None:
    """These projects, and what is below them, are of these domains. What they hold counts there from now on."""
    for word in (*domains, *domains.values()):
        if not (word.isprintable() and 0 < len(word) <= LONGEST_SCOPE):
            raise Invalid("bad_domain", f"{word[:LONGEST_SHOWN]!r} is not the name of a project or domain")
    listed = [quota.name for quota in tx.quotas(held=False).listed]
    _hold_still(tx, listed)
    before = tx.quotas(held=False)
    if all(before.domains.get(project) == domain for project, domain in domains.items()):
        return
    tx.set_domains(domains)
    for quota in before.listed:
        if quota.domain is not None:
            _write(tx, replace(quota, version=quota.version + 1), quota.version)
            tx.note_quota(quota.name, quota.version + 1, "domains_set", by, dict(domains))
    tx.hint(PLACE)


def allowed(tx: Tx, placements: Sequence[Placed]) -> set[str]:
    """Of these sessions, those that the quotas let in beside what is held now. They stay locked until the end."""
    found = tx.quotas(held=False)
    names = _under(found, [_claimant(placed) for placed in placements])
    if not names:
        return {placed.session.id for placed in placements}
    tx.lock_quotas(names)
    shared = any(quota.owner is None for quota in found.listed if quota.name in names)
    owners = None if shared else {placed.session.owner for placed in placements}
    devices = tx.devices({rank.node for placed in placements for rank in placed.ranks})
    return {placed.session.id for placed in within(tx.quotas(owners=owners), placements, devices)}


def check_submit(tx: Tx, new: Sequence[NewSession]) -> None:
    """`Refused` where one could never start, or too many would wait. They are stored already, in this transaction."""
    found = tx.quotas(held=False)
    if not found.listed:
        return
    admission = Admission(found)
    for one in new:
        if never := admission.never(asked_about(one.owner, one.spec)):
            raise Refused("infeasible", f"this can never start: {'; '.join(why.message for why in never)}",
                          subject=one.id)  # fmt: skip
    claimants = {Claimant(one.owner, one.spec.project, one.spec.group) for one in new}
    for quota in _of_waiting(tx, found, claimants):
        for bucket, count in _above_waiting(tx, quota, found, claimants):
            raise Refused("quota_waiting", _too_many(quota, bucket, count), subject=quota.name)


def asked_to_wait(reads: Reads, owner: str, spec: SessionSpec, count: int) -> list[Refusal]:
    """Of so many that are not submitted: where they would be refused, since too many would wait."""
    claimant, found = Claimant(owner, spec.project, spec.group), reads.quotas(held=False)
    return [
        Refusal("quota_waiting", _too_many(quota, bucket, would), {"limit": quota.limits[WAITING], "sessions": would})
        for quota in found.listed
        if WAITING in quota.limits
        for bucket, would in _above_waiting(reads, quota, found, {claimant}, count)
    ]


def _above_waiting(
    reads: Reads, quota: Quota, found: Quotas, claimants: set[Claimant], more: int = 0
) -> Iterator[tuple[Bucket, int]]:
    """Which of their counts would be above how many may wait, with so many more."""
    counts: dict[Bucket, int] = {}
    for claimant, count in reads.waiting_of(None if quota.owner is None else {one.owner for one in claimants}):
        if (bucket := quota.bucket(claimant, found.domains)) is not None:
            counts[bucket] = counts.get(bucket, 0) + count
    for claimant in sorted(claimants, key=repr):
        bucket = quota.bucket(claimant, found.domains)
        if bucket is not None and counts.get(bucket, 0) + more > quota.limits[WAITING]:
            yield bucket, counts.get(bucket, 0) + more


def _too_many(quota: Quota, bucket: Bucket, would: int) -> str:
    most = quota.limits[WAITING]
    return (
        f"quota {quota.name}: of {quota.whose(bucket)} {most} session{'' if most == 1 else 's'} may wait, "
        f"with this there would be {would}; wait until some have started"
    )


def check_update(tx: Tx, owner: str, spec: SessionSpec, time_limit_s: int | None, *, moved: bool) -> None:
    """`Refused` where it could never start like that; for one that stays in its group only its time is new."""
    found = tx.quotas(held=False)
    never = Admission(found).never(asked_about(owner, spec)._replace(time_limit_s=time_limit_s))
    if told := [why for why in never if moved or why.code == "quota_time"]:
        raise Refused("infeasible", f"this could never start: {'; '.join(why.message for why in told)}")


def _of_waiting(tx: Tx, quotas: Quotas, claimants: set[Claimant]) -> list[Quota]:
    """Those that limit how many of theirs may wait, locked: two that submit at once are counted one after the other."""
    names = _under(quotas, list(claimants)) & {one.name for one in quotas.listed if WAITING in one.limits}
    if not names:
        return []
    tx.lock_quotas(names)
    return [one for one in tx.quotas(held=False).listed if one.name in names and WAITING in one.limits]


def asked_about(owner: str, spec: SessionSpec) -> Waiting:
    """A session that there is not, or not yet."""
    return Waiting("", 0, 1, 1, spec.priority, owner, spec.project, 0.0, shape_of(spec),
                   time_limit_s=spec.time_limit_s, grace_s=spec.grace_s, preferred=preferred_of(spec))  # fmt: skip


def as_waiting(session: Session) -> Waiting:
    return Waiting(
        session.id, session.ordinal, session.attempt, session.seq, session.priority, session.owner,
        session.spec.project, session.submitted_at, shape_of(session.spec), time_limit_s=session.time_limit_s,
        grace_s=session.spec.grace_s, preferred=preferred_of(session.spec),
    )  # fmt: skip


def held_back(reads: Reads, sessions: Iterable[Session]) -> dict[str, tuple[Refusal, ...]]:
    """Of the sessions that wait for their turn those that quotas hold back, and why, as it is now."""
    waiting = [one for one in sessions if one.phase is Phase.PENDING and one.wanted is Wanted.RUN]
    found = reads.quotas() if waiting else NO_QUOTAS
    if not found.listed:
        return {}
    devices: dict[str, list[Device]] = {}
    for device in reads.devices() if any(one.spec.resources.gpu for one in waiting) else ():
        devices.setdefault(device.node, []).append(device)
    nodes = list(reads.nodes().values()) if devices or any(one.spec.exclusive for one in waiting) else []
    admission, groups = Admission(found, nodes, devices), reads.groups()
    told: dict[str, tuple[Refusal, ...]] = {}
    for one in map(as_waiting, waiting):
        why = admission.refusals(one)
        barred = {} if why else admission.barred(one, groups)
        if barred and barred.keys() == groups.keys():
            why = told_together(barred)
        if why:
            told[one.id] = why
    return told


def find(reads: Reads, name: str) -> Quota | None:
    return next((one for one in reads.quotas(held=False).listed if one.name == name), None)


def no_such_quota(name: str, known: Iterable[str]) -> NotFound:
    shown = name[:LONGEST_SHOWN]
    message = f"there is no quota {shown!r}{like(shown, known) or ';'} `corral quota list` lists them"
    return NotFound("no_such_quota", message, subject=shown)


def told(quota: Quota) -> Mapping[str, object]:
    scope = {"owner": quota.owner, "project": quota.project, "domain": quota.domain, "group": quota.group}
    return {name: value for name, value in scope.items() if value is not None} | dict(quota.limits)


def _hold_still(tx: Tx, names: Sequence[str]) -> None:
    """Nobody places anything until this transaction ends."""
    for group in sorted(tx.groups()):
        tx.lock_group(group)
    tx.lock_quotas(names)


def _write(tx: Tx, quota: Quota, old_version: int | None) -> None:
    if not tx.set_quota(quota, _above(quota, tx.all_held()), old_version):
        raise _moved(quota.name)


def _above(quota: Quota, quotas: Quotas) -> list[Above]:
    found: list[Above] = []
    for bucket, amounts in sorted(used_under(quota, quotas).items()):
        over = {
            name: used
            for name in HELD
            if (used := getattr(amounts, name)) and name in quota.limits and used > quota.limits[name]
        }
        if over:
            found.append((bucket, over))
    return found


def _moved(name: str) -> Refused:
    return Refused("moved_meanwhile", f"quota {name} changed at the same moment; look again and repeat", subject=name)


def _claimant(placed: Placed) -> Claimant:
    return Claimant(placed.session.owner, placed.session.project, placed.group)


def _under(quotas: Quotas, claimants: Sequence[Claimant]) -> set[str]:
    """The names of those that any of these falls under."""
    return {quota.name for claimant in set(claimants) for quota, _ in quotas.of(claimant)}
