"""Where a database is: the two kinds of URL that Corral knows, taken apart once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from corral.model.faults import Invalid

POSTGRES_SCHEMES = ("postgresql://", "postgres://")
SQLITE_SCHEME = "sqlite://"


@dataclass(frozen=True, slots=True)
class SqliteFile:
    path: Path


@dataclass(frozen=True, slots=True)
class PostgresDatabase:
    """`url` as libpq reads it."""

    url: str


Address = SqliteFile | PostgresDatabase


def parse_address(url: str) -> Address:
    """`sqlite:///absolute/path` or `postgresql://…`; `Invalid` for anything else."""
    if url.startswith(POSTGRES_SCHEMES):
        return PostgresDatabase(url)
    if url.startswith(f"{SQLITE_SCHEME}/") and (name := url.removeprefix(SQLITE_SCHEME).lstrip("/")):
        return SqliteFile(Path("/", name))
    scheme = url.partition("://")[0][:20]  # never the whole URL: it may hold a password
    raise Invalid(
        "bad_database_url",
        f"database URL {scheme!r}…: write sqlite:///absolute/path or postgresql://user:password@host/database",
    )
