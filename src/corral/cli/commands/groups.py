"""Resource groups: group list, show, create, set, delete, history, policies; queue pause, resume, schedule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from corral.cli.grouped import in_spans, show_changes, show_group, show_groups, show_policies, tell_deleted
from corral.cli.terminal import Terminal
from corral.cli.verbs import LISTED, SETTINGS, SHOWN, TOLD, Verbs, argument, option, verb
from corral.model.faults import Invalid

NAME = argument("name", "NAME")
ORDER = option("--order", metavar="POLICY", help="Whose turn it is: fifo, priority, fair-share, drf, …")
PLACEMENT = option("--placement", metavar="POLICY", help="Which node is best: pack, spread, …")
OPTIONS = (
    ORDER,
    option("--order-option", metavar="NAME=VALUE", multiple=True, help="An option of the order; NAME= is its default."),
    PLACEMENT,
    option("--placement-option", metavar="NAME=VALUE", multiple=True, help="An option of the placement."),
    option("--option", metavar="NAME=VALUE", multiple=True, help="An option that every group has."),
)
VERSION = option("--version", type=int, metavar="N", help="Only while the group is at this version.")


@verb("list", formats=LISTED)
def group_list(terminal: Terminal) -> None:
    """List the resource groups."""
    found = terminal.client.groups()
    if terminal.as_json:
        terminal.print_json(found)
    elif terminal.output == "name":
        if found:
            terminal.print("\n".join(one["name"] for one in found))
    else:
        wide = terminal.output == "wide"
        policies = terminal.client.policies() if wide else []
        terminal.print(show_groups([in_spans(one, policies) for one in found], wide=wide))


@verb("show", NAME, formats=SHOWN)
def group_show(terminal: Terminal, name: str) -> None:
    """Show a group: its policies with every option, and who has which share."""
    found = terminal.client.group(name)
    if terminal.as_json:
        terminal.print_json(found)
    else:
        _show(terminal, found["group"], found["shares"])


@verb("create", NAME, *OPTIONS, formats=SHOWN)
def group_create(terminal: Terminal, name: str, **said: Any) -> None:
    """Make a group for nodes to join."""
    _print(terminal, terminal.client.create_group(name, **_fields(said)))


@verb("set", NAME, *OPTIONS, VERSION, formats=SHOWN)
def group_set(terminal: Terminal, name: str, **said: Any) -> None:
    """Change a group's policies and options, from the next scheduling pass on."""
    fields = _fields(said)
    if not set(fields) - {"version"}:
        raise Invalid("nothing_to_change", "say what to change: --order, --placement, or an option")
    _print(terminal, terminal.client.change_group(name, **fields))


@verb("delete", NAME, formats=SHOWN)
def group_delete(terminal: Terminal, name: str) -> None:
    """Delete a group that has neither nodes nor sessions that have not ended."""
    tell_deleted(terminal, "group", terminal.client.delete_group(name))


@verb("history", NAME, formats=TOLD)
def group_history(terminal: Terminal, name: str) -> None:
    """Every change of a group."""
    found = terminal.client.group_history(name)
    if terminal.as_json:
        terminal.print_json(found)
    else:
        policies = terminal.client.policies()
        terminal.print(show_changes([{**one, "detail": in_spans(one["detail"], policies)} for one in found]))


@verb("policies", formats=SHOWN)
def group_policies(terminal: Terminal) -> None:
    """Every order and placement policy that is installed, with its options."""
    found = terminal.client.policies()
    if terminal.as_json:
        terminal.print_json(found)
    elif terminal.output == "name":
        terminal.print("\n".join(f"{one['kind']}.{one['name']}" for one in found))
    else:
        terminal.print(show_policies(found))


@verb("pause", NAME, formats=SHOWN)
def queue_pause(terminal: Terminal, name: str) -> None:
    """Start nothing new in a group; what has room there goes on."""
    _print(terminal, terminal.client.pause_group(name), brief=True)


@verb("resume", NAME, formats=SHOWN)
def queue_resume(terminal: Terminal, name: str) -> None:
    """Let a group start sessions again."""
    _print(terminal, terminal.client.resume_group(name), brief=True)


@verb("schedule", NAME, formats=SHOWN)
def queue_schedule(terminal: Terminal, name: str) -> None:
    """Look now whose turn it is; what happens does so by itself."""
    _print(terminal, terminal.client.schedule_group(name), brief=True)


group = Verbs(
    "group",
    help="Resource groups: list, show, create, set, delete, history, policies.",
    commands=[group_list, group_show, group_create, group_set, group_delete, group_history, group_policies],
    no_args_is_help=False,
    context_settings=SETTINGS,
)
queue = Verbs(
    "queue",
    help="A group's line: pause, resume, schedule.",
    commands=[queue_pause, queue_resume, queue_schedule],
    no_args_is_help=False,
    context_settings=SETTINGS,
)


def _fields(said: dict[str, Any]) -> dict[str, object]:
    fields: dict[str, object] = {}
    for name in ("order", "placement"):
        if said[name] is not None:
            fields[name] = said[name]
        if pairs := said[f"{name}_option"]:
            fields[f"{name}_options"] = _pairs(f"--{name}-option", pairs)
    if pairs := said["option"]:
        fields["options"] = _pairs("--option", pairs)
    if said.get("version") is not None:
        fields["version"] = said["version"]
    return fields


def _pairs(flag: str, words: Sequence[str]) -> dict[str, str | None]:
    """Values as they were written: the policy that declares the option reads them."""
    found: dict[str, str | None] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise Invalid("bad_pair", f"{flag} {word[:80]!r} is not NAME=VALUE", subject=flag)
        if name in found:
            raise Invalid("contradiction", f"{flag} {name} is given twice", subject=flag)
        found[name] = value or None
    return found


def _show(terminal: Terminal, one: Any, shares: Sequence[Any] = ()) -> None:
    if terminal.output == "name":
        terminal.print(one["name"])
    else:
        terminal.print(show_group(in_spans(one, terminal.client.policies()), shares))


def _print(terminal: Terminal, found: Any, *, brief: bool = False) -> None:
    if terminal.as_json:
        terminal.print_json(found)
    elif terminal.output == "name":
        terminal.print(found["name"])
    elif brief:
        terminal.print(show_groups([found], wide=False))
    else:
        _show(terminal, found)
