"""What every route works with: put together once by `create_app`, carried by the application's state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends
from starlette.requests import HTTPConnection

from corral.api.credentials import Credentials
from corral.api.relay import Relay
from corral.model.faults import Fault
from corral.observe import Metrics
from corral.ports import Clock, Ids, Store
from corral.reconcile.loop import LoopHealth


@dataclass(slots=True)
class Ended:
    """How many sessions had ended when they were last counted, and when they are to be counted again."""

    number: int = 0
    due: float | None = None


@dataclass(frozen=True, slots=True)
class Context:
    """`url` is how agents reach this very manager, `by` its name in what it writes; `stopping` is set once it ends;
    `refused` holds the nodes that this manager did not take at their last try, and why; `slow_policies` for how many
    seconds a policy kept it in one pass."""

    store: Store
    clock: Clock
    ids: Ids
    url: str
    by: str
    metrics: Metrics
    relay: Relay
    credentials: Credentials
    stopping: asyncio.Event
    loops: Callable[[], Sequence[LoopHealth]]
    refused: dict[str, Fault]
    ended: Ended
    slow_policies: Mapping[str, float]


def context_of(connection: HTTPConnection) -> Context:
    return connection.app.state.context


async def _here(connection: HTTPConnection) -> Context:  # a coroutine, since a plain function is sent to a thread
    return context_of(connection)


Here = Annotated[Context, Depends(_here)]
