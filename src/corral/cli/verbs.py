"""How a command becomes part of the application: its function says what is its own, the rest comes by itself.

Every command gets `--url --token --config`, those that show something `-o`; it gets a `Terminal` and answers its exit
code (None: 0). Faults become one line and a code here, nowhere else.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import typer

from corral.cli.terminal import Terminal
from corral.model.faults import Fault

Function = Callable[..., int | None]


class Option(NamedTuple):
    """One more parameter of a command."""

    field: str
    type: Any
    declared: Any
    default: Any = None


URL = Option("url", str | None, typer.Option("--url", metavar="URL", help="The control plane (CORRAL_URL)."))
TOKEN = Option("token", str | None, typer.Option("--token", metavar="TOKEN", help="Bearer token (CORRAL_TOKEN)."))
CONFIG = Option("config", Path | None, typer.Option("--config", metavar="FILE", help="File with url and token."))
CONNECTION = (URL, TOKEN, CONFIG)
LISTED = Literal["table", "wide", "json", "name"]
SHOWN = Literal["table", "json", "name"]


def output(formats: Any) -> Option:
    return Option("output", formats, typer.Option("-o", "--output", help="How to show it."), "table")


def verb(
    app: typer.Typer, name: str, *, formats: Any = None, options: Sequence[Option] = (), **settings: Any
) -> Callable[[Function], Function]:
    """Add a command. `options` arrive as keyword arguments, for functions that take many alike."""
    added = [*options, *CONNECTION, *([] if formats is None else [output(formats)])]

    def register(function: Function) -> Function:
        app.command(name, **settings)(_command(function, added))
        return function

    return register


def _command(function: Function, added: Sequence[Option]) -> Callable[..., None]:
    signature = inspect.signature(function, eval_str=True)
    own = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.name != "terminal" and parameter.kind is not parameter.VAR_KEYWORD
    ]

    def command(**values: Any) -> None:
        terminal = Terminal(values.pop("url"), values.pop("token"), values.pop("config"), values.pop("output", "table"))
        raise typer.Exit(_run(terminal, partial(function, terminal, **values)))

    extra = [
        inspect.Parameter(
            option.field,
            inspect.Parameter.KEYWORD_ONLY,
            default=option.default,
            annotation=Annotated[option.type, option.declared],
        )
        for option in added
    ]
    parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own] + extra
    command.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__doc__ = function.__doc__
    return command


def _run(terminal: Terminal, body: Callable[[], int | None]) -> int:
    try:
        return body() or 0
    except Fault as fault:
        return terminal.fail(fault)
    finally:
        terminal.close()
