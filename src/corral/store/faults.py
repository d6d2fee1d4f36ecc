"""What the store itself finds wrong."""

from __future__ import annotations


class Conflict(Exception):
    """The ledger was not as the locks promised: nothing of this transaction is written."""
