"""The course that things take if those who run end when they are expected to: from one end to the next, with a pass
after each.

It is what an estimated start rests on where quotas count, which know no room to come: who is held back by one starts
when others under it have ended, and those before it under it have started. Everything is done as a pass does it.
Nobody is stopped for anybody. Pure: works on snapshots that are made up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from corral.model.node import Device, Node
from corral.model.quota import HELD, NOTHING, Amounts, Bucket, Claimant, Held, Quota, used_under
from corral.scheduling.ahead.ends import LATE_S
from corral.scheduling.ahead.heads import until_s
from corral.scheduling.cycle import cycle
from corral.scheduling.demand import demand_of
from corral.scheduling.fleet import Fleet
from corral.scheduling.limits import amounts_of, asked
from corral.scheduling.ordering import groups_of
from corral.scheduling.places import Grant, RankPlace
from corral.scheduling.plan import Placed, Plan
from corral.scheduling.snapshot import Running, Snapshot, Waiting

MOST_PASSES = 200
MOST_LOOKED_AT = 1_000_000  # nodes, and sessions that run or wait, over all passes
TOGETHER_S, TOGETHER_PART = 1.0, 0.02  # ends that are so close to one another, for how far ahead they are, are one


def quotas_counting(snapshot: Snapshot, one: Waiting) -> list[Quota]:
    """The quotas that may keep it: with what all hold that wait under them, it would be too much."""
    groups = list(snapshot.groups) if one.shape.group is None else [one.shape.group]
    found: list[Quota] = []
    for quota in snapshot.quotas.listed:
        mine = {_bucket(snapshot, quota, one, group) for group in groups} - {None}
        if mine and not quota.limits.keys().isdisjoint(HELD) and _is_over(snapshot, quota, mine):
            found.append(quota)
    return found


def _bucket(snapshot: Snapshot, quota: Quota, one: Waiting, group: str | None) -> Bucket | None:
    return quota.bucket(Claimant(one.owner, one.project, group), snapshot.quotas.domains)


def _is_over(snapshot: Snapshot, quota: Quota, buckets: Iterable[Bucket | None]) -> bool:
    wanted = {
        bucket: used_under(quota, snapshot.quotas).get(bucket, NOTHING) for bucket in buckets if bucket is not None
    }
    asks: dict[object, Amounts] = {}
    for one in snapshot.waiting:
        for group in snapshot.groups if one.shape.group is None else (one.shape.group,):
            bucket = _bucket(snapshot, quota, one, group)
            if bucket in wanted:
                if one.shape not in asks:
                    asks[one.shape] = asked(one.shape, snapshot.nodes, snapshot.devices)
                wanted[bucket] = wanted[bucket].plus(asks[one.shape])
                break
    return any(getattr(held, name) > quota.limits[name]
               for held in wanted.values() for name in HELD if name in quota.limits)  # fmt: skip


def start_in_course(snapshot: Snapshot, id_: str) -> float | None:
    """When that session of the line starts; None where the ends that are known do not tell, or not within reason."""
    course = _Course(snapshot)
    size = len(snapshot.nodes) + len(snapshot.running) + len(snapshot.waiting)
    for _ in range(min(MOST_PASSES, 1 + MOST_LOOKED_AT // max(size, 1))):
        if any(placed.session.id == id_ for placed in course.take().placements):
            return course.now
        if not course.go_on():
            return None
    return None


class _Course:
    def __init__(self, snapshot: Snapshot) -> None:
        self._as_it_was = replace(snapshot, unread=frozenset(), planned={}, groups={
            name: replace(group, options={**group.options, "preemption": "none"})
            for name, group in snapshot.groups.items()
        }, expected=snapshot.expected or demand_of(snapshot.waiting, snapshot.running))  # fmt: skip
        self.now = snapshot.now
        self._nodes: dict[str, Node] = {node.name: node for node in snapshot.nodes}
        self._devices: dict[str, Sequence[Device]] = dict(snapshot.devices)
        self._capacity = {one.uuid: one.capacity_mib for one in chain.from_iterable(snapshot.devices.values())}
        self._waiting = {one.id: one for one in snapshot.waiting}
        self._running = {one.id: one for one in snapshot.running}
        self._pins = list(snapshot.pins)
        self._held: dict[Claimant, Amounts] = {}
        for claimant, amounts in snapshot.quotas.held:
            self._held[claimant] = self._held.get(claimant, NOTHING).plus(amounts)
        self._pinned = dict(snapshot.quotas.pinned)
        usable = groups_of(self._as_it_was.groups.values()).usable
        policies = {name: chosen.placement for name, chosen in usable.items()}
        self._fleet = Fleet(snapshot.nodes, snapshot.devices, policies, self.now, self._as_it_was.expected or {})

    def take(self) -> Plan:
        """Whom the passes of this moment place."""
        placed: list[Placed] = []
        while True:
            plan = cycle(self._snapshot(), fleet=self._fleet)
            self._start(plan.placements)
            placed += plan.placements
            if not (plan.more and plan.placements):
                return replace(plan, placements=tuple(placed))

    def _snapshot(self) -> Snapshot:
        quotas = self._as_it_was.quotas._replace(
            held=tuple(Held(*entry) for entry in self._held.items()), pinned=self._pinned
        )
        return replace(
            self._as_it_was, now=self.now, nodes=list(self._nodes.values()), devices=self._devices,
            waiting=list(self._waiting.values()), running=list(self._running.values()), pins=self._pins, quotas=quotas,
        )  # fmt: skip

    def go_on(self) -> bool:
        """To the next moment at which something may be otherwise; False: there is none."""
        moments = sorted(at for at in self._moments() if at > self.now)
        if not moments:
            return False
        began = self._as_it_was.now
        last = moments[0] + max(TOGETHER_S, TOGETHER_PART * (moments[0] - began))
        self.now = max(at for at in moments if at <= last)
        self._end([one for one in self._running.values() if (at := self._ends_at(one)) is not None and at <= self.now])
        over = [pin for pin in self._pins if pin.expires_at <= self.now]
        self._drop_pins({pin.owner for pin in over})
        kept = {pin.owner for pin in self._pins} | {one.id for one in self._waiting.values() if self._claims(one)}
        self._pinned = {id_: held for id_, held in self._pinned.items() if id_ in kept}
        return True

    def _claims(self, one: Waiting) -> bool:
        """Whether others stop for it still, so that its quotas count what it asks for."""
        return one.room_by is not None and one.room_by > self.now

    def _moments(self) -> Iterator[float]:
        yield from (at for one in self._running.values() if (at := self._ends_at(one)) is not None)
        yield from (at for one in self._as_it_was.reservations for at in (one.starts_at, one.ends_at))
        yield from (pin.expires_at for pin in self._pins)
        yield from (one.room_by for one in self._waiting.values() if one.room_by is not None)
        yield from (node.backoff_until for node in self._nodes.values())

    def _ends_at(self, one: Running) -> float | None:
        """Who has outlived its end already is given a little more."""
        began = self._as_it_was.now
        return one.ends_at if one.ends_at is None or one.ends_at > began else began + LATE_S

    def _start(self, placements: Sequence[Placed]) -> None:
        self._drop_pins({one.session.id for one in placements})
        for one in placements:
            waited = self._waiting.pop(one.session.id)
            until = until_s(waited, self.now)
            self._running[waited.id] = _running(waited, one, self.now, None if math.isinf(until) else until)
            self._hold(one.group, waited, one.ranks, 1)
        self._move([rank for one in placements for rank in one.ranks], 1)

    def _end(self, ended: Sequence[Running]) -> None:
        for one in ended:
            del self._running[one.id]
            self._hold(one.group, one, one.ranks, -1)
        self._move([rank for one in ended for rank in one.ranks], -1)

    def _drop_pins(self, owners: set[str]) -> None:
        dropped = [pin.place for pin in self._pins if pin.owner in owners]
        self._pins = [pin for pin in self._pins if pin.owner not in owners]
        self._pinned = {id_: held for id_, held in self._pinned.items() if id_ not in owners}
        self._move(dropped, -1)

    def _hold(self, group: str, whose: Waiting | Running, ranks: Sequence[RankPlace], sign: int) -> None:
        claimant = Claimant(whose.owner, whose.project, group)
        more = amounts_of(ranks, self._capacity)
        held = self._held.get(claimant, NOTHING)
        self._held[claimant] = held.plus(more) if sign > 0 else held.less(more)

    def _move(self, places: Sequence[RankPlace], sign: int) -> None:
        there = [place for place in places if place.node in self._nodes]
        for place in there:
            node, grants = self._nodes[place.node], {grant.uuid: grant for grant in place.grants}
            self._nodes[place.node] = replace(
                node, cpu_used_milli=node.cpu_used_milli + sign * place.cpu_milli,
                memory_used_mib=node.memory_used_mib + sign * place.memory_mib,
            )  # fmt: skip
            if grants:
                self._devices[place.node] = [_moved(one, grants, sign) for one in self._devices[place.node]]
        self._fleet.update((self._nodes[name] for name in {place.node for place in there}), self._devices)


def _moved(device: Device, grants: Mapping[str, Grant], sign: int) -> Device:
    grant = grants.get(device.uuid)
    if grant is None:
        return device
    return replace(device, used_milli=device.used_milli + sign * grant.share_milli,
                   used_mib=device.used_mib + sign * grant.vram_mib)  # fmt: skip


def _running(one: Waiting, placed: Placed, now: float, ends_at: float | None) -> Running:
    return Running(
        one.id, one.ordinal, one.attempt, one.seq, placed.group, one.owner, one.project, one.priority, one.shape,
        placed.ranks, now, now, ends_at,
    )  # fmt: skip
