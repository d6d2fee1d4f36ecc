"""All writes of one transaction together: ports.Tx, over one connection of either database."""

from __future__ import annotations

from corral.store.faults import Conflict
from corral.store.kernel_writes import KernelWrites
from corral.store.node_writes import NodeWrites
from corral.store.session_writes import SessionWrites

__all__ = ["Conflict", "SqlTx"]


class SqlTx(SessionWrites, KernelWrites, NodeWrites):
    """Writes on one connection, inside a transaction that somebody else begins and commits."""
