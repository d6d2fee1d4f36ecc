"""The shapes of what is said of a session that waits, or is only asked about: what keeps it, and until when."""

from __future__ import annotations

from typing import TypedDict

from corral.client.shapes import Refusal, SessionResources


class Change(TypedDict):
    option: str
    value: str | None
    message: str


class NodeClass(TypedDict):
    name: str
    group: str
    nodes: int
    fitting: int
    blockers: list[Refusal]


class Preference(TypedDict):
    """A label that it would rather have: on how many nodes it is, or on how many of its own, in words and counted."""

    label: str
    message: str
    counts: dict[str, int]


class Estimate(TypedDict):
    """When it will start and what that rests on; not later than `latest`, if those who run keep their limits."""

    at: str
    basis: str
    message: str
    latest: str | None


class Holder(TypedDict):
    """What of a quota is in use, by a session that you may see, or by others together (null)."""

    quota: str
    session: str | None
    sessions: int
    cpus: float
    memory_mib: int
    gpus: float
    vram_mib: int
    until: str | None


class Plan(TypedDict):
    fits_now: bool
    infeasible: bool
    blockers: list[Refusal]
    resources: SessionResources
    nodes: int
    ranks: int
    members: int
    changes: list[Change]
    classes: list[NodeClass]
    preferences: list[Preference]
    estimate: Estimate | None
    estimate_unknown: str | None
    held_by: list[Holder]


class Explanation(TypedDict):
    id: str
    phase: str
    summary: str
    fits_now: bool
    infeasible: bool
    position: int | None
    blockers: list[Refusal]
    missing: list[str]
    changes: list[Change]
    classes: list[NodeClass]
    preferences: list[Preference]
    estimate: Estimate | None
    estimate_unknown: str | None
    held_by: list[Holder]
