"""What callers may see of resource groups: everything, but of options that name people only what is their own.

Next: `routes/groups.py` and `routes/events.py` show it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from corral.api.policy import Caller
from corral.api.render import EventView, event_view
from corral.model.faults import Invalid
from corral.ports import EventRow
from corral.scheduling.policies import registry
from corral.scheduling.policies.options import Options, visible_to
from corral.scheduling.policies.registry import PolicyKind


def order_options_for(asking: Caller, order: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return visible_to(_declared(PolicyKind.ORDER, order), values, asking.owner)


def placement_options_for(asking: Caller, placement: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return visible_to(_declared(PolicyKind.PLACEMENT, placement), values, asking.owner)


def event_for(asking: Caller, row: EventRow) -> EventView:
    """A line of history or of the events; one of a group tells of its options."""
    view = event_view(row)
    if row.group is not None:
        view.detail = {name: _told(asking, view.detail, name) for name in view.detail}
    return view


def _told(asking: Caller, detail: Mapping[str, Any], name: str) -> Any:
    value = detail[name]
    if not isinstance(value, Mapping):
        return value
    options = cast("Mapping[str, Any]", value)
    if name == "order_options":
        return order_options_for(asking, str(detail.get("order")), options)
    if name == "placement_options":
        return placement_options_for(asking, str(detail.get("placement")), options)
    return dict(options)


def _declared(kind: PolicyKind, name: str) -> Options | None:
    """None: nobody declares them, since the policy went away or is broken."""
    try:
        if kind is PolicyKind.ORDER:
            return registry.order_policy(name).options
        return registry.placement_options(registry.placement_policy(name))
    except Invalid:
        return None
