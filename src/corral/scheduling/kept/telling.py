"""Who was told lately why it waits, so that nobody is told the same all the time."""

from __future__ import annotations

from corral.scheduling.snapshot import Waiting

TELL_AGAIN_S = 5.0
MOST_TOLD = 20_000  # sessions that are remembered; beyond that all are forgotten, and told again


class Told:
    """Which reasons sessions were told, and when."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[list[str], float]] = {}

    def is_news(self, waiting: Waiting, codes: list[str], now: float) -> bool:
        """Whether it is to be told these now; if so, it counts as told."""
        last = self._last.get(waiting.id)
        if last is not None and waiting.refused is not None and last[0] == codes and 0 <= now - last[1] < TELL_AGAIN_S:
            return False
        if len(self._last) >= MOST_TOLD:
            self._last.clear()
        self._last[waiting.id] = (codes, now)
        return True
