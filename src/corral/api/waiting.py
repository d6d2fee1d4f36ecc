"""Waiting on a hint without outliving the client's patience or the manager."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from corral.ports import Watch


async def hinted(watch: Watch, timeout_s: float, *ends: asyncio.Event) -> bool:
    """True when hinted, or when one of `ends` was set, before the time is out. The caller looks at what is so."""
    if any(end.is_set() for end in ends):
        return True
    waits: list[Awaitable[bool]] = [watch.wait(timeout_s), *(end.wait() for end in ends)]
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return any(task.result() for task in done)
    finally:
        for task in tasks:
            task.cancel()
