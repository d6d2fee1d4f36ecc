"""What must hold beside room before a session is given any (A5), and why it does not.

Each condition looks at one session and at what is held, with what the pass has admitted so far, and says not now, with
its reason; all that do not hold are told. Held back is waiting: nothing is used up, and those behind go on. What could
never hold, whatever ends, is told apart (`never`). Next: `cycle` asks before it looks for a place and once more when it
has found one, `reconcile.quotas` once more on locked rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from corral.model.node import Device, Node
from corral.model.quota import (
    HELD,
    KINDS,
    NOTHING,
    TIME,
    Amounts,
    Bucket,
    Claimant,
    Quota,
    Quotas,
    gpu_milli,
    used_under,
)
from corral.model.resources import WHOLE_GPU_MILLI
from corral.model.wording import length, number_of, size
from corral.scheduling.engine.room import excluded, share_of, suits
from corral.scheduling.places import RankPlace
from corral.scheduling.plan import Placed, Plan, Refusal
from corral.scheduling.snapshot import Shape, Snapshot, Waiting

CODES = (*(f"quota_{kind}" for kind in KINDS), "quota_sessions", "quota_time")
Refusals = tuple[Refusal, ...]


class Asking(NamedTuple):
    """One session that asks for room: whose it is, what it would hold at least, and how much of that is not pinned for
    it and so counted already."""

    claimant: Claimant
    amounts: Amounts
    more: Amounts
    time_limit_s: int | None


class Condition(Protocol):
    """One thing that must hold. `now` says what keeps the session back at this moment, `never` what will always."""

    def now(self, asking: Asking) -> Iterator[Refusal]: ...
    def never(self, asking: Asking) -> Iterator[Refusal]: ...


class Use:
    """What is held under each quota, with what was admitted since."""

    def __init__(self, quotas: Quotas) -> None:
        self.quotas = quotas
        self._held = {quota.name: used_under(quota, quotas) for quota in quotas.listed}
        self._pinned = dict(quotas.pinned)

    def of(self, quota: Quota, bucket: Bucket) -> Amounts:
        return self._held[quota.name].get(bucket, NOTHING)

    def asking(self, waiting: Waiting, group: str | None, amounts: Amounts) -> Asking:
        pinned = self._pinned.get(waiting.id)
        more = amounts if pinned is None else amounts.less(pinned.amounts)
        return Asking(Claimant(waiting.owner, waiting.project, group), amounts, more, waiting.time_limit_s)

    def take(self, asking: Asking, id_: str) -> None:
        """It was given room; what was pinned for it is part of that."""
        self._pinned.pop(id_, None)
        for quota, bucket in self.quotas.of(asking.claimant):
            self._held[quota.name][bucket] = self.of(quota, bucket).plus(asking.more)


class HeldAtOnce:
    """Room held at once, by whom the quota is about first of all: codes `quota_owner`, `quota_project`, …"""

    def __init__(self, use: Use) -> None:
        self._use = use

    def now(self, asking: Asking) -> Iterator[Refusal]:
        for quota, bucket in self._use.quotas.of(asking.claimant):
            used = self._use.of(quota, bucket)
            for name in HELD[:-1]:
                limit, more = quota.limits.get(name), getattr(asking.more, name)
                if limit is not None and getattr(asking.amounts, name) and getattr(used, name) + more > limit:
                    yield _refusal(f"quota_{quota.kind}", quota, bucket, name, getattr(used, name), more)

    def never(self, asking: Asking) -> Iterator[Refusal]:
        for quota, bucket in self._use.quotas.of(asking.claimant):
            for name in HELD[:-1]:
                limit, more = quota.limits.get(name), getattr(asking.amounts, name)
                if limit is not None and more > limit:
                    yield _refusal(f"quota_{quota.kind}", quota, bucket, name, None, more)


class SessionsAtOnce:
    """How many sessions hold room at once: code `quota_sessions`."""

    def __init__(self, use: Use) -> None:
        self._use = use

    def now(self, asking: Asking) -> Iterator[Refusal]:
        for quota, bucket in self._use.quotas.of(asking.claimant):
            limit, used = quota.limits.get("sessions"), self._use.of(quota, bucket).sessions
            if limit is not None and used + asking.more.sessions > limit:
                yield _refusal("quota_sessions", quota, bucket, "sessions", used, asking.more.sessions)

    def never(self, asking: Asking) -> Iterator[Refusal]:
        for quota, bucket in self._use.quotas.of(asking.claimant):
            if quota.limits.get("sessions") == 0:
                yield _refusal("quota_sessions", quota, bucket, "sessions", None, asking.amounts.sessions)


class TimeAsked:
    """How long a session may take at most: code `quota_time`. It is never a matter of waiting."""

    def __init__(self, use: Use) -> None:
        self._use = use

    def now(self, asking: Asking) -> Iterator[Refusal]:
        return self.never(asking)

    def never(self, asking: Asking) -> Iterator[Refusal]:
        for quota, bucket in self._use.quotas.of(asking.claimant):
            limit = quota.limits.get(TIME)
            if limit is not None and (asking.time_limit_s is None or asking.time_limit_s > limit):
                has = "has no time limit" if asking.time_limit_s is None else f"may take {length(asking.time_limit_s)}"
                yield Refusal(
                    "quota_time",
                    f"quota {quota.name}: a session of {quota.whose(bucket)} may take {length(limit)}, this one {has}; "
                    f"give --time {length(limit)} or less",
                    {"limit": limit, "asked": asking.time_limit_s or 0},
                )


def told_together(barred: Mapping[str, Refusals]) -> Refusals:
    """Why nobody may go to any of these groups, each reason once."""
    by_message = {why.message: why for told in barred.values() for why in told}
    return tuple(by_message.values())


CONDITIONS: Sequence[Callable[[Use], Condition]] = (HeldAtOnce, SessionsAtOnce, TimeAsked)


class Admission:
    """All conditions, while one plan is made. Without quotas it holds nobody back and costs nothing."""

    def __init__(
        self, quotas: Quotas, nodes: Sequence[Node] = (), devices: Mapping[str, Sequence[Device]] | None = None
    ) -> None:
        self._nodes = nodes
        self._asks: dict[Shape, Amounts] = {}
        self._use = Use(quotas)
        self._conditions = [make(self._use) for make in CONDITIONS] if quotas.listed else []
        self._devices = devices or {}
        self._capacity: dict[str, int] | None = None
        self._of_groups = any(quota.group is not None for quota in quotas.listed)
        self._told: dict[tuple[str, str, Shape, int | None, str], Refusals] = {}

    def refusals(self, waiting: Waiting) -> Refusals:
        """Why it is not given room now, wherever there is some. One object for sessions that are told the same."""
        if not self._conditions:
            return ()
        pinned = waiting.id if waiting.id in self._use.quotas.pinned else ""
        key = (waiting.owner, waiting.project, waiting.shape, waiting.time_limit_s, pinned)
        told = self._told.get(key)  # what is admitted only adds reasons
        if told is None:
            told = self._now(self._asked(waiting, waiting.shape.group))
            if told:
                self._told[key] = told
        return told

    def barred(self, waiting: Waiting, groups: Iterable[str]) -> dict[str, Refusals]:
        """The groups to which a session that names none may not go now, and why."""
        if not self._of_groups or waiting.shape.group is not None:
            return {}
        told = {name: self._now(self._asked(waiting, name)) for name in groups}
        return {name: why for name, why in told.items() if why}

    def take(self, waiting: Waiting, group: str, ranks: Sequence[RankPlace]) -> Refusals:
        """Count what it would hold there; or why that is too much, and nothing is counted."""
        if not self._conditions:
            return ()
        asking = self._use.asking(waiting, group, amounts_of(ranks, self._capacities()))
        told = self._now(asking)
        if not told:
            self._use.take(asking, waiting.id)
        return told

    def too_much(self, waiting: Waiting, group: str, ranks: Sequence[RankPlace]) -> Refusals:
        """Why what it would hold there is too much; nothing is counted."""
        if not self._conditions:
            return ()
        return self._now(self._use.asking(waiting, group, amounts_of(ranks, self._capacities())))

    def never(self, waiting: Waiting) -> Refusals:
        """What will always keep it back, unless a quota changes."""
        asking = self._asked(waiting, waiting.shape.group)
        return tuple(why for one in self._conditions for why in one.never(asking))

    def _asked(self, waiting: Waiting, group: str | None) -> Asking:
        shape = waiting.shape
        if shape not in self._asks:
            self._asks[shape] = asked(shape, self._nodes, self._devices)
        return self._use.asking(waiting, group, self._asks[shape])

    def _now(self, asking: Asking) -> Refusals:
        return tuple(why for one in self._conditions for why in one.now(asking))

    def _capacities(self) -> Mapping[str, int]:
        if self._capacity is None:
            self._capacity = {one.uuid: one.capacity_mib for listed in self._devices.values() for one in listed}
        return self._capacity


def asked(shape: Shape, nodes: Sequence[Node], devices: Mapping[str, Sequence[Device]]) -> Amounts:
    """What a session will hold at least, wherever it goes of these nodes."""
    ranks, asks = shape.nodes * shape.ranks_per_node, shape.resources
    cpu, memory = asks.cpu_milli * ranks, asks.memory_mib * ranks
    open_ = [node for node in nodes if excluded(node, shape, None) is None] if shape.exclusive or asks.gpu else []
    if shape.exclusive and open_:
        cpu = max(cpu, shape.nodes * min(node.cpu_milli for node in open_))
        memory = max(memory, shape.nodes * min(node.memory_mib for node in open_))
    if asks.gpu is None:
        return Amounts(cpu, memory, 0, 0, 1)
    request, count = asks.gpu, ranks * asks.gpu.count
    found = [one for node in open_ for one in devices.get(node.name, ()) if suits(one, request)]
    parts = {(share, vram, one.capacity_mib) for one in found for share, vram in (share_of(one, request),)}
    milli = min((gpu_milli(*part) for part in parts), default=request.share_milli)
    vram = min((part[1] for part in parts), default=request.vram_mib)
    return Amounts(cpu, memory, milli * count, vram * count, 1)


def amounts_of(ranks: Iterable[RankPlace], capacity: Mapping[str, int]) -> Amounts:
    """What these places are, taken together by one session."""
    cpu = memory = milli = vram = 0
    for rank in ranks:
        cpu, memory = cpu + rank.cpu_milli, memory + rank.memory_mib
        for grant in rank.grants:
            milli += gpu_milli(grant.share_milli, grant.vram_mib, capacity.get(grant.uuid, 0))
            vram += grant.vram_mib
    return Amounts(cpu, memory, milli, vram, 1)


def within(quotas: Quotas, placements: Iterable[Placed], devices: Iterable[Device]) -> list[Placed]:
    """Those of the placements, in their order, that the quotas allow beside what is held."""
    capacity = {one.uuid: one.capacity_mib for one in devices}
    use = Use(quotas)
    conditions = [make(use) for make in CONDITIONS]
    kept: list[Placed] = []
    for placed in placements:
        asking = use.asking(placed.session, placed.group, amounts_of(placed.ranks, capacity))
        if not any(True for one in conditions for _ in one.now(asking)):
            use.take(asking, placed.session.id)
            kept.append(placed)
    return kept


def check_limits(snapshot: Snapshot, plan: Plan) -> list[str]:
    """What is wrong with a plan by the quotas, added up anew from what is held, all that it places, and all that it has
    others stopped for."""
    capacity = {one.uuid: one.capacity_mib for listed in snapshot.devices.values() for one in listed}
    quotas, wrong = snapshot.quotas, list[str]()
    for quota in quotas.listed:
        before = used_under(quota, quotas)
        added: dict[Bucket, Amounts] = {}
        placed_there: dict[Bucket, Amounts] = {}
        for session, group, ranks in _given(plan):
            claimant = Claimant(session.owner, session.project, group)
            bucket = quota.bucket(claimant, quotas.domains)
            if bucket is not None:
                pinned, amounts = quotas.pinned.get(session.id), amounts_of(ranks, capacity)
                more = amounts if pinned is None else amounts.less(pinned.amounts)
                added[bucket] = added.get(bucket, NOTHING).plus(more)
                placed_there[bucket] = placed_there.get(bucket, NOTHING).plus(amounts)
        for bucket, amounts in added.items():
            for name in HELD:
                limit, more = quota.limits.get(name), getattr(amounts, name)
                total = getattr(before.get(bucket, NOTHING), name) + more
                if limit is not None and getattr(placed_there[bucket], name) and total > limit:
                    wrong.append(f"{quota.whose(bucket)} would hold {total} {name} of {limit} (quota {quota.name})")
    return wrong


def _given(plan: Plan) -> Iterator[tuple[Waiting, str, Sequence[RankPlace]]]:
    yield from ((one.session, one.group, one.ranks) for one in plan.placements)
    yield from ((one.claimant, one.group, one.ranks) for one in plan.preemptions)


def _refusal(code: str, quota: Quota, bucket: Bucket, name: str, used: int | None, more: int) -> Refusal:
    limit = quota.limits[name]
    shown = partial(amount_shown, name)
    asks = "this is one more" if name == "sessions" else f"this asks for {shown(more)}"
    if used is None:
        told = f"more than it can ever have; ask for less, or see `corral quota show {quota.name}`"
        counts = {"limit": limit, "asked": more}
    elif more > limit:
        told, counts = f"it holds {shown(used)}", {"limit": limit, "used": used, "asked": more}
    else:
        told = f"it holds {shown(used)}: there is room once it holds {shown(used + more - limit)} less"
        counts = {"limit": limit, "used": used, "asked": more}
    return Refusal(
        code, f"quota {quota.name}: {quota.whose(bucket)} may hold {shown(limit)} at once, {asks}, {told}", counts
    )


def amount_shown(name: str, value: int) -> str:
    """As people write it."""
    match name:
        case "cpu_milli":
            return number_of(value / 1000, "CPU")
        case "memory_mib":
            return f"{size(value)} of memory"
        case "gpu_milli":
            return number_of(value / WHOLE_GPU_MILLI, "GPU")
        case "vram_mib":
            return f"{size(value)} of GPU memory"
        case _:
            return number_of(value, "session")
