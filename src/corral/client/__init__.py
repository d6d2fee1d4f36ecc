"""The SDK: a control plane's REST face as Python calls, blocking (`Client`) and awaited (`AsyncClient`).

    from corral.client import Client

    with Client() as corral:  # the address and token that `corral` itself would use
        session = corral.submit({"command": ["python", "train.py"], "gpus": "A100:2", "time": "2h"})
        ended = corral.wait(session["id"])

Errors are `corral.model.faults`: NotFound, Invalid, Refused, Denied, Unavailable, each with the same stable code as in
the problem document. Imports nothing of the server.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from corral.client.aio import AsyncClient
    from corral.client.config import Connection, resolve
    from corral.client.errors import Unreachable, document_of
    from corral.client.explained import Explanation, Plan
    from corral.client.following import LogChunk
    from corral.client.shapes import (
        Attempt,
        Device,
        Diagnosis,
        Event,
        Launches,
        Node,
        Session,
        SessionFields,
        SessionPage,
    )
    from corral.client.sync import Client

__all__ = [
    "AsyncClient",
    "Attempt",
    "Client",
    "Connection",
    "Device",
    "Diagnosis",
    "Event",
    "Explanation",
    "Launches",
    "LogChunk",
    "Node",
    "Plan",
    "Session",
    "SessionFields",
    "SessionPage",
    "Unreachable",
    "document_of",
    "resolve",
]

_ELSEWHERE = {
    "AsyncClient": "aio",
    "Client": "sync",
    "Connection": "config",
    "Explanation": "explained",
    "LogChunk": "following",
    "Plan": "explained",
    "Unreachable": "errors",
    "document_of": "errors",
    "resolve": "config",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for: the command line starts in a third of the time without asyncio."""
    if name not in __all__:
        raise AttributeError(f"module 'corral.client' has no attribute {name!r}")
    return getattr(importlib.import_module(f"corral.client.{_ELSEWHERE.get(name, 'shapes')}"), name)
