"""Rules of the protocol left out on purpose, one at a time: a simulation that does not notice has a hole.

Each mutant replaces a few names of production code while it is applied, and nothing else: production knows none of
them. docs/simulation.md has the table of how many seeds each took. Next: `world.py --mutant NAME`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from corral.testing.mutants_manager import MANAGER_MUTANTS
from corral.testing.mutants_node import NODE_MUTANTS
from corral.testing.patches import Patch
from corral.testing.site import Focus


@dataclass(frozen=True, slots=True)
class Mutant:
    """`rule` is the number of the rule in PROTOCOL.md, or the section's name. `focus`: where to look, if it is rare."""

    rule: str
    left_out: str
    patches: Callable[[], list[Patch]]
    focus: Focus | None = None


FOCUS = {
    "decision_is_ignored": Focus(kinds=("kill_shim",), always=("shim.pause_at_birth",), jobs_last_s=1.5),
    "permission_never_expires": Focus(kinds=("silent",), always=("node.slow_provision",)),
    "late_registrations_count": Focus(
        kinds=("power_loss", "pause_agent"),
        always=("node.late_copy",),
        chaos_s=300.0,
        pace_s=25.0,
        nodes=1,
        jobs_last_s=100.0,
    ),
}
MUTANTS: dict[str, Mutant] = {
    name: Mutant(*parts, FOCUS.get(name)) for name, parts in sorted((MANAGER_MUTANTS | NODE_MUTANTS).items())
}


@contextlib.contextmanager
def applied(name: str | None) -> Generator[None]:
    """Production with that rule left out; None is production as it is."""
    before: list[tuple[Any, str, Any]] = []
    try:
        for patch in MUTANTS[name].patches() if name else ():
            before.append((patch.target, patch.name, patch.target.__dict__[patch.name]))
            setattr(patch.target, patch.name, patch.value)
        yield
    finally:
        for target, attribute, value in reversed(before):
            setattr(target, attribute, value)
