"""Which policies there are: Corral's own, and those that were offered by name from elsewhere.

An offered one is loaded when a group first names it. One that cannot be loaded is `Invalid` each time it is asked for,
with the reason, and nobody else's trouble. Who offers them: `corral.plugins`, from entry points.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple, NoReturn, cast

from corral.model.faults import Invalid
from corral.model.node import ResourceGroup
from corral.scheduling.policies.atwork import said
from corral.scheduling.policies.group_options import GROUP_OPTIONS, group_options
from corral.scheduling.policies.options import Option, Options, checked, complete
from corral.scheduling.policies.order import FIFO, SIMPLE, Need, OrderPolicy
from corral.scheduling.policies.score import PLACEMENTS, PlacementPolicy
from corral.scheduling.policies.shares import SHARES

ORDERS: Mapping[str, OrderPolicy] = {policy.name: policy for policy in (*SIMPLE, *SHARES)}
LONGEST_SHOWN = 80
CLAIMS: Mapping[str, frozenset[Need]] = {
    "priority": frozenset({Need.PRIORITY}),
    "fair-share": frozenset({Need.OWNER, Need.PROJECT}),
}


class PolicyKind(StrEnum):
    ORDER = "order"
    PLACEMENT = "placement"


class Policies(NamedTuple):
    """One group's choices, with every option of its order."""

    order: OrderPolicy
    placement: PlacementPolicy
    order_options: Mapping[str, Any] = {}


_offers: dict[tuple[PolicyKind, str], Callable[[], object]] = {}
_loaded: dict[tuple[PolicyKind, str], object] = {}


def offer(kind: PolicyKind, name: str, load: Callable[[], object]) -> None:
    """Make a policy known by name; `load` is called when it is first needed. Corral's own names stay Corral's."""
    _offers[kind, name] = load
    _loaded.pop((kind, name), None)


def withdraw(kind: PolicyKind, name: str) -> None:
    """Forget a policy that was offered."""
    _offers.pop((kind, name), None)
    _loaded.pop((kind, name), None)


def own_names(kind: PolicyKind) -> list[str]:
    return list(ORDERS if kind is PolicyKind.ORDER else PLACEMENTS)


def names(kind: PolicyKind) -> list[str]:
    """Corral's own, then those that were offered, by name."""
    own = own_names(kind)
    return [*own, *sorted(name for other, name in _offers if other is kind and name not in own)]


def order_policy(name: str) -> OrderPolicy:
    """`Invalid`: `unknown_policy` or, of one that cannot be loaded, `policy_broken`."""
    if name in ORDERS:
        return ORDERS[name]
    found = _offered(PolicyKind.ORDER, name)
    if not isinstance(found, OrderPolicy):
        raise _broken(PolicyKind.ORDER, name, "is no OrderPolicy")
    if not _are_needs(found.needs):
        raise _broken(PolicyKind.ORDER, name, "declares needs that are no frozenset of Need")
    return found if _are_options(found.options) else _undeclared(PolicyKind.ORDER, name)


def placement_policy(name: str) -> PlacementPolicy:
    """`Invalid` as of `order_policy`."""
    if name in PLACEMENTS:
        return PLACEMENTS[name]
    found = _offered(PolicyKind.PLACEMENT, name)
    if not callable(found):
        raise _broken(PolicyKind.PLACEMENT, name, "cannot be called")
    if not _are_options(getattr(found, "options", {})):
        _undeclared(PolicyKind.PLACEMENT, name)
    return cast("PlacementPolicy", found)


def _are_needs(needs: object) -> bool:
    return isinstance(needs, frozenset) and all(isinstance(need, Need) for need in cast("frozenset[object]", needs))


def _are_options(options: object) -> bool:
    if not isinstance(options, Mapping):
        return False
    pairs = cast("Mapping[object, object]", options).items()
    return all(isinstance(name, str) and isinstance(option, Option) for name, option in pairs)


def _undeclared(kind: PolicyKind, name: str) -> NoReturn:
    raise _broken(kind, name, "declares options that are no mapping of names to Option")


def placement_options(policy: PlacementPolicy) -> Options:
    """The options that a placement policy declares as `options`, each a keyword argument of it."""
    return getattr(policy, "options", {})


def checked_group(group: ResourceGroup) -> ResourceGroup:
    """The group with its options in their stored form; `Invalid` names the policy or option that is wrong."""
    order, placement = order_policy(group.order), placement_policy(group.placement)
    return ResourceGroup(
        group.name,
        group.order,
        group.placement,
        group.backend,
        checked(order.options, group.order_options, group.order),
        checked(placement_options(placement), group.placement_options, group.placement),
        group.paused,
        group.version,
        checked(GROUP_OPTIONS, group.options, None),
    )


def policies_of(group: ResourceGroup) -> Policies:
    """The group's policies, ready for use; `Invalid` says what is wrong with them or the group's options."""
    checked(GROUP_OPTIONS, group.options, None)
    order, placement = order_policy(group.order), placement_policy(group.placement)
    options = complete(order.options, group.order_options, group.order)
    own = complete(placement_options(placement), group.placement_options, group.placement)
    return Policies(order, partial(placement, **own) if own else placement, options)


def takes_turns(group: ResourceGroup) -> bool:
    """Whether its placement may hang on which node was given something last."""
    return group.placement == "round-robin" or group.placement not in PLACEMENTS


def looks_ahead(group: ResourceGroup) -> bool:
    """Whether the group's placement policy makes something of the demand; of a stranger's that is not known."""
    return bool(getattr(PLACEMENTS.get(group.placement), "looks_ahead", True))


def needs_of(group: ResourceGroup) -> frozenset[Need]:
    """What a pass must read for the group, also to see whose claim is strongest where some are stopped for others; of
    one whose policies are broken nothing more than for fifo."""
    claims = CLAIMS.get(group_options(group)["preemption"], frozenset())
    try:
        return order_policy(group.order).needs | claims
    except Invalid:
        return FIFO.needs


def _offered(kind: PolicyKind, name: str) -> object:
    key = (kind, name)
    if key not in _offers:
        there = ", ".join(names(kind))
        raise Invalid("unknown_policy", f"{kind} policy {name[:LONGEST_SHOWN]!r} is not installed; there are {there}",
                      subject=name[:LONGEST_SHOWN])  # fmt: skip
    if key not in _loaded:
        try:
            _loaded[key] = _offers[key]()
        except BaseException as error:  # whatever a stranger's module does while it is imported
            raise _broken(kind, name, f"cannot be loaded: {said(error)}") from error
    return _loaded[key]


def _broken(kind: PolicyKind, name: str, why: str) -> Invalid:
    return Invalid("policy_broken", f"{kind} policy {name!r} {why}"[:500], subject=name)
