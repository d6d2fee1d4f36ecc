"""The console script. Whatever happens ends in an exit code and at most one line on stderr, never in a traceback."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

import click

from corral.cli import exits
from corral.cli.terminal import one_line, tell
from corral.cli.verbs import SETTINGS, Verbs
from corral.model.faults import Fault, Invalid

# Where each command is; only the module of the one that runs is imported.
COMMANDS = {
    "submitting": ("submit", "run"),
    "sessions": ("ps", "show", "wait", "cancel", "hold", "release", "requeue", "update", "logs"),
    "stories": ("history", "events", "explain", "audit-launch"),
    "cluster": ("nodes", "node", "devices", "doctor", "version"),
    "groups": ("group", "queue"),
    "quotas": ("quota",),
    "reservations": ("reservation",),
    "clearing": ("defragment",),
    "simulate": ("simulate",),
    "planes": ("up", "manager", "agent", "db"),
}
MODULE_OF = {name: module for module, names in COMMANDS.items() for name in names}


class Application(Verbs):
    """All commands, each imported when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(MODULE_OF)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in MODULE_OF:
            return None
        module = importlib.import_module(f"corral.cli.commands.{MODULE_OF[cmd_name]}")
        return getattr(module, cmd_name.replace("-", "_"))


_LOCAL: dict[type[Exception], str] = {
    UnicodeError: "what was read is not valid UTF-8 text",
    RecursionError: "what was given is nested too deeply",
    MemoryError: "there is not enough memory for this",
}

app = Application(
    "corral",
    help="Run sessions on machines with GPUs, each at most once, and see the proof.",
    no_args_is_help=False,
    context_settings=SETTINGS,
)


def run(argv: Sequence[str] | None = None) -> None:
    """Run one command and exit."""
    _open_what_is_closed()
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


def _open_what_is_closed() -> None:
    """Started with stdout or stderr closed there is nobody to read, and the next file opened would get its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            while os.open(os.devnull, os.O_RDWR) < number:
                pass
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", closefd=False))


def _code_of(arguments: list[str]) -> int:
    as_json = _wants_json(arguments)
    try:
        if not arguments:
            _run(["--help"])
            return exits.USAGE
        return _run(arguments)
    except click.ClickException as error:
        message = one_line(error.format_message()).rstrip(". ")
        tell(Invalid("usage", f"{message}; see `{_command_of(error)} --help`"), as_json=as_json)
        return exits.USAGE
    except (KeyboardInterrupt, click.Abort):
        return exits.CANCELLED
    except Fault as fault:
        tell(fault, as_json=as_json)
        return exits.code_of(fault)
    except BrokenPipeError:
        raise
    except UnicodeEncodeError:
        tell(Invalid("not_text", "an argument is not valid UTF-8 text; pass such bytes in a file"), as_json=as_json)
        return exits.USAGE
    except Exception as error:
        if os.environ.get("CORRAL_TRACEBACK"):
            raise
        tell(_local(error), as_json=as_json)
        return exits.ERROR


def _local(error: Exception) -> Fault:
    """What this machine would not do, in its own words; what nobody foresaw is a fault of ours."""
    if isinstance(error, OSError) and error.strerror:
        place = f"{error.filename}: " if error.filename is not None else ""
        return Fault("local_error", one_line(f"{place}{error.strerror}"))
    for kind, words in _LOCAL.items():
        if isinstance(error, kind):
            return Fault("local_error", words)
    why = f"{type(error).__name__}: {error}"
    return Fault("internal", one_line(f"a fault of corral itself ({why}); CORRAL_TRACEBACK=1 shows where"))


def _run(arguments: list[str]) -> int:
    return app.main(args=arguments, prog_name="corral", standalone_mode=False) or 0


def _command_of(error: click.ClickException) -> str:
    """The command that was being read when it went wrong."""
    return str(getattr(getattr(error, "ctx", None), "command_path", "corral"))


def _wants_json(arguments: Sequence[str]) -> bool:
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    text = " ".join(own)
    return any(form in f"{text} " for form in ("-o json ", "-ojson ", "--output json ", "--output=json "))
