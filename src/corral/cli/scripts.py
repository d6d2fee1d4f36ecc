"""A script's own options: `#CORRAL --gpus 1` lines, and `#SBATCH` lines for what has a meaning here.

Lines count up to the first that is neither empty nor a comment, as in Slurm.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from typing import NamedTuple

from corral.cli import slurm
from corral.cli.directives import Directive
from corral.model.faults import Invalid

# Whom to speak to, and with which token, is not for a script that was only handed on to say.
CALLERS_OWN = ("--url", "--token", "--config", "--help", "-h")


class Script(NamedTuple):
    """What a script asks for. `ignored` are lines whose option means nothing here."""

    data: bytes
    directives: list[Directive]
    ignored: list[str]


def read(name: str, data: bytes) -> Script:
    if b"\0" in data[:1024]:
        raise Invalid("not_a_script", f"{name} is no script; to run a program, write it after `--`")
    directives: list[Directive] = []
    sbatch: list[Directive] = []
    for number, mark, rest in _marked(data):
        words = _words(name, number, rest)
        (directives if mark == "#CORRAL" else sbatch).append(Directive(number, words))
    translated, ignored = slurm.translate(name, sbatch)
    # Our own lines come later, so that they win.
    return Script(data, [*translated, *directives], ignored)


def _marked(data: bytes) -> Iterator[tuple[int, str, str]]:
    for number, line in enumerate(data.decode("utf-8", "replace").split("\n"), 1):
        text = line.strip()
        if text and not text.startswith("#"):
            return
        mark, _, rest = text.partition(" ")
        if mark in ("#CORRAL", "#SBATCH"):
            yield number, mark, rest


def _words(name: str, number: int, text: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError as error:
        raise Invalid("bad_directive", f"{name} line {number}: {error}") from None


def check(name: str, script: Script, parse: Callable[[list[str]], list[str]]) -> list[str]:
    """All words, once every line has been parsed by itself, so that an error names its line."""
    for line, words in script.directives:
        odd = next((word for word in words if word.partition("=")[0] in CALLERS_OWN), None)
        if odd is not None:
            raise Invalid(
                "bad_directive", f"{name} line {line}: {odd.partition('=')[0]} is the caller's, not a script's"
            )
        try:
            rest = parse(list(words))
        except Exception as error:
            message = getattr(error, "message", str(error))
            raise Invalid("bad_directive", f"{name} line {line}: {message}") from None
        if rest:
            raise Invalid("bad_directive", f"{name} line {line}: {rest[0]!r} is no option; the command is the script")
    return [word for directive in script.directives for word in directive.words]
