"""Where an agent's exchange waits when there is nothing to tell. A node has one place: its next exchange frees it.

So an agent that gives up a request and sends another leaves nothing behind that each hint would wake for nothing.
"""

from __future__ import annotations

import asyncio

from corral.api.waiting import hinted
from corral.ports import Watch


class Parking:
    def __init__(self) -> None:
        self._parked: dict[str, asyncio.Event] = {}

    def free(self, node: str) -> None:
        """The node has said something newer, parked or not: what it gave up is woken for nothing no more."""
        if (parked := self._parked.get(node)) is not None:
            parked.set()

    async def park(self, node: str, watch: Watch, timeout_s: float, stopping: asyncio.Event) -> bool:
        """True when there may be something to tell; False when the time is out or a newer exchange has come."""
        self.free(node)
        superseded = self._parked[node] = asyncio.Event()
        try:
            told = await hinted(watch, timeout_s, superseded, stopping)
            return told and not superseded.is_set()
        finally:
            if self._parked.get(node) is superseded:
                del self._parked[node]
