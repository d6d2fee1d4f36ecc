"""The end of asyncio tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

_CANCEL_AGAIN_S = 0.5


async def end_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel until each has ended: one cancellation may be lost in what a task or a library makes of it, and a process
    that is half over would keep its place and report nothing."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        ended, pending = await asyncio.wait(pending, timeout=_CANCEL_AGAIN_S)
        for task in ended:
            if not task.cancelled():
                task.exception()  # looked at, or asyncio complains that nobody did
