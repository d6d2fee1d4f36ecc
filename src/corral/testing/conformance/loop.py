"""Runs one asynchronous test to its end on a loop of its own, within a time limit."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any

LIMIT_S = 60.0


def on_a_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*arguments: Any, **fixtures: Any) -> None:
        async def limited() -> None:
            async with asyncio.timeout(LIMIT_S):
                await test(*arguments, **fixtures)

        asyncio.run(limited())

    return run
