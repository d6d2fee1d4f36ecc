"""Mutants of arrays: who may get a turn, what has a row already, and when all of it is over.

Each is a function that names what it replaces, and its text says which rule is gone. Next: `mutants.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from corral.model.array import Array, Due
from corral.store.array_reads import ArrayReads
from corral.testing.patches import Patch


def _throttle_is_ignored() -> list[Patch]:
    members_due = ArrayReads.members_due

    def changed(self: ArrayReads, array: Array, window: int, limit: int) -> Due:
        unlimited = str(array.indices._replace(throttle=None))
        return members_due(self, array._replace(spec=replace(array.spec, array=unlimited)), window, limit)

    return [Patch(ArrayReads, "members_due", changed)]


def _members_are_made_again() -> list[Patch]:
    def nobody(self: ArrayReads, array: Array, low: int, high: int) -> set[int]:
        return set()

    return [Patch(ArrayReads, "_there", nobody)]


def _arrays_end_too_soon() -> list[Patch]:
    def nobody(self: ArrayReads, array_id: str) -> list[str]:
        return []

    return [Patch(ArrayReads, "live_members", nobody)]


ARRAY_MUTANTS: dict[str, tuple[str, str, Callable[[], list[Patch]]]] = {
    "throttle_is_ignored": ("arrays", "no more live than the throttle allows", _throttle_is_ignored),
    "members_are_made_again": ("arrays", "each member is made once", _members_are_made_again),
    "arrays_end_too_soon": ("arrays", "an array ends when its members have", _arrays_end_too_soon),
}
