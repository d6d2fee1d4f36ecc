"""A policy as a resource group has it: `group:ORDER+NAME=VALUE…`, replayed by the passes of a manager."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from corral.model.faults import Invalid
from corral.model.node import ResourceGroup
from corral.model.quota import KINDS, NO_QUOTAS, Quota, Quotas, checked
from corral.model.resources import parse_duration_s
from corral.scheduling.policies.group_options import GROUP_OPTIONS
from corral.scheduling.policies.registry import checked_group, order_policy, placement_options, placement_policy

PREFIX = "group:"
RESTART_S = 60.0
LONGEST_SHOWN = 80
IN_THOUSANDTHS = {"cpus": "cpu_milli", "gpus": "gpu_milli"}


@dataclass(frozen=True, slots=True)
class Grouped:
    """The group as every group of the fleet is, the quotas that hold, and what it costs to go on after being stopped
    for others."""

    group: ResourceGroup
    restart_s: float = RESTART_S
    quotas: Quotas = NO_QUOTAS


def grouped(name: str, placement: str, quotas: Quotas) -> Grouped:
    """What the name says: an order with its own options, those of groups, `placement` with its options, and
    `restart`."""
    order, *parts = name.removeprefix(PREFIX).split("+")
    given = dict(_pair(part, name) for part in parts)
    restart_s = _seconds(given.pop("restart", str(RESTART_S)))
    placement = given.pop("placement", placement)
    known = (order_policy(order).options, placement_options(placement_policy(placement)), GROUP_OPTIONS)
    sorted_out: Sequence[dict[str, Any]] = ({}, {}, {})
    for option, value in given.items():
        found = next((into for into, options in zip(sorted_out, known, strict=True) if option in options), None)
        if found is None:
            there = ", ".join(sorted({"placement", "restart"}.union(*known)))
            shown = f"{name[:LONGEST_SHOWN]}: no option {option[:LONGEST_SHOWN]!r}"
            raise Invalid("unknown_option", f"{shown}; there are {there}")
        found[option] = value
    own, of_placement, of_groups = sorted_out
    group = ResourceGroup("-", order, placement, order_options=own, placement_options=of_placement, options=of_groups)
    return Grouped(checked_group(group), restart_s, quotas)


def _pair(part: str, name: str) -> tuple[str, str]:
    option, is_one, value = part.partition("=")
    if not is_one:
        raise Invalid("bad_policy", f"{name[:LONGEST_SHOWN]}: {part[:LONGEST_SHOWN]!r} is not NAME=VALUE; "
                      "write for example group:fair-share+half_life=7d+backfill=easy")  # fmt: skip
    return option, value


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float(parse_duration_s(text))


def quotas_of(text: str, name: str) -> Quotas:
    """Quotas as `corral quota list -o json` prints them."""
    try:
        found: Any = json.loads(text)
        return Quotas(tuple(checked(_quota(one)) for one in found))
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        why = f"no {error.args[0]!r}" if isinstance(error, KeyError) else str(error)
        raise Invalid("bad_file", f"{name}: not quotas as `corral quota list -o json` prints them: {why}") from None


def _quota(one: Any) -> Quota:
    limits: dict[str, int] = {}
    for name, value in one["limits"].items():
        if value is not None:
            stored = IN_THOUSANDTHS.get(name)
            limits[stored or name] = round(float(value) * 1000) if stored else int(value)
    return Quota(str(one["name"]), *(_word(one[kind]) for kind in KINDS), limits=limits)


def _word(value: Any) -> str | None:
    return None if value is None else str(value)
