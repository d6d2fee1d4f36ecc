"""Staying with a session to its end: its output as it comes, through every attempt, and a stop when the caller asks.

Rank 0 is shown. Its output never decides anything: how the session ended is asked of the control plane.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Mapping
from typing import IO, TYPE_CHECKING, Any

from corral.cli.terminal import Terminal
from corral.model.faults import Fault, NotFound

if TYPE_CHECKING:
    from corral.client import AsyncClient

STREAMS = ("stdout", "stderr")
SETTLE_S = 5.0  # one poll while a new attempt or the end is on its way


def attend(terminal: Terminal, id_: str) -> Mapping[str, Any]:
    """The session once it has ended. The second Ctrl-C leaves it alone and raises KeyboardInterrupt."""
    return asyncio.run(_attend(terminal, id_))


async def _attend(terminal: Terminal, id_: str) -> Mapping[str, Any]:
    async with terminal.async_client() as client:
        me = asyncio.current_task()
        stops: list[asyncio.Task[None]] = []

        def interrupted() -> None:
            if stops and me is not None:
                me.cancel()
            stops.append(asyncio.ensure_future(_stop(terminal, client, id_)))

        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, interrupted)
        try:
            await asyncio.gather(*[_show(terminal, client, id_, stream) for stream in STREAMS])
            return await client.wait(id_)
        except asyncio.CancelledError:
            terminal.note(f"left session {id_} alone; `corral wait {id_}` waits for its end")
            raise KeyboardInterrupt from None


async def _stop(terminal: Terminal, client: AsyncClient, id_: str) -> None:
    terminal.note(f"asking session {id_} to stop; once more to leave it alone")
    try:
        await client.cancel(id_)
    except Fault as fault:
        terminal.note(f"session {id_} was not asked to stop: {fault.message}")


async def _show(terminal: Terminal, client: AsyncClient, id_: str, stream: str) -> None:
    """One stream of rank 0, attempt after attempt. What cannot be shown is said, and changes nothing else."""
    out = (sys.stdout if stream == "stdout" else sys.stderr).buffer
    try:
        await _pour(client, id_, stream, out)
    except BrokenPipeError:
        return  # nobody reads; the session goes on
    except Fault as fault:
        terminal.note(f"{stream} of session {id_} is not shown: {fault.message}")


async def _pour(client: AsyncClient, id_: str, stream: str, out: IO[bytes]) -> None:
    attempt = 1
    while True:
        await _pour_attempt(client, id_, stream, attempt, out)
        session = await client.get(id_)
        while session["attempt"] == attempt:
            if session["phase"] == "ended":
                return
            session = await client.wait(id_, SETTLE_S)
        attempt += 1


async def _pour_attempt(client: AsyncClient, id_: str, stream: str, attempt: int, out: IO[bytes]) -> None:
    """What the command of one attempt wrote; where none began, nothing was written and nothing is missing."""
    try:
        async for chunk in client.follow_logs(id_, stream=stream, attempt=attempt):
            out.write(chunk.data)
            out.flush()
    except NotFound as fault:
        begun = {one["attempt"]: one["started_at"] for one in await client.attempts(id_)}
        if fault.code != "logs_unavailable" or begun.get(attempt) is not None:
            raise
