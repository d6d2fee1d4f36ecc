"""Death on request, for tests: where a process that was told so kills itself.

Knows one named point and a count. Never does anything in a process that was not told. The names are in
`shim.CRASH_POINTS` and `zygote.CRASH_POINTS`.
"""

from __future__ import annotations

import os
import signal


class CrashPlan:
    """Dies by SIGKILL at the count-th pass of one named point: `name:count`."""

    def __init__(self, plan: str | None) -> None:
        name, _, count = (plan or "").partition(":")
        self._name = name
        self._left = int(count or 1)

    def pass_by(self, name: str) -> None:
        if name == self._name:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
