"""The agent's side of the wire to the zygote: many requests, a zygote that does not read, one that dies."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncGenerator
from pathlib import Path

from corral.agent.ports import Birth
from corral.agent.shims import ZygoteShims

MANY = 3000
PATIENCE_S = 60.0


class Asked:
    """Shims asked for job directories that are not there: each ends at once, and is heard of."""

    def __init__(self, root: Path) -> None:
        self.shims = ZygoteShims(
            lambda token: str(root / "jobs" / token), str(root / "notify"), {"PATH": "/usr/bin:/bin"}
        )
        self.heard: set[str] = set()

    async def ask(self, *tokens: str) -> None:
        for token in tokens:
            await self.shims.spawn(Birth(token, "run-1", 3))
            await asyncio.sleep(0)  # it is sent in the loop's next turn

    async def hear(self, *tokens: str) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not self.heard.issuperset(tokens):
                self.heard |= await self.shims.changes()

    def zygote(self) -> int:
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        (pid,) = (int(pid) for pid in children if b"zygote.py" in Path(f"/proc/{pid}/cmdline").read_bytes())
        return pid


@contextlib.asynccontextmanager
async def begun(root: Path) -> AsyncGenerator[Asked]:
    """With a zygote that has answered once."""
    asked = Asked(root)
    try:
        await asked.ask("1-first-1-0")
        await asked.hear("1-first-1-0")
        yield asked
    finally:
        asked.shims.close()


async def flood(root: Path) -> None:
    async with begun(root) as asked:
        zygote = asked.zygote()
        tokens = [f"1-a-{number}-0" for number in range(MANY)]
        os.kill(zygote, signal.SIGSTOP)
        await asked.ask(*tokens, *tokens)
        os.kill(zygote, signal.SIGCONT)
        await asked.hear(*tokens)
        assert asked.zygote() == zygote


def test_a_zygote_that_does_not_read_is_waited_for_and_not_replaced(tmp_path: Path) -> None:
    asyncio.run(flood(tmp_path))


async def killed_in_the_flood(root: Path) -> None:
    async with begun(root) as asked:
        os.kill(asked.zygote(), signal.SIGSTOP)
        tokens = [f"1-a-{number}-0" for number in range(MANY)]
        await asked.ask(*tokens)
        os.kill(asked.zygote(), signal.SIGKILL)
        await asked.hear(tokens[-1])  # what the dead one had taken in is for the agent's next look


def test_what_a_dead_zygote_never_took_goes_to_the_next(tmp_path: Path) -> None:
    asyncio.run(killed_in_the_flood(tmp_path))


async def stopped(root: Path) -> None:
    async with begun(root) as asked:
        zygote = asked.zygote()
        os.kill(zygote, signal.SIGSTOP)
        async with asyncio.timeout(PATIENCE_S):
            while "1-a-1-0" not in asked.heard:
                await asked.ask("1-a-1-0")  # as the agent does while nothing comes of it
                with contextlib.suppress(TimeoutError):
                    asked.heard |= await asyncio.wait_for(asked.shims.changes(), 1)
        assert asked.zygote() != zygote


def test_a_zygote_that_was_stopped_is_replaced(tmp_path: Path) -> None:
    asyncio.run(stopped(tmp_path))
