"""What a scheduling pass reads of those who wait, and of what was used: no more than the groups' orders need.

For fifo that is the oldest of each shape. For other orders one statement more finds those that could come first by
their measure, and one or two more add up what is held and was used, by owner and project, never session by session.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from corral.model.faults import Invalid
from corral.model.node import ResourceGroup
from corral.model.quota import NO_QUOTAS, Quotas
from corral.model.session import Session
from corral.scheduling.limits import Admission
from corral.scheduling.ordering import home_of, line_of
from corral.scheduling.policies.order import FIFO, WHOSE, Need
from corral.scheduling.policies.registry import needs_of
from corral.scheduling.policies.shares import half_life_of
from corral.scheduling.snapshot import Preferred, Usage, Waiting, preferred_of
from corral.store import rows, sql

Rows = Callable[..., list[Any]]
READ_BY = (Need.OWNER, Need.PROJECT, Need.PRIORITY, Need.NEWEST, Need.SHORTEST, Need.RESTARTED)


def line(
    ask: Rows, groups: Mapping[str, ResourceGroup], per_shape: int, now: float, quotas: Quotas = NO_QUOTAS
) -> tuple[list[Waiting], list[str]]:
    """Those that wait, oldest first, and of each kind of which more may wait than were read the last one read. Where
    a quota holds back one of a shape of which more wait, the oldest of everybody's are read, whatever the order: those
    of one owner never stand before another's."""
    found: dict[str, Waiting] = {}
    by_shape: defaultdict[str, list[str]] = defaultdict(list)
    for row in ask(sql.SESSIONS_WAITING, now=now, per_shape=per_shape):
        by_shape[row[10]].append(row[0])
        _keep(found, row)
    crowded = [ids for ids in by_shape.values() if len(ids) >= per_shape]
    last_read = [ids[-1] for ids in crowded]
    also = WHOSE if quotas.listed and _held_back(crowded, found, quotas, groups) else frozenset[Need]()
    for needs, names in _other_orders(groups, also).items() if found else ():
        flags = {f"by_{need}": int(need in needs) for need in READ_BY}
        for row in ask(sql.SESSIONS_WAITING_BY, groups=names, now=now, per_shape=per_shape, **flags):
            if row[0] not in found:
                _keep(found, row)
            if per_shape in row[-2:]:
                last_read.append(row[0])
    add_attained(ask, found)
    return sorted(found.values(), key=lambda one: one.ordinal), last_read


def by_age(groups: Mapping[str, ResourceGroup], session: Session) -> bool:
    """Whether the group in whose line the session stands goes by age alone."""
    group = groups.get(line_of(session.spec.group, groups) or "")
    return group is None or group.order == FIFO.name


def beside(groups: Mapping[str, ResourceGroup], session: Session) -> list[str]:
    """The groups that those name who stand in the same line; '': none."""
    home = home_of(groups) or ""
    return [home, ""] if session.spec.group in (None, home) else [session.spec.group or ""]


def _keep(found: dict[str, Waiting], row: rows.Row) -> None:
    if (one := waiting_of(row)) is not None:
        found[one.id] = one


def waiting_of(row: rows.Row) -> Waiting | None:
    """One that waits, from the columns that all statements about them begin with; None: its spec cannot be read."""
    try:
        shape = rows.shape_in(row[8])
    except (Invalid, ValueError):
        return None
    spec = rows.spec_of(row[8])
    return Waiting(*row[:8], shape=shape, refused=row[9], time_limit_s=row[11], room_by=row[12], grace_s=spec.grace_s,
                   preferred=preferred_of(spec))  # fmt: skip


def _held_back(
    crowded: Iterable[Sequence[str]], found: Mapping[str, Waiting], quotas: Quotas, groups: Mapping[str, ResourceGroup]
) -> bool:
    admission = Admission(quotas)
    read = (found[id_] for ids in crowded for id_ in ids if id_ in found)
    return any(admission.refusals(one) or admission.barred(one, groups) for one in read)


def _other_orders(
    groups: Mapping[str, ResourceGroup], also: frozenset[Need] = frozenset()
) -> dict[frozenset[Need], list[str]]:
    """The groups to which the oldest of each shape are not enough, by what they need; '' with the home group."""
    home = home_of(groups)
    found: defaultdict[frozenset[Need], list[str]] = defaultdict(list)
    for name, group in groups.items():
        if needs := (needs_of(group) | also).intersection(READ_BY):
            found[needs] += [name, ""] if name == home else [name]
    return dict(found)


def add_attained(ask: Rows, found: dict[str, Waiting]) -> None:
    """What those have used that ran before, where that went wrong, and where the last attempt left what it saved."""
    again = [one.id for one in found.values() if one.attempt > 1]
    for id_, cpu_s, gpu_s in ask(sql.ATTAINED, ids=again) if again else ():
        found[id_] = found[id_]._replace(cpu_s=float(cpu_s or 0), gpu_s=float(gpu_s or 0))
    wrong: defaultdict[str, set[str]] = defaultdict(set)
    for id_, node in ask(sql.WENT_WRONG, ids=again) if again else ():
        wrong[id_].add(node)
    for id_, names in wrong.items():
        found[id_] = found[id_]._replace(shunned=frozenset(names))
    saved: defaultdict[str, list[str]] = defaultdict(list)
    for id_, node in ask(sql.SAVED_ON, ids=again) if again else ():
        saved[id_].append(node)
    for id_, names in saved.items():
        labels = (found[id_].preferred or Preferred()).labels
        found[id_] = found[id_]._replace(preferred=Preferred(labels, tuple(names)))


def usage(ask: Rows, groups: Sequence[ResourceGroup], now: float) -> list[Usage]:
    """What is held and was used in those of these groups whose orders ask for it."""
    total: defaultdict[tuple[str, str, str], Usage] = defaultdict(lambda: Usage("", "", ""))
    if held := [group.name for group in groups if Need.HELD in needs_of(group)]:
        for name, owner, project, cpu_milli, memory_mib, gpu_milli in ask(sql.USAGE_HELD, groups=held):
            key = (name, owner, project)
            total[key] = Usage(*key, float(cpu_milli), float(memory_mib), float(gpu_milli))
    for group in groups:
        if Need.USED not in needs_of(group):
            continue
        parameters = {"grp": group.name, "half_life": half_life_of(group), "now": now}
        for statement in (sql.USAGE_COUNTED, sql.USAGE_USED):
            for owner, project, cpu_s, gpu_s in ask(statement, **parameters):
                key = (group.name, owner, project)
                so_far = total[key]
                total[key] = Usage(*key, *so_far[3:6], so_far.cpu_s + cpu_s, so_far.gpu_s + gpu_s)
    return [total[key] for key in sorted(total)]


def ended_usage(
    counted: Iterable[rows.Row],
    claimants: Iterable[rows.Row],
    capacity: Mapping[tuple[str, str], int],
    groups: Mapping[str, ResourceGroup],
    now: float,
) -> list[dict[str, Any]]:
    """What ended holdings add to their owners' usage at `now`, in the order in which everyone writes these rows."""
    whose = {(session, attempt): (grp, owner, project) for session, attempt, grp, owner, project in claimants}
    total: defaultdict[tuple[str, str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for session, attempt, node, device, cpu_milli, share_milli, vram_mib, held_at, released_at in counted:
        key = whose[session, attempt]
        seconds = faded_s(held_at, released_at, now, _half_life(groups, key[0]))
        gpu_milli = max(share_milli, vram_mib * 1000 / (capacity.get((node, device)) or math.inf))
        total[key][0] += cpu_milli / 1000 * seconds
        total[key][1] += gpu_milli / 1000 * seconds
    return [
        {"grp": grp, "owner": owner, "project": project, "cpu_s": cpu_s, "gpu_s": gpu_s, "now": now,
         "half_life": _half_life(groups, grp)}
        for (grp, owner, project), (cpu_s, gpu_s) in sorted(total.items())
    ]  # fmt: skip


def _half_life(groups: Mapping[str, ResourceGroup], name: str) -> float:
    return half_life_of(groups.get(name, ResourceGroup(name)))


def faded_s(start: float, end: float, now: float, half_life: float) -> float:
    """What the seconds from start to end count at `now`: the integral of a weight that halves every half-life."""
    weights = (2.0 ** -min(1000.0, (now - moment) / half_life) for moment in (end, start))
    return half_life / math.log(2) * (next(weights) - next(weights))
