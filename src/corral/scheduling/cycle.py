"""One scheduling pass: snapshot and policies in, plan out.

    1. order    each group's waiting sessions by its order policy
    2. admit    leave out what a condition holds back (later: quotas, dependencies)
    3. fit      for each node: out of the question, or room enough?
    4. score    the group's placement policy ranks the nodes that fit
    5. gang     all ranks or none

A shape that did not fit cannot fit later in the same pass, since room only shrinks: equal requests behind it get the
same answer without being tried. Steps 3 to 5 are `fleet`'s, which judges a shape against every node once and after that
against the nodes that changed: a pass costs distinct shapes x nodes and little more per placement.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from corral.scheduling.fleet import Fleet
from corral.scheduling.ordering import Policies, ordered
from corral.scheduling.plan import Placed, Plan, Refusal
from corral.scheduling.snapshot import Shape, Snapshot

MAX_PLACEMENTS = 500  # per pass: what one transaction commits while others wait for its locks


def cycle(snapshot: Snapshot, max_placements: int = MAX_PLACEMENTS) -> Plan:
    """The plan for one pass. Deterministic: equal snapshots give equal plans."""
    fleet: Fleet | None = None
    placements: list[Placed] = []
    refusals: dict[str, tuple[Refusal, ...]] = {}
    hopeless: dict[Shape, tuple[Refusal, ...]] = {}
    for waiting, policies in ordered(snapshot, refusals):
        if len(placements) >= max_placements:
            break
        answer = hopeless.get(waiting.shape)
        if answer is None:
            fleet = fleet or fleet_of(snapshot, policies, waiting.ordinal)
            found = fleet.place(waiting.shape)
            if found is not None:
                placements.append(Placed(waiting, found.group, found.ranks))
                continue
            answer = hopeless[waiting.shape] = fleet.refusals(waiting.shape)
        refusals[waiting.id] = answer
    answered = len(placements) + len(refusals) == len(snapshot.waiting)
    more = not answered or any(id_ not in refusals for id_ in snapshot.last_read)
    return Plan(tuple(placements), refusals, more)


def fleet_of(snapshot: Snapshot, policies: Mapping[str, Policies], turn: int = 0) -> Fleet:
    """The snapshot's nodes in arrays. What waits stands for what is to come."""
    placements = {name: chosen.placement for name, chosen in policies.items()}
    demand = Counter(one.shape for one in snapshot.waiting)
    return Fleet(snapshot.nodes, snapshot.devices, placements, snapshot.now, demand, turn)
