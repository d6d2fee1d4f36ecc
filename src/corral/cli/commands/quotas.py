"""Quotas: quota show, list, set, delete, history."""

from __future__ import annotations

from typing import Any

import click

from corral.cli.grouped import show_changes, show_quotas, tell_deleted
from corral.cli.terminal import Terminal
from corral.cli.verbs import LISTED, SETTINGS, SHOWN, TOLD, Verbs, argument, option, verb

NAME = argument("name", "NAME")
NUMBER = click.IntRange(0)
WHOSE = (
    option("--owner", metavar="NAME", help="Whose sessions; '*': each owner's apart."),
    option("--project", metavar="NAME", help="Of which project, with all below it; '*': each apart."),
    option("--domain", metavar="NAME", help="Of the projects of which domain; '*': each apart."),
    option("--group", metavar="NAME", help="In which resource group; '*': each apart."),
)
LIMITS = (
    option("--cpus", metavar="N", help="CPUs held at once."),
    option("--memory", metavar="SIZE", help="Memory held at once."),
    option("--gpus", metavar="N", help="GPUs held at once; of shared ones their parts count."),
    option("--vram", metavar="SIZE", help="Memory of GPUs held at once."),
    option("--sessions", type=NUMBER, metavar="N", help="Sessions that hold room at once."),
    option("--waiting", type=NUMBER, metavar="N", help="Sessions that wait; one more is refused when it is submitted."),
    option("--time", metavar="T", help="The longest time limit; sessions without one are refused."),
)


@verb("list", formats=LISTED)
def quota_list(terminal: Terminal) -> None:
    """List the quotas that you fall under, and what is used of them."""
    _print_all(terminal, terminal.client.quotas())


@verb("show", argument("name", "[NAME]", required=False), formats=SHOWN)
def quota_show(terminal: Terminal, name: str | None) -> None:
    """Show a quota, or all that you fall under, and what is used."""
    if name is None:
        _print_all(terminal, terminal.client.quotas())
    else:
        _print(terminal, terminal.client.quota(name))


@verb(
    "set", NAME, *WHOSE, *LIMITS,
    option("--version", type=NUMBER, metavar="N", help="Only while it is at this version; 0: only if there is none."),
    formats=SHOWN,
)  # fmt: skip
def quota_set(terminal: Terminal, name: str, **said: Any) -> None:
    """Say what may be held at once, and by whom. What is not named is not limited, whatever it was before."""
    fields = {field: value for field, value in said.items() if value is not None}
    _print(terminal, terminal.client.set_quota(name, **fields))


@verb("delete", NAME, formats=SHOWN)
def quota_delete(terminal: Terminal, name: str) -> None:
    """Delete a quota: it limits nothing any more."""
    tell_deleted(terminal, "quota", terminal.client.delete_quota(name))


@verb("history", NAME, formats=TOLD)
def quota_history(terminal: Terminal, name: str) -> None:
    """Every change of a quota."""
    found = terminal.client.quota_history(name)
    if terminal.as_json:
        terminal.print_json(found)
    else:
        terminal.print(show_changes(found))


quota = Verbs(
    "quota",
    help="Quotas: list, show, set, delete, history.",
    commands=[quota_list, quota_show, quota_set, quota_delete, quota_history],
    no_args_is_help=False,
    context_settings=SETTINGS,
)


def _print_all(terminal: Terminal, found: Any) -> None:
    if terminal.as_json:
        terminal.print_json(found)
    elif terminal.output == "name":
        if found:
            terminal.print("\n".join(one["name"] for one in found))
    else:
        terminal.print(show_quotas(found))


def _print(terminal: Terminal, found: Any) -> None:
    if terminal.as_json:
        terminal.print_json(found)
    else:
        terminal.print(found["name"] if terminal.output == "name" else show_quotas([found]))
