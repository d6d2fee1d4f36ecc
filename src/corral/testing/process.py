"""One incarnation of a simulated operating-system process: who runs, on which clocks, with which identities.

It implements `ports.Clock`, `ports.Ids` and, as its `point`, `ports.CrashPoint`. It never comes back from the dead: a
restart is a new incarnation under the same name. Next: the transports and disks in `network.py` and `disk.py`, whose
every call names the process that makes it.
"""

from __future__ import annotations

import asyncio
import random
import types
from collections.abc import Callable, Coroutine, Generator
from datetime import UTC, datetime, timedelta
from typing import Any

from corral.testing.faults import Faults
from corral.testing.simloop import SimLoop
from corral.testing.steps import Dead, Owner, SimTask

EPOCH = datetime(2030, 1, 1, tzinfo=UTC)
LONGEST_PAUSE_S = 60.0
CROCKFORD = "0123456789abcdefghjkmnpqrstvwxyz"


class HostClock:
    """The clocks of one machine, shared by its processes: a wall clock that is wrong and one that drifts.

    `rate` 1.01 gains a hundredth. The monotonic clock counts from the boot, pauses of a process included.
    """

    __slots__ = ("booted_at_s", "loop", "rate", "skew_s")

    def __init__(self, loop: SimLoop, skew_s: float = 0.0, rate: float = 1.0) -> None:
        self.loop = loop
        self.skew_s = skew_s
        self.rate = rate
        self.booted_at_s = loop.now_s - 1000.0

    def reboot(self) -> None:
        self.booted_at_s = self.loop.now_s

    def wall(self) -> datetime:
        return EPOCH + timedelta(seconds=self.loop.now_s * self.rate + self.skew_s)

    def mono(self) -> float:
        return (self.loop.now_s - self.booted_at_s) * self.rate


@types.coroutine
def yield_once() -> Generator[None, None, None]:
    """One scheduling point: anything that is ready may run before the caller goes on."""
    yield


async def take_time(process: SimProcess, chance: random.Random, longest_s: float) -> None:
    """One step of work outside the process, a system call say: a kill falls before it, or after it, never inside."""
    process.check()
    if longest_s > 0.0:
        await process.sleep(longest_s * chance.random())
    else:
        await yield_once()
    process.check()


class SimProcess(Owner):
    """`name` is what a restart keeps ("m0", "n1.agent"); `incarnation` tells this life from the last."""

    __slots__ = ("_chance", "at_exit", "clock", "died_silently", "faults", "incarnation", "loop", "name")

    def __init__(
        self, loop: SimLoop, faults: Faults, name: str, incarnation: int = 1, clock: HostClock | None = None
    ) -> None:
        super().__init__(f"{name}#{incarnation}")
        self.loop = loop
        self.faults = faults
        self.name = name
        self.incarnation = incarnation
        self.clock = clock or HostClock(loop)
        self.died_silently = False
        self.at_exit: list[Callable[[SimProcess], object]] = []
        self._chance = random.Random(f"{faults.seed}:ids:{self.title}")
        loop.adopt(self)

    def __repr__(self) -> str:
        return f"<SimProcess {self.title}{'' if self.alive else ' (killed)'}>"

    # --- life

    def check(self) -> None:
        """Every port calls this first."""
        if not self.alive:
            raise Dead

    def spawn(self, coro: Coroutine[Any, Any, Any], name: str | None = None) -> SimTask:
        """Run a top-level task of this process. Nobody awaits it, so its error is reported when it happens."""
        if not self.alive:
            coro.close()
            raise Dead
        task = self.loop.create_task(coro, name=name, context=self.context.copy())
        task.add_done_callback(self._spawned_done, context=self.context)
        return task

    def _spawned_done(self, task: asyncio.Future[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.loop.report("unhandled error in a task of the process", error, self)

    def kill(self, silently: bool = False) -> None:
        """SIGKILL. Locks, connections and children that hang on this process learn of it through `at_exit`. Silently:
        with its machine, so that no peer gets as much as a reset."""
        if not self.alive:
            return
        self.died_silently = silently
        self.loop.kill(self)
        self.loop.world_note(f"kill {self.title}")
        for hook in list(self.at_exit):
            hook(self)
        self.at_exit.clear()

    def pause(self) -> None:
        if self.alive and not self.paused:
            self.loop.world_note(f"pause {self.title}")
            self.loop.pause(self)

    def resume(self) -> None:
        if self.alive and self.paused:
            self.loop.world_note(f"resume {self.title}")
            self.loop.resume(self)

    # --- ports.Clock

    def wall(self) -> datetime:
        self.check()
        return self.clock.wall()

    def mono(self) -> float:
        self.check()
        return self.clock.mono()

    async def sleep(self, seconds: float) -> None:
        """By this machine's clock. `asyncio.timeout` runs on the loop's and does not drift."""
        self.check()
        if seconds <= 0:
            await yield_once()
            return
        done = self.loop.create_future()
        timer = self.loop.call_later(seconds / self.clock.rate, _settle, done, context=self.context)
        try:
            await done
        finally:
            timer.cancel()

    # --- ports.Ids

    def session_id(self) -> str:
        self.check()
        return "".join(self._chance.choices(CROCKFORD, k=10))

    def token(self) -> str:
        self.check()
        return f"{self._chance.getrandbits(128):032x}"

    nonce = token

    # --- ports.CrashPoint and reachability

    def point(self, name: str) -> None:
        """A place between two effects where this process may die: then nothing below the call happens. Or it is
        stopped there: it takes no further step, from its next await on, until it is resumed."""
        self.check()
        if self.faults.crash(name):
            self.kill()
            raise Dead
        if self.faults.hit("process.pause_at_point"):
            self.pause()
            self.loop.at(self.faults.span_s(LONGEST_PAUSE_S), self.resume)

    def sometimes(self, name: str) -> None:
        """Count that a rare path was taken. One that no seed ever takes is a hole in the simulation."""
        self.check()
        self.faults.reached[name] += 1


def _settle(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_result(None)
