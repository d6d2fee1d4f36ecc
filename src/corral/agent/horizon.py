"""The token horizon: what this node has been asked to start or told to stop, kept for good (KE6).

Written before anything is started and before a stop is answered, so that no late copy of an order ever starts a thing.
What is to be remembered at the same time is one commit.
"""

from __future__ import annotations

import asyncio
from functools import lru_cache

from corral.agent.ports import Entries, Ledger, Seen
from corral.model.session import Why, parse_token
from corral.ports import Clock

token_of = lru_cache(maxsize=10_000)(parse_token)


class Horizon:
    def __init__(self, ledger: Ledger, boot_id: str, clock: Clock) -> None:
        self._ledger = ledger
        self._boot_id = boot_id
        self._clock = clock
        self.fences = 0  # rises with all that was remembered and may keep some other launch from starting
        self._waiting: list[Seen] = []
        self._writing: asyncio.Future[None] | None = None

    async def remember(self, token: str, *, stopped: bool = False) -> None:
        """This token was seen here; a tombstone when `stopped`, durable before it counts."""
        at = self._clock.wall().timestamp()
        self._waiting.append(Seen(token_of(token), self._boot_id, stopped, at=at))
        if self._writing is None:
            self._writing = asyncio.ensure_future(self._write())
        await asyncio.shield(self._writing)

    async def _write(self) -> None:
        seen, self._waiting, self._writing = self._waiting, [], None
        await self._ledger.commit(Entries(seen=seen), sync=any(one.stopped for one in seen))
        # not before: who has read this number and then the ledger must not miss what is on its way there
        self.fences += sum(one.stopped or one.token.attempt > 1 for one in seen)

    async def fenced(self, token: str) -> Why | None:
        """Why this token may never start here: stopped or ended before, or a later attempt was seen."""
        mine = token_of(token)
        for seen in await self._ledger.horizon([mine.session]):
            if seen.token.attempt > mine.attempt:
                return Why("later_attempt", f"attempt {seen.token.attempt} of this session was seen here")
            if seen.token == mine and (seen.stopped or seen.ended):
                return Why("stopped_before", "it was stopped here before it could start")
        return None
