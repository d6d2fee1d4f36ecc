"""What happened and why: history, events, explain, audit-launch."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from corral.cli.commands.sessions import ID
from corral.cli.render import show_event, show_explanation, show_history, show_launches
from corral.cli.terminal import Terminal
from corral.cli.verbs import PATIENCE, TOLD, option, verb


@verb("history", ID, formats=TOLD)
def history(terminal: Terminal, id_: str) -> None:
    """Everything that happened to a session, in order."""
    found = terminal.client.history(id_)
    if terminal.as_json:
        terminal.print_json(found)
    else:
        terminal.print(show_history(found))


@verb(
    "events",
    option("-f", "--follow", is_flag=True, help="Go on with what happens."),
    option("--after", type=click.IntRange(0), default=0, metavar="N", help="Only what came after this event."),
    PATIENCE,
    formats=TOLD,
)
def events(terminal: Terminal, follow: bool, after: int) -> None:
    """Everything that happened to all sessions, in the order it was committed. With -o json one object a line."""
    if follow:
        for event in terminal.client.follow_events(after):
            _print_event(terminal, event)
        return
    while page := terminal.client.events(after):
        for event in page:
            _print_event(terminal, event)
        after = page[-1]["id"]


def _print_event(terminal: Terminal, event: Any) -> None:
    terminal.print(json.dumps(event, ensure_ascii=False) if terminal.as_json else show_event(event))
    sys.stdout.flush()


@verb("explain", ID, formats=TOLD)
def explain(terminal: Terminal, id_: str) -> None:
    """Why a session does not start, or what is still missing until it runs."""
    found = terminal.client.explain(id_)
    if terminal.as_json:
        terminal.print_json(found)
    else:
        terminal.print(show_explanation(found))


@verb("audit-launch", ID, formats=TOLD)
def audit_launch(terminal: Terminal, id_: str) -> int:
    """The records that show that each launch of a session began at most once. Exits with 1 if one began twice."""
    found = terminal.client.launches(id_)
    if terminal.as_json:
        terminal.print_json(found)
    else:
        terminal.print(show_launches(found))
    return 1 if found["double_starts"] else 0
