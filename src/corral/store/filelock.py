"""The lock that keeps a second manager away from a SQLite file. The kernel drops it when its holder dies, however."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from corral.model.faults import Refused


def lock_file(path: Path) -> int:
    """Take the lock beside `path`; the descriptor that holds it. `Refused` (`database_in_use`) when it is taken."""
    lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise Refused(
            "database_in_use",
            f"another manager has {path} open; SQLite serves one manager: stop it, or use PostgreSQL for several",
            subject=str(path),
        ) from None
    return lock


@contextmanager
def locked_file(path: Path) -> Generator[None]:
    lock = lock_file(path)
    try:
        yield
    finally:
        os.close(lock)
