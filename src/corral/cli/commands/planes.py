"""The processes of Corral itself: up, manager, agent, db upgrade. Server code is imported when one of them runs."""

from __future__ import annotations

import argparse
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from corral.cli import exits
from corral.cli.terminal import tell
from corral.cli.verbs import SECONDS, SETTINGS, Verbs, option, path
from corral.model.faults import Fault, Invalid
from corral.settings import DEFAULT_LISTEN, ManagerSettings, QuotaFile, UpSettings, parse_listen, parse_quotas

DATABASE = option("--database", required=True, metavar="URL", help="sqlite:////path/corral.db or postgresql://…")
QUOTAS = option("--quotas", type=path(), metavar="FILE", help="TOML file of quotas, set at the start.")
LISTEN = option("--listen", default=DEFAULT_LISTEN, metavar="HOST:PORT", help="Where to listen; port 0 takes any.")


def process(name: str, *params: click.Parameter, **settings: Any) -> Callable[[Callable[..., Any]], click.Command]:
    """The command of a function that runs a process of Corral's. It speaks to no control plane, so that what it cannot
    do is an error like any other: 1, and 2 where the request made no sense."""

    def register(function: Callable[..., Any]) -> click.Command:
        def command(**values: Any) -> int:
            try:
                return function(**values) or 0
            except Fault as fault:
                tell(fault, as_json=False)
                return exits.USAGE if isinstance(fault, Invalid) else exits.ERROR

        settings.setdefault("context_settings", SETTINGS)
        return click.Command(name, callback=command, params=list(params), help=inspect.getdoc(function), **settings)

    return register


@process(
    "up",
    option("--data-dir", type=path(), metavar="DIR", help="Where everything is kept; default ~/.local/share/corral."),
    LISTEN,
    option("--simulate-gpus", metavar="SPEC", help="4xA100:80GB, for each node."),
    option("--nodes", type=click.IntRange(1, 64), default=1, metavar="N", help="Agents to start here; default 1."),
    option("--cpus", metavar="N", help="CPUs of each node; default what is here."),
    option("--memory", metavar="SIZE", help="Memory of each node."),
    option("--label", multiple=True, metavar="K=V", help="A label of each node (may be repeated)."),
    QUOTAS,
    option("--no-login", is_flag=True, help="Leave the user's own configuration alone."),
    option("--stop-sessions", is_flag=True, help="At the end, stop sessions too."),
)
def up(
    data_dir: Path | None, listen: str, label: tuple[str, ...], no_login: bool, quotas: Path | None, **values: Any
) -> None:
    """Run everything for one machine: manager, agents, database. Prints `ready http://…` when it accepts work.

    Stopping it leaves running sessions running; the next `corral up` on the same data finds them again.
    """
    settings = UpSettings(
        data_dir=(data_dir or _usual_data_dir()).expanduser().absolute(),
        listen=parse_listen(listen),
        login=not no_login,
        labels=label,
        quotas=_quotas_in(quotas),
        **values,
    )
    _require_sensible(settings)
    from corral import server

    server.up(settings)


@process(
    "manager",
    DATABASE,
    LISTEN,
    option("--url", metavar="URL", help="How agents and managers reach this one."),
    option("--token-file", type=path(), metavar="FILE", help="Make the first tokens beside it."),
    QUOTAS,
)
def manager(database: str, listen: str, url: str | None, token_file: Path | None, quotas: Path | None) -> None:
    """Run one manager; any number of them share one PostgreSQL."""
    settings = ManagerSettings(database, parse_listen(listen), url, token_file, _quotas_in(quotas))
    from corral import server

    server.run_manager(settings)


@process(
    "agent",
    option("--manager", required=True, metavar="URL[,URL…]", help="The managers; the next when one does not answer."),
    option("--token-file", required=True, type=path(), metavar="FILE", help="File with the agents' token."),
    option("--name", required=True, metavar="NAME", help="The node's name."),
    option("--state-dir", required=True, type=path(), metavar="DIR", help="Durable state, logs and workspaces."),
    option("--run-dir", type=path(), metavar="DIR", help="Job directories; default on a tmpfs where there is one."),
    option("--address", default="127.0.0.1", metavar="HOST", help="Where other ranks reach this one (MASTER_ADDR)."),
    option("--label", multiple=True, metavar="K=V", help="A label of the node (may be repeated)."),
    option("--group", default="default", metavar="NAME", help="The resource group it belongs to."),
    option("--simulate-gpus", metavar="SPEC", help="4xA100:80GB."),
    option("--cpus", metavar="N", help="CPUs to offer; default what is here."),
    option("--memory", metavar="SIZE", help="Memory to offer; default what is here."),
    option("--kill-grace", type=SECONDS, default=60.0, metavar="S", help="How long killing may take; default 60."),
    option("--keeper", type=click.IntRange(1), metavar="PID", help="End when this process, which started it, is gone."),
)
def agent(**values: Any) -> None:
    """Run this machine's agent: it starts what the managers say, and tells them how it ended.

    Stopping it leaves running sessions running; the next start on the same directories finds them again.
    """
    from corral.agent.__main__ import start

    start(argparse.Namespace(**values))


@process("upgrade", DATABASE)
def upgrade(database: str) -> None:
    """Bring a database to this version's form; nothing happens to one that has it."""
    from corral.store import upgrade as upgrade_database

    upgrade_database(database)


db = Verbs("db", help="The database: upgrade.", commands=[upgrade], no_args_is_help=False, context_settings=SETTINGS)


def _quotas_in(file: Path | None) -> QuotaFile | None:
    if file is None:
        return None
    try:
        text = file.read_text()
    except OSError as error:
        raise Invalid("bad_quota_file", f"--quotas {file}: {error.strerror}", subject=str(file)) from None
    except UnicodeDecodeError:
        raise Invalid("bad_quota_file", f"--quotas {file} is not text", subject=str(file)) from None
    return parse_quotas(text, f"--quotas {file}")


def _usual_data_dir() -> Path:
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "corral"


def _require_sensible(settings: UpSettings) -> None:
    """What an agent would refuse is refused here, before anything is started."""
    from corral.model.resources import parse_cpu_milli, parse_fleet, parse_memory_mib

    for flag, parse, value in (
        ("--simulate-gpus", parse_fleet, settings.simulate_gpus),
        ("--cpus", parse_cpu_milli, settings.cpus),
        ("--memory", parse_memory_mib, settings.memory),
    ):
        try:
            if value is not None and not parse(value):
                raise Invalid("bad_amount", f"{value!r} is nothing to offer")
        except Invalid as error:
            raise Invalid(error.code, f"{flag}: {error.message}", subject=flag) from None
    for label in settings.labels:
        if not label.partition("=")[0] or "=" not in label:
            raise Invalid("bad_pair", f"--label {label[:80]!r} is not KEY=VALUE", subject="--label")
