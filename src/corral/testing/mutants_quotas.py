"""Mutants of quotas (docs/scheduling.md): what they let in, and when they look.

Each is a function that names what it replaces, and its text says which rule is gone. Next: `mutants.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from corral.ports import Tx
from corral.reconcile import placement, quotas
from corral.scheduling import limits
from corral.scheduling.limits import Asking, Use
from corral.scheduling.plan import Placed
from corral.testing.patches import Patch


def _quotas_are_not_looked_at_again() -> list[Patch]:
    """Who committed meanwhile under the same quota is not seen, nor that it was lowered."""

    def everybody(tx: Tx, placements: Sequence[Placed]) -> set[str]:
        return {placed.session.id for placed in placements}

    assert placement.quotas is quotas
    return [Patch(quotas, "allowed", everybody)]


def _quotas_forget_whom_they_let_in() -> list[Patch]:
    def nothing(self: Use, asking: Asking, id_: str) -> None:
        return None

    return [Patch(limits.Use, "take", nothing)]


QUOTA_MUTANTS: dict[str, tuple[str, str, Callable[[], list[Patch]]]] = {
    "quotas_are_not_looked_at_again": (
        "QU1", "quotas are counted anew, locked, in the transaction that places", _quotas_are_not_looked_at_again,
    ),
    "quotas_forget_whom_they_let_in": (
        "QU1", "what a pass lets in counts for those behind", _quotas_forget_whom_they_let_in,
    ),
}  # fmt: skip
