"""Death on request, for tests: where a process that was told so kills itself.

Knows named points and counts. Never does anything in a process that was not told. The names are in
`shim.CRASH_POINTS` and `zygote.CRASH_POINTS`.
"""

from __future__ import annotations

import os
import signal


class CrashPlan:
    """Dies by SIGKILL at the count-th pass of a named point: `name:count`, several with commas between. With a third
    part, `name:count:FILE`, only the process that makes FILE dies: once, however often it is started again."""

    def __init__(self, plan: str | None) -> None:
        self._left: dict[str, int] = {}
        self._marks: dict[str, str] = {}
        for one in (plan or "").split(",") if plan else ():
            name, count, mark, *_ = (*one.split(":", 2), "", "")
            self._left[name] = int(count or 1)
            self._marks[name] = mark

    def pass_by(self, name: str) -> None:
        if name in self._left:
            self._left[name] -= 1
            if self._left[name] == 0 and _first(self._marks[name]):
                os.kill(os.getpid(), signal.SIGKILL)


def _first(mark: str) -> bool:
    try:
        if mark:
            os.close(os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError:
        return False
    return True
