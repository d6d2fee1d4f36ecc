"""Nodes that come and go while a trace is replayed."""

from __future__ import annotations

from dataclasses import dataclass

from corral.model.faults import Invalid
from corral.sim.files import rows
from corral.sim.fleets import Machines

WHAT = ("join", "leave", "fail")


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """`leave`: takes nothing new, what runs runs on. `fail`: what runs there is lost and waits again. `join`: takes
    sessions; a node whose first event is a join is not there before."""

    at_s: float
    node: str
    what: str


def node_events(name: str, text: str, machines: Machines) -> tuple[NodeEvent, ...]:
    """A table with the columns at_s, node, event."""
    known = {node.name for node in machines.nodes}
    found: list[NodeEvent] = []
    for row in rows(name, text, ("at_s", "node", "event")):
        event = NodeEvent(row.number("at_s"), row.text("node").strip(), row.text("event").strip())
        if event.what not in WHAT:
            raise row.wrong(f"event {event.what[:40]!r} is none of {', '.join(WHAT)}")
        if event.node not in known:
            raise Invalid("unknown_node", f"{row.place}: the fleet has no node {event.node[:80]!r}")
        found.append(event)
    return tuple(sorted(found, key=lambda event: event.at_s))
