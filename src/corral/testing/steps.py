"""What the simulated loop is made of: its errors, the owner of a step, the handle that is a step, the task, and what
it refuses.

It knows nothing of time or order. Next: `simloop.py` runs these.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, NoReturn

from corral.testing.trace import label


class Dead(BaseException):
    """Raised by a port when the calling process has been killed. No code of that process may learn anything more."""


class SimulationError(Exception):
    """The run cannot go on, or something was found to be false."""


class Violation(SimulationError):
    """A checker found an invariant broken."""


class Deadlock(SimulationError):
    """The main coroutine waits, and nothing can ever run again."""


class LimitReached(SimulationError):
    """The run took more steps, or more virtual time, than it was given."""


class Owner:
    """What a handle belongs to. `SimProcess` is the only kind; the loop needs no more than this of it."""

    __slots__ = ("alive", "context", "parked", "paused", "tasks", "title")

    def __init__(self, title: str) -> None:
        self.title = title
        self.alive = True
        self.paused = False
        self.parked: list[SimHandle] = []
        self.tasks: list[SimTask] = []
        self.context = contextvars.Context()
        self.context.run(CURRENT.set, self)


CURRENT: contextvars.ContextVar[Owner | None] = contextvars.ContextVar("corral_simulated_process", default=None)


@dataclass(frozen=True, slots=True)
class Failure:
    """One thing that went wrong, where and when."""

    step: int
    at_s: float
    owner: str
    what: str
    error: BaseException

    def __str__(self) -> str:
        return f"step {self.step}, t={self.at_s:.3f} s, {self.owner}: {self.what}: {self.error!r}"


class SimHandle(asyncio.TimerHandle):
    """A callback to run, with its owner. Overrides all of its base, whose slots stay unset: it is here for its type."""

    __slots__ = ("args", "callback", "context", "due_at", "in_heap", "is_cancelled", "owner")

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context,
        due_at: float,
    ) -> None:
        self.callback: Callable[..., object] | None = callback
        self.args = args
        self.context = context
        self.owner = context.get(CURRENT)
        self.due_at = due_at
        self.is_cancelled = False
        self.in_heap: Callable[[], object] | None = None

    def __repr__(self) -> str:
        owner = self.owner.title if self.owner else "world"
        return f"<SimHandle {label(self.callback)} of {owner} at {self.due_at}>"

    def cancel(self) -> None:
        if self.is_cancelled:
            return
        self.is_cancelled = True
        self.callback = None
        self.args = ()
        if self.in_heap is not None:
            self.in_heap()

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return self.due_at


class SimTask(asyncio.Task[Any]):
    """A task whose hash is its number: asyncio keeps tasks in sets, and their order must not be that of addresses."""

    def __init__(
        self,
        coro: Coroutine[Any, Any, Any],
        *,
        loop: asyncio.AbstractEventLoop,
        name: str,
        context: contextvars.Context | None,
        number: int,
    ) -> None:
        self.number = number
        self.failed_by_s = math.inf
        super().__init__(coro, loop=loop, name=name, context=context)
        self._log_destroy_pending = False

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


class SealedLoop(asyncio.AbstractEventLoop):
    """The part of a loop that would reach outside the simulation: whoever asks for it is told where to go instead."""

    def _refuse(self, what: str) -> NoReturn:
        raise SimulationError(f"{what} cannot be simulated: put it behind a port")

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        self._refuse("a thread (run_in_executor, to_thread)")

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> Any:
        self._refuse("a call from another thread")

    async def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        self._refuse("a socket")

    async def create_server(self, *args: Any, **kwargs: Any) -> Any:
        self._refuse("a listening socket")

    async def subprocess_exec(self, *args: Any, **kwargs: Any) -> Any:
        self._refuse("a real process")

    def add_signal_handler(self, sig: int, callback: Any, *args: Any) -> Any:
        self._refuse("a signal")
