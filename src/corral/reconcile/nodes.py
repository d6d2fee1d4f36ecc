"""Nodes that fell silent, and kernels that outlived their node's epoch.

A node that does not answer becomes `unreachable`; that changes no session (D4). Kernels of an older epoch than their
node's are certified by the registration that raised it; what slipped through is found here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from corral.model.faults import NotFound
from corral.model.node import NodeState
from corral.model.wording import like
from corral.ports import Store, Tx
from corral.reconcile.exchange import NODE_TIMEOUT_S, sweep_epoch

LIMIT = 200
LONGEST_SHOWN = 80


def no_such_node(name: str, known: Iterable[str]) -> NotFound:
    shown = name[:LONGEST_SHOWN]
    message = f"there is no node {shown!r}{like(shown, known) or ';'} `corral nodes` lists them"
    return NotFound("no_such_node", message, subject=shown)


async def nodes_pass(store: Store, by: str) -> None:
    nodes = await store.read("nodes", lambda reads: (reads.now, reads.nodes(), reads.stale_kernels(LIMIT)))
    now, known, stale = nodes
    silent = [
        node.name for node in known.values() if node.state is NodeState.UP and now - node.seen_at > NODE_TIMEOUT_S
    ]
    if silent:
        await store.tx("mark silent nodes", lambda tx: mark_silent(tx, silent))
    if stale:
        await store.tx("sweep old epochs", lambda tx: sweep_stale(tx, stale, by))


def mark_silent(tx: Tx, names: Sequence[str]) -> None:
    tx.lock(names, ())
    tx.set_node_state(names, NodeState.UNREACHABLE, before=tx.now - NODE_TIMEOUT_S)


def sweep_stale(tx: Tx, session_ids: Sequence[str], by: str) -> None:
    names = {kernel.node for group in tx.kernels(session_ids).values() for kernel in group}
    for node in sorted(tx.nodes(names).values(), key=lambda node: node.name):
        sweep_epoch(tx, node.name, node.epoch, by)
