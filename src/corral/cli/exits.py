"""Exit codes (docs/submitting.md): what a script may rely on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from corral.model.faults import Denied, Fault, Invalid, NotFound, Refused

ERROR, USAGE, NOT_FOUND, REFUSED, UNREACHABLE, TIMED_OUT, CANCELLED = 1, 2, 3, 4, 5, 6, 130

_BY_KIND = ((Denied, NOT_FOUND), (NotFound, NOT_FOUND), (Invalid, USAGE), (Refused, REFUSED))
_BY_CODE = {
    "ambiguous_id": USAGE,  # said too little, not refused
    "node_unreachable": ERROR,  # a node is away, the control plane is there
    "stream_cut": ERROR,
    "logs_unavailable": ERROR,
}


def code_of(fault: Fault) -> int:
    """The exit code of an error."""
    if fault.code in _BY_CODE:
        return _BY_CODE[fault.code]
    if fault.status == 503:
        return UNREACHABLE
    return next((code for kind, code in _BY_KIND if isinstance(fault, kind)), ERROR)


def code_of_session(session: Mapping[str, Any]) -> int:
    """The exit code of an ended session: its own; 130 when it was cancelled, 1 when it was lost."""
    own = session["exit_code"]
    if own is not None:
        return own
    return {"succeeded": 0, "cancelled": CANCELLED}.get(session["outcome"], ERROR)
