"""Death on request, for tests: where a process that was told so kills itself.

Knows named points and counts. Never does anything in a process that was not told. The names are those of the
simulation; each module that has some lists them in `CRASH_POINTS`. The standard library only: shims carry it.
"""

from __future__ import annotations

import itertools
import os
import signal
from typing import NamedTuple


class _Death(NamedTuple):
    at_pass: int
    passes: itertools.count[int]  # a manager's store passes its points in several threads
    mark: str


class CrashPlan:
    """Dies by SIGKILL at the count-th pass of a named point: `name:count`, several with commas between. With a third
    part, `name:count:FILE`, only the process that makes FILE dies: once, however often it is started again."""

    def __init__(self, plan: str | None) -> None:
        self._deaths: dict[str, _Death] = {}
        for one in (plan or "").split(",") if plan else ():
            name, count, mark, *_ = (*one.split(":", 2), "", "")
            self._deaths[name] = _Death(int(count or 1), itertools.count(1), mark)

    def pass_by(self, name: str) -> None:
        death = self._deaths.get(name)
        if death is not None and next(death.passes) == death.at_pass and _first(death.mark):
            os.kill(os.getpid(), signal.SIGKILL)


def _first(mark: str) -> bool:
    try:
        if mark:
            os.close(os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError:
        return False
    return True
