"""The one shape of every loop: wake by a hint or by the sweep interval, do one pass, note how it went.

A pass that raises is noted and tried again after a growing pause; it never ends the loop. A loop never runs twice at
once in one process, and a loop whose task ended (a fault that should not be) is started again and counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from corral.model.faults import Fault
from corral.ports import Clock, Wakeups

FIRST_PAUSE_S = 0.1
LAST_PAUSE_S = 10.0
RESTART_PAUSE_S = 1.0

Pass = Callable[[], Awaitable[object]]
Report = Callable[[str, BaseException], None]


@dataclass(slots=True)
class LoopHealth:
    """How one loop is. Times are seconds on the local monotonic clock; None: not yet."""

    name: str
    sweep_s: float
    ticks: int = 0
    errors: int = 0
    restarts: int = 0
    running: bool = False
    last_success_at: float | None = None
    last_error_at: float | None = None
    last_error: str | None = None


@dataclass(frozen=True, slots=True)
class Loop:
    """`run` is one pass; `channels` wake it; it also runs every `sweep_s` seconds, or when `wait_s` says."""

    name: str
    channels: tuple[str, ...]
    sweep_s: float
    run: Pass
    wait_s: Callable[[], float] | None = None


class Loops:
    """All loops of one manager. `run` goes on until cancelled; `health` tells of each (D13)."""

    def __init__(self, loops: Sequence[Loop], wakeups: Wakeups, clock: Clock, report: Report) -> None:
        self._loops = loops
        self._wakeups = wakeups
        self._clock = clock
        self._report = report
        self._health = {loop.name: LoopHealth(loop.name, loop.sweep_s) for loop in loops}

    def health(self) -> list[LoopHealth]:
        return list(self._health.values())

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for loop in self._loops:
                group.create_task(self._keep(loop), name=f"loop {loop.name}")

    async def _keep(self, loop: Loop) -> None:
        health = self._health[loop.name]
        while True:
            health.running = True
            try:
                await self._for_ever(loop, health)
            except Exception as error:
                self._note(health, error)
            finally:
                health.running = False
            health.restarts += 1
            await self._clock.sleep(RESTART_PAUSE_S)

    async def _for_ever(self, loop: Loop, health: LoopHealth) -> None:
        watch = self._wakeups.watch(*loop.channels)
        pause_s = FIRST_PAUSE_S
        try:
            while True:
                health.ticks += 1
                try:
                    await loop.run()
                except Exception as error:
                    self._note(health, error)
                    await self._clock.sleep(pause_s)
                    pause_s = min(LAST_PAUSE_S, pause_s * 2)
                    continue
                health.last_success_at = self._clock.mono()
                pause_s = FIRST_PAUSE_S
                await watch.wait(loop.sweep_s if loop.wait_s is None else loop.wait_s())
        finally:
            watch.close()

    def _note(self, health: LoopHealth, error: Exception) -> None:
        health.errors += 1
        health.last_error = error.message if isinstance(error, Fault) else repr(error)
        health.last_error_at = self._clock.mono()
        self._report(health.name, error)
