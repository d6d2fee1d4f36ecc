"""When a pass may decide otherwise although nothing happened: the next moment of all that the snapshot names.

Reservations begin and end, planned starts come, patience runs out, nodes have backed off long enough, kept room is let
go, and whoever runs may be stopped for others. Time limits are not here: an end is told when it comes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from corral.scheduling.ordering import line_of
from corral.scheduling.plan import Plan
from corral.scheduling.policies.group_options import group_options
from corral.scheduling.snapshot import Snapshot


def next_due(snapshot: Snapshot, plan: Plan) -> float:
    """The first such moment after `now`; infinity: there is none."""
    return min((at for at in _moments(snapshot, plan) if at > snapshot.now), default=math.inf)


def _moments(snapshot: Snapshot, plan: Plan) -> Iterator[float]:
    for one in snapshot.reservations:
        yield one.starts_at
        yield one.ends_at
    yield from (start.at for start in plan.planned.values())
    yield from (pin.expires_at for pin in snapshot.pins)
    if plan.refusals:
        yield from [node.backoff_until for node in snapshot.nodes if node.backoff_until > snapshot.now]
        yield from [one.room_by for one in snapshot.waiting if one.room_by is not None]
        yield from _by_groups(snapshot, plan)


def _by_groups(snapshot: Snapshot, plan: Plan) -> Iterator[float]:
    """Of each line in which somebody found no room: what its group's options say of time."""
    submitted: dict[str, float] = {}  # when the first of those was who have no planned start
    for one in snapshot.waiting:
        if one.id not in plan.refusals:
            continue
        line = line_of(one.shape.group, snapshot.groups)
        if line is not None:
            at = math.inf if one.id in plan.planned else one.submitted_at
            submitted[line] = min(at, submitted.get(line, math.inf))
    options = {name: group_options(snapshot.groups[name]) for name in submitted if name in snapshot.groups}
    for name, of in options.items():
        if of["backfill"] != "none":
            yield submitted[name] + of["backfill_patience"]
    least_s = {name: of["preemption_min_runtime"] for name, of in options.items() if of["preemption"] != "none"}
    if least_s:
        ran = (one for one in snapshot.running if one.group in least_s)
        yield from ((one.started_at or one.placed_at) + least_s[one.group] for one in ran)
