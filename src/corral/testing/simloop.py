"""A small asyncio loop: virtual time, a seeded choice of the next step, processes that can be killed or stopped.

It knows handles, timers and the owner of each (an `Owner`, found in the handle's context). It never starts a thread,
opens a socket or looks at a real clock: whoever tries gets a clear error. A step takes `step_s`; with 0 time moves only
when nothing is ready, and then no timer, so no kill either, ever falls into the middle of a burst of steps. Next:
`process.py` gives owners their clocks and identities.

How killing works. `task.cancel()` is no kill: it runs `finally`. Here a killed owner's handles never run again, and its
coroutines stay referenced, since collecting one would throw GeneratorExit into it. `close()` releases them all after
the checks have been made, with every effect cut off: the loop takes no more handles and ports answer `Dead`.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import heapq
import sys
from asyncio import events
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, Protocol, TypeVar

from corral.testing.steps import (
    CURRENT,
    Dead,
    Deadlock,
    Failure,
    LimitReached,
    Owner,
    SealedLoop,
    SimHandle,
    SimTask,
    SimulationError,
    Violation,
)
from corral.testing.trace import Trace, label

T = TypeVar("T")

MOST_WAITS_IN_FINALLY = 100


class Uniform(Protocol):
    """The one draw the loop makes: a number in [0, 1). `random.Random` has it."""

    def random(self) -> float: ...


class SimLoop(SealedLoop):
    """One loop runs one seed: `run(main)`, the checks, then `close()`."""

    MAX_STEPS_WITHOUT_REST = 100_000
    TASKS_BEFORE_SWEEP = 256
    LOOKED_AT_WITHIN_S = 30.0

    def __init__(
        self,
        chance: Uniform,
        *,
        step_s: float = 0.0,
        max_steps: int = 2_000_000,
        max_time_s: float = 1e6,
        trace: Trace | None = None,
    ) -> None:
        self.chance = chance
        self.step_s = step_s
        self.now_s = 0.0
        self.steps = 0
        self.trace = trace
        self.failures: list[Failure] = []
        self.after_step: Callable[[], object] | None = None
        self.world = Owner("world")
        self.world.context = contextvars.Context()
        self._max_steps = max_steps
        self._max_time_s = max_time_s
        self._ready: list[SimHandle] = []
        self._timers: list[tuple[float, int, SimHandle]] = []
        self._cancelled_timers = 0
        self._on_cancel = self._timer_cancelled
        self._timer_number = 0
        self._owners: list[Owner] = [self.world]
        self._sweep_at = self.TASKS_BEFORE_SWEEP
        self._task_number = 0
        self._running = False
        self._stopping = False
        self._closed = False

    # --- what asyncio asks of a loop

    def time(self) -> float:
        return self.now_s

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def stop(self) -> None:
        self._stopping = True

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> SimHandle:
        handle = SimHandle(callback, args, contextvars.copy_context() if context is None else context, self.now_s)
        if not self._closed:
            self._ready.append(handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> SimHandle:
        return self.call_at(self.now_s + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> SimHandle:
        handle = SimHandle(callback, args, contextvars.copy_context() if context is None else context, when)
        if self._closed:
            return handle
        if when <= self.now_s:
            self._ready.append(handle)
        else:
            self._timer_number = number = self._timer_number + 1
            handle.in_heap = self._on_cancel
            heapq.heappush(self._timers, (when, number, handle))
        return handle

    def create_task(  # type: ignore[override]  # the stubs want a generic task; SimTask is one of Any
        self, coro: Coroutine[Any, Any, Any], *, name: object = None, context: contextvars.Context | None = None
    ) -> SimTask:
        if self._closed:
            coro.close()
            raise Dead
        owner = (CURRENT.get() if context is None else context.get(CURRENT)) or self.world
        self._task_number += 1
        title = str(name) if name is not None else getattr(coro, "__qualname__", "coroutine")
        task = SimTask(coro, loop=self, name=title, context=context, number=self._task_number)
        owner.tasks.append(task)
        if len(owner.tasks) >= self._sweep_at:
            self._sweep_tasks(owner)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        # Reached from destructors of asyncio's objects, so at a moment that depends on the garbage collector: tasks
        # are kept and looked at by `_sweep_tasks` instead, and what else arrives here can only be a lone future.
        error = context.get("exception")
        if isinstance(error, Exception) and not self._closed:
            self.report(str(context.get("message", "unhandled error")), error, None)

    # --- owners

    def adopt(self, owner: Owner) -> None:
        """Know an owner, so that its tasks are checked at the end and released."""
        self._owners.append(owner)

    def kill(self, owner: Owner) -> None:
        """SIGKILL: nothing of this owner runs again, not even `finally`."""
        owner.alive = False
        owner.parked.clear()

    def pause(self, owner: Owner) -> None:
        """SIGSTOP: what becomes ready is kept until `resume`. Timers run on, and are late by then."""
        owner.paused = True

    def resume(self, owner: Owner) -> None:
        owner.paused = False
        if owner.alive:
            self._ready.extend(owner.parked)
        owner.parked.clear()

    def at(self, delay_s: float, callback: Callable[..., object], *args: Any) -> SimHandle:
        """A timer of the world: it belongs to no process, whoever sets it, so it survives all of them."""
        return self.call_at(self.now_s + delay_s, callback, *args, context=self.world.context)

    def world_note(self, text: str) -> None:
        """Put something that is not a step into the trace."""
        if self.trace is not None:
            self.trace.note(text)

    # --- running

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run to the end of `main`, or raise the first failure."""
        if self._closed or self._task_number:
            raise SimulationError("a SimLoop runs once")
        task = self.create_task(main, name="main", context=contextvars.Context())
        task.add_done_callback(self._main_done)
        collecting, hooks = gc.isenabled(), sys.get_asyncgen_hooks()
        gc.disable()
        sys.set_asyncgen_hooks(firstiter=None, finalizer=self._close_generator)
        events._set_running_loop(self)
        self._running = True
        try:
            self._run_steps(task)
            self.check_tasks()
        finally:
            self._running = False
            events._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)
            if collecting:
                gc.enable()
        if self.failures:
            raise SimulationError(str(self.failures[0])) from self.failures[0].error
        return task.result()

    def _close_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        """An abandoned async generator runs its `finally` in a task, as in every asyncio loop."""
        if not self._closed:
            self.create_task(generator.aclose(), name="aclose")

    def _main_done(self, task: asyncio.Future[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.report("the main coroutine failed", error, None)
        self._stopping = True

    def _run_steps(self, main: SimTask) -> None:
        """The hot loop: everything it touches is a local."""
        ready, chance, trace, after_step = self._ready, self.chance.random, self.trace, self.after_step
        step_s, timers, most, patience = self.step_s, self._timers, self._max_steps, self.MAX_STEPS_WITHOUT_REST
        last_step = min(most, self.steps + patience)  # code that spins is found so: there is always something ready
        while not self._stopping:
            if step_s and timers and timers[0][0] <= self.now_s:
                self._take_due()
            count = len(ready)
            if count > 1:
                index = int(chance() * count)
                handle = ready[index]
                ready[index] = ready[-1]
                ready.pop()
            elif count:
                handle = ready.pop()
            else:
                self._advance(main)
                last_step = min(most, self.steps + patience)
                continue
            callback = handle.callback
            if callback is None:
                continue
            owner = handle.owner
            if owner is not None:
                if not owner.alive:
                    continue
                if owner.paused:
                    owner.parked.append(handle)
                    continue
            self.steps = step = self.steps + 1
            self.now_s += step_s
            if trace is not None:
                trace.step(self.now_s, "world" if owner is None else owner.title, callback)
            try:
                handle.context.run(callback, *handle.args)
                if after_step is not None:
                    after_step()
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # whatever a step raises is the finding
                self.report(f"callback {label(callback)}", error, owner)
            if step >= last_step:
                which = "" if step >= most else " without a rest"
                self._over_limit(f"{patience if which else step} steps{which}", callback)

    def _advance(self, main: SimTask) -> None:
        """Nothing is ready: move time to the next timer, and make all that is due ready."""
        timers = self._timers
        while timers and timers[0][2].is_cancelled:
            heapq.heappop(timers)[2].in_heap = None
            self._cancelled_timers -= 1
        if not timers:
            error = Deadlock(f"nothing can ever run again; waiting: {self.waiting()}")
            self.report(f"main task {main.get_name()} is not done", error, None)
            return
        self.now_s = timers[0][0]
        self._take_due()
        if self.now_s > self._max_time_s:
            self._over_limit(f"{self._max_time_s} s of virtual time", self._ready[0].callback)

    def _take_due(self) -> None:
        timers, ready, now_s = self._timers, self._ready, self.now_s
        while timers and timers[0][0] <= now_s:
            handle = heapq.heappop(timers)[2]
            handle.in_heap = None
            if not handle.is_cancelled:
                ready.append(handle)
            else:
                self._cancelled_timers -= 1

    def _over_limit(self, limit: str, callback: Callable[..., object] | None) -> None:
        error = LimitReached(f"{limit} used up at t={self.now_s:.3f} s in {label(callback)}; waiting: {self.waiting()}")
        self.report("limit", error, None)

    def _timer_cancelled(self) -> None:
        """Long-poll time-outs are mostly cancelled: when they are most of the heap, drop them."""
        self._cancelled_timers += 1
        timers = self._timers
        if self._cancelled_timers > 64 and self._cancelled_timers * 2 > len(timers):
            timers[:] = [entry for entry in timers if not entry[2].is_cancelled]
            heapq.heapify(timers)
            self._cancelled_timers = 0

    # --- what went wrong

    def report(self, what: str, error: BaseException, owner: Owner | None) -> None:
        """Note a failure and stop. `Dead` is none: it is how a killed process's call returns."""
        if isinstance(error, Dead):
            return
        self.failures.append(Failure(self.steps, self.now_s, owner.title if owner else "world", what, error))
        self._stopping = True

    def violate(self, message: str) -> None:
        """For checkers: an invariant does not hold."""
        self.report("invariant", Violation(message), CURRENT.get())

    def waiting(self) -> str:
        """The tasks that are not done, per owner, for an error message."""
        found = Counter[str]()
        for owner in self._owners:
            state = "" if owner.alive and not owner.paused else " (paused)" if owner.alive else " (killed)"
            found.update(f"{owner.title}{state}/{task.get_name()}" for task in owner.tasks if not task.done())
        shown = ", ".join(f"{name} x{count}" if count > 1 else name for name, count in list(found.items())[:20])
        return shown + (f" and {len(found) - 20} more" if len(found) > 20 else "")

    def check_tasks(self) -> None:
        """At the end: report every finished task whose error nobody has looked at, and nobody is about to."""
        busy = {id(handle.owner) for handle in self._ready}
        for owner in self._owners:
            self._sweep_tasks(owner, 0.0 if id(owner) not in busy else self.LOOKED_AT_WITHIN_S)

    def _sweep_tasks(self, owner: Owner, patience_s: float = LOOKED_AT_WITHIN_S) -> None:
        """Let finished tasks go. One that failed stays until its error is taken, or it has waited too long for that."""
        kept: list[SimTask] = []
        for task in owner.tasks:
            if not task.done():
                kept.append(task)
            elif task._log_traceback:  # pyright: ignore[reportPrivateUsage]  # the only mark of an error not taken
                task.failed_by_s = min(task.failed_by_s, self.now_s)
                if owner.alive and (owner.paused or self.now_s - task.failed_by_s < patience_s):
                    kept.append(task)
                elif (error := task.exception()) is not None and owner.alive:
                    self.report(f"unhandled error in task {task.get_name()}", error, owner)
        owner.tasks[:] = kept
        self._sweep_at = max(self.TASKS_BEFORE_SWEEP, 2 * len(kept))

    # --- the end of a seed

    def close(self) -> None:
        """Release every coroutine. Their `finally` blocks run now, and can do nothing: no handle is taken any more,
        and every port answers `Dead`. Call it after the last check."""
        if self._closed:
            return
        self._closed = True
        self._ready.clear()
        self._timers.clear()
        for owner in self._owners:
            owner.alive = False
            owner.parked.clear()
        events._set_running_loop(self)
        try:
            for owner in self._owners:
                for task in owner.tasks:
                    _release(task, owner.context)
                owner.tasks.clear()
        finally:
            events._set_running_loop(None)
        self._owners.clear()


def _release(task: SimTask, context: contextvars.Context) -> None:
    """A TaskGroup that is closed waits for its tasks first, so one `close` may not be enough."""
    coro = task.get_coro()
    if task.done() or not isinstance(coro, Coroutine):
        return
    for _ in range(MOST_WAITS_IN_FINALLY):
        try:
            context.run(coro.close)
        except RuntimeError:  # it awaited again, and waits there now
            continue
        except BaseException:  # the seed is over: what its leftovers say is of no interest
            return
        return
