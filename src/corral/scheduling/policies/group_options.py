"""The options that every resource group has, whatever its policies: declared once, read by whoever they concern."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from corral.model.faults import Invalid
from corral.model.node import ResourceGroup
from corral.scheduling.policies.options import Kind, Option, Options, complete

GROUP_OPTIONS: Options = {
    "backfill": Option(
        Kind.CHOICE,
        "easy",
        "who may start before those that wait longer: whoever fits (none), whoever delays not the first of the line "
        "(easy), or nobody who has a planned start (conservative)",
        choices=("none", "easy", "conservative"),
    ),
    "backfill_depth": Option(
        Kind.NUMBER, 20, "how many get a planned start with conservative backfill", least=1, most=200
    ),
    "backfill_patience": Option(
        Kind.DURATION, 3600.0, "after so long without a planned start the first of the line has nodes kept for it"
    ),
    "preemption": Option(
        Kind.CHOICE,
        "none",
        "who may be stopped for a session that finds no room: nobody (none), those of lower priority (priority), or "
        "those of owners above their share, for owners below theirs (fair-share)",
        choices=("none", "priority", "fair-share"),
    ),
    "preemption_gap": Option(
        Kind.NUMBER, 1, "by how many points of priority somebody must be ahead to have others stopped", least=1
    ),
    "preemption_min_runtime": Option(
        Kind.DURATION, 60.0, "nobody is stopped for others who has had its room for less than this"
    ),
    "preemption_budget": Option(Kind.NUMBER, 3, "how often one session may be stopped for others", most=10_000),
    "preemptible": Option(
        Kind.CHOICE, "yes", "whether sessions that do not say so may be stopped for others", choices=("yes", "no")
    ),
}


def group_options(group: ResourceGroup) -> Mapping[str, Any]:
    """Every option's value. Of a group whose options cannot be read, the defaults: it takes no sessions anyway."""
    try:
        return complete(GROUP_OPTIONS, group.options, None)
    except Invalid:
        return complete(GROUP_OPTIONS, {}, None)


def asks_who_runs(group: ResourceGroup) -> bool:
    """Whether a pass must know who holds room in this group when somebody waits for it."""
    options = group_options(group)
    return options["backfill"] != "none" or options["preemption"] != "none"


def preempts(group: ResourceGroup) -> bool:
    """Whether sessions of this group may be stopped for others."""
    return group_options(group)["preemption"] != "none"
