"""Mutants of what lies ahead (docs/scheduling.md): who places against a reservation.

Each is a function that names what it replaces, and its text says which rule is gone. Next: `mutants.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from corral.reconcile import placement
from corral.testing.patches import Patch


def _reservations_are_not_looked_at_again() -> list[Patch]:
    """One that was made meanwhile is not seen."""

    def never(*_: object) -> bool:
        return False

    return [Patch(placement, "_runs_into", never)]


AHEAD_MUTANTS: dict[str, tuple[str, str, Callable[[], list[Patch]]]] = {
    "reservations_are_not_looked_at_again": (
        "RV1", "the transaction that places looks at reservations, locked", _reservations_are_not_looked_at_again,
    ),
}  # fmt: skip
