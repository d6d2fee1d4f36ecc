"""Nodes, devices, and what `doctor` finds wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec
from fastapi import Response

from corral.api.context import Here
from corral.api.lookup import BROKEN, broken_line
from corral.api.openapi import json_of, respond
from corral.api.policy import Asking, Policy, allow, routes
from corral.api.render import DeviceView, ForeignView, NodeView, device_view, foreign_view, node_view
from corral.model.invariants import check, gather
from corral.model.node import NodeState
from corral.model.wording import number_of, span
from corral.ports import Foreign, Reads
from corral.reconcile import intents
from corral.reconcile.loop import LoopHealth
from corral.reconcile.nodes import no_such_node

router = routes("cluster")
OVERDUE_SWEEPS = 3.0
GRACE_S = 10.0
FOREIGN_SLACK_S = 5.0  # an agent that has just started does not know yet which launches are foreign


class NodeWithDevices(msgspec.Struct):
    node: NodeView
    devices: list[DeviceView]
    sessions: list[str]
    foreign: list[ForeignView]


class FreedView(msgspec.Struct):
    """The sessions whose room the operator's word gave back."""

    node: str
    sessions: list[str]


class Finding(msgspec.Struct):
    """`severity`: `error` is a promise broken, `warning` what someone should look at."""

    severity: str
    code: str
    subject: str
    message: str


class DoctorView(msgspec.Struct):
    ok: bool
    findings: list[Finding]
    checked: dict[str, int]


@router.get("/api/v1/nodes", responses=json_of(list[NodeView]))
@allow(Policy.USER)
async def nodes(here: Here) -> Response:
    """Every node, by name."""

    def look(reads: Reads) -> list[NodeView]:
        devices = Counter(device.node for device in reads.devices() if device.present)
        foreign = Counter(one.node for one in living_foreign(reads))
        return [node_view(one, devices[name], foreign[name], reads.now) for name, one in sorted(reads.nodes().items())]

    return respond(await here.store.read("nodes", look))


@router.get("/api/v1/nodes/{name}", responses=json_of(NodeWithDevices))
@allow(Policy.USER)
async def node(here: Here, asking: Asking, name: str) -> Response:
    """One node, its devices, and the caller's sessions that live on it."""

    def look(reads: Reads) -> NodeWithDevices:
        if (found := reads.nodes([_plain(name)]).get(name)) is None:
            raise no_such_node(name, reads.nodes())
        devices = [device_view(device) for device in reads.devices([name])]
        sessions = reads.sessions(reads.sessions_on(name))
        own = sorted(id_ for id_, session in sessions.items() if asking.sees(session))
        foreign = [foreign_view(one) for one in living_foreign(reads) if one.node == name]
        view = node_view(found, sum(one.present for one in devices), len(foreign), reads.now)
        return NodeWithDevices(view, devices, own, foreign)

    return respond(await here.store.read("node", look))


@router.post("/api/v1/nodes/{name}/confirm-dead", responses=json_of(FreedView))
@allow(Policy.ADMIN)
async def confirm_dead(here: Here, asking: Asking, name: str) -> Response:
    """An operator's word that the node is gone for good. Of a node that lives, this can start a session twice."""
    freed = await here.store.tx("confirm dead", lambda tx: intents.confirm_dead(tx, _plain(name), asking.by))
    return respond(FreedView(name, sorted(freed)))


@router.get("/api/v1/devices", responses=json_of(list[DeviceView]))
@allow(Policy.USER)
async def devices(here: Here) -> Response:
    """Every device, by node and index."""
    found = await here.store.read("devices", lambda reads: reads.devices())
    return respond([device_view(one) for one in sorted(found, key=lambda one: (one.node, one.index))])


@router.get("/api/v1/doctor", responses=json_of(DoctorView))
@allow(Policy.ADMIN)
async def doctor(here: Here) -> Response:
    """Every invariant held against every row, and the state of this manager's loops and of the nodes."""

    def look(reads: Reads) -> tuple[list[Finding], dict[str, int]]:
        tables = gather(reads.ledger(alike=False))
        wrong = check(tables) and check(gather(reads.ledger()))
        broken = reads.unreadable_sessions()
        found = [Finding("error", one.code, one.subject, one.message) for one in wrong]
        found += [Finding("error", BROKEN, id_, broken_line(id_, error)) for id_, error in sorted(broken.items())]
        unread = {row["id"] for row in tables["array"]} - reads.arrays([row["id"] for row in tables["array"]]).keys()
        found += [Finding("error", BROKEN, id_, f"the record of array {id_} cannot be read") for id_ in sorted(unread)]
        found += [
            Finding("warning", "node_unreachable", one.name, f"not heard for {span(reads.now - one.seen_at)}")
            for one in reads.nodes().values()
            if one.state is not NodeState.UP
        ]
        found += [_foreign_finding(one, reads.now) for one in living_foreign(reads)]
        return found, reads.ledger_counts()

    findings, checked = await here.store.read("doctor", look)
    findings += loop_findings(here.loops(), here.clock.mono())
    findings += [
        Finding("warning", "policy_slow", name,
                f"it kept this manager for {span(seconds)} in one pass; nobody is placed, or answered, while it works")
        for name, seconds in sorted(here.slow_policies.items())
    ]  # fmt: skip
    return respond(DoctorView(not any(one.severity == "error" for one in findings), findings, checked))


def living_foreign(reads: Reads) -> list[Foreign]:
    """Launches unknown to the ledger that their nodes spoke of when they last spoke of what lives there."""
    nodes = reads.nodes()
    return [
        one for one in reads.foreign() if one.node in nodes and one.seen_at >= nodes[one.node].seen_at - FOREIGN_SLACK_S
    ]


def _foreign_finding(one: Foreign, now: float) -> Finding:
    return Finding(
        "warning", "foreign_launch", one.token,
        f"node {one.node} has a launch that the ledger does not know, or had given up (reported "
        f"{span(now - one.seen_at)} ago); it holds no room here and is never killed from here: look at it on that "
        "node and end it by hand",
    )  # fmt: skip


def loop_findings(loops: Sequence[LoopHealth], now: float) -> list[Finding]:
    """Loops that do not run, or have not succeeded for longer than a few of their sweeps."""
    return [Finding("error", code, loop.name, message) for loop in loops for code, message in _ill(loop, now)]


def _ill(loop: LoopHealth, now: float) -> Iterator[tuple[str, str]]:
    if not loop.running:
        yield "loop_stopped", f"the loop does not run; it was started again {number_of(loop.restarts, 'time')}"
    elif loop.last_success_at is None:
        if loop.errors:
            yield "loop_failing", f"no pass has succeeded yet; last error: {loop.last_error}"
    elif now - loop.last_success_at > loop.sweep_s * OVERDUE_SWEEPS + GRACE_S:
        error = f"; last error: {loop.last_error}" if loop.last_error else ""
        yield "loop_overdue", f"last success {span(now - loop.last_success_at)} ago{error}"


def _plain(name: str) -> str:
    if "\x00" in name:
        raise no_such_node(name, ())
    return name
