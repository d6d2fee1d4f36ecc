"""The shapes of what lies ahead, as they come from the control plane."""

from __future__ import annotations

from typing import TypedDict


class Reservation(TypedDict):
    """`state`: ahead, now, over or deleted. `conflicts` sessions may still be there when it begins; `conflicting` are
    those of them that one may see."""

    name: str
    version: int
    state: str
    starts_at: str
    ends_at: str
    nodes: list[str]
    owners: list[str]
    others: int
    projects: list[str]
    reason: str
    conflicts: int
    conflicting: list[str]
    made_at: str
    made_by: str
    deleted_at: str | None
    deleted_by: str | None
