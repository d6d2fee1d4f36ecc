"""One scheduling pass: snapshot and policies in, plan out.

    1. order    each group's waiting sessions by its order policy
    2. admit    leave out what a quota holds back (`limits`), also once its place is known
    3. fit      for each node: out of the question, or room enough?
    4. score    the group's placement policy ranks the nodes that fit
    5. gang     all ranks or none

A shape that did not fit cannot fit later in the same pass, since room only shrinks: equal requests behind it get the
same answer without being tried. Steps 3 to 5 are `fleet`'s, which judges a shape against every node once and after that
against the nodes that changed: a pass costs distinct shapes x nodes and little more per placement.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from corral.scheduling.fleet import Fleet, Placement
from corral.scheduling.limits import CODES, Admission
from corral.scheduling.ordering import Policies, ordered
from corral.scheduling.plan import Placed, Plan, Refusal
from corral.scheduling.snapshot import Shape, Snapshot, Waiting

MAX_PLACEMENTS = 500  # per pass: what one transaction commits while others wait for its locks


def cycle(snapshot: Snapshot, max_placements: int = MAX_PLACEMENTS) -> Plan:
    """The plan for one pass. Deterministic: equal snapshots give equal plans."""
    fleet: Fleet | None = None
    admission = Admission(snapshot.quotas, snapshot.devices)
    placements: list[Placed] = []
    refusals: dict[str, tuple[Refusal, ...]] = {}
    hopeless: dict[Shape, tuple[Refusal, ...]] = {}
    for waiting, policies in ordered(snapshot, refusals):
        if len(placements) >= max_placements:
            break
        answer = admission.refusals(waiting) or hopeless.get(waiting.shape)
        if answer is None:
            fleet = fleet or fleet_of(snapshot, policies, waiting.ordinal)
            found = _place(fleet, admission, waiting, policies)
            if isinstance(found, Placement):
                placements.append(Placed(waiting, found.group, found.ranks))
                continue
            answer = found
            if not held_by_quota(answer):
                hopeless[waiting.shape] = answer
        refusals[waiting.id] = answer
    answered = len(placements) + len(refusals) == len(snapshot.waiting)
    return Plan(
        tuple(placements), refusals, not answered or any(_hides_more(id_, refusals) for id_ in snapshot.last_read)
    )


def _place(
    fleet: Fleet, admission: Admission, waiting: Waiting, groups: Iterable[str]
) -> Placement | tuple[Refusal, ...]:
    """Room for it, taken and counted; or why there is none for it, which begins with the quotas that are in the way."""
    barred = admission.barred(waiting, groups)
    while (found := fleet.place(waiting.shape, barred)) is not None:
        too_much = admission.take(waiting, found.group, found.ranks)
        if not too_much:
            return found
        fleet.give_back(found.ranks)
        barred[found.group] = too_much
    quotas = dict.fromkeys(why for told in barred.values() for why in told)
    return (*quotas, *fleet.refusals(waiting.shape)) if waiting.shape.group not in barred else (*quotas,)


def held_by_quota(told: Sequence[Refusal]) -> bool:
    """Whether it is not, or not only, for room: whoever asks for the same may be told something else."""
    return bool(told) and told[0].code in CODES


def _hides_more(id_: str, refusals: Mapping[str, tuple[Refusal, ...]]) -> bool:
    """Whether the last one read of its shape leaves those behind it unanswered."""
    return id_ not in refusals or held_by_quota(refusals[id_])


def fleet_of(snapshot: Snapshot, policies: Mapping[str, Policies], turn: int = 0) -> Fleet:
    """The snapshot's nodes in arrays. What waits stands for what is to come."""
    placements = {name: chosen.placement for name, chosen in policies.items()}
    demand = Counter(one.shape for one in snapshot.waiting)
    return Fleet(snapshot.nodes, snapshot.devices, placements, snapshot.now, demand, turn)
