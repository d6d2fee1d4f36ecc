"""The database's revision: what it is, what this Corral wants, and the migrations between the two.

A migration runs alone: on SQLite under the manager's file lock, on PostgreSQL under an advisory lock, each time in one
transaction that leaves the old revision or the new one. Nothing is upgraded on the way to opening a store.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, NullPool, create_engine

from corral.model.faults import Refused, Unavailable
from corral.store.address import Address, PostgresDatabase, SqliteFile, parse_address
from corral.store.filelock import locked_file

MIGRATIONS = Path(__file__).parent / "migrations"
MIGRATION_LOCK = 0x636F7272616C  # "corral": the advisory lock of whoever migrates
CONNECT_TIMEOUT_S = 10


def newest_revision() -> str:
    """The revision that this Corral works with."""
    head = ScriptDirectory(str(MIGRATIONS)).get_current_head()
    assert head is not None
    return head


def current_revision(url: str) -> str | None:
    """The revision of the database at `url`; None when it has no tables of ours yet."""
    address = parse_address(url)
    if isinstance(address, SqliteFile) and not address.path.exists():
        return None
    with _connected(address) as connection:
        return MigrationContext.configure(connection).get_current_revision()


def upgrade(url: str) -> str:
    """Bring the database at `url` to this Corral's revision, making it when there is none; the revision it was at.

    `Refused`: `database_in_use` on SQLite while a manager runs, `database_newer` for a database of a newer Corral.
    """
    return _migrate(url, lambda config: command.upgrade(config, "head"))


def downgrade(url: str, to: str) -> str:
    """Take the database back to an older revision (`base`: no tables at all). What only the newer one holds is lost."""
    return _migrate(url, lambda config: command.downgrade(config, to))


def require_newest(url: str) -> None:
    """`Refused` when the database is not at this Corral's revision: says what is wrong and what to do."""
    found = current_revision(url)
    if found == newest_revision():
        return
    if found is None:
        raise Refused("database_empty", "the database has no tables yet; run `corral db upgrade` first")
    _refuse_newer(found)
    raise Refused(
        "database_older",
        f"the database is at revision {found}, this Corral needs {newest_revision()}; run `corral db upgrade` first",
    )


def _refuse_newer(found: str | None) -> None:
    known = {script.revision for script in ScriptDirectory(str(MIGRATIONS)).walk_revisions()}
    if found is not None and found not in known:
        raise Refused(
            "database_newer",
            f"the database is at revision {found}, which this Corral does not know; install the newer Corral that "
            "made it",
        )


def _migrate(url: str, run: Callable[[Config], None]) -> str:
    address = parse_address(url)
    with _alone(address), _connected(address) as connection:
        if isinstance(address, PostgresDatabase):
            connection.exec_driver_sql("SELECT pg_advisory_xact_lock(%s)", (MIGRATION_LOCK,))
        else:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        before = MigrationContext.configure(connection).get_current_revision()
        _refuse_newer(before)
        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
        config.attributes["connection"] = connection
        run(config)
        connection.commit()
        return before or "base"


@contextmanager
def _alone(address: Address) -> Generator[None]:
    if isinstance(address, PostgresDatabase):
        yield
        return
    with locked_file(address.path):
        os.close(os.open(address.path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        yield


@contextmanager
def _connected(address: Address) -> Generator[Connection]:
    if isinstance(address, SqliteFile):
        engine = create_engine("sqlite://", creator=lambda: _sqlite(address.path), poolclass=NullPool)
    else:
        engine = create_engine("postgresql+psycopg://", creator=lambda: _postgres(address.url), poolclass=NullPool)
    with engine.connect() as connection:
        yield connection


def _sqlite(path: Path) -> sqlite3.Connection:
    try:
        raw = sqlite3.connect(path, isolation_level=None)
        raw.execute("PRAGMA journal_mode=WAL")
    except sqlite3.Error as error:
        raise Unavailable("database_unreadable", f"{path}: {error}", subject=str(path)) from error
    return raw


def _postgres(url: str) -> psycopg.Connection[tuple[object, ...]]:
    try:
        return psycopg.connect(url, connect_timeout=CONNECT_TIMEOUT_S)
    except psycopg.Error as error:
        reason = re.sub(r"\[Errno -?\d+\] ", "", str(error).strip().splitlines()[0])
        raise Unavailable("database_unreachable", f"the database did not answer: {reason}") from error
