"""Tasks end although a cancellation was lost."""

from __future__ import annotations

import asyncio

from corral.tasks import end_all


async def deaf(times: int, begun: asyncio.Event) -> None:
    while True:
        try:
            begun.set()
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            times -= 1
            if times < 0:
                raise


async def failing() -> None:
    raise ValueError("on its own")


async def end_some() -> list[bool]:
    begun = asyncio.Event()
    tasks = [asyncio.ensure_future(deaf(2, begun)), asyncio.ensure_future(failing())]
    await begun.wait()
    async with asyncio.timeout(20):
        await end_all(tasks)
    return [task.done() for task in tasks]


def test_a_task_that_lost_a_cancellation_is_cancelled_again() -> None:
    assert asyncio.run(end_some()) == [True, True]
