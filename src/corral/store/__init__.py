"""The database: one schema, one file of statements, SQLite for one machine and PostgreSQL for many managers."""

from corral.store.create import open_store
from corral.store.faults import Conflict
from corral.store.looking import look
from corral.store.postgres import PostgresStore
from corral.store.revision import current_revision, downgrade, newest_revision, upgrade
from corral.store.sqlite import SqliteStore

__all__ = [
    "Conflict",
    "PostgresStore",
    "SqliteStore",
    "current_revision",
    "downgrade",
    "look",
    "newest_revision",
    "open_store",
    "upgrade",
]
