"""What happened and why: history, events, explain, audit-launch."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any, Literal

import typer

from corral.cli.commands.sessions import Id
from corral.cli.render import show_event, show_explanation, show_history, show_launches
from corral.cli.terminal import Terminal
from corral.cli.verbs import verb

FORMATS = Literal["table", "json"]


def add_to(app: typer.Typer) -> None:
    verb(app, "history", formats=FORMATS)(history)
    verb(app, "events", formats=FORMATS)(events)
    verb(app, "explain", formats=FORMATS)(explain)
    verb(app, "audit-launch", formats=FORMATS)(audit_launch)


def history(terminal: Terminal, id_: Id) -> None:
    """Everything that happened to a session, in order."""
    found = terminal.client.history(id_)
    if terminal.as_json:
        terminal.print_json(found)
    else:
        terminal.print(show_history(found))


def events(
    terminal: Terminal,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on with what happens.")] = False,
    after: Annotated[int, typer.Option(metavar="N", min=0, help="Only what came after this event.")] = 0,
) -> None:
    """Everything that happened to all sessions, in the order it was committed; with -o json one object a line."""
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


def explain(terminal: Terminal, id_: Id) -> None:
    """Why a session does not start, or what is still missing until it runs."""
    found = terminal.client.explain(id_)
    if terminal.as_json:
        terminal.print_json(found)
    else:
        terminal.print(show_explanation(found))


def audit_launch(terminal: Terminal, id_: Id) -> int:
    """The records that show that each launch of a session began at most once; exits 1 if one began twice."""
    found = terminal.client.launches(id_)
    if terminal.as_json:
        terminal.print_json(found)
    else:
        terminal.print(show_launches(found))
    return 1 if found["double_starts"] else 0
