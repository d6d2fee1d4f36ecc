"""Work of the agent that nobody waits for. Knows no job: `jobs` and `looking` put their long steps here."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from corral.agent.ports import NoRoom


class Background:
    """Tasks, kept until they are over. Without room nothing was said, and the manager asks again (B6); any other
    failure ends the agent."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self._failed = asyncio.Event()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, NoRoom):
            self._failure = error
            self._failed.set()

    async def fail(self) -> None:
        """Wait until some of it has failed, and raise that: the process is to end."""
        await self._failed.wait()
        assert self._failure is not None
        raise self._failure
