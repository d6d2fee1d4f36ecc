"""The machines: nodes, node show, node confirm-dead, devices, doctor, version."""

from __future__ import annotations

from typing import Annotated

import typer

from corral import __version__
from corral.cli.render import show_devices, show_diagnosis, show_node, show_nodes
from corral.cli.terminal import Terminal
from corral.cli.verbs import LISTED, SHOWN, verb
from corral.model.faults import Fault

Name = Annotated[str, typer.Argument(metavar="NAME", help="The node.")]


def add_to(app: typer.Typer) -> None:
    verb(app, "nodes", formats=LISTED)(nodes)
    verb(app, "devices", formats=LISTED)(devices)
    verb(app, "doctor", formats=SHOWN)(doctor)
    verb(app, "version", formats=SHOWN)(version)
    node = typer.Typer(help="One node: show, confirm-dead.", rich_markup_mode=None)
    verb(node, "show", formats=SHOWN)(node_show)
    verb(node, "confirm-dead", formats=SHOWN)(node_confirm_dead)
    app.add_typer(node, name="node")


def nodes(terminal: Terminal) -> None:
    """List the nodes."""
    found = terminal.client.nodes()
    if terminal.as_json:
        terminal.print_json(found)
    elif terminal.output == "name":
        _print_names(terminal, [one["name"] for one in found])
    else:
        terminal.print(show_nodes(found, wide=terminal.output == "wide"))


def devices(terminal: Terminal) -> None:
    """List the GPUs of all nodes."""
    found = terminal.client.devices()
    if terminal.as_json:
        terminal.print_json(found)
    elif terminal.output == "name":
        _print_names(terminal, [one["uuid"] for one in found])
    else:
        terminal.print(show_devices(found, wide=terminal.output == "wide"))


def node_show(terminal: Terminal, name: Name) -> None:
    """Show a node, its GPUs and the sessions on it."""
    found = terminal.client.node(name)
    if terminal.as_json:
        terminal.print_json(found)
    else:
        terminal.print(found["node"]["name"] if terminal.output == "name" else show_node(found))


def node_confirm_dead(terminal: Terminal, name: Name) -> None:
    """Say that a node is gone for good, which gives its sessions' room back. If it lives, they may start twice."""
    freed = terminal.client.confirm_dead(name)
    if terminal.as_json:
        terminal.print_json(freed)
    else:
        _print_names(terminal, freed["sessions"])


def doctor(terminal: Terminal) -> int:
    """Hold every invariant against every record; exits 1 when one is broken."""
    found = terminal.client.doctor()
    if terminal.as_json:
        terminal.print_json(found)
    elif terminal.output == "name":
        _print_names(terminal, [f"{one['code']} {one['subject']}" for one in found["findings"]])
    else:
        terminal.print(show_diagnosis(found))
    return 0 if found["ok"] else 1


def version(terminal: Terminal) -> None:
    """The version of this client, and of the control plane when it answers."""
    try:
        server = terminal.client.version()["version"]
    except Fault:
        server = None
    if terminal.as_json:
        terminal.print_json({"client": __version__, "server": server})
    else:
        terminal.print(f"corral {__version__}" + (f", control plane {server}" if server else ""))


def _print_names(terminal: Terminal, names: list[str]) -> None:
    if names:
        terminal.print("\n".join(names))
