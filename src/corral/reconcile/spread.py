"""The spread-interval clock: live managers take turns, so that N of them look N times as often as one (A3).

Every manager passes once in an interval, at an offset of its own: its place among those alive, by name. Time is the
database's, carried on by the local monotonic clock since it was last read, so a wrong local clock moves no tick.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from corral.ports import Member

INTERVAL_S = 8.0
EARLY = 0.01
BEAT_S = 2.0
BEAT_ALONE_S = 4.0
DEAD_AFTER_S = 5.0  # with a beat it is less than an interval: whoever dies is passed over within one


def until_tick(now: float, interval_s: float, place: int, live: int) -> float:
    """Seconds from `now` to the next tick of the manager in this place among so many. Who woke a moment before its tick
    has had it."""
    wait_s = interval_s - (now - interval_s * place / live) % interval_s
    return wait_s if wait_s > interval_s * EARLY else wait_s + interval_s


class Spread:
    """One manager's turns. `mono` is the local monotonic clock in seconds."""

    def __init__(self, member: str, mono: Callable[[], float], interval_s: float = INTERVAL_S) -> None:
        self._member = member
        self._mono = mono
        self._ahead: float | None = None
        self._live: list[str] = [member]
        self.interval_s = interval_s

    def learn(self, now: float, members: Sequence[Member]) -> None:
        """Take in who was alive at `now`, the database's time."""
        self._ahead = now - self._mono()
        alive = {one.id for one in members if one.seen_at > now - DEAD_AFTER_S}
        self._live = sorted(alive | {self._member})

    def until_tick(self) -> float:
        """Seconds until this manager's next turn; at once while the database's time is not known."""
        if self._ahead is None:
            return min(1.0, self.interval_s)
        now = self._mono() + self._ahead
        return until_tick(now, self.interval_s, self._live.index(self._member), len(self._live))

    def until_beat(self) -> float:
        return BEAT_S if len(self._live) > 1 else BEAT_ALONE_S
