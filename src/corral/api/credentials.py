"""Who a bearer token belongs to. A found credential is believed for a few seconds, so that a busy agent or a long list
of requests does not ask the database each time; one that was not found is never remembered."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from corral.ports import Clock, Store

BELIEVED_S = 5.0
MOST_REMEMBERED = 10_000


class Credential(NamedTuple):
    name: str
    kind: str


class Credentials:
    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._found: dict[str, tuple[Credential, float]] = {}

    async def of(self, token: str) -> Credential | None:
        digest = digest_of(token)
        known = self._found.get(digest)
        if known is not None and self._clock.mono() < known[1]:
            return known[0]
        found = await self._store.read("credential", lambda reads: reads.credential(digest))
        if found is None:
            self._found.pop(digest, None)
            return None
        if len(self._found) >= MOST_REMEMBERED:
            self._found.clear()
        credential = Credential(*found)
        self._found[digest] = (credential, self._clock.mono() + BELIEVED_S)
        return credential


def digest_of(token: str) -> str:
    """What is stored of a bearer token."""
    return hashlib.sha256(token.encode()).hexdigest()
