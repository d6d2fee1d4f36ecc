"""Who keeps the manager waiting: a thread that names the policy that a scheduling pass does not get back from.

It reads which policy is at work, and a clock; it stops nothing and changes nothing. `slowest` is what `doctor` shows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from corral.scheduling.policies.atwork import AT_WORK

SLOW_S = 5.0
LOOK_EVERY_S = 1.0


class PolicyWatch:
    """`tell` hears of a policy that has taken `slow_s` in one pass, and again each time that has doubled."""

    def __init__(self, mono: Callable[[], float], tell: Callable[[str, float], object], slow_s: float = SLOW_S) -> None:
        self.slowest: dict[str, float] = {}
        self._mono = mono
        self._tell = tell
        self._slow_s = slow_s
        self._seen: tuple[str | None, int] = (None, 0)
        self._since = 0.0
        self._tell_at_s = slow_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="corral-standstill", daemon=True)

    def look(self) -> None:
        seen, now = (AT_WORK.name, AT_WORK.passes), self._mono()
        if seen[0] is None:
            return
        if seen != self._seen:
            self._seen, self._since, self._tell_at_s = seen, now, self._slow_s
            return
        lasted_s = now - self._since
        if lasted_s >= self._slow_s:
            self.slowest[seen[0]] = max(lasted_s, self.slowest.get(seen[0], 0.0))
        if lasted_s >= self._tell_at_s:
            self._tell_at_s = 2 * lasted_s
            self._tell(seen[0], lasted_s)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(min(LOOK_EVERY_S, self._slow_s / 5)):
            self.look()
