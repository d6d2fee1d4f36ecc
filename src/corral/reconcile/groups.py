"""What administrators ask of resource groups: each a synchronous transaction body. Every change is checked against what
the policies declare, raises the group's version, stands in its history and wakes the scheduler.

Pausing is a barrier from its acknowledgement: placing keeps the groups it places in from being changed, and then looks
whether they are paused. Submitting and moving a session keep its group from being deleted in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from corral.model.faults import Invalid, NotFound, Refused
from corral.model.node import ResourceGroup
from corral.model.wording import like, number_of
from corral.ports import PLACE, Tx
from corral.scheduling.policies.registry import checked_group

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
LONGEST_SHOWN = 80
Options = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class GroupChange:
    """What to change. Options are laid over those that are set, None takes one away; with another policy the old one's
    are dropped. `version`: change it only while it is at this one."""

    order: str | None = None
    order_options: Options = field(default_factory=dict[str, Any])
    placement: str | None = None
    placement_options: Options = field(default_factory=dict[str, Any])
    options: Options = field(default_factory=dict[str, Any])
    version: int | None = None


def create(tx: Tx, group: ResourceGroup, by: str) -> ResourceGroup:
    """`Refused` (`group_exists`) when there is one of this name: it is never changed by this."""
    if not NAME.fullmatch(group.name):
        raise Invalid("bad_name", f"group {group.name[:LONGEST_SHOWN]!r}: letters, digits, '.', '_' and '-', beginning "
                      "with a letter or digit, at most 128 of them", subject=group.name[:LONGEST_SHOWN])  # fmt: skip
    if not join(tx, checked_group(group), by):
        raise Refused("group_exists", f"there is a resource group {group.name} already; `corral group set` changes it",
                      subject=group.name)  # fmt: skip
    tx.hint(PLACE)
    return tx.groups()[group.name]


def join(tx: Tx, group: ResourceGroup, by: str) -> bool:
    """Make the group unless there is one of its name; whether it was made. Either way it stays until this transaction
    ends."""
    if not tx.add_group(group):
        return False
    made = tx.groups()[group.name]
    tx.note_group(made.name, made.version, "group_created", by, _told(made))
    return True


def change(tx: Tx, name: str, asked: GroupChange, by: str) -> ResourceGroup:
    """The group as it is then. What changes nothing raises no version."""
    group = _locked(tx, name)
    if asked.version is not None and asked.version != group.version:
        why = f"group {name} is at version {group.version}, not {asked.version}; look again and repeat"
        raise Refused("version_conflict", why, subject=name)
    order, placement = asked.order or group.order, asked.placement or group.placement
    after = checked_group(
        replace(
            group,
            order=order,
            placement=placement,
            order_options=_laid_over(group.order_options if order == group.order else {}, asked.order_options),
            placement_options=_laid_over(
                group.placement_options if placement == group.placement else {}, asked.placement_options
            ),
            options=_laid_over(group.options, asked.options),
        )
    )
    return _write(tx, group, after, "group_set", by, _told(after))


def pause(tx: Tx, name: str, by: str) -> ResourceGroup:
    """Start nothing new in the group; what has room goes on. Idempotent."""
    group = _locked(tx, name)
    return _write(tx, group, replace(group, paused=True), "group_paused", by, {})


def resume(tx: Tx, name: str, by: str) -> ResourceGroup:
    """Let it start sessions again. Idempotent."""
    group = _locked(tx, name)
    return _write(tx, group, replace(group, paused=False), "group_resumed", by, {})


def schedule(tx: Tx, name: str) -> ResourceGroup:
    """Have every manager look now whose turn it is. Nothing is changed."""
    tx.hint(PLACE)
    return _known(tx, name)


def delete(tx: Tx, name: str, by: str) -> None:
    """Only a group without nodes and live sessions. Its history stays."""
    group = _locked(tx, name)
    nodes = sorted(node.name for node in tx.nodes().values() if node.group == name)
    if nodes:
        named = ", ".join(nodes[:3]) + f" and {len(nodes) - 3} more" * (len(nodes) > 3)
        raise Refused("group_has_nodes", f"group {name} has nodes: {named}; have them join another group first "
                      "(`corral agent --group`)", subject=name)  # fmt: skip
    if live := tx.live_in_group(name):
        told = number_of(live, "session that has", "sessions that have")
        raise Refused("group_has_sessions", f"group {name} has {told} not ended; `corral ps` lists "
                      "them, `corral update ID --group` moves those that wait", subject=name)  # fmt: skip
    tx.drop_group(name)
    tx.note_group(name, group.version + 1, "group_deleted", by, {})


def no_such_group(name: str, known: Iterable[str]) -> NotFound:
    shown = name[:LONGEST_SHOWN]
    message = f"there is no resource group {shown!r}{like(shown, known) or ';'} `corral group list` lists them"
    return NotFound("group_unknown", message, subject=shown)


def _known(tx: Tx, name: str) -> ResourceGroup:
    groups = tx.groups()
    found = groups.get(name)
    if found is None:
        raise no_such_group(name, groups)
    return found


def _locked(tx: Tx, name: str) -> ResourceGroup:
    _known(tx, name)
    tx.lock_group(name)
    return _known(tx, name)


def _laid_over(before: Options, asked: Options) -> dict[str, Any]:
    return {name: value for name, value in {**before, **asked}.items() if value is not None}


def _write(
    tx: Tx, before: ResourceGroup, after: ResourceGroup, fact: str, by: str, detail: Mapping[str, object]
) -> ResourceGroup:
    if after == before:
        return before
    if not tx.set_group(after, before.version):
        raise Refused("moved_meanwhile", f"group {before.name} changed at the same moment; look again and repeat")
    tx.note_group(before.name, before.version + 1, fact, by, detail)
    return _known(tx, before.name)


def _told(group: ResourceGroup) -> dict[str, object]:
    return {
        "order": group.order,
        "order_options": dict(group.order_options),
        "placement": group.placement,
        "placement_options": dict(group.placement_options),
        "options": dict(group.options),
    }
