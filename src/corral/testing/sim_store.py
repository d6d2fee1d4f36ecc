"""One database that every simulated manager shares, and the store of each: production's transaction bodies and SQL.

A transaction is one step on an in-memory SQLite. Around it lies what PostgreSQL and the network between may do to a
manager: no connection, an aborted transaction, a COMMIT whose answer is lost, a death before or after the commit. The
store keeps the contract of `store.postgres`: a body runs again only when it surely was not committed. It never shows
what READ COMMITTED can: that is tested on PostgreSQL itself. Next: `sim_manager.py` runs the loops on it.
"""

from __future__ import annotations

import random
import re
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from corral.model.faults import Unavailable
from corral.ports import Deed, Reads, Tx
from corral.store import sql, upgrade
from corral.store.connection import Parameters, Row, SqliteConnection
from corral.store.reads import SqlReads
from corral.store.sqlite import run_body
from corral.store.wakeups import Hints
from corral.testing.faults import Faults
from corral.testing.process import SimProcess, take_time
from corral.testing.simloop import SimLoop

T = TypeVar("T")
TRIES = 8
RESOLVE_TRIES = 20
FIRST_SECOND = 1_900_000_000.0  # the database's clock when a seed begins
SLOW_S = 5.0
OUTAGE_PAUSE_S = 0.5

RATES = {
    "store.refused": 0.01,
    "store.slow": 0.01,
    "store.aborted": 0.02,
    "store.answer_lost": 0.02,
    "store.hint_lost": 0.2,
}


class NotCommitted(Exception):
    """Nothing of the transaction stands: its body may run again."""


@cache
def schema_image() -> bytes:
    """An empty database as the migrations make it."""
    with tempfile.TemporaryDirectory(prefix="corral-simulation-") as folder:
        path = Path(folder) / "empty.db"
        upgrade(f"sqlite:///{path}")
        raw = sqlite3.connect(path)
        raw.execute("PRAGMA journal_mode=DELETE")
        image = raw.serialize()
        raw.close()
    return image


class _Blanks:
    """Connections to empty databases, each used again when its seed is over: it keeps the statements it has compiled,
    and to empty its tables costs less than to compile all of them anew."""

    def __init__(self) -> None:
        self._spare: list[sqlite3.Connection] = []
        self._tables: dict[str, list[Any]] = {}

    def take(self) -> sqlite3.Connection:
        if not self._spare:
            return self._make()
        raw = self._spare.pop()
        if raw.in_transaction:
            raw.execute("ROLLBACK")
        raw.execute("BEGIN")
        for table, rows in self._tables.items():
            raw.execute(f"DELETE FROM {table}")
            if rows:
                raw.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)
        raw.execute("COMMIT")
        return raw

    def give_back(self, raw: sqlite3.Connection) -> None:
        self._spare.append(raw)

    def _make(self) -> sqlite3.Connection:
        raw = sqlite3.connect(":memory:", isolation_level=None, cached_statements=512)
        raw.deserialize(schema_image())
        for pragma in ("journal_mode=MEMORY", "synchronous=OFF", "temp_store=MEMORY"):
            raw.execute(f"PRAGMA {pragma}")
        if not self._tables:
            names = raw.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            self._tables = {name: raw.execute(f"SELECT * FROM {name}").fetchall() for (name,) in names}
        return raw


_BLANKS = _Blanks()
_WRITES = re.compile(r"\s*(?:INSERT INTO|UPDATE|DELETE FROM)\s+(\w+)", re.IGNORECASE)


@cache
def _written_by(statement: str) -> str | None:
    found = _WRITES.match(statement)
    return found[1] if found else None


class _NotingConnection(SqliteConnection):
    """Production's, and it knows which tables were written since `written` was cleared."""

    def __init__(self, raw: sqlite3.Connection, clock: Callable[[], float]) -> None:
        super().__init__(raw, clock)
        self.written: set[str | None] = set()

    def rows(self, statement: str, **parameters: Any) -> list[Row]:
        self.written.add(_written_by(statement))
        return super().rows(statement, **parameters)

    def run(self, statement: str, **parameters: Any) -> int:
        self.written.add(_written_by(statement))
        return super().run(statement, **parameters)

    def each(self, statement: str, parameters: Sequence[Parameters]) -> list[int]:
        self.written.add(_written_by(statement))
        return super().each(statement, parameters)

    def many(self, statement: str, parameters: Sequence[Parameters]) -> int:
        self.written.add(_written_by(statement))
        return super().many(statement, parameters)


class SimDatabase:
    """`is_down` is the world's switch: nobody gets a connection. `on_commit` hears of every commit that wrote."""

    def __init__(self, loop: SimLoop, faults: Faults, step_s: float) -> None:
        self.loop = loop
        self.faults = faults
        self.step_s = step_s
        self.chance = random.Random(f"{faults.seed}:database")
        self.is_down = False
        self.commits = 0
        self.deeds = Counter[Deed]()
        self.on_commit: list[Callable[[str], object]] = []
        self.stores: list[SimStore] = []
        self.raw = _BLANKS.take()
        self.connection = _NotingConnection(self.raw, self.now)

    def now(self) -> float:
        return FIRST_SECOND + self.loop.now_s

    def reads(self) -> SqlReads:
        """For checkers: a look that is nobody's step."""
        return SqlReads(self.connection)

    def write(self, name: str, operation: str, fn: Callable[[Tx], T], *, stands: bool) -> tuple[T, list[str]]:
        """Run the body, and commit it or not. An error of the body leaves nothing."""
        self.raw.execute("BEGIN")
        self.connection.written.clear()
        before = self.raw.total_changes
        try:
            answer, hints, deeds = run_body(self.connection, fn)
            wrote = self.raw.total_changes != before
            if stands and wrote:
                self.connection.run(sql.ADD_OPERATION, id=operation, now=self.now())
        except BaseException:
            self.raw.execute("ROLLBACK")
            raise
        self.raw.execute("COMMIT" if stands else "ROLLBACK")
        if stands and wrote:
            self.commits += 1
            self.deeds.update(deeds)
            for hook in self.on_commit:
                hook(name)
        return answer, hints

    def knows(self, operation: str) -> bool:
        return bool(self.connection.rows(sql.OPERATION, id=operation))

    def read(self, fn: Callable[[Reads], T]) -> T:
        return fn(SqlReads(self.connection))

    def pass_hints_on(self, sender: SimStore, channels: list[str]) -> None:
        """NOTIFY: sent by the commit itself, so it goes out even when the committer has died since."""
        for store in self.stores:
            if store is sender or not store.process.alive or self.faults.hit("store.hint_lost"):
                continue
            self.loop.at(self.chance.random() * 0.05, store.hear, channels)

    def wrote(self, *tables: str) -> bool:
        """Whether the last transaction may have changed any of these: for checks that only a change can break."""
        return not self.connection.written.isdisjoint(tables)

    def close(self) -> None:
        _BLANKS.give_back(self.raw)


class SimStore:
    """ports.Store of one manager process."""

    def __init__(self, database: SimDatabase, process: SimProcess) -> None:
        self.wakeups = Hints()
        self.process = process
        self._database = database
        self._faults = database.faults
        database.stores.append(self)
        process.at_exit.append(lambda _: database.stores.remove(self))

    @property
    def deeds(self) -> Mapping[Deed, int]:
        return self._database.deeds

    def hear(self, channels: list[str]) -> None:
        if self.process.alive:
            self.wakeups.publish(channels)

    async def tx(self, name: str, fn: Callable[[Tx], T]) -> T:
        operation = self.process.nonce()
        for attempt in range(TRIES):
            try:
                answer, hints = await self._write(name, operation, fn)
            except NotCommitted:
                self.process.sometimes("store.again")
                await self.process.sleep(0.01 * 2**attempt)
                continue
            self.wakeups.publish(hints)
            return answer
        raise Unavailable("database_busy", f"transaction {name} met conflicts {TRIES} times in a row; try again")

    async def read(self, name: str, fn: Callable[[Reads], T]) -> T:
        await self._connect()
        answer = self._database.read(fn)
        await self._trip()
        return answer

    async def _write(self, name: str, operation: str, fn: Callable[[Tx], T]) -> tuple[T, list[str]]:
        await self._connect()
        if self._faults.hit("store.aborted"):
            self._database.write(name, operation, fn, stands=False)
            raise NotCommitted
        self.process.point(f"manager.before_commit {name}")
        lost = self._faults.hit("store.answer_lost")
        stands = not lost or self._database.chance.random() < 0.5
        answer, hints = self._database.write(name, operation, fn, stands=stands)
        if stands and hints:
            self._database.pass_hints_on(self, hints)
        self.process.point(f"manager.after_commit {name}")
        await self._trip()
        if lost and not await self.stands(operation):
            raise NotCommitted
        return answer, hints

    async def stands(self, operation: str) -> bool:
        """Whether the commit whose answer was lost did happen: asked of the database, never guessed."""
        for _ in range(RESOLVE_TRIES):
            if self._database.is_down or self._faults.hit("store.refused"):
                await self.process.sleep(OUTAGE_PAUSE_S)
                continue
            await self._trip()
            known = self._database.knows(operation)
            self.process.sometimes("store.stood" if known else "store.stood_not")
            return known
        raise Unavailable("commit_unknown", "the database cannot be reached to learn whether a change was made")

    async def _connect(self) -> None:
        await self._trip()
        if self._database.is_down or self._faults.hit("store.refused"):
            raise Unavailable("database_unreachable", "the database did not answer")

    async def _trip(self) -> None:
        longest_s = SLOW_S if self._faults.hit("store.slow") else self._database.step_s
        await take_time(self.process, self._database.chance, longest_s)
