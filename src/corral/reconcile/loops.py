"""The loops of one manager, by name. Any number of managers run the same ones against one database."""

from __future__ import annotations

from collections.abc import Sequence

from corral.ports import CLAIM, PLACE, SETTLE, Store
from corral.reconcile.loop import Loop
from corral.reconcile.nodes import nodes_pass
from corral.reconcile.placement import claim_pass, place_pass
from corral.reconcile.sessions import sweep_due

KEEP_OPERATIONS_S = 3600.0


def manager_loops(store: Store, member: str, url: str, *, claiming: bool = True) -> Sequence[Loop]:
    """placement, claims, sessions, nodes, members: each wakes by hint and by sweep. `claiming`: placing claims at once,
    and the claims loop is left with what another manager only placed."""
    by = f"manager:{member}"

    async def place() -> None:
        await place_pass(store, by, claiming=claiming)

    async def claim() -> None:
        await claim_pass(store, by)

    async def sessions() -> None:
        await sweep_due(store, by)

    async def nodes() -> None:
        await nodes_pass(store, by)

    async def members() -> None:
        await store.tx("seen member", lambda tx: tx.seen_member(member, url))

    async def prune() -> None:
        await store.tx("prune", lambda tx: tx.prune(tx.now - KEEP_OPERATIONS_S))

    return (
        Loop("placement", (PLACE,), 2.0, place),
        Loop("claims", (CLAIM,), 2.0, claim),
        Loop("sessions", (SETTLE,), 1.0, sessions),
        Loop("nodes", (), 3.0, nodes),
        Loop("members", (), 5.0, members),
        Loop("pruning", (), 60.0, prune),
    )
