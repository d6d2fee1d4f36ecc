"""STATE/node.db: agent.ports.Ledger on SQLite. Each commit is one transaction; `sync` makes it outlive a power loss."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec

from corral import wire
from corral.agent.horizon import token_of
from corral.agent.ports import Entries, Identity, NoRoom, Seen, Unsafe
from corral.model.session import KernelFact

_SCHEMA = """
CREATE TABLE IF NOT EXISTS identity (one INTEGER PRIMARY KEY CHECK (one = 1), name TEXT, boot_id TEXT, run_id TEXT,
    last TEXT, next TEXT, held_version INTEGER) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS seen (token TEXT PRIMARY KEY, session TEXT NOT NULL, boot_id TEXT NOT NULL,
    stopped INTEGER NOT NULL, ended INTEGER NOT NULL, at REAL NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS seen_session ON seen (session);
CREATE INDEX IF NOT EXISTS seen_live ON seen (boot_id) WHERE ended = 0;
CREATE TABLE IF NOT EXISTS fact (token TEXT NOT NULL, kind TEXT NOT NULL, body TEXT NOT NULL, at REAL NOT NULL,
    acknowledged INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (token, kind)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS fact_open ON fact (at) WHERE acknowledged = 0;
"""
_SEEN = """
INSERT INTO seen VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (token) DO UPDATE SET
    stopped = MAX(stopped, excluded.stopped), ended = MAX(ended, excluded.ended)"""
_ROOM_BYTES = 1 << 20


class NodeDatabase:
    """One connection, one writer. After a failed sync every later commit raises `Unsafe`.

    The file and its log keep room, so that results can be written down on a disk that has filled up since.
    """

    def __init__(self, path: str) -> None:
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        self._unsafe = False
        try:
            self._db = sqlite3.connect(path, isolation_level=None)
            os.chmod(path, 0o600)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.executescript(_SCHEMA)
            self._keep_room()
        except sqlite3.Error as error:
            raise Unsafe(f"the durable store {path} cannot be opened: {error}") from error

    def _keep_room(self) -> None:
        """What is written, carried into the file and deleted leaves free pages there, and a log as long."""
        try:
            self._db.execute("DROP TABLE IF EXISTS room")
            self._db.execute("CREATE TABLE room AS SELECT randomblob(?) AS filler", (_ROOM_BYTES,))
            self._db.execute("PRAGMA wal_checkpoint(RESTART)")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_FULL:
                raise
        self._db.execute("DROP TABLE IF EXISTS room")

    async def identity(self) -> Identity:
        row = self._db.execute("SELECT name, boot_id, run_id, last, next, held_version FROM identity").fetchone()
        return Identity() if row is None else Identity(row[0], row[1], row[2], (row[3], row[4]), row[5])

    async def commit(self, entries: Entries, *, sync: bool) -> None:
        if self._unsafe:
            raise Unsafe("the durable store failed to sync; restart the agent once the disk is sound")
        self._db.execute(f"PRAGMA synchronous={'FULL' if sync else 'NORMAL'}")
        try:
            if not self._try_commit(entries):
                # The log cannot grow: what it holds goes into the file, and it begins again in its own room.
                self._db.execute("PRAGMA wal_checkpoint(RESTART)")
                if not self._try_commit(entries):
                    raise NoRoom("no space left on the device")
        except sqlite3.OperationalError as error:
            self._unsafe = True
            raise Unsafe(f"the durable store cannot be written: {error}") from error

    def _try_commit(self, entries: Entries) -> bool:
        """False where the disk is full, and nothing was written."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            self._write(entries)
            self._db.execute("COMMIT")
        except sqlite3.OperationalError as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            if error.sqlite_errorcode == sqlite3.SQLITE_FULL:
                return False
            raise
        return True

    def _write(self, entries: Entries) -> None:
        if (who := entries.identity) is not None:
            row = (who.name, who.boot_id, who.run_id, *who.nonces, who.held_version)
            self._db.execute("INSERT OR REPLACE INTO identity VALUES (1, ?, ?, ?, ?, ?, ?)", row)
        self._db.executemany(_SEEN, [_seen_row(seen) for seen in entries.seen])
        self._db.executemany(
            "INSERT OR IGNORE INTO fact (token, kind, body, at) VALUES (?, ?, ?, ?)",
            [(fact.token, fact.kind.value, msgspec.json.encode(fact).decode(), fact.at) for fact in entries.facts],
        )
        self._db.executemany("UPDATE fact SET acknowledged = 1 WHERE token = ? AND kind = ?", entries.acknowledged)
        if entries.forget_before is not None:
            self._db.execute("DELETE FROM fact WHERE acknowledged = 1 AND at < ?", (entries.forget_before,))

    async def horizon(self, sessions: Sequence[str]) -> list[Seen]:
        marks = ", ".join("?" * len(sessions))
        rows = self._db.execute(
            f"SELECT token, boot_id, stopped, ended, at FROM seen WHERE session IN ({marks})", sessions
        ).fetchall()
        return [Seen(token_of(row[0]), row[1], bool(row[2]), bool(row[3]), row[4]) for row in rows]

    async def live(self, boot_id: str) -> list[str]:
        rows = self._db.execute(
            "SELECT token FROM seen WHERE boot_id = ? AND ended = 0 AND stopped = 0 ORDER BY token", (boot_id,)
        )
        return [row[0] for row in rows]

    async def facts(self, token: str) -> list[KernelFact]:
        return _facts(self._db.execute("SELECT body FROM fact WHERE token = ? ORDER BY at", (token,)).fetchall())

    async def unacknowledged(self) -> list[KernelFact]:
        return _facts(self._db.execute("SELECT body FROM fact WHERE acknowledged = 0 ORDER BY at").fetchall())

    def close(self) -> None:
        self._db.close()


def _facts(rows: Sequence[Any]) -> list[KernelFact]:
    return [wire.decode(row[0], KernelFact) for row in rows]


def _seen_row(seen: Seen) -> tuple[Any, ...]:
    return (str(seen.token), seen.token.session, seen.boot_id, int(seen.stopped), int(seen.ended), seen.at)
