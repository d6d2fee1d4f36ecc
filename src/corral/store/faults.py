"""What the store itself finds wrong."""

from __future__ import annotations

from corral.model.faults import Invalid


class Conflict(Exception):
    """The ledger was not as the locks promised: nothing of this transaction is written."""


class MovedMeanwhile(Exception):
    """A transaction is to be begun again: nothing of it is written."""


def unstorable(error: BaseException) -> Invalid:
    """A value that no column can hold: a number beyond 64 bits."""
    return Invalid("value_out_of_range", f"a value is too large for the database: {str(error).splitlines()[0]}")
