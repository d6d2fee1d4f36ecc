"""What the client takes from the machine it runs on: environment, clock, sleep, chance. Nothing else here does."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Mapping


def environment() -> Mapping[str, str]:
    return os.environ


def now_s() -> float:
    """Seconds that only grow, for durations."""
    return time.monotonic()


def pause(seconds: float) -> None:
    time.sleep(seconds)


async def pause_async(seconds: float) -> None:
    import asyncio  # what blocks does without it

    await asyncio.sleep(seconds)


def new_key() -> str:
    """An idempotency key of its own for one request, so that repeating it is safe."""
    return secrets.token_hex(16)


def key_or_new(key: str | None) -> str:
    return new_key() if key is None else key
