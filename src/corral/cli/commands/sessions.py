"""What is done to sessions and asked of them: ps, show, wait, cancel, hold, release, requeue, update, logs.

An ID is a session's id, an unambiguous beginning of one, or `last`; `ID[7]` is a member of an array.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from corral.cli import exits
from corral.cli.render import show_session, show_sessions
from corral.cli.request import pairs
from corral.cli.terminal import Terminal, write_bytes
from corral.cli.verbs import LISTED, PATIENCE, SECONDS, SHOWN, argument, option, verb
from corral.model.faults import Fault, Invalid
from corral.model.wording import span

ID = argument("id_", "ID")
IDS = argument("ids", "ID...", nargs=-1, required=True)
LIVE = ("pending", "placed", "starting", "running", "stopping")
PAGE = 1000


@verb(
    "ps",
    option("--phase", multiple=True, help="Only this phase, `ended` too (may be repeated)."),
    option("-a", "--all", "everything", is_flag=True, help="Also what has ended."),
    option("--owner", help="Only this user's."),
    option("--project", help="Only this project's."),
    option("--group", help="Only this resource group's."),
    option("--name", help="Only those of this name."),
    option("--label", metavar="K=V", multiple=True, help="Only with this label (may be repeated)."),
    option("--members", is_flag=True, help="Members of arrays one by one, not each array as one."),
    option("--array", metavar="ID", help="Only the members of this array."),
    option("-n", "--limit", type=click.IntRange(0), default=100, help="At most so many (100); 0 for all."),
    formats=LISTED,
)
def ps(terminal: Terminal, phase: tuple[str, ...], everything: bool, members: bool, limit: int, **values: Any) -> None:
    """List the sessions that have not ended, newest first; with -a all of them. An array is one line."""
    pairs("label", values["label"])
    filters: dict[str, Any] = {"phase": phase or (None if everything else LIVE), **values}
    if members:
        filters["members"] = 1
    found, more = _list(terminal, filters, limit)
    if terminal.as_json:
        terminal.print_json(found)
    elif terminal.output == "name":
        _print_ids(terminal, found)
    else:
        terminal.print(show_sessions(found, wide=terminal.output == "wide"))
    if more:
        terminal.note(f"there are more than these {limit}; --limit 0 shows all")


def _list(terminal: Terminal, filters: dict[str, Any], limit: int) -> tuple[list[Any], bool]:
    if 0 < limit <= PAGE:
        page = terminal.client.sessions(**filters, limit=limit)
        return list(page["sessions"]), page["next"] is not None
    found: list[Any] = []
    for one in terminal.client.all_sessions(**filters, limit=PAGE):
        if limit and len(found) == limit:
            return found, True
        found.append(one)
    return found, False


@verb("show", IDS, formats=SHOWN)
def show(terminal: Terminal, ids: tuple[str, ...]) -> int:
    """Show sessions in full."""
    found, code = terminal.each(ids, terminal.client.get)
    _print(terminal, ids, found, show_session, gap=True)
    return code


@verb(
    "wait",
    IDS,
    option("--timeout", type=SECONDS, metavar="S", help="Give up after so many seconds."),
    PATIENCE,
    formats=SHOWN,
)
def wait(terminal: Terminal, ids: tuple[str, ...], timeout: float | None) -> int:
    """Wait until sessions have ended, and exit as they did. Of several it is the first code that was not 0, in the
    order given."""
    from corral.client import host

    deadline = None if timeout is None else host.now_s() + timeout
    known = [terminal.client.get(id_)["id"] for id_ in ids]
    ended: list[Mapping[str, Any]] = []
    for id_ in known:
        left_s = None if deadline is None else max(0.0, deadline - host.now_s())
        session = terminal.client.wait(id_, left_s)
        if session["phase"] != "ended":
            terminal.fail(
                Fault("wait_timeout", f"session {id_} is {session['phase']} after {span(timeout or 0)}; wait again")
            )
            return exits.TIMED_OUT
        ended.append(session)
    if terminal.output != "table":
        _print(terminal, ids, ended, lambda one: one["id"])
    return next((code for one in ended if (code := exits.code_of_session(one))), 0)


@verb("cancel", IDS, formats=SHOWN)
def cancel(terminal: Terminal, ids: tuple[str, ...]) -> int:
    """Ask sessions to stop."""

    def ask(id_: str) -> Mapping[str, Any]:
        session = terminal.client.cancel(id_)
        if session["phase"] == "ended" and session["outcome"] != "cancelled":
            terminal.note(f"session {session['id']} had ended before: {session['outcome']}")
        return session

    return _act(terminal, ids, ask)


@verb("hold", IDS, formats=SHOWN)
def hold(terminal: Terminal, ids: tuple[str, ...]) -> int:
    """Keep pending sessions from starting."""
    return _act(terminal, ids, terminal.client.hold)


@verb("release", IDS, formats=SHOWN)
def release(terminal: Terminal, ids: tuple[str, ...]) -> int:
    """Let held sessions start."""
    return _act(terminal, ids, terminal.client.release)


@verb("requeue", IDS, formats=SHOWN)
def requeue(terminal: Terminal, ids: tuple[str, ...]) -> int:
    """Run sessions again: live ones are stopped and queued again, ended ones get a new session."""
    return _act(terminal, ids, terminal.client.requeue)


@verb(
    "update",
    IDS,
    option("--priority", type=int, metavar="N", help="While pending."),
    option("--group", metavar="NAME", help="While pending."),
    option("--time", metavar="DURATION", help="Time limit, until it ends."),
    option("--preemptible/--no-preemptible", default=None, help="Whether it may be stopped for others, until it ends."),
    option("--throttle", type=click.IntRange(0), metavar="N", help="So many members of an array at once; 0: all."),
    formats=SHOWN,
)
def update(terminal: Terminal, ids: tuple[str, ...], **given: Any) -> int:
    """Change sessions that have not ended."""
    changes = {name: value for name, value in given.items() if value is not None}
    if not changes:
        raise Invalid("nothing_asked", "say what to change: --priority, --group, --time, --preemptible or --throttle")
    return _act(terminal, ids, lambda id_: terminal.client.update(id_, **changes))


@verb(
    "logs",
    ID,
    option("-f", "--follow", is_flag=True, help="Go on until it ends."),
    option("--rank", type=click.IntRange(0), default=0, help="Of which rank; default 0."),
    option("--stderr", is_flag=True, help="Its standard error."),
    option("--attempt", type=click.IntRange(1), help="Of which attempt; default the newest."),
    option("--offset", type=click.IntRange(0), default=0, help="From this byte on."),
    PATIENCE,
)
def logs(terminal: Terminal, id_: str, follow: bool, stderr: bool, offset: int, **which: Any) -> None:
    """Print a session's output."""
    what: dict[str, Any] = {"stream": "stderr" if stderr else "stdout", **which}
    if not follow:
        write_bytes(terminal.client.logs(id_, offset=offset, **what))
        return
    full_id = terminal.client.get(id_)["id"]
    for chunk in terminal.client.follow_logs(full_id, offset=offset, **what):
        if chunk.start > offset:
            terminal.note(f"{chunk.start - offset} bytes before here are gone")
        offset = chunk.next
        sys.stdout.buffer.write(chunk.data)
        sys.stdout.buffer.flush()


def _act(terminal: Terminal, ids: Sequence[str], act: Callable[[str], Mapping[str, Any]]) -> int:
    done, code = terminal.each(ids, act)
    _print(terminal, ids, done, lambda one: one["id"])
    return code


def _print(
    terminal: Terminal,
    ids: Sequence[str],
    found: list[Any],
    text: Callable[[Any], str],
    *,
    gap: bool = False,
) -> None:
    """One session for one id, as JSON too; several for several."""
    if terminal.as_json:
        if found:
            terminal.print_json(found[0] if len(ids) == 1 else found)
    elif terminal.output == "name":
        _print_ids(terminal, found)
    elif found:
        terminal.print(("\n\n" if gap else "\n").join(text(one) for one in found))


def _print_ids(terminal: Terminal, found: list[Any]) -> None:
    if found:
        terminal.print("\n".join(one["id"] for one in found))
