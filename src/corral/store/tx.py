"""All writes of one transaction together: ports.Tx, over one connection of either database."""

from __future__ import annotations

from corral.store.ahead_writes import AheadWrites
from corral.store.array_writes import ArrayWrites
from corral.store.faults import Conflict
from corral.store.kernel_writes import KernelWrites
from corral.store.node_writes import NodeWrites
from corral.store.quota_writes import QuotaWrites

__all__ = ["Conflict", "SqlTx"]


class SqlTx(AheadWrites, ArrayWrites, KernelWrites, NodeWrites, QuotaWrites):
    """Writes on one connection, inside a transaction that somebody else begins and commits."""
