"""A store from a URL: the one place that knows which database is which store."""

from __future__ import annotations

from corral.ports import Clock, CrashPoint, Ids, no_crash
from corral.store.address import SqliteFile, parse_address
from corral.store.postgres import PostgresStore
from corral.store.revision import require_newest
from corral.store.sqlite import SqliteStore


def open_store(url: str, clock: Clock, ids: Ids, point: CrashPoint = no_crash) -> SqliteStore | PostgresStore:
    """The store at `sqlite:///absolute/path` or `postgresql://…`, which must be at this Corral's revision.

    Raises `Invalid` for another URL, `Refused` for a database that needs `corral db upgrade`, is of a newer Corral, or
    (SQLite) has a manager already, `Unavailable` when it cannot be reached.
    """
    address = parse_address(url)
    require_newest(url)
    if isinstance(address, SqliteFile):
        return SqliteStore(address.path, lambda: clock.wall().timestamp(), point)
    return PostgresStore(address.url, clock, ids, point=point)
