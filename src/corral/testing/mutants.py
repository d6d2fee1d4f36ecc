"""Rules of the protocol left out on purpose, one at a time: a simulation that does not notice has a hole.

Each mutant replaces a few names of production code while it is applied, and nothing else: production knows none of
them. docs/simulation.md has the table of how many seeds each took. Next: `world.py --mutant NAME`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Any

from corral.testing.mutants_ahead import AHEAD_MUTANTS
from corral.testing.mutants_arrays import ARRAY_MUTANTS
from corral.testing.mutants_manager import MANAGER_MUTANTS
from corral.testing.mutants_node import NODE_MUTANTS
from corral.testing.mutants_quotas import QUOTA_MUTANTS
from corral.testing.mutants_room import ROOM_MUTANTS
from corral.testing.patches import Patch
from corral.testing.site import Focus


@dataclass(frozen=True, slots=True)
class Mutant:
    """`rule` is its number in docs/protocol.md, or the section's name. `focus`: where to look, if it is rare."""

    rule: str
    left_out: str
    patches: Callable[[], list[Patch]]
    focus: Focus | None = None


CROWDED = Focus(preempting=True, nodes=1, sessions=12, jobs_last_s=12.0, chaos_s=60.0)
RESERVED = Focus(
    reserved=True,
    rates=(("store.slow", 0.5),),
    kinds=("pause_manager",),
    pace_s=0.5,
    nodes=2,
    sessions=10,
    jobs_last_s=1.0,
)
MOVED = Focus(
    kinds=("kill_manager",),
    pace_s=8.0,
    nodes=3,
    sessions=6,
    jobs_last_s=20.0,
    chaos_s=60.0,
    preempting=True,
    limited=False,
    reserved=False,
    steered=False,
    moving=True,
)
OVERDUE = replace(
    MOVED, jobs_die_in_s=110.0, jobs_last_s=200.0, chaos_s=200.0
)  # who moves does not go before its next room is given up
LIMITED = Focus(limited=True, kinds=("pause_manager",), pace_s=0.5, nodes=2, sessions=6, jobs_last_s=1.0)
REBOOTS = ("power_loss", "reboot")
STEERED = Focus(
    rates=(("store.slow", 0.3),),
    chaos_s=60.0,
    nodes=1,
    jobs_last_s=0.2,
    sessions=30,
    preempting=False,
    limited=False,
    steered=True,
)
LOST = Focus(kinds=("lose_run_directory",), jobs_last_s=15.0, pace_s=4.0)
FOCUS = {
    "death_is_not_proven": Focus(kinds=("kill_shim",), pace_s=0.5, jobs_last_s=10.0),
    "decision_is_ignored": Focus(kinds=("kill_shim",), rates=(("shim.pause_at_birth", 1.0),), jobs_last_s=1.5),
    "facts_after_the_sweep": Focus(kinds=("power_loss", "database_down"), chaos_s=200.0, pace_s=8.0, nodes=1),
    "claimants_claim_twice": replace(CROWDED, nodes=2),
    "claimants_pass_whom_they_like": replace(CROWDED, nodes=2),
    "dependents_go_early": Focus(sessions=12, preempting=False, limited=False),
    "horizon_is_forgotten": Focus(
        kinds=("silent", "lose_run_directory", "pause_manager", "clone"), pace_s=2.0, nodes=1, preempting=False
    ),
    "pause_is_no_barrier": STEERED,
    "late_registrations_count": Focus(
        kinds=("power_loss", "pause_agent"),
        rates=(("node.late_copy", 1.0),),
        chaos_s=300.0,
        pace_s=25.0,
        nodes=1,
        jobs_last_s=100.0,
    ),
    "lost_directory_is_void": LOST,
    "movers_have_no_room": MOVED,
    "no_room_is_kept": Focus(kinds=("disk_full",), pace_s=2.0),
    "old_boot_is_adopted": Focus(kinds=REBOOTS, chaos_s=120.0, pace_s=10.0, jobs_last_s=15.0),
    "others_pins_are_room": CROWDED,
    "permission_never_expires": Focus(kinds=("silent",), rates=(("node.slow_provision", 1.0),)),
    "pins_are_not_counted": CROWDED,
    "pins_for_who_is_gone": replace(
        CROWDED, kinds=("silent", "cut"), nodes=2, sessions=16, chaos_s=250.0, pace_s=10.0, jobs_last_s=40.0
    ),
    "pins_stay": CROWDED,
    "quotas_are_not_looked_at_again": replace(LIMITED, rates=(("store.slow", 0.5),)),
    "quotas_forget_whom_they_let_in": LIMITED,
    "reboot_sweeps_nothing": Focus(kinds=REBOOTS, chaos_s=120.0, pace_s=10.0, jobs_last_s=15.0),
    "reservations_are_not_looked_at_again": RESERVED,
    "room_goes_to_anyone": CROWDED,
    "run_id_certifies": LOST,
    "requeue_forgets_results": Focus(kinds=("pause_manager",), jobs_last_s=4.0),
    "shims_are_not_looked_for": replace(LOST, rates=(("shim.pause", 0.3),)),
    "stopped_shims_are_waited_for": Focus(kinds=("freeze_shim",), pace_s=1.0, jobs_last_s=20.0),
    "silence_is_death": Focus(kinds=("pause_agent", "cut"), chaos_s=120.0, pace_s=10.0, jobs_last_s=50.0),
    "victims_are_not_guarded": CROWDED,
    "stale_facts_count": Focus(kinds=("kill_manager",), rates=(("network.drop_reply", 0.4),), chaos_s=60.0, nodes=1),
}
# Where marks are met that plain seeds seldom meet: an agent ends what a shim, stopped for good, was to end.
SELDOM_MET = {
    "agent.forced": Focus(
        kinds=("freeze_shim",), pace_s=0.3, jobs_last_s=100.0, chaos_s=60.0, sessions=8, preempting=False, limited=False
    ),
    "manager.moves": MOVED,
    "manager.pins_are_over": OVERDUE,
}
MUTANTS: dict[str, Mutant] = {
    name: Mutant(*parts, FOCUS.get(name))
    for name, parts in sorted(
        (AHEAD_MUTANTS | ARRAY_MUTANTS | MANAGER_MUTANTS | NODE_MUTANTS | QUOTA_MUTANTS | ROOM_MUTANTS).items()
    )
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
