"""What is submitted while faults strike, and what strikes: both drawn from one seed before anything begins."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.world import World

# Takes the lock that a second live execution of this rank would find taken (every descendant holds it too), appends its
# token to a file of its own, does what it is told, and writes down how it ends.
JOB = r"""
own="$MARKS/$CORRAL_SESSION_ID-${RANK:-0}"
exec 9>>"$own.lock"
flock -n 9 || echo "$CORRAL_LAUNCH_TOKEN" >> "$MARKS/overlaps"
echo "$CORRAL_LAUNCH_TOKEN" >> "$own.starts"
case $1 in
  plain) sleep "$2" ;;
  stubborn)
    trap '' TERM
    setsid sh -c 'trap "" TERM; sleep 300 & sleep 300' &
    (setsid sh -c '(sleep 300 &) ; sleep 300' &)
    sleep "$2" ;;
esac
echo "$CORRAL_LAUNCH_TOKEN $3" >> "$own.ends"
exit "$3"
"""


@dataclass(frozen=True)
class Work:
    """One session: when it is submitted, what it does, and whether it is cancelled."""

    at_s: float
    how: str = "plain"
    seconds: float = 0.5
    code: int = 0
    ranks: int = 1
    cancel_after_s: float | None = None

    def fields(self, world: World, **more: Any) -> dict[str, Any]:
        return {
            "command": ["sh", "-c", JOB, "job", self.how, f"{self.seconds:.2f}", str(self.code)],
            "env": {"MARKS": str(world.marks)},
            "nodes": self.ranks,
            "cpus": 0.1,
            "memory": "32MiB",
            "grace": "1s",
            **more,
        }


@dataclass(frozen=True)
class Strike:
    """One fault: `pick` chooses the victim among those that live when it strikes, `length_s` when it is healed."""

    at_s: float
    kind: str
    pick: float
    length_s: float


@dataclass
class Tale:
    """What the driver knows for certain: who was acknowledged, what was asked, what was done to supervisors."""

    seed: int
    submitted: dict[str, Work] = field(default_factory=dict[str, Work])
    cancelled: set[str] = field(default_factory=set[str])
    lost_supervisors: int = 0
    struck: list[str] = field(default_factory=list[str])


def plan_work(chance: random.Random, seconds: float) -> list[Work]:
    work: list[Work] = []
    at_s = 0.0
    while at_s < seconds:
        how = "stubborn" if chance.random() < 0.35 else "plain"
        ranks = 3 if chance.random() < 0.15 else 1
        code = 0 if ranks > 1 or chance.random() < 0.7 else chance.randint(1, 60)
        cancel = chance.uniform(0.0, 2.0) if chance.random() < 0.2 else None
        work.append(Work(at_s, how, round(chance.choice([0, 0.2, 1, 4]) * chance.random(), 2), code, ranks, cancel))
        at_s += chance.uniform(0.1, 0.6)
    return work


def plan_strikes(chance: random.Random, seconds: float, kinds: Mapping[str, int]) -> list[Strike]:
    """`kinds`: each kind of fault with its weight."""
    names: Sequence[str] = sorted(kinds)
    strikes: list[Strike] = []
    at_s = chance.uniform(0.5, 1.5)
    while at_s < seconds:
        kind = chance.choices(names, [kinds[name] for name in names])[0]
        strikes.append(Strike(round(at_s, 2), kind, round(chance.random(), 4), round(chance.uniform(0.2, 3.0), 2)))
        at_s += chance.uniform(0.4, 2.0)
    return strikes
