"""submit and run: what to run, from a command, a script, or a file of requests."""

from __future__ import annotations

import hashlib
import math
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from corral.cli import exits, request, scripts, specfile
from corral.cli.options import REFUSED, SUBMIT
from corral.cli.render import show_plan
from corral.cli.terminal import Terminal, one_line
from corral.cli.verbs import PATIENCE, SHOWN, argument, option, verb
from corral.model.faults import Invalid, Refused
from corral.model.spec import NAME

SCRIPT = "corral.script"
TOO_MANY = "quota_waiting"
RANK = option("--rank", type=click.IntRange(0), metavar="N", help="Show this rank only; default all.")
WORDS = argument("words", "-- COMMAND [ARG]... | SCRIPT [ARG]...", nargs=-1)


class SubmitCommand(click.Command):
    """Options end at the first word. Without `--` before it that word is a script, whose own lines are options too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.allow_interspersed_args = False
        words = self._words(ctx, args)
        dashed = len(words) < len(args) and args[len(args) - len(words) - 1] == "--"
        if words and not dashed and not ctx.resilient_parsing:
            script = _read_script(words[0])
            ctx.meta[SCRIPT] = script
            args = [*scripts.check(words[0], script, lambda line: self._words(ctx, line)), *args]
        return super().parse_args(ctx, args)

    def _words(self, ctx: click.Context, args: list[str]) -> list[str]:
        """The words that are no options."""
        opts, rest, _ = self.make_parser(ctx).parse_args(args=list(args))
        words = opts.get("words")
        return [*(words if isinstance(words, list | tuple) else ()), *rest]


@verb("submit", WORDS, *SUBMIT, formats=SHOWN, cls=SubmitCommand, epilog=REFUSED)
def submit(terminal: Terminal, words: tuple[str, ...], **values: Any) -> int:
    """Submit a session and print its id.

    Write a command after `--`, or name a script: it is stored as it is now, and its `#CORRAL` and `#SBATCH` lines are
    options. With `-f`, the fields of the REST body; options given here go before them.
    """
    bodies = _bodies(terminal, list(words), values)
    if values["dry_run"]:
        return _dry_run(terminal, bodies)
    sessions = _submit(terminal, bodies)
    if terminal.as_json:
        terminal.print_json(sessions[0] if len(sessions) == 1 else sessions)
    else:
        terminal.print("\n".join(session["id"] for session in sessions))
    return 0


@verb("run", WORDS, *SUBMIT, RANK, PATIENCE, formats=SHOWN, cls=SubmitCommand, epilog=REFUSED)
def run(terminal: Terminal, words: tuple[str, ...], rank: int | None, **values: Any) -> int:
    """Submit a session, show its output as it comes, and exit as it does. Ctrl-C asks it to stop.

    Of several ranks all are shown, each line after its rank's number, as `0: line`.
    """
    bodies = _bodies(terminal, list(words), values)
    if values["dry_run"]:
        return _dry_run(terminal, bodies)
    if len(bodies) != 1:
        raise Invalid("one_session", f"run follows one session; -f gives {len(bodies)}: use submit", subject="-f")
    if bodies[0].get("array") is not None:
        raise Invalid("one_session", "run follows one session, not an array: use submit, and wait for it",
                      subject="--array")  # fmt: skip
    from corral.cli.attending import attend

    _require_rank(rank, bodies[0])
    session = _submit(terminal, bodies)[0]
    if not values["quiet"]:
        terminal.note(f"session {session['id']} submitted")
    ended = attend(terminal, session["id"], rank)
    if terminal.as_json:
        terminal.print_json(ended)
    return exits.code_of_session(ended)


def _require_rank(rank: int | None, body: Mapping[str, Any]) -> None:
    """Before anything is submitted; what is no number is the control plane's to refuse."""
    counts = [body.get(name) or 1 for name in ("nodes", "ranks_per_node")]
    if rank is not None and all(isinstance(count, int) for count in counts) and rank >= math.prod(counts):
        raise Invalid(
            "no_such_rank", f"--rank {rank}: this session has ranks 0 to {math.prod(counts) - 1}", subject="--rank"
        )


def _dry_run(terminal: Terminal, bodies: list[dict[str, Any]]) -> int:
    plans = [terminal.client.plan(_without_key(body)) for body in bodies]  # pyright: ignore[reportArgumentType]
    if terminal.as_json:
        terminal.print_json(plans[0] if len(plans) == 1 else plans)
    else:
        for plan in plans:
            terminal.print(show_plan(plan))
    for plan in plans:
        _would_be_taken(plan)
    return 0


def _would_be_taken(plan: Mapping[str, Any]) -> None:
    """`Refused` as the submit would be."""
    codes = {one["code"] for one in plan["blockers"]}
    reasons = "; ".join(one["message"] for one in plan["blockers"])
    if plan["infeasible"] and any(code.startswith("quota_") for code in codes):
        raise Refused("infeasible", f"this can never start: {reasons}")
    if plan["infeasible"]:
        raise Refused("infeasible", f"no node here can ever do this ({reasons}); ask for less, or see `corral nodes`")
    if TOO_MANY in codes:
        message = next(one["message"] for one in plan["blockers"] if one["code"] == TOO_MANY)
        raise Refused(TOO_MANY, f"a submit would be refused now: {message}")


def _without_key(body: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name != "idempotency_key"}


def _submit(terminal: Terminal, bodies: list[Any]) -> list[Any]:
    if len(bodies) == 1:
        return [terminal.client.submit(bodies[0])]
    return terminal.client.submit_batch(bodies)


# --- what is asked


def _bodies(terminal: Terminal, words: list[str], values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The body of each request, with what it refers to stored."""
    given = request.fields_of(values)
    request.require_text([str(value) for value in given.values()], "option value")
    request.require_text(words, "argument")
    store = not values["dry_run"]
    script: scripts.Script | None = click.get_current_context().meta.get(SCRIPT)
    if script is not None:
        for option in script.ignored:
            terminal.note(f"{one_line(words[0])}: {one_line(option)} means nothing here and is left out")
        given |= {"script": _stored(terminal, script.data, store), "command": words[1:]}
        given.setdefault("name", _name_of(words[0]))
    elif words:
        given["command"] = words
    if values["bootstrap"] is not None:
        given["bootstrap"] = _stored(terminal, request.read_bytes(values["bootstrap"], "--bootstrap"), store)
    if values["upload"] is not None:
        given["upload"] = _uploaded(terminal, values["upload"], store)
    if values["file"] is None and not words:
        raise Invalid("no_command", "say what to run: `-- COMMAND`, a SCRIPT, or `-f FILE`")
    asked: list[dict[str, Any]] = [{}]
    if values["file"] is not None:
        asked = specfile.read(values["file"])
    return [_merged(one, given) for one in asked]


def _merged(asked: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """A file's request with the options of the command line before it; variables and labels add up."""
    merged = dict(asked) | dict(given)
    for name in ("env", "labels", "on"):
        if isinstance(asked.get(name), Mapping) and name in given:
            merged[name] = {**asked[name], **given[name]}
    return merged


def _read_script(name: str) -> scripts.Script:
    path = Path(name)
    if not os.path.isfile(path):  # unlike the method, no path is too long for it
        raise Invalid(
            "no_script",
            f"there is no script {one_line(name[:200])!r}; to run a program, write it after `--`",
            subject=one_line(name[:200]),
        )
    return scripts.read(name, request.read_bytes(path, "the script"))


def _name_of(script: str) -> str:
    """A session's name from a script's file name, as far as it is one."""
    name = "".join(char if NAME.match(f"a{char}") else "-" for char in Path(script).name)[:128].lstrip("._-")
    return name or "script"


def _stored(terminal: Terminal, data: bytes, store: bool) -> str:
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    if store:
        _store(terminal, digest, lambda: data)
    return digest


def _uploaded(terminal: Terminal, root: Path, store: bool) -> str:
    from corral.cli.upload import pack

    with tempfile.NamedTemporaryFile(prefix="corral-upload-") as file:
        packed = pack(root, file)
        file.flush()
        if store:
            _store(terminal, packed.digest, lambda: Path(file.name))
        return packed.digest


def _store(terminal: Terminal, digest: str, content: Callable[[], bytes | Path]) -> None:
    if not terminal.client.has_blob(digest):
        terminal.client.put_blob(digest, content())
