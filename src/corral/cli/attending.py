"""Staying with a session to its end: its output as it comes, through every attempt, and a stop when the caller asks.

Output never decides anything: how the session ended is asked of the control plane.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from corral.cli.labelled import Labelled
from corral.cli.terminal import Terminal
from corral.model.faults import Fault, NotFound

if TYPE_CHECKING:
    from corral.client import AsyncClient

STREAMS = ("stdout", "stderr")
MOST_RANKS = 64  # each is two connections here and at the manager
SETTLE_S = 5.0  # one poll while a new attempt or the end is on its way


class Shown(NamedTuple):
    """One stream of one rank, and where it goes."""

    rank: int
    stream: str
    out: IO[bytes] | Labelled


def attend(terminal: Terminal, id_: str, rank: int | None = None) -> Mapping[str, Any]:
    """The session once it has ended, and until then the output of all its ranks, or of one. The second Ctrl-C leaves
    it alone and raises KeyboardInterrupt."""
    return asyncio.run(_attend(terminal, id_, rank))


async def _attend(terminal: Terminal, id_: str, rank: int | None) -> Mapping[str, Any]:
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
            await _show_all(terminal, client, id_, rank)
            return await client.wait(id_)
        except asyncio.CancelledError:
            terminal.note(f"left session {id_} alone; `corral wait {id_}` waits for its end")
            raise KeyboardInterrupt from None
        except Fault as fault:
            if fault.status == 503:
                fault.message += f"; session {id_} goes on: `corral wait {id_}`"
            raise


async def _stop(terminal: Terminal, client: AsyncClient, id_: str) -> None:
    terminal.note(f"asking session {id_} to stop; once more to leave it alone")
    try:
        await client.cancel(id_)
    except Fault as fault:
        terminal.note(f"session {id_} was not asked to stop: {fault.message}")


async def _show_all(terminal: Terminal, client: AsyncClient, id_: str, rank: int | None) -> None:
    """Everything that is to be shown, to its end. A control plane that stays away ends all of it with its fault."""
    spec = await client.spec(id_)
    ranks = int(spec["nodes"]) * int(spec["ranks_per_node"])
    if rank is None and ranks > MOST_RANKS:
        terminal.note(f"session {id_} has {ranks} ranks: the first {MOST_RANKS} are shown, or one by --rank")
    chosen = range(min(ranks, MOST_RANKS)) if rank is None else (rank,)
    tasks = [asyncio.ensure_future(_show(terminal, client, id_, one)) for one in _shown(chosen, ranks)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def _shown(ranks: Sequence[int], of: int) -> list[Shown]:
    """Where each goes: as it is when it is the only one, else line by line after its rank's number."""
    outs = {"stdout": sys.stdout.buffer, "stderr": sys.stderr.buffer}
    if len(ranks) == 1:
        return [Shown(ranks[0], stream, outs[stream]) for stream in STREAMS]
    width = len(str(of - 1))
    return [
        Shown(rank, stream, Labelled(outs[stream], f"{rank:>{width}}: ".encode()))
        for rank in ranks
        for stream in STREAMS
    ]


async def _show(terminal: Terminal, client: AsyncClient, id_: str, shown: Shown) -> None:
    """One stream of one rank, attempt after attempt. What its node cannot serve is said, and changes nothing else."""
    try:
        await _pour(client, id_, shown)
    except BrokenPipeError:
        return  # nobody reads; the session goes on
    except Fault as fault:
        if fault.code == "unreachable":
            raise
        terminal.note(f"{shown.stream} of rank {shown.rank} of session {id_} is not shown: {fault.message}")


async def _pour(client: AsyncClient, id_: str, shown: Shown) -> None:
    attempt = 1
    while True:
        await _pour_attempt(client, id_, shown, attempt)
        session = await client.wait(id_, 0.0)  # patient, unlike get
        while session["attempt"] == attempt:
            if session["phase"] == "ended":
                return
            session = await client.wait(id_, SETTLE_S)
        attempt += 1


async def _pour_attempt(client: AsyncClient, id_: str, shown: Shown, attempt: int) -> None:
    """What the command of one attempt wrote; where none began, nothing was written and nothing is missing."""
    try:
        async for chunk in client.follow_logs(id_, rank=shown.rank, stream=shown.stream, attempt=attempt):
            shown.out.write(chunk.data)
            shown.out.flush()
    except NotFound as fault:
        begun = {one["attempt"]: one["started_at"] for one in await client.attempts(id_)}
        if fault.code != "logs_unavailable" or begun.get(attempt) is not None:
            raise
    finally:
        if isinstance(shown.out, Labelled):
            shown.out.finish()
