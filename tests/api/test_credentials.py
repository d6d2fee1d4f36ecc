"""A credential is looked up, believed for a few seconds, and no longer."""

import asyncio
from typing import Any

from corral.api.credentials import BELIEVED_S, Credentials, digest_of
from corral.clock import SystemClock
from corral.ports import Clock
from tests.api.face import Face


class HandClock(SystemClock):
    """A clock that stands until it is moved."""

    at = 0.0

    def mono(self) -> float:
        return self.at


def lookups(face: Face, clock: Clock, *tokens: str) -> list[Any]:
    credentials = Credentials(face.store, clock)

    async def ask() -> list[Any]:
        return [await credentials.of(token) for token in tokens]

    return asyncio.run(ask())


def test_a_token_is_known_by_its_digest_alone(face: Face) -> None:
    assert lookups(face, HandClock(), "admin-token", "agent-token", "nobody's", digest_of("admin-token")) == [
        ("admin", "admin"), ("agents", "agent"), None, None,
    ]  # fmt: skip


def test_a_found_credential_is_believed_for_a_few_seconds_and_no_longer(face: Face) -> None:
    clock = HandClock()
    credentials = Credentials(face.store, clock)
    digest = digest_of("admin-token")

    async def of() -> Any:
        return await credentials.of("admin-token")

    def revoke() -> None:
        face.tx(lambda tx: tx._connection.rows(f"DELETE FROM credential WHERE digest = '{digest}' RETURNING name"))  # pyright: ignore

    assert asyncio.run(of()) == ("admin", "admin")
    revoke()
    clock.at = BELIEVED_S - 0.1
    assert asyncio.run(of()) == ("admin", "admin")
    clock.at = BELIEVED_S
    assert asyncio.run(of()) is None
    face.tx(lambda tx: tx.add_credential("admin", "admin", digest))
    assert asyncio.run(of()) == ("admin", "admin")
