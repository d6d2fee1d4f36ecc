"""One scheduling pass: snapshot and policies in, plan out.

    1. order    each group's waiting sessions by its order policy
    2. admit    leave out what a quota holds back (`limits`), also once its place is known
    3. ahead    leave to those in front, and to reservations, what is theirs (`heads`)
    4. fit      for each node: out of the question, or room enough?
    5. score    the group's placement policy ranks the nodes that fit
    6. gang     all ranks or none
    7. front    who found no room, and is first of a line, has its start planned (`heads`)
    8. preempt  who has to stop so that others find room, where the group has it so (`preemption`)

A shape that did not fit cannot fit later in the same pass, since room only shrinks: equal requests behind it get the
same answer without being tried. Steps 4 to 6 are `fleet`'s, which judges a shape against every node once and after that
against the nodes that changed: a pass costs distinct shapes x nodes and little more per placement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from corral.scheduling.ahead.heads import Heads, until_s
from corral.scheduling.demand import demand_of
from corral.scheduling.fleet import Fleet
from corral.scheduling.limits import CODES, Admission, told_together
from corral.scheduling.ordering import Policies, ordered
from corral.scheduling.pins import kept_for
from corral.scheduling.places import RankPlace
from corral.scheduling.plan import Placed, Plan, Refusal
from corral.scheduling.reserving import in_the_way
from corral.scheduling.snapshot import Shape, Snapshot, Waiting
from corral.scheduling.stopping.pinned import with_pins_told
from corral.scheduling.stopping.preemption import with_preemptions

MAX_PLACEMENTS = 500  # per pass: what one transaction commits while others wait for its locks


def cycle(snapshot: Snapshot, max_placements: int = MAX_PLACEMENTS, fleet: Fleet | None = None) -> Plan:
    """The plan for one pass. Deterministic: equal snapshots give equal plans, whether a `fleet` with the snapshot's
    nodes is there already (`picture`) or not."""
    turns = _Pass(snapshot, fleet)
    try:
        for waiting, policies in ordered(snapshot, turns.refusals):
            if len(turns.placements) >= max_placements:
                break
            turns.take(waiting, policies)
    finally:
        turns.heads.end()
    return turns.plan()


class Turn:
    """A session's turn in a pass, when those before it have had theirs: who would start if it stood there."""

    def __init__(self, turns: _Pass, policies: Mapping[str, Policies]) -> None:
        self._turns = turns
        self._policies = policies

    def would_start(self, instead: Waiting) -> bool:
        return self._turns.would_take(instead, self._policies)


def turn_of(snapshot: Snapshot, id_: str) -> Turn | None:
    """None: the pass does not come to it."""
    turns = _Pass(snapshot)
    for waiting, policies in ordered(snapshot, turns.refusals):
        if waiting.id == id_:
            return Turn(turns, policies)
        if len(turns.placements) >= MAX_PLACEMENTS:
            break
        turns.take(waiting, policies)
    return None


class _Pass:
    """The plan while it is made."""

    def __init__(self, snapshot: Snapshot, there: Fleet | None = None) -> None:
        self.snapshot = snapshot
        self._there = there
        self.placements: list[Placed] = []
        self.refusals: dict[str, tuple[Refusal, ...]] = {}
        self.heads = Heads(snapshot)
        self._admission = Admission(snapshot.quotas, snapshot.nodes, snapshot.devices)
        self._fleet: Fleet | None = None
        self._hopeless: dict[Shape, tuple[Refusal, ...]] = {}
        names = {node.name for node in snapshot.nodes} if snapshot.pins else ()
        self._pinned = kept_for(snapshot.pins, snapshot.devices, names)

    def take(self, waiting: Waiting, policies: Mapping[str, Policies]) -> None:
        """This session's turn: it is placed or refused, unless its line goes no further."""
        if self.heads.stopped(waiting):
            return
        answer = self._admission.refusals(waiting)
        if not answer and waiting.id not in self._pinned:
            answer = self._hopeless.get(waiting.shape)
        if not answer:
            answer = self._place(waiting, policies)
        if answer is not None:
            self.refusals[waiting.id] = answer
            if held_by_quota(answer):
                self.heads.goes_without(waiting, answer[0].message)
            else:
                self.heads.waits(waiting)

    def would_take(self, waiting: Waiting, policies: Mapping[str, Policies]) -> bool:
        """Whether a session without room of its own would be placed. Nothing is taken, and nobody refused."""
        fleet = self._fleet = self._fleet or fleet_of(self.snapshot, policies, self._there)
        if self.heads.stopped(waiting) or self._admission.refusals(waiting):
            return False
        if self.heads.before(waiting, fleet) is not None:
            return False
        barred = self._admission.barred(waiting, policies)
        while (found := fleet.place(waiting.shape, barred, waiting.shunned, waiting.preferred)) is not None:
            fleet.give_back(found.ranks)
            too_much = self._admission.too_much(waiting, found.group, found.ranks)
            if not too_much:
                return True
            barred[found.group] = too_much
        return False

    def _place(self, waiting: Waiting, policies: Mapping[str, Policies]) -> tuple[Refusal, ...] | None:
        """None: there is room for it, taken and counted. Else why there is none, which begins with the quotas that are
        in the way."""
        fleet = self._fleet = self._fleet or fleet_of(self.snapshot, policies, self._there)
        if waiting.id in self._pinned and self._on_its_own(waiting, self._pinned[waiting.id], fleet):
            return None
        return self._refusals(waiting, policies, fleet)

    def _on_its_own(self, waiting: Waiting, pinned: Sequence[RankPlace], fleet: Fleet) -> bool:
        """Whether it goes where room was freed for it: who waits in front was asked when that was planned, and only
        what is reserved is left alone. Or else where it is in nobody's way, with the help of that room."""
        self.heads.end()
        fleet.give_back(pinned)
        shape, nodes = waiting.shape, {place.node for place in pinned}
        there = sorted(nodes.intersection(shape.on_nodes) if shape.on_nodes else nodes)
        for one in (replace(shape, on_nodes=tuple(there)), shape) if there else (shape,):
            if one is shape and self.heads.before(waiting, fleet) is not None:
                continue
            found = fleet.place(one, (), waiting.shunned, waiting.preferred)
            if found is None:
                continue
            if self._may_go_there(waiting, found.ranks) and not self._admission.take(waiting, found.group, found.ranks):
                self.placements.append(Placed(waiting, found.group, found.ranks))
                self.heads.placed(self.placements[-1])
                return True
            fleet.give_back(found.ranks)
        self.heads.end()
        fleet.take(pinned)
        return False

    def _may_go_there(self, waiting: Waiting, ranks: Sequence[RankPlace]) -> bool:
        now, whose = self.snapshot.now, (waiting.owner, waiting.project)
        nodes = [rank.node for rank in ranks]
        return in_the_way(self.snapshot.reservations, nodes, *whose, now, until_s(waiting, now)) is None

    def _refusals(self, waiting: Waiting, policies: Mapping[str, Policies], fleet: Fleet) -> tuple[Refusal, ...] | None:
        told = self.heads.before(waiting, fleet)
        if told is not None:
            return told
        barred = self._admission.barred(waiting, policies)
        while (found := fleet.place(waiting.shape, barred, waiting.shunned, waiting.preferred)) is not None:
            too_much = self._admission.take(waiting, found.group, found.ranks)
            if not too_much:
                self.placements.append(Placed(waiting, found.group, found.ranks))
                self.heads.placed(self.placements[-1])
                return None
            fleet.give_back(found.ranks)
            barred[found.group] = too_much
        quotas = told_together(barred)
        if waiting.shape.group in barred:
            return quotas
        answer, of_all = self.heads.refused(waiting)
        if of_all and not quotas and waiting.id not in self._pinned:
            self._hopeless[waiting.shape] = answer
        return (*quotas, *answer) if quotas else answer

    def plan(self) -> Plan:
        answered = len(self.placements) + len(self.refusals) == len(self.snapshot.waiting)
        more = not answered or any(_hides_more(id_, self.refusals) for id_ in self.snapshot.last_read)
        heads = self.heads
        plan = Plan(tuple(self.placements), self.refusals, more, heads.planned, put_off=heads.put_off)
        return with_preemptions(self.snapshot, with_pins_told(self.snapshot, plan))


def held_by_quota(told: Sequence[Refusal]) -> bool:
    """Whether it is not, or not only, for room: whoever asks for the same may be told something else."""
    return bool(told) and told[0].code in CODES


def _hides_more(id_: str, refusals: Mapping[str, tuple[Refusal, ...]]) -> bool:
    """Whether the last one read of its shape leaves those behind it unanswered."""
    return id_ not in refusals or held_by_quota(refusals[id_])


def fleet_of(snapshot: Snapshot, policies: Mapping[str, Policies], kept: Fleet | None = None) -> Fleet:
    """The snapshot's nodes in arrays."""
    placements = {name: chosen.placement for name, chosen in policies.items()}
    demand = snapshot.expected
    if demand is None:
        demand = demand_of(snapshot.waiting, snapshot.running)
    if kept is None:
        kept = Fleet(snapshot.nodes, snapshot.devices, placements, snapshot.now, demand)
    else:
        kept.begin(placements, snapshot.now, demand)
    kept.had_turns(snapshot.turns)
    return kept
