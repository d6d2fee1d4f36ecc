"""The SDK: a control plane's REST face as Python calls, blocking (`Client`) and awaited (`AsyncClient`).

    from corral.client import Client

    with Client() as corral:  # the address and token that `corral` itself would use
        session = corral.submit({"command": ["python", "train.py"], "gpus": "A100:2", "time": "2h"})
        ended = corral.wait(session["id"])

Errors are `corral.model.faults`: NotFound, Invalid, Refused, Denied, Unavailable, each with the same stable code as in
the problem document. Imports nothing of the server.
"""

from __future__ import annotations

from corral.client.aio import AsyncClient
from corral.client.config import Connection, resolve
from corral.client.errors import Unreachable, document_of
from corral.client.following import LogChunk
from corral.client.shapes import (
    Attempt,
    Device,
    Diagnosis,
    Event,
    Explanation,
    Launches,
    Node,
    Plan,
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
