"""A look into a database by somebody who is none of its managers: reads, whoever has it open, and changes nothing."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from typing import TypeVar

import psycopg

from corral.model.faults import Refused, Unavailable
from corral.ports import Clock, Reads
from corral.store.address import PostgresDatabase, SqliteFile, parse_address
from corral.store.connection import PostgresConnection, SqliteConnection
from corral.store.postgres_link import OF_CORRAL
from corral.store.reads import SqlReads
from corral.store.revision import require_newest
from corral.store.sqlite import BUSY_MS

T = TypeVar("T")


def look(url: str, clock: Clock, what: Callable[[Reads], T]) -> T:
    """The answer, from one state of the database. Raises as `open_store` does, but lets managers be."""
    address = parse_address(url)
    if isinstance(address, SqliteFile) and not address.path.exists():
        raise Refused("database_empty", f"there is no database at {address.path}", subject=str(address.path))
    require_newest(url)
    try:
        return _sqlite(address, clock, what) if isinstance(address, SqliteFile) else _postgres(address, what)
    except (sqlite3.OperationalError, psycopg.OperationalError) as error:
        raise Unavailable("database_failed", f"the database could not be read: {error}") from error


def _sqlite(address: SqliteFile, clock: Clock, what: Callable[[Reads], T]) -> T:
    raw = sqlite3.connect(address.path, isolation_level=None)
    with contextlib.closing(raw):
        raw.execute(f"PRAGMA busy_timeout={BUSY_MS}")
        raw.execute("PRAGMA query_only=ON")
        raw.execute("BEGIN")
        return what(SqlReads(SqliteConnection(raw, lambda: clock.wall().timestamp())))


def _postgres(address: PostgresDatabase, what: Callable[[Reads], T]) -> T:
    with contextlib.closing(psycopg.connect(address.url, autocommit=True, **OF_CORRAL)) as raw:
        raw.execute("BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        return what(SqlReads(PostgresConnection(raw)))
