"""The end of a launch whose shim is dead: its tree is killed and proven empty, and only then called lost.

Never decides that a shim is dead: `looking` saw that, and the lock confirms it here.
"""

from __future__ import annotations

import contextlib

from corral.agent import jobdir
from corral.agent.jobspec import JsonObject
from corral.agent.ports import JobDirs, NoRoom, Trees
from corral.ports import Clock, CrashPoint

KILL_PAUSE_S = 0.05
LAST_KILL_PAUSE_S = 2.0

CRASH_POINTS = ("agent.before_lost",)


class Endings:
    """`stuck`: launches whose tree outlives its killing; the killing goes on."""

    def __init__(self, dirs: JobDirs, trees: Trees, kill_grace_s: float, clock: Clock, point: CrashPoint) -> None:
        self._dirs = dirs
        self._trees = trees
        self._kill_grace_s = kill_grace_s
        self._clock = clock
        self._point = point
        self.stuck: set[str] = set()

    async def judge(self, token: str) -> None:
        """A run whose shim is gone without a last word: with the lock in hand and the tree proven empty, lost."""
        while not await self._dirs.try_lock(token):
            if await self._has_ended(token):
                return
            await self._clock.sleep(KILL_PAUSE_S)
        try:
            if not await self._has_ended(token):
                await self.end_tree(token)
                self._point("agent.before_lost")
                await self._write_lost(token)
        finally:
            await self._dirs.unlock(token)

    async def _has_ended(self, token: str) -> bool:
        try:
            return await self._dirs.read(token, jobdir.EXIT) is not None
        except jobdir.Unreadable:
            return True

    async def _write_lost(self, token: str) -> None:
        at = self._clock.wall().timestamp()
        lost: JsonObject = {"reason": "supervisor_lost", "message": "its supervisor was killed", "at": at}
        while True:
            try:
                return await self._dirs.write(token, jobdir.EXIT, lost)
            except NoRoom:
                await self._clock.sleep(LAST_KILL_PAUSE_S)

    async def tree_is_empty(self, token: str) -> bool:
        """A tree that cannot be read is not known to be empty."""
        try:
            return await self._trees.is_empty(token)
        except OSError:
            return False

    async def kill(self, token: str) -> None:
        """The shim that holds the lock, and its tree, once: what became of it is seen by looking."""
        with contextlib.suppress(OSError):
            await self._trees.kill(token)

    async def end_tree(self, token: str) -> None:
        """Kill until nothing is left, for ever if need be."""
        pause_s = KILL_PAUSE_S
        began_s = self._clock.mono()
        while not await self.tree_is_empty(token):
            await self.kill(token)
            if await self.tree_is_empty(token):
                break
            if self._clock.mono() - began_s >= self._kill_grace_s:
                self.stuck.add(token)
            await self._clock.sleep(pause_s)
            pause_s = min(LAST_KILL_PAUSE_S, pause_s * 2)
        self.stuck.discard(token)
        with contextlib.suppress(OSError):
            await self._trees.remove(token)
