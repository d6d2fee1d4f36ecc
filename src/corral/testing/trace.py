"""A digest of what a run did, step by step, so that two runs of a seed can be compared.

It knows labels, times and owners, never addresses or hashes: the digest is the same in every interpreter, whatever
PYTHONHASHSEED says. It also keeps the last steps as text, to be shown with a failure.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
from collections import deque
from collections.abc import Callable
from typing import Any, cast


def label(callback: Callable[..., Any] | None) -> str:
    """A stable name of what a handle runs: the task's name, or the function's."""
    if callback is None:
        return "cancelled"
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return cast("asyncio.Task[Any]", owner).get_name()
    if isinstance(callback, functools.partial):
        return label(cast("functools.partial[Any]", callback).func)
    return getattr(callback, "__qualname__", None) or type(callback).__qualname__


class Trace:
    """Hand it to a `SimLoop`. Costs about a microsecond a step, so only runs that are compared carry one."""

    def __init__(self, keep_lines: int = 200) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self._pending: list[str] = []
        self.lines: deque[str] = deque(maxlen=keep_lines)

    def step(self, now_s: float, owner: str, callback: Callable[..., Any]) -> None:
        self._add(f"{now_s!r} {owner} {label(callback)}")

    def note(self, text: str) -> None:
        """Add something that is not a step: a fault that hit, a decision taken."""
        self._add(f"# {text}")

    def _add(self, line: str) -> None:
        self.lines.append(line)
        self._pending.append(line)
        if len(self._pending) >= 512:
            self._flush()

    def _flush(self) -> None:
        self._hash.update("\n".join(self._pending).encode() + b"\n")
        self._pending.clear()

    def digest(self) -> str:
        self._flush()
        return self._hash.hexdigest()
