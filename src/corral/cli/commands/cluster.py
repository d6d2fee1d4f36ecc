"""The machines: nodes, node show, node confirm-dead, devices, doctor, version."""

from __future__ import annotations

from corral import __version__
from corral.cli.render import show_devices, show_diagnosis, show_node, show_nodes
from corral.cli.terminal import Terminal
from corral.cli.verbs import LISTED, SETTINGS, SHOWN, Verbs, argument, verb
from corral.model.faults import Unavailable

NAME = argument("name", "NAME")


@verb("nodes", formats=LISTED)
def nodes(terminal: Terminal) -> None:
    """List the nodes."""
    found = terminal.client.nodes()
    if terminal.as_json:
        terminal.print_json(found)
    elif terminal.output == "name":
        _print_names(terminal, [one["name"] for one in found])
    else:
        terminal.print(show_nodes(found, wide=terminal.output == "wide"))


@verb("devices", formats=LISTED)
def devices(terminal: Terminal) -> None:
    """List the GPUs of all nodes."""
    found = terminal.client.devices()
    if terminal.as_json:
        terminal.print_json(found)
    elif terminal.output == "name":
        _print_names(terminal, [one["uuid"] for one in found])
    else:
        terminal.print(show_devices(found, wide=terminal.output == "wide"))


@verb("show", NAME, formats=SHOWN)
def node_show(terminal: Terminal, name: str) -> None:
    """Show a node, its GPUs and the sessions on it."""
    found = terminal.client.node(name)
    if terminal.as_json:
        terminal.print_json(found)
    else:
        terminal.print(found["node"]["name"] if terminal.output == "name" else show_node(found))


@verb("confirm-dead", NAME, formats=SHOWN)
def node_confirm_dead(terminal: Terminal, name: str) -> None:
    """Say that a node is gone for good, which gives its sessions' room back. If it lives, they may start twice."""
    freed = terminal.client.confirm_dead(name)
    if terminal.as_json:
        terminal.print_json(freed)
    else:
        _print_names(terminal, freed["sessions"])


@verb("doctor", formats=SHOWN)
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


@verb("version", formats=SHOWN)
def version(terminal: Terminal) -> None:
    """The version of this client, and of the control plane when it answers."""
    try:
        server = terminal.client.version()["version"]
    except Unavailable:
        server = None
    if terminal.as_json:
        terminal.print_json({"client": __version__, "server": server})
    else:
        terminal.print(f"corral {__version__}" + (f", control plane {server}" if server else ""))


node = Verbs(
    "node",
    help="One node: show, confirm-dead.",
    commands=[node_show, node_confirm_dead],
    no_args_is_help=False,
    context_settings=SETTINGS,
)


def _print_names(terminal: Terminal, names: list[str]) -> None:
    if names:
        terminal.print("\n".join(names))
