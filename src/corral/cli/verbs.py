"""How a command becomes part of the application: its function says what is its own, the rest comes by itself.

Every command gets `--url --token --config`, those that show something `-o`; it gets a `Terminal` and answers its exit
code (None: 0). Faults become one line and a code here, nowhere else.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from corral.cli.terminal import Terminal
from corral.model.faults import Fault

Function = Callable[..., int | None]

LISTED = ("table", "wide", "json", "name")
SHOWN = ("table", "json", "name")
TOLD = ("table", "json")
SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


def option(*flags: str, help: str, **settings: Any) -> click.Option:
    return click.Option(list(flags), help=help, **settings)


def argument(name: str, metavar: str, **settings: Any) -> click.Argument:
    return click.Argument([name], metavar=metavar, **settings)


def path() -> click.Path:
    return click.Path(path_type=Path)


PATIENCE = option(
    "--patience", type=click.FloatRange(0), default=60.0, metavar="S", envvar="CORRAL_PATIENCE",
    help="How long to try again when the connection broke (60; CORRAL_PATIENCE).",
)  # fmt: skip


def verb(
    name: str, *params: click.Parameter, formats: Sequence[str] = (), cls: type[click.Command] = click.Command
) -> Callable[[Function], click.Command]:
    """The command of a function that takes a terminal and, by name, the values of its parameters."""

    def register(function: Function) -> click.Command:
        def command(**values: Any) -> int:
            said = {field: values.pop(field) for field in ("url", "token", "config")}
            terminal = Terminal(**said, output=values.pop("output", "table"))
            terminal.patience_s = values.pop("patience", terminal.patience_s)
            return _run(terminal, partial(function, terminal, **values))

        return cls(
            name,
            callback=command,
            params=[*params, *_common(formats)],
            help=inspect.getdoc(function),
            context_settings=SETTINGS,
        )

    return register


def _common(formats: Sequence[str]) -> list[click.Parameter]:
    common: list[click.Parameter] = [
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
