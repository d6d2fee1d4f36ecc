"""Whose turn it is within one resource group: order policies by name.

A policy is a generator function over what its group sees (`OrderView`): it yields the waiting sessions one by one, and
what `yield` answers says whether that one got room, so that a policy may let each pick weigh on the next:

    def mine(view):
        for waiting in sorted(view.waiting, key=lambda one: one.name_of_your_choice):
            got_room = yield waiting

    by_mine = OrderPolicy("mine", mine, "What it does, in a line.")

It orders and never refuses: each session is to be yielded once. It sees its own group and nothing else. A third party's
is found by its entry point in the group `corral.policies`, named `order.<name>` (docs/scheduling.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from corral.scheduling.policies.options import Kind, Option
from corral.scheduling.snapshot import Usage, Waiting

Turns = Generator[Waiting, bool | None, None]


class Need(StrEnum):
    """What a pass must read for a policy beside the oldest sessions of each shape: the oldest of each shape and owner,
    project or priority, the newest, the shortest, each that has run before; and what has been used and is held."""

    OWNER = "owner"
    PROJECT = "project"
    PRIORITY = "priority"
    NEWEST = "newest"
    SHORTEST = "shortest"
    RESTARTED = "restarted"
    HELD = "held"
    USED = "used"


WHOSE = frozenset({Need.OWNER, Need.PROJECT})


class Capacity(NamedTuple):
    """What a group's nodes have together, whoever holds it. `vram_mib` is that of one GPU on average."""

    nodes: int
    cpu_milli: int
    memory_mib: int
    gpu_milli: int
    vram_mib: float


@dataclass(frozen=True, slots=True)
class OrderView:
    """All that a policy sees. `options` holds every option it declares; `usage` is empty unless it needs it."""

    now: float
    waiting: Sequence[Waiting]
    options: Mapping[str, Any]
    usage: Sequence[Usage]
    capacity: Capacity


@dataclass(frozen=True, slots=True)
class OrderPolicy:
    """A policy under its name, with the options it takes and what it needs to see."""

    name: str
    turns: Callable[[OrderView], Turns]
    help: str
    options: Mapping[str, Option] = field(default_factory=dict[str, Option])
    needs: frozenset[Need] = frozenset()


HOUR_S = 3600.0
DAY_S = 86400.0
AGEING = Option(Kind.NUMBER, 1.0, "points of priority per hour waited", most=1e6)
PATIENCE = Option(Kind.DURATION, DAY_S, "who has waited longer goes first, oldest first", most=3650 * DAY_S)


def _each(waiting: Iterable[Waiting]) -> Turns:
    for one in waiting:  # noqa: UP028 - `yield from` would pass on what is sent, and a plain iterator takes nothing
        yield one


def fifo(view: OrderView) -> Turns:
    return _each(sorted(view.waiting, key=lambda one: one.ordinal))


def lifo(view: OrderView) -> Turns:
    return _each(sorted(view.waiting, key=lambda one: -one.ordinal))


def priority(view: OrderView) -> Turns:
    """Whoever is `(highest - lowest priority + 1) / ageing` hours older than another goes before it, whatever its own
    priority: so nothing starves while ageing is above 0."""
    per_second = view.options["ageing"] / HOUR_S

    def band(one: Waiting) -> tuple[int, int]:
        aged = one.priority + per_second * max(0.0, view.now - one.submitted_at)
        return -math.floor(aged), one.ordinal

    return _each(sorted(view.waiting, key=band))


def shortest_first(view: OrderView) -> Turns:
    return _each(_patiently(view, lambda one: math.inf if one.time_limit_s is None else one.time_limit_s))


def least_attained_service(view: OrderView) -> Turns:
    return _each(_patiently(view, lambda one: one.gpu_s + one.cpu_s * view.options["cpu_cost"]))


def _patiently(view: OrderView, key: Callable[[Waiting], float]) -> list[Waiting]:
    """By the key, but those who have waited longer than the patience before all others."""
    late = view.now - view.options["patience"]
    return sorted(
        view.waiting, key=lambda one: (1, key(one), one.ordinal) if one.submitted_at > late else (0, 0.0, one.ordinal)
    )


FIFO = OrderPolicy("fifo", fifo, "Oldest submit first; a retried session keeps its place.")
SIMPLE = (
    FIFO,
    OrderPolicy("lifo", lifo, "Newest submit first; the oldest may wait for ever.", needs=frozenset({Need.NEWEST})),
    OrderPolicy(
        "priority",
        priority,
        "Highest priority first, oldest first within one; what waits gains points, so that nothing starves.",
        {"ageing": AGEING},
        frozenset({Need.PRIORITY}),
    ),
    OrderPolicy(
        "shortest-first",
        shortest_first,
        "Shortest time limit first, unlimited last; who waited longer than the patience goes before all.",
        {"patience": PATIENCE},
        frozenset({Need.SHORTEST}),
    ),
    OrderPolicy(
        "least-attained-service",
        least_attained_service,
        "Who has had the fewest GPU-seconds so far first; who waited longer than the patience goes before all.",
        {"patience": PATIENCE, "cpu_cost": Option(Kind.NUMBER, 0.05, "what a CPU-second counts, in GPU-seconds")},
        frozenset({Need.RESTARTED}),
    ),
)
