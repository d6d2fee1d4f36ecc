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


def said(error: BaseException) -> str:
    """In one line, what a policy raised. That somebody asks the whole process to stop is no fault of the policy's: it
    goes on from here. All else, `sys.exit()` too, ends nothing but the policy's own work."""
    if isinstance(error, KeyboardInterrupt):
        raise error
    try:
        return " ".join(f"{type(error).__name__}: {error}".split())
    except Exception:  # its own words may fail as well
        return type(error).__name__
