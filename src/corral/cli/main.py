"""The console script. Whatever happens ends in an exit code and at most one line on stderr, never in a traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer
from typer import TyperException

from corral.cli import exits
from corral.cli.commands import cluster, planes, sessions, stories, submitting
from corral.cli.terminal import one_line, tell
from corral.model.faults import Fault, Invalid

app = typer.Typer(
    name="corral",
    help="Run sessions on machines with GPUs, each at most once, and see the proof.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
for module in (submitting, sessions, stories, cluster, planes):
    module.add_to(app)


def run(argv: Sequence[str] | None = None) -> None:
    """Run one command and exit."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _code_of(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # Nobody reads any more. Python would try once more to flush at exit, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = exits.ERROR
    sys.exit(code)


def _code_of(arguments: list[str]) -> int:
    as_json = _wants_json(arguments)
    try:
        if not arguments:
            app(args=["--help"], prog_name="corral", standalone_mode=False)
            return exits.USAGE
        return app(args=arguments, prog_name="corral", standalone_mode=False) or 0
    except TyperException as error:
        message = one_line(error.format_message()).rstrip(". ")
        tell(Invalid("usage", f"{message}; see `{_command_of(error)} --help`"), as_json=as_json)
        return exits.USAGE
    except (KeyboardInterrupt, typer.Abort):
        return exits.CANCELLED
    except Fault as fault:
        tell(fault, as_json=as_json)
        return exits.code_of(fault)
    except BrokenPipeError:
        raise
    except (OSError, RecursionError, MemoryError, UnicodeError) as error:
        tell(Fault("local_error", one_line(f"{type(error).__name__}: {error}")), as_json=as_json)
        return exits.ERROR


def _command_of(error: TyperException) -> str:
    """The command that was being read when it went wrong."""
    return str(getattr(getattr(error, "ctx", None), "command_path", "corral"))


def _wants_json(arguments: Sequence[str]) -> bool:
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    text = " ".join(own)
    return any(form in f"{text} " for form in ("-o json ", "-ojson ", "--output json ", "--output=json "))
