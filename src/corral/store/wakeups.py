"""Hints between the loops of one process: a set of channels, and who waits on them. Carries no state.

Used from one event loop only; a store that commits in a thread publishes through `call_soon_threadsafe`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable


class Hints:
    """ports.Wakeups within one process."""

    def __init__(self) -> None:
        self._watches: dict[str, dict[HintWatch, None]] = {}  # ordered, so that a seed repeats

    def watch(self, *channels: str) -> HintWatch:
        watch = HintWatch(self, channels)
        for channel in channels:
            self._watches.setdefault(channel, {})[watch] = None
        return watch

    def publish(self, channels: Iterable[str]) -> None:
        for channel in channels:
            for watch in self._watches.get(channel, ()):
                watch.wake()

    def publish_all(self) -> None:
        """Wake everyone: used when hints may have been missed (a listening connection was lost)."""
        self.publish(list(self._watches))

    def forget(self, watch: HintWatch, channels: Iterable[str]) -> None:
        for channel in channels:
            watches = self._watches.get(channel)
            if watches is not None:
                watches.pop(watch, None)
                if not watches:
                    del self._watches[channel]


class HintWatch:
    """One waiter. Hints that arrive between two waits are kept as one."""

    def __init__(self, hints: Hints, channels: tuple[str, ...]) -> None:
        self._hints = hints
        self._channels = channels
        self._hinted = False
        self._waiting: asyncio.Future[bool] | None = None

    def wake(self) -> None:
        self._hinted = True
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(True)

    async def wait(self, timeout_s: float) -> bool:
        if not self._hinted:
            loop = asyncio.get_running_loop()
            self._waiting = loop.create_future()
            timer = loop.call_later(timeout_s, _expire, self._waiting)
            try:
                await self._waiting
            finally:
                timer.cancel()
                self._waiting = None
        hinted, self._hinted = self._hinted, False
        return hinted

    def close(self) -> None:
        self._hints.forget(self, self._channels)

    def __enter__(self) -> HintWatch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _expire(waiting: asyncio.Future[bool]) -> None:
    if not waiting.done():
        waiting.set_result(False)
