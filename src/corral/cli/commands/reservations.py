"""Reservations: reservation create, list, show, delete."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import click

from corral.cli.grouped import tell_deleted
from corral.cli.request import begin_of
from corral.cli.tables import listing, table
from corral.cli.terminal import Terminal
from corral.cli.values import when
from corral.cli.verbs import LISTED, SETTINGS, SHOWN, Verbs, argument, option, verb

NAME = argument("name", "NAME")
MOST_NODES = 4
MAINTENANCE = "maintenance"  # of whom nobody's sessions may start there
WHEN = (
    option("--begin", metavar="TIME", default="now", help="From when on: now, +2h, 18:00, 2026-12-01T18:00 (now)."),
    option("--end", metavar="TIME", help="Until when."),
    option("--for", "length", metavar="T", help="Or for how long: 90m, 12h, 2d."),
)
WHERE = (
    option("--node", multiple=True, metavar="NAME", help="A node; may be given several times."),
    option("--group", metavar="NAME", help="Or of which resource group: all of it, or so many as --nodes says."),
    option("--nodes", type=click.IntRange(1), metavar="N", help="How many of the group's nodes."),
)
WHOSE = (
    option("--owner", multiple=True, metavar="NAME", help="Whose sessions may start there; several times."),
    option(
        "--project", multiple=True, metavar="NAME", help="Of which project; several times. Nobody named: nobody may."
    ),
)


@verb("create", NAME, *WHEN, *WHERE, *WHOSE, option("--reason", metavar="TEXT", default="", help="What it is for."),
      formats=SHOWN)  # fmt: skip
def reservation_create(terminal: Terminal, name: str, **said: Any) -> None:
    """Keep nodes free for a time. Nobody starts what would run into it; what is there already is shown and goes on."""
    _print(terminal, terminal.client.create_reservation(name, **_given(said)))


@verb("list", option("--all", "every", is_flag=True, help="Those that are over or were deleted, too."), formats=LISTED)
def reservation_list(terminal: Terminal, every: bool) -> None:
    """List the reservations that are ahead or on, soonest first."""
    found = terminal.client.reservations(every=every)
    if terminal.as_json:
        terminal.print_json(found)
    elif terminal.output == "name":
        if found:
            terminal.print("\n".join(one["name"] for one in found))
    else:
        terminal.print(_show_all(found, wide=terminal.output == "wide"))


@verb("show", NAME, formats=SHOWN)
def reservation_show(terminal: Terminal, name: str) -> None:
    """Show one reservation, and which sessions run into it."""
    _print(terminal, terminal.client.reservation(name))


@verb("delete", NAME, formats=SHOWN)
def reservation_delete(terminal: Terminal, name: str) -> None:
    """Delete a reservation: its nodes are for everybody again."""
    tell_deleted(terminal, "reservation", terminal.client.delete_reservation(name))


reservation = Verbs(
    "reservation",
    help="Nodes kept free for a time: create, list, show, delete.",
    commands=[reservation_create, reservation_list, reservation_show, reservation_delete],
    no_args_is_help=False,
    context_settings=SETTINGS,
)


def _given(said: Mapping[str, Any]) -> dict[str, Any]:
    """What was said; what may be given several times as a list, times as they are where the caller is."""
    found: dict[str, Any] = {
        name: [*value] if name in ("node", "owner", "project") else value for name, value in said.items()
    }
    here = datetime.now().astimezone()
    found |= {name: begin_of(found[name], here) for name in ("begin", "end") if found[name] is not None}
    return {name: value for name, value in found.items() if value not in (None, []) and (name, value) != ("reason", "")}


def _print(terminal: Terminal, one: Mapping[str, Any]) -> None:
    if terminal.as_json:
        terminal.print_json(one)
    else:
        terminal.print(one["name"] if terminal.output == "name" else _show(one))


def _show_all(found: Iterable[Mapping[str, Any]], *, wide: bool) -> str:
    head = ["NAME", "STATE", "STARTS", "ENDS", "NODES", "FOR", "CONFLICTS", "REASON"]
    more = ["MADE BY", "MADE", "DELETED BY", "DELETED"]
    rows = [
        [one["name"], one["state"], when(one["starts_at"]), when(one["ends_at"]), _few(one["nodes"]), _whom(one),
         one["conflicts"] or None, one["reason"]]
        + ([one["made_by"], when(one["made_at"]), one["deleted_by"], when(one["deleted_at"])] if wide else [])
        for one in found
    ]  # fmt: skip
    return table(head + (more if wide else []), rows)


def _show(one: Mapping[str, Any]) -> str:
    return listing([
        ("name", one["name"]), ("state", one["state"]),
        ("starts", when(one["starts_at"])), ("ends", when(one["ends_at"])),
        ("nodes", ", ".join(one["nodes"])), ("for", _whom(one)), ("reason", one["reason"]),
        ("conflicts", f"{one['conflicts']}: {', '.join(one['conflicting'])}" if one["conflicts"] else "none"),
        ("made by", one["made_by"]), ("made", when(one["made_at"])),
        ("deleted by", one["deleted_by"]), ("deleted", when(one["deleted_at"])),
    ])  # fmt: skip


def _whom(one: Mapping[str, Any]) -> str:
    named = [*one["owners"], *(f"project {name}" for name in one["projects"])]
    named += [f"{one['others']} others"] if one.get("others") else []
    return ", ".join(named) or MAINTENANCE


def _few(names: Sequence[str]) -> str:
    more = len(names) - MOST_NODES
    return ", ".join(names[:MOST_NODES]) + (f" and {more} more" if more > 0 else "")
