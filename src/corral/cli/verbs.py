"""How a command becomes part of the application: its function says what is its own, the rest comes by itself.

Every command gets `--url --token --config`, those that show something `-o`; it gets a `Terminal` and answers its exit
code (None: 0). Faults become one line and a code here, nowhere else.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from corral.cli.terminal import Terminal
from corral.model.faults import Fault

LONGEST_S = 10 * 365 * 86400.0
LONGEST_SENTENCE = 1000

Function = Callable[..., int | None]

LISTED = ("table", "wide", "json", "name")
SHOWN = ("table", "json", "name")
TOLD = ("table", "json")
SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


class Verbs(click.Group):
    """Commands that are listed each with its whole first sentence, however narrow the terminal."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.get_short_help_str(LONGEST_SENTENCE)) for name, one in found if one])


def option(*flags: str, help: str, **settings: Any) -> click.Option:
    return click.Option(list(flags), help=help, **settings)


def argument(name: str, metavar: str, **settings: Any) -> click.Argument:
    return click.Argument([name], metavar=metavar, **settings)


class _Path(click.ParamType[Path]):
    """Never an empty word, which is an unset variable of a shell and would mean the folder that one is in."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        if str(value) == "":
            self.fail("the path is empty", param, ctx)
        return Path(value)


def path() -> click.ParamType[Path]:
    return _Path()


class _Seconds(click.ParamType[float]):
    """A span that ends: no `nan`, no `inf`, nothing below zero."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            seconds = float(value)
        except ValueError:
            seconds = math.nan
        if not 0 <= seconds < LONGEST_S:
            self.fail(f"{str(value)[:80]!r} is not a number of seconds, 0 or more", param, ctx)
        return seconds


SECONDS = _Seconds()
PATIENCE = option(
    "--patience", type=SECONDS, default=60.0, metavar="S", envvar="CORRAL_PATIENCE",
    help="How long to try again when the connection broke (60; CORRAL_PATIENCE).",
)  # fmt: skip


def verb(
    name: str,
    *params: click.Parameter,
    formats: Sequence[str] = (),
    cls: type[click.Command] = click.Command,
    asks: bool = True,
    epilog: str | None = None,
) -> Callable[[Function], click.Command]:
    """The command of a function that takes a terminal and, by name, the values of its parameters. One that does not
    ask a control plane (`asks`) takes no options that name one."""

    def register(function: Function) -> click.Command:
        def command(**values: Any) -> int:
            said = {field: values.pop(field, None) for field in ("url", "token", "config")}
            terminal = Terminal(**said, output=values.pop("output", "table"))
            terminal.patience_s = values.pop("patience", terminal.patience_s)
            return _run(terminal, partial(function, terminal, **values))

        return cls(
            name,
            callback=command,
            params=[*params, *_common(formats, asks)],
            help=inspect.getdoc(function),
            epilog=epilog,
            context_settings=SETTINGS,
        )

    return register


def _common(formats: Sequence[str], asks: bool) -> list[click.Parameter]:
    common: list[click.Parameter] = []
    if asks:
        common += [
            option("--url", metavar="URL", help="The control plane (CORRAL_URL)."),
            option("--token", metavar="TOKEN", help="Bearer token (CORRAL_TOKEN)."),
            option("--config", metavar="FILE", type=path(), help="File with url and token."),
        ]
    if formats:
        common.append(option("-o", "--output", type=click.Choice(formats), default=formats[0], help="How to show it."))
    return common


def _run(terminal: Terminal, body: Callable[[], int | None]) -> int:
    try:
        return body() or 0
    except Fault as fault:
        return terminal.fail(fault)
    finally:
        terminal.close()
