"""The real clocks and the real source of chance. Everything else is given them as arguments."""

from __future__ import annotations

import asyncio
import secrets
import time
from datetime import UTC, datetime

from corral.model.session import ID_ALPHABET, ID_LENGTH


class SystemClock:
    """ports.Clock. `mono` is CLOCK_BOOTTIME, which goes on while the machine sleeps."""

    def wall(self) -> datetime:
        return datetime.now(UTC)

    def seconds(self) -> float:
        """Seconds since 1970: what a SQLite database on this host goes by."""
        return time.time()

    def mono(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class SystemIds:
    """ports.Ids from the operating system's random source."""

    def session_id(self) -> str:
        chance = secrets.randbits(5 * ID_LENGTH)  # at once: a choice for each character costs two system calls each
        return "".join(ID_ALPHABET[chance >> 5 * place & 31] for place in range(ID_LENGTH))

    def nonce(self) -> str:
        return secrets.token_hex(16)

    def secret(self) -> str:
        """A bearer token: 256 bits, with a prefix that secret scanners can know it by."""
        return f"corral_{secrets.token_urlsafe(32)}"
