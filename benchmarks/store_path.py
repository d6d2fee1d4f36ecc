"""The way of a session through the store alone: milliseconds of one session in each step, in batches, per database.

No process is started and no network crossed but PostgreSQL's: what is measured is the transaction bodies, their
statements and the commits, on the same bodies that managers run. `ended` is all steps together, in sessions a second.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from corral.clock import SystemClock, SystemIds
from corral.store import open_store, upgrade
from corral.testing.builders import Play, spec, whole_run
from tests.services.postgres import find_binaries, own_server

COUNT = 3000
BATCH = 100  # sessions per submit, and per exchange
NODES = 4


def run(count: int = COUNT) -> dict[str, float]:
    """Milliseconds by database and step."""
    with tempfile.TemporaryDirectory(prefix="corral-bench-") as folder:
        numbers = _named("sqlite", asyncio.run(_way(f"sqlite://{Path(folder, 'corral.db')}", count)))
    binaries = find_binaries()
    if binaries is not None:
        with own_server(binaries) as server, server.fresh_database() as url:
            numbers |= _named("postgresql", asyncio.run(_way(url, count)))
    return numbers


def _named(database: str, steps: dict[str, float]) -> dict[str, float]:
    return {f"{database} {step}": value for step, value in steps.items()}


async def _way(url: str, count: int) -> dict[str, float]:
    upgrade(url)
    store = open_store(url, SystemClock(), SystemIds())
    play = Play(store)
    spent: dict[str, float] = {}

    async def timed(step: str, move: Callable[[], Awaitable[object]]) -> None:
        began = time.perf_counter()
        await move()
        spent[step] = (time.perf_counter() - began) * 1000 / count

    try:
        for index in range(NODES):
            await play.join(f"n{index}", cpus=count, memory_mib=count)
        what = spec("true", memory_mib=1)
        await timed("submit", lambda: _repeat(count // BATCH, lambda: play.submit(*[what] * BATCH)))
        await timed("place", lambda: _until_nothing(play.place))
        await timed("claim", lambda: _until_nothing(play.claim))
        orders: dict[str, list[str]] = {}

        async def serve() -> None:
            for index in range(NODES):
                desired = await play.exchange(f"n{index}")
                orders[f"n{index}"] = [order.token for order in desired.orders]

        async def report() -> None:
            for node, tokens in orders.items():
                for first in range(0, len(tokens), BATCH):
                    facts = [fact for token in tokens[first : first + BATCH] for fact in whole_run(token)]
                    await play.exchange(node, *facts)

        await timed("serve", serve)
        await timed("report", report)
        counts = await store.read("counts", lambda reads: reads.count_sessions())
        assert counts == {"ended": count // BATCH * BATCH}, counts
    finally:
        store.close()
    return {**{f"{step} ms": value for step, value in spent.items()}, "sessions/s": 1000 / sum(spent.values())}


async def _repeat(times: int, move: Callable[[], Awaitable[object]]) -> None:
    for _ in range(times):
        await move()


async def _until_nothing(move: Callable[[], Awaitable[int]]) -> None:
    while await move():
        pass
