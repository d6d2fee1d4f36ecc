"""Requests and answers between simulated processes, over a network that delays, loses, repeats and reorders.

It knows names, the process that serves each, and which one-way links are cut. It never looks into a payload. A request
can fail before it had an effect, after it, or without anyone ever knowing: `Refused` is the only answer that says that
nothing happened. Next: a server's coroutine runs as a task of the incarnation that listens when the request arrives.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from corral.testing.faults import Faults
from corral.testing.process import SimProcess
from corral.testing.simloop import SimLoop

Serve = Callable[[bytes, str], Awaitable[bytes]]


class NetworkError(Exception):
    """A request got no answer."""


class Refused(NetworkError):
    """Nobody listens there: the request had no effect."""


class Reset(NetworkError):
    """The server died with the request in hand, or the connection broke: it may have had its effect."""


class TimedOut(NetworkError):
    """No answer in time. The request may have had its effect, or may have it later."""


@dataclass(frozen=True, slots=True)
class Listener:
    process: SimProcess
    serve: Serve


class _Call:
    """One request as its sender sees it: the first answer or error settles it."""

    __slots__ = ("copies", "done", "payload", "source", "target")

    def __init__(self, source: SimProcess, target: str, payload: bytes, done: asyncio.Future[bytes]) -> None:
        self.source = source
        self.target = target
        self.payload = payload
        self.done = done
        self.copies = 1


class SimNetwork:
    """`trip_s` is the longest undisturbed one-way trip; the reordering of near requests comes from its spread."""

    SLOW_S = 8.0
    LATE_S = 90.0

    def __init__(self, loop: SimLoop, faults: Faults, trip_s: float = 0.02) -> None:
        self.loop = loop
        self.faults = faults
        self.trip_s = trip_s
        self.listeners: dict[str, Listener] = {}
        self.cuts: set[tuple[str, str]] = set()
        self.dark: set[str] = set()
        self.served = 0
        self._chance = random.Random(f"{faults.seed}:network")

    # --- topology

    def listen(self, process: SimProcess, name: str, serve: Serve) -> None:
        """Serve requests to `name` until this process dies. `serve(payload, caller)` is run once per delivery."""
        process.check()
        listener = Listener(process, serve)
        self.listeners[name] = listener
        process.at_exit.append(lambda _: self._unlisten(name, listener))

    def _unlisten(self, name: str, listener: Listener) -> None:
        if self.listeners.get(name) is listener:
            del self.listeners[name]

    def cut(self, source: str, target: str) -> None:
        """Lose everything that goes from `source` to `target`, one way. Both ways are two cuts."""
        self.cuts.add((source, target))
        self.loop.world_note(f"cut {source} -> {target}")

    def mend(self, source: str, target: str) -> None:
        self.cuts.discard((source, target))
        self.loop.world_note(f"mend {source} -> {target}")

    def darken(self, name: str) -> None:
        """Its machine is off: requests to it are not refused, they vanish."""
        self.dark.add(name)

    def lighten(self, name: str) -> None:
        self.dark.discard(name)

    def heal(self) -> None:
        self.cuts.clear()
        self.dark.clear()

    # --- the call

    async def request(self, source: SimProcess, target: str, payload: bytes, timeout_s: float) -> bytes:
        """Ask `target` and wait for its answer, at most `timeout_s`. Raises a `NetworkError`."""
        source.check()
        call = _Call(source, target, payload, self.loop.create_future())
        timer = self.loop.call_later(timeout_s, self._time_out, call, context=source.context)
        self._send(call)
        try:
            return await call.done
        finally:
            timer.cancel()

    def repeat(self, source: SimProcess, target: str, payload: bytes, after_s: float) -> None:
        """A copy of a request that arrives late; nobody waits for its answer."""
        call = _Call(source, target, payload, self.loop.create_future())
        call.copies = 2
        call.done.cancel()
        self.loop.at(after_s, self._arrive, call)

    def _time_out(self, call: _Call) -> None:
        _fail(call, TimedOut(f"{call.target} did not answer in time"))

    def _send(self, call: _Call) -> None:
        faults = self.faults
        trip_s = self._trip_s()
        if faults.hit("network.duplicate"):
            call.copies = 2
            self.loop.at(trip_s + faults.span_s(self.SLOW_S), self._arrive, call)
        if faults.hit("network.drop_request"):
            return
        if faults.hit("network.late"):
            trip_s += faults.span_s(self.LATE_S)
        self.loop.at(trip_s, self._arrive, call)

    def _trip_s(self) -> float:
        trip_s = self.trip_s * self._chance.random()
        if self.faults.hit("network.slow"):
            trip_s += self.faults.span_s(self.SLOW_S)
        return trip_s

    def _is_cut(self, source: str, target: str) -> bool:
        return bool(self.cuts) and (source, target) in self.cuts

    def _arrive(self, call: _Call) -> None:
        """At the target's machine: whoever listens now gets it, however long ago it was sent."""
        if call.target in self.dark or self._is_cut(call.source.name, call.target):
            return
        listener = self.listeners.get(call.target)
        if listener is None:
            # Of two copies the other may find a server yet, or has: then a refusal would be a lie.
            if call.copies == 1:
                self._answer(call, None, Refused(f"nobody listens at {call.target}"))
            return
        self.served += 1
        server = listener.process

        def broken(dead: SimProcess) -> None:
            if not dead.died_silently:
                self._answer(call, None, Reset(f"{call.target} died while it served"))

        server.at_exit.append(broken)
        server.spawn(self._serve(listener, call, broken), name=f"serve {call.target}")

    async def _serve(self, listener: Listener, call: _Call, broken: Callable[[SimProcess], object]) -> None:
        """A task of the server's process. An error of the server's code fails the run, as a 500 would."""
        answer = await listener.serve(call.payload, call.source.name)
        listener.process.at_exit.remove(broken)
        if self.faults.hit("network.reset"):
            self._answer(call, None, Reset(f"the connection to {call.target} broke"))
        elif not self.faults.hit("network.drop_reply"):
            self._answer(call, answer, None)

    def _answer(self, call: _Call, answer: bytes | None, error: NetworkError | None) -> None:
        self.loop.at(self._trip_s(), self._return, call, answer, error)

    def _return(self, call: _Call, answer: bytes | None, error: NetworkError | None) -> None:
        if self._is_cut(call.target, call.source.name):
            return
        if error is not None:
            _fail(call, error)
        elif answer is not None and not call.done.done():
            call.done.set_result(answer)


def _fail(call: _Call, error: NetworkError) -> None:
    done: asyncio.Future[Any] = call.done
    if not done.done():
        done.set_exception(error)
