"""The policies that can be simulated, by name: `ORDER[+HOW]`, where HOW is what may overtake a session that waits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from corral.model.faults import Invalid
from corral.model.quota import NO_QUOTAS, Quotas
from corral.model.wording import like
from corral.scheduling.claiming.claims import Claim, LeastAttained, ShortestRemaining
from corral.scheduling.claiming.learning import Learning
from corral.scheduling.policies import registry
from corral.scheduling.policies.registry import PolicyKind
from corral.sim.grouped import PREFIX, Grouped, grouped
from corral.sim.jobs import Job

EVERYBODY = 1_000_000
Key = Callable[[Job, int], tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class Policy:
    """`planned` is how many who wait get a planned start that nobody may delay: none (whoever fits starts), one (EASY),
    everybody (conservative); `strict` lets nobody overtake; of those who may, the `shortest` go first or whose turn it
    is. With a `claim` running sessions may be stopped: after `least_run_s`, each time `grows` times as much, `budget`
    times each, at the cost of `restart_s`, or moved if it `moves`; it `fills` what is free although somebody better
    waits for more. Who has waited for `patience_s` is overdue. One that is `grouped` decides as a manager's passes do,
    whatever else is said here."""

    name: str
    key: Key
    planned: int = 0
    strict: bool = False
    shortest: bool = False
    claim: Callable[[], Claim] | None = None
    least_run_s: float = 0.0
    grows: float = 1.0
    budget: float = math.inf
    patience_s: float = math.inf
    restart_s: float = 0.0
    moves: bool = False
    fills: bool = False
    grouped: Grouped | None = None


def _first_come(job: Job, ordinal: int) -> tuple[float, ...]:
    return (ordinal,)


def _last_come(job: Job, ordinal: int) -> tuple[float, ...]:
    return (-ordinal,)


def _priority(job: Job, ordinal: int) -> tuple[float, ...]:
    return (-job.priority, ordinal)


def _shortest(job: Job, ordinal: int) -> tuple[float, ...]:
    return (math.inf if job.limit_s is None else job.limit_s, ordinal)


def _smallest(job: Job, ordinal: int) -> tuple[float, ...]:
    return (job.size, ordinal)


ORDERS: Mapping[str, Key] = {
    "fifo": _first_come,
    "lifo": _last_come,
    "priority": _priority,
    "shortest-first": _shortest,
    "smallest-first": _smallest,
}
HOW: Mapping[str, tuple[int, bool, bool]] = {
    "skip": (0, False, False),
    "strict": (0, True, False),
    "easy": (1, False, False),
    "easy-shortest": (1, False, True),
    "conservative": (EVERYBODY, False, False),
}
_NEWEST = Policy(
    "newest",
    _first_come,
    claim=partial(LeastAttained, bounds=(3600.0, 28800.0), newest_first=True),
    least_run_s=300.0,
    budget=8,
    restart_s=60.0,
    moves=True,
    fills=True,
)
_LEARNING = Policy(
    "learning",
    _first_come,
    claim=Learning,
    least_run_s=600.0,
    grows=1.5,
    budget=8,
    restart_s=60.0,
    moves=True,
    fills=True,
)
PREEMPTIVE: Mapping[str, Policy] = {
    "srtf": Policy("srtf", _first_come, claim=ShortestRemaining, moves=True),
    "srsf": Policy("srsf", _first_come, claim=partial(ShortestRemaining, by_service=True), moves=True),
    "tiresias-l": Policy("tiresias-l", _first_come, claim=LeastAttained, moves=True),
    "learning": _LEARNING,
    "learning-patient": replace(_LEARNING, name="learning-patient", patience_s=30 * 86400.0),
    "newest": _NEWEST,
    "newest-patient": replace(_NEWEST, name="newest-patient", patience_s=30 * 86400.0),
}
SHORT: Mapping[str, str] = {"easy": "fifo+easy", "conservative": "fifo+conservative"}
NAMES = (*ORDERS, *PREEMPTIVE, *SHORT)


def policy_of(name: str, placement: str = "pack", quotas: Quotas = NO_QUOTAS) -> Policy:
    """The policy of a name, or `Invalid` with the names there are. `placement` and `quotas` are of those that are as
    resource groups have them."""
    if name.startswith(PREFIX):
        as_group = grouped(name, placement, quotas)
        return Policy(name, _first_come, restart_s=as_group.restart_s, grouped=as_group)
    if name in PREEMPTIVE:
        return PREEMPTIVE[name]
    order, _, how = SHORT.get(name, name).partition("+")
    if order in ORDERS and (how or "skip") in HOW:
        planned, strict, shortest = HOW[how or "skip"]
        return Policy(name, ORDERS[order], planned, strict, shortest)
    known = (
        f"{', '.join(NAMES)}; {', '.join(ORDERS)} also with {', '.join(f'+{how}' for how in HOW)}; and, as resource "
        f"groups have them, {', '.join(PREFIX + name for name in registry.names(PolicyKind.ORDER))}"
    )
    raise Invalid("unknown_policy", f"there is no policy {name!r}{like(name, NAMES) or ';'} there are {known}")
