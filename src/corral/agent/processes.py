"""Process trees on a real machine: agent.ports.Trees over `trees`, for when the shim that held one is dead or unknown.

A shim stands outside its tree, and one whose directory was lost may be about to start its command: whoever has a job
directory's lock open, also of a directory that is gone, counts as part of that launch's tree here.
"""

from __future__ import annotations

import contextlib
import os
import signal

from corral.agent import jobdir, trees
from corral.agent.jobspec import JsonObject
from corral.agent.rundir import GONE
from corral.agent.trees import Containment

_DELETED = " (deleted)"


class ProcessTrees:
    """Trees in this agent's own containment, and the shims of its job directories."""

    def __init__(self, containment: JsonObject, jobs: str) -> None:
        self._containment = Containment.from_json(containment)
        self._jobs = jobs

    async def kill(self, token: str) -> None:
        for pid in lock_holders(self._jobs).get(token, ()):
            self._kill_holder(token, pid)
        trees.kill_tree(self._containment, token)

    def _kill_holder(self, token: str, pid: int) -> None:
        """Stopped first and looked at again: it may have gone on to another launch since."""
        start_time = jobdir.start_time_of(pid)
        if start_time is None or not trees.signal_exactly(pid, start_time, signal.SIGSTOP):
            return
        holds = token in _locks_of(self._jobs, pid)
        trees.signal_exactly(pid, start_time, signal.SIGKILL if holds else signal.SIGCONT)

    async def is_empty(self, token: str) -> bool:
        return token not in lock_holders(self._jobs) and trees.tree_is_empty(self._containment, token)

    async def remove(self, token: str) -> None:
        trees.remove_tree(self._containment, token)

    async def tokens(self) -> list[str]:
        return sorted({*trees.list_trees(self._containment), *lock_holders(self._jobs)})


def lock_holders(jobs: str) -> dict[str, set[int]]:
    """By token, the other processes that have the lock of a job directory open, removed or not."""
    found: dict[str, set[int]] = {}
    for pid in os.listdir("/proc"):
        if pid.isdigit() and int(pid) != os.getpid():
            for token in _locks_of(jobs, int(pid)):
                found.setdefault(token, set()).add(int(pid))
    return found


def _locks_of(jobs: str, pid: int) -> set[str]:
    found: set[str | None] = set()
    with contextlib.suppress(OSError):  # it ended, or is somebody else's
        found = {_locked(jobs, f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
    return {token for token in found if token is not None}


def _locked(jobs: str, link: str) -> str | None:
    try:
        folder, _, name = os.readlink(link).removesuffix(_DELETED).rpartition("/")
    except OSError:
        return None
    above, _, token = folder.rpartition("/")
    token = token.removeprefix(GONE)  # taken away, and its shim may live
    return token if name == jobdir.LOCK and above == jobs and not token.startswith(".") else None
