"""One database connection as the statements want it: the same calls whichever driver is beneath.

Knows how the two drivers spell parameters, lists, locks, event ids and what changed since. Never decides anything.
"""

from __future__ import annotations

import math
import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Protocol

import msgspec
import psycopg

Row = Sequence[Any]
Parameters = Mapping[str, Any]

_NAME = re.compile(r"(?<![:\w]):([a-z_]+)")
_IN = re.compile(r"@in\((\w+)\)")
_CHANGE = re.compile(r"@change\((\w+)\)")
_MARK = re.compile(r"@mark\((\w+)\)")
_JOINED = re.compile(r"@joined\((\w+)\)")
_EACH = re.compile(r"@each\((\w+) (FROM [^()]*)\)")
EVENTS_PER_TX_BITS = 20  # PostgreSQL: an event's id is its transaction's id, shifted, plus its place in it


class Connection(Protocol):
    """What a transaction body runs on. `each` and `many` run one statement for many parameter sets, in one round trip
    where the driver can, and answer the row count of each and of all together. `alone` says that no other
    transaction can change anything while this one runs, so that what it has read stays true."""

    alone: bool

    def now(self) -> float: ...
    def rows(self, statement: str, **parameters: Any) -> list[Any]: ...
    def run(self, statement: str, **parameters: Any) -> int: ...
    def each(self, statement: str, parameters: Sequence[Parameters]) -> list[int]: ...
    def many(self, statement: str, parameters: Sequence[Parameters]) -> int: ...
    def next_event(self) -> int: ...
    def lock_submits(self) -> None:
        """Nobody else adds a session or an array until this transaction ends."""
        ...

    def take_ordinals(self, count: int) -> int:
        """The first of so many places in the order of submits, one after another, under `lock_submits`."""
        ...


class SqliteConnection:
    """SQLite through the standard driver. `clock` is the database's clock: its host's, or the simulator's."""

    alone = True

    def __init__(self, raw: sqlite3.Connection, clock: Callable[[], float]) -> None:
        self.raw = raw
        self._cursor = raw.cursor()
        self._clock = clock
        try:
            raw.execute("SELECT power(2.0, 1.0)")
        except sqlite3.OperationalError:  # a library built without its mathematics
            raw.create_function("power", 2, math.pow, deterministic=True)

    def now(self) -> float:
        return self._clock()

    def rows(self, statement: str, **parameters: Any) -> list[Row]:
        return self._cursor.execute(_sqlite_text(statement), _listed(parameters)).fetchall()

    def run(self, statement: str, **parameters: Any) -> int:
        return self._cursor.execute(_sqlite_text(statement), _listed(parameters)).rowcount

    def each(self, statement: str, parameters: Sequence[Parameters]) -> list[int]:
        text, execute = _sqlite_text(statement), self._cursor.execute
        return [execute(text, one).rowcount for one in parameters]

    def many(self, statement: str, parameters: Sequence[Parameters]) -> int:
        return self._cursor.executemany(_sqlite_text(statement), parameters).rowcount if parameters else 0

    def next_event(self) -> int:
        return 0

    def lock_submits(self) -> None:
        """It is alone anyway."""

    def take_ordinals(self, count: int) -> int:
        if not self.run("UPDATE sqlite_sequence SET seq = seq + :count WHERE name = 'session'", count=count):
            self.run("INSERT INTO sqlite_sequence (name, seq) VALUES ('session', :count)", count=count)
        return self.rows("SELECT seq FROM sqlite_sequence WHERE name = 'session'")[0][0] - count + 1

    def close(self) -> None:
        self._cursor.close()  # while it lives, its last statement keeps the file open
        self.raw.close()


class PostgresConnection:
    """PostgreSQL through psycopg 3, READ COMMITTED; many-row writes go as one pipeline."""

    alone = False

    def __init__(self, raw: psycopg.Connection[Any]) -> None:
        self.raw = raw
        self._events = 0

    def now(self) -> float:
        return float(self.rows("SELECT extract(epoch FROM clock_timestamp())::double precision")[0][0])

    def rows(self, statement: str, **parameters: Any) -> list[Row]:
        return self.raw.execute(_postgres_text(statement), parameters).fetchall()  # pyright: ignore[reportArgumentType]

    def run(self, statement: str, **parameters: Any) -> int:
        return self.raw.execute(_postgres_text(statement), parameters).rowcount  # pyright: ignore[reportArgumentType]

    def each(self, statement: str, parameters: Sequence[Parameters]) -> list[int]:
        if not parameters:
            return []
        if len(parameters) == 1:
            return [self.run(statement, **parameters[0])]
        with self.raw.cursor() as cursor:
            cursor.executemany(_postgres_text(statement), parameters, returning=True)  # pyright: ignore[reportArgumentType]
            counts = [cursor.rowcount]
            while cursor.nextset():
                counts.append(cursor.rowcount)
            return counts

    def many(self, statement: str, parameters: Sequence[Parameters]) -> int:
        if not parameters:
            return 0
        with self.raw.cursor() as cursor:
            cursor.executemany(_postgres_text(statement), parameters)  # pyright: ignore[reportArgumentType]
            return cursor.rowcount

    def next_event(self) -> int:
        self._events += 1
        return self._events

    def lock_submits(self) -> None:
        # Also before whoever has locked rows and is yet to write them: that one may hold a quota that is wanted next.
        self.raw.execute("LOCK TABLE session IN EXCLUSIVE MODE")

    def take_ordinals(self, count: int) -> int:
        first = self.rows("SELECT nextval(pg_get_serial_sequence('session', 'ordinal'))")[0][0]
        self.rows("SELECT setval(pg_get_serial_sequence('session', 'ordinal'), :last)", last=first + count - 1)
        return first


@cache
def _sqlite_text(statement: str) -> str:
    text = _IN.sub(r"IN (SELECT value FROM json_each(:\1))", statement)
    text = _EACH.sub(r"json_each((SELECT json_group_array(\1) FROM (SELECT \1 \2)))", text)
    text = _JOINED.sub(r"group_concat(\1)", text)
    text = text.replace("@event_id", "NULL").replace("@safe_event_id", str(2**63 - 1))
    # One writer: what it changed last has the highest number, and no row of these tables is ever deleted.
    text = _CHANGE.sub(r"(SELECT COALESCE(MAX(changed), 0) + 1 FROM \1)", text)
    text = _MARK.sub(r"(SELECT COALESCE(MAX(changed), 0) + 1 FROM \1)", text).replace("@database", "''")
    return text.replace("@for_update", "").replace("@for_share", "")


@cache
def _postgres_text(statement: str) -> str:
    text = _IN.sub(r"= ANY(:\1)", statement.replace("%", "%%"))
    text = _EACH.sub(r"LATERAL (SELECT \1 AS value \2)", text)
    text = _JOINED.sub(r"string_agg(\1, ',' ORDER BY \1)", text)
    shifted = f"(pg_current_xact_id()::text::bigint << {EVENTS_PER_TX_BITS})"
    oldest = f"(pg_snapshot_xmin(pg_current_snapshot())::text::bigint << {EVENTS_PER_TX_BITS})"
    text = text.replace("@event_id", f"{shifted} + :n").replace("@safe_event_id", oldest)
    # By transaction; whoever has read all there is reads on from the oldest that was still open, and some of it twice.
    text = _CHANGE.sub("pg_current_xact_id()::text::bigint", text)
    text = _MARK.sub("pg_snapshot_xmin(pg_current_snapshot())::text::bigint", text)
    text = text.replace("@database", "concat(pg_postmaster_start_time(), ' ', 'session'::regclass::oid)")
    return _NAME.sub(r"%(\1)s", text.replace("@for_update", "FOR UPDATE").replace("@for_share", "FOR SHARE"))


def _listed(parameters: dict[str, Any]) -> dict[str, Any]:
    for name, value in parameters.items():
        if isinstance(value, list | tuple):
            parameters[name] = msgspec.json.encode(value).decode()
    return parameters
