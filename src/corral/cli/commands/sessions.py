"""What is done to sessions and asked of them: ps, show, wait, cancel, hold, release, requeue, update, logs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from corral.cli import exits
from corral.cli.render import show_session, show_sessions
from corral.cli.request import pairs
from corral.cli.terminal import Terminal, write_bytes
from corral.cli.verbs import LISTED, SHOWN, verb
from corral.model.faults import Fault, Invalid

Id = Annotated[str, typer.Argument(metavar="ID", help="A session's id, the beginning of one, or `last`.")]
Ids = Annotated[list[str], typer.Argument(metavar="ID...", help="Ids, beginnings of ids, or `last`.")]
LIVE = ("pending", "placed", "starting", "running", "stopping")
PAGE = 1000


def add_to(app: typer.Typer) -> None:
    verb(app, "ps", formats=LISTED)(ps)
    verb(app, "show", formats=SHOWN)(show)
    verb(app, "wait", formats=SHOWN)(wait)
    verb(app, "cancel", formats=SHOWN)(cancel)
    verb(app, "hold", formats=SHOWN)(hold)
    verb(app, "release", formats=SHOWN)(release)
    verb(app, "requeue", formats=SHOWN)(requeue)
    verb(app, "update", formats=SHOWN)(update)
    verb(app, "logs")(logs)


def ps(
    terminal: Terminal,
    phase: Annotated[list[str] | None, typer.Option(help="Only this phase, `ended` too (may be repeated).")] = None,
    everything: Annotated[bool, typer.Option("-a", "--all", help="Also what has ended.")] = False,
    owner: Annotated[str | None, typer.Option(help="Only this user's.")] = None,
    project: Annotated[str | None, typer.Option(help="Only this project's.")] = None,
    group: Annotated[str | None, typer.Option(help="Only this resource group's.")] = None,
    name: Annotated[str | None, typer.Option(help="Only those of this name.")] = None,
    label: Annotated[list[str] | None, typer.Option(metavar="K=V", help="Only with this label.")] = None,
    limit: Annotated[int, typer.Option("-n", "--limit", min=0, help="At most so many; 0 for all.")] = 100,
) -> None:
    """List the sessions that have not ended, newest first; with -a all of them."""
    pairs("label", label or [])
    filters: dict[str, Any] = {
        "phase": phase or (None if everything else LIVE),
        "owner": owner, "project": project, "group": group, "name": name, "label": label,
    }  # fmt: skip
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
        return list(page["items"]), page["next"] is not None
    found: list[Any] = []
    for one in terminal.client.all_sessions(**filters, limit=PAGE):
        if limit and len(found) == limit:
            return found, True
        found.append(one)
    return found, False


def show(terminal: Terminal, ids: Ids) -> int:
    """Show sessions in full."""
    found, code = terminal.each(ids, terminal.client.get)
    _print(terminal, ids, found, lambda one: show_session(one), gap=True)
    return code


def wait(
    terminal: Terminal,
    ids: Ids,
    timeout: Annotated[float | None, typer.Option(metavar="S", min=0, help="Give up after so many seconds.")] = None,
) -> int:
    """Wait until sessions have ended, and exit as they did: the first that was not 0, in the order given."""
    from corral.client import host

    deadline = None if timeout is None else host.now_s() + timeout
    known = [terminal.client.get(id_)["id"] for id_ in ids]
    ended: list[Mapping[str, Any]] = []
    for id_ in known:
        left_s = None if deadline is None else max(0.0, deadline - host.now_s())
        session = terminal.client.wait(id_, left_s)
        if session["phase"] != "ended":
            terminal.fail(Fault("wait_timeout", f"session {id_} is {session['phase']} after {timeout:g} s; wait again"))
            return exits.TIMED_OUT
        ended.append(session)
    if terminal.output != "table":
        _print(terminal, ids, ended, lambda one: one["id"])
    return next((code for one in ended if (code := exits.code_of_session(one))), 0)


def cancel(terminal: Terminal, ids: Ids) -> int:
    """Ask sessions to stop."""
    return _act(terminal, ids, terminal.client.cancel)


def hold(terminal: Terminal, ids: Ids) -> int:
    """Keep pending sessions from starting."""
    return _act(terminal, ids, terminal.client.hold)


def release(terminal: Terminal, ids: Ids) -> int:
    """Let held sessions start."""
    return _act(terminal, ids, terminal.client.release)


def requeue(terminal: Terminal, ids: Ids) -> int:
    """Run sessions again: live ones are stopped and queued again, ended ones get a new session."""
    return _act(terminal, ids, terminal.client.requeue)


def update(
    terminal: Terminal,
    ids: Ids,
    priority: Annotated[int | None, typer.Option(metavar="N", help="While pending.")] = None,
    group: Annotated[str | None, typer.Option(metavar="NAME", help="While pending.")] = None,
    time: Annotated[str | None, typer.Option(metavar="DURATION", help="Time limit, until it ends.")] = None,
) -> int:
    """Change sessions that have not ended."""
    given = {"priority": priority, "group": group, "time": time}
    changes = {name: value for name, value in given.items() if value is not None}
    if not changes:
        raise Invalid("nothing_asked", "say what to change: --priority, --group or --time")
    return _act(terminal, ids, lambda id_: terminal.client.update(id_, **changes))


def logs(
    terminal: Terminal,
    id_: Id,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until it ends.")] = False,
    rank: Annotated[int, typer.Option(min=0, help="Of which rank.")] = 0,
    stderr: Annotated[bool, typer.Option("--stderr", help="Its standard error.")] = False,
    attempt: Annotated[int | None, typer.Option(min=1, help="Of which attempt; default the newest.")] = None,
    offset: Annotated[int, typer.Option(min=0, help="From this byte on.")] = 0,
) -> None:
    """Print a session's output."""
    what: dict[str, Any] = {"rank": rank, "stream": "stderr" if stderr else "stdout", "attempt": attempt}
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


def _act(terminal: Terminal, ids: list[str], act: Callable[[str], Mapping[str, Any]]) -> int:
    done, code = terminal.each(ids, act)
    _print(terminal, ids, done, lambda one: one["id"])
    return code


def _print(
    terminal: Terminal,
    ids: list[str],
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
