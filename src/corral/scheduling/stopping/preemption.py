"""Who has to stop so that a session that found no room gets some: the last step of a pass.

    1. claimants  those refused for want of room alone, in the order in which they had their turn; not one that others
                  stop for already
    2. coming     room of sessions that stop anyway: whoever fits in it waits for it, and nobody stops
    3. victims    who has the weaker claim and may be stopped now: on each node the fewest that are in the way, least
                  lost work first; then the nodes where it costs least, a gang counted whole
    4. kept       what a claimant is to get, free or freed, is no room for the next one

A claim is weaker by a strict order that stopping does not turn round: by priority, or because its owner holds more than
its share while the claimant's owner stays within its own even then. So whoever was stopped cannot have its preemptor
stopped. Pure; next: `reconcile.preempting` guards and writes each, `ground` knows one group's nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from corral.model.wording import instant
from corral.scheduling.limits import Admission
from corral.scheduling.ordering import groups_of
from corral.scheduling.plan import Plan, Preemption, Refusal
from corral.scheduling.policies.group_options import preempts
from corral.scheduling.snapshot import Snapshot, Waiting
from corral.scheduling.stopping.ground import Ground, Offer

MAX_CLAIMANTS = 16  # looked for victims for in one pass; equal claims that found none are not counted again
IN_VAIN = MAX_CLAIMANTS // 2  # after so many for whom there were none, others further back are looked at by turns
FOR_ROOM = frozenset(
    ("node_in_use", "not_enough_cpus", "not_enough_memory", "not_enough_gpus", "not_enough_gpu_share",
     "not_enough_nodes", "pinned")
)  # fmt: skip
UNDER_WAY = "preempting"


def with_preemptions(snapshot: Snapshot, plan: Plan) -> Plan:
    """The plan with whom to stop for whom, and with what those are told whom room is being made for."""
    plan = replace(plan, refusals={**plan.refusals, **dict(_under_way(snapshot, plan))})
    unread = {name for name in snapshot.unread if name in snapshot.groups and preempts(snapshot.groups[name])}
    claimants = list(_claimants(snapshot, plan)) if snapshot.running or unread else []
    if unread and any(one.shape.group is None or one.shape.group in unread for one in claimants):
        plan = replace(plan, more=True)  # now that somebody was refused, the next pass is told who runs
    grounds = _grounds(snapshot, plan, claimants)
    admission = Admission(snapshot.quotas, snapshot.nodes, snapshot.devices)
    for placed in plan.placements if grounds else ():
        admission.take(placed.session, placed.group, placed.ranks)
    chosen: list[Preemption] = []
    tries = 0
    turns = _Turns(claimants if grounds else (), int(snapshot.now))
    for claimant in turns:
        offers: list[Offer] = []
        if admission.refusals(claimant):  # by what was let in after its turn
            continue
        for ground in _of(claimant, grounds):
            if ground.is_hopeless(claimant):
                continue
            tries += 1
            offer = ground.offer(claimant)
            offers += [] if offer is None else [offer]
        if offers:
            best = min(offers, key=lambda offer: (offer.cost, offer.group))
            if admission.take(claimant, best.group, best.ranks):
                continue
            grounds[best.group].accept(claimant, best)
            chosen.append(Preemption(claimant, best.victims, best.group, best.ranks))
        elif tries >= IN_VAIN and not chosen:
            turns.go_on_further_back()
        if tries >= MAX_CLAIMANTS:
            break
    return replace(plan, preemptions=tuple(chosen))


class _Turns:
    """The claimants in their order; where the first of them are looked at in vain, then from another one on each time,
    so that nobody is kept from room for ever by those before it for whom there is none."""

    def __init__(self, claimants: Sequence[Waiting], number: int) -> None:
        self._left = list(reversed(claimants))
        self._number: int | None = number

    def __iter__(self) -> Iterator[Waiting]:
        while self._left:
            yield self._left.pop()

    def go_on_further_back(self) -> None:
        """Once in a pass."""
        if self._number is not None and self._left:
            by = self._number % len(self._left)
            self._left = [*self._left[len(self._left) - by :], *self._left[: len(self._left) - by]]
            self._number = None


def being_made(victims: int, room_by: float) -> Refusal:
    """What a session is told that others stop for."""
    by = instant(room_by)
    if not victims:
        return Refusal(UNDER_WAY, f"room was freed for it, and is kept beyond {by}", {"sessions": 0})
    who = "1 session stops" if victims == 1 else f"{victims} sessions stop"
    return Refusal(UNDER_WAY, f"{who} for it; room is expected by {by}", {"sessions": victims})


def _under_way(snapshot: Snapshot, plan: Plan) -> Iterator[tuple[str, tuple[Refusal, ...]]]:
    stopping: Counter[str] | None = None
    for one in snapshot.waiting:
        if one.room_by is None or one.room_by <= snapshot.now or one.id not in plan.refusals:
            continue
        if stopping is None:
            stopping = Counter(two.preempted_for for two in snapshot.running if two.preempted_for is not None)
        yield one.id, (being_made(stopping[one.id], one.room_by), *plan.refusals[one.id])


def _claimants(snapshot: Snapshot, plan: Plan) -> Iterator[Waiting]:
    waiting = {one.id: one for one in snapshot.waiting}
    known: dict[int, bool] = {}  # sessions of one shape share one answer
    for id_, answer in plan.refusals.items():
        if id(answer) not in known:
            known[id(answer)] = bool(answer) and all(why.code in FOR_ROOM or "nodes" in why.counts for why in answer)
            known[id(answer)] &= any(why.code in FOR_ROOM for why in answer)
        one = waiting[id_]
        if known[id(answer)] and (one.room_by is None or one.room_by <= snapshot.now):
            yield one


def _grounds(snapshot: Snapshot, plan: Plan, claimants: Sequence[Waiting]) -> dict[str, Ground]:
    usable = groups_of(group for group in snapshot.groups.values() if preempts(group)).usable
    grounds: dict[str, Ground] = {}
    for name in sorted(usable):
        mine = [one for one in claimants if one.shape.group in (None, name)]
        if mine:
            grounds[name] = Ground(snapshot, plan, snapshot.groups[name], mine)
    return grounds


def _of(claimant: Waiting, grounds: Mapping[str, Ground]) -> Sequence[Ground]:
    name = claimant.shape.group
    return list(grounds.values()) if name is None else [grounds[name]] if name in grounds else []
