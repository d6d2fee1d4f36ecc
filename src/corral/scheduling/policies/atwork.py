"""Which policy that is not Corral's own has the word just now, for whoever watches from another thread.

A pass is plain Python within the manager: nothing can take the word from a policy that does not give it back. What can
be done is to say whose fault it is. No decision reads this. Next: `corral.standstill` watches it.
"""

from __future__ import annotations


class AtWork:
    """`name` while a policy works, else None; `passes` counts scheduling passes."""

    __slots__ = ("name", "passes")

    def __init__(self) -> None:
        self.name: str | None = None
        self.passes = 0


AT_WORK = AtWork()
