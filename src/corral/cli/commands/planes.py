"""The processes of Corral itself: up, manager, agent, db upgrade. Server code is imported when one of them runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from corral.model.faults import Invalid
from corral.settings import DEFAULT_LISTEN, ManagerSettings, UpSettings, parse_listen

Database = Annotated[str, typer.Option(metavar="URL", help="sqlite:////path/corral.db or postgresql://…")]
ListenOption = Annotated[str, typer.Option("--listen", metavar="HOST:PORT", help="Where to listen; port 0 takes any.")]


def add_to(app: typer.Typer) -> None:
    app.command("up")(up)
    app.command("manager")(manager)
    passed_on = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command("agent", context_settings=passed_on, add_help_option=False)(agent)
    db = typer.Typer(help="The database: upgrade.", rich_markup_mode=None, callback=_no_options)
    db.command("upgrade")(upgrade)
    app.add_typer(db, name="db")


def up(
    data_dir: Annotated[Path | None, typer.Option(metavar="DIR", help="Where everything is kept.")] = None,
    listen: ListenOption = DEFAULT_LISTEN,
    simulate_gpus: Annotated[str | None, typer.Option(metavar="SPEC", help="4xA100:80GB, for each node.")] = None,
    nodes: Annotated[int, typer.Option(metavar="N", min=1, max=64, help="Agents to start here.")] = 1,
    cpus: Annotated[str | None, typer.Option(metavar="N", help="CPUs of each node; default what is here.")] = None,
    memory: Annotated[str | None, typer.Option(metavar="SIZE", help="Memory of each node.")] = None,
    label: Annotated[list[str] | None, typer.Option(metavar="K=V", help="A label of each node.")] = None,
    no_login: Annotated[bool, typer.Option("--no-login", help="Leave the user's own configuration alone.")] = False,
    stop_sessions: Annotated[bool, typer.Option("--stop-sessions", help="At the end, stop sessions too.")] = False,
) -> None:
    """Run everything for one machine: manager, agents, database. Prints `ready http://…` when it accepts work.

    Stopping it leaves running sessions running; the next `corral up` on the same data finds them again.
    """
    settings = UpSettings(
        data_dir=(data_dir or _usual_data_dir()).expanduser().absolute(),
        listen=parse_listen(listen),
        simulate_gpus=simulate_gpus,
        nodes=nodes,
        cpus=cpus,
        memory=memory,
        login=not no_login,
        stop_sessions=stop_sessions,
        labels=tuple(label or ()),
    )
    _require_sensible(settings)
    from corral import server

    server.up(settings)


def manager(
    database: Database,
    listen: ListenOption = DEFAULT_LISTEN,
    url: Annotated[str | None, typer.Option(metavar="URL", help="How agents and managers reach this one.")] = None,
    token_file: Annotated[Path | None, typer.Option(metavar="FILE", help="Make the first tokens beside it.")] = None,
) -> None:
    """Run one manager; any number of them share one PostgreSQL."""
    settings = ManagerSettings(database=database, listen=parse_listen(listen), url=url, token_file=token_file)
    from corral import server

    server.run_manager(settings)


def agent(ctx: typer.Context) -> None:
    """Run this machine's agent (`corral agent --help` for its options)."""
    from corral.agent.__main__ import main

    raise typer.Exit(main(ctx.args) or 0)


def upgrade(database: Database) -> None:
    """Bring a database to this version's form; nothing happens to one that has it."""
    from corral.store import upgrade as upgrade_database

    upgrade_database(database)


def _no_options() -> None:
    """The database: upgrade."""


def _usual_data_dir() -> Path:
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "corral"


def _require_sensible(settings: UpSettings) -> None:
    """What an agent would refuse is refused here, before anything is started."""
    from corral.model.resources import parse_cpu_milli, parse_fleet, parse_memory_mib

    for option, parse, value in (
        ("--simulate-gpus", parse_fleet, settings.simulate_gpus),
        ("--cpus", parse_cpu_milli, settings.cpus),
        ("--memory", parse_memory_mib, settings.memory),
    ):
        try:
            _ = value is None or parse(value)
        except Invalid as error:
            raise Invalid(error.code, f"{option}: {error.message}", subject=option) from None
    for label in settings.labels:
        if not label.partition("=")[0] or "=" not in label:
            raise Invalid("bad_pair", f"--label {label[:80]!r} is not KEY=VALUE", subject="--label")
