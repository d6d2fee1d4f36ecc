"""When a manager is to pass again although nothing happens: at the next moment at which something comes due.

Moments are the database's time, carried on by the local monotonic clock since a pass read it, so a wrong local clock
moves none of them. What comes due: `scheduling.ahead.due`, and sessions whose time to begin comes.
"""

from __future__ import annotations

import math
from collections.abc import Callable

SOONEST_S = 0.01  # who woke a moment early looks again so much later


class Agenda:
    """One manager's. `mono` is the local monotonic clock in seconds; without it nobody waits by this."""

    def __init__(self, mono: Callable[[], float] = lambda: 0.0) -> None:
        self._mono = mono
        self._ahead = 0.0
        self._begins = math.inf
        self._due = math.inf

    def saw(self, now: float, begins: float) -> None:
        """A pass has read the database's time just now, and that nobody is to begin before that moment."""
        self._ahead = now - self._mono()
        self._begins = begins
        if self._due <= now:
            self._due = math.inf

    def comes_due(self, at: float) -> float:
        """Nothing else happens by itself before then. Until when nothing does."""
        self._due = at
        return min(self._due, self._begins)

    def until_due(self) -> float:
        """Seconds until then; without end where nothing is to come."""
        at = min(self._due, self._begins)
        return math.inf if math.isinf(at) else max(SOONEST_S, at - self._ahead - self._mono())
