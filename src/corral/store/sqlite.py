"""SQLite: one machine, one manager, one writer thread that commits what has queued up in one go.

Bodies that wait while a commit is written share the next one (group commit), each in a savepoint of its own, so that
one that fails takes nobody with it. Reads run on connections of their own and never wait for the writer (WAL).
A second manager on the same file is refused by a lock held for the life of the process.
"""

from __future__ import annotations

import asyncio
import os
import queue
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from corral.model.faults import Unavailable
from corral.ports import CrashPoint, Deed, Reads, Tx, no_crash
from corral.store.connection import SqliteConnection
from corral.store.faults import Conflict, unstorable
from corral.store.filelock import lock_file
from corral.store.reads import SqlReads
from corral.store.tx import SqlTx
from corral.store.wakeups import Hints

T = TypeVar("T")
MAX_GROUP = 256
READERS = 2
BUSY_MS = 5000


class _Work(NamedTuple):
    name: str
    body: Callable[[Tx], Any]
    done: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop


_Answer = tuple[_Work, Any, BaseException | None]


def open_sqlite(path: Path | str, *, writer: bool) -> sqlite3.Connection:
    """A connection in explicit-transaction mode; durable (`synchronous=FULL`) for the writer."""
    raw = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=512)
    raw.execute(f"PRAGMA busy_timeout={BUSY_MS}")
    raw.execute("PRAGMA journal_mode=WAL")
    raw.execute("PRAGMA synchronous=FULL" if writer else "PRAGMA query_only=ON")
    raw.execute("PRAGMA cache_size=-65536")
    return raw


def run_body(connection: SqliteConnection, body: Callable[[Tx], T]) -> tuple[T, list[str], Mapping[Deed, int]]:
    """Run one body in a savepoint of the open transaction: its answer, its hints and its deeds, or its error and no
    change."""
    tx = SqlTx(connection)
    connection.raw.execute("SAVEPOINT body")
    try:
        answer = body(tx)
    except BaseException:
        if connection.raw.in_transaction:
            connection.raw.execute("ROLLBACK TO body")
            connection.raw.execute("RELEASE body")
        raise
    connection.raw.execute("RELEASE body")
    return answer, list(tx.hints), tx.deeds


class SqliteStore:
    """ports.Store on one SQLite file. `clock` gives the host's time in seconds since 1970."""

    def __init__(self, path: Path, clock: Callable[[], float], point: CrashPoint = no_crash) -> None:
        self.wakeups = Hints()
        self._deeds = Counter[Deed]()
        self._point = point
        self._clock = clock
        self._lock = lock_file(path)
        self._writer = SqliteConnection(open_sqlite(path, writer=True), clock)
        self._work: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write_for_ever, name="corral-sqlite", daemon=True)
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="corral-read")
        self._local = threading.local()
        self._opened: list[SqliteConnection] = []
        self._path = path
        self._closed = False
        self._thread.start()

    @property
    def deeds(self) -> Mapping[Deed, int]:
        return dict(self._deeds)

    async def tx(self, name: str, fn: Callable[[Tx], T]) -> T:
        self._refuse_when_closed()
        loop = asyncio.get_running_loop()
        work = _Work(name, fn, loop.create_future(), loop)
        self._work.put(work)
        return await work.done

    async def read(self, name: str, fn: Callable[[Reads], T]) -> T:
        self._refuse_when_closed()
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._read, fn)

    def close(self) -> None:
        """Finish what is queued, then let go of the file."""
        self._closed = True
        self._work.put(None)
        self._thread.join()
        self._readers.shutdown()
        for connection in (*self._opened, self._writer):
            connection.close()
        os.close(self._lock)

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise Unavailable("database_closed", "the database is closed; the control plane is stopping")

    def _read(self, fn: Callable[[Reads], T]) -> T:
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = SqliteConnection(open_sqlite(self._path, writer=False), self._clock)
            self._local.connection = connection
            self._opened.append(connection)
        connection.raw.execute("BEGIN")
        try:
            return fn(SqlReads(connection))
        except sqlite3.OperationalError as error:
            raise _unavailable(error) from error
        except OverflowError as error:
            raise unstorable(error) from error
        finally:
            connection.raw.execute("ROLLBACK")

    def _write_for_ever(self) -> None:
        while (first := self._work.get()) is not None:
            group = [first]
            while len(group) < MAX_GROUP and not self._work.empty():
                following = self._work.get()
                if following is None:
                    self._work.put(None)
                    break
                group.append(following)
            self._commit(group)

    def _commit(self, group: list[_Work]) -> None:
        raw = self._writer.raw
        hints: dict[str, None] = {}
        deeds = Counter[Deed]()
        try:
            raw.execute("BEGIN IMMEDIATE")
            answers = [self._run_one(work, hints, deeds) for work in group]
            self._point("manager.before_commit")
            raw.execute("COMMIT")
            self._deeds.update(deeds)
            self._point("manager.after_commit")
        except sqlite3.Error as error:
            if raw.in_transaction:
                raw.execute("ROLLBACK")
            failure, hints = _unavailable(error), {}
            answers = [(work, None, failure) for work in group]
        for loop in {work.loop for work in group}:
            mine = [answer for answer in answers if answer[0].loop is loop]
            _tell(loop, lambda mine=mine: self._answer(mine, hints))

    def _run_one(self, work: _Work, hints: dict[str, None], deeds: Counter[Deed]) -> _Answer:
        """One body's answer or error. Raises only when the database has given up the whole transaction (disk full)."""
        try:
            answer, hinted, done = run_body(self._writer, work.body)
        except BaseException as error:
            if not self._writer.raw.in_transaction:
                raise sqlite3.OperationalError(str(error)) from error
            if isinstance(error, sqlite3.IntegrityError):
                return work, None, Conflict(f"the database refused a change: {error}")
            if isinstance(error, OverflowError):
                return work, None, unstorable(error)
            return work, None, _unavailable(error) if isinstance(error, sqlite3.OperationalError) else error
        hints.update(dict.fromkeys(hinted))
        deeds.update(done)
        return work, answer, None

    def _answer(self, answers: list[_Answer], hints: dict[str, None]) -> None:
        for work, answer, error in answers:
            if work.done.done():
                continue
            if error is None:
                work.done.set_result(answer)
            else:
                work.done.set_exception(error)
        self.wakeups.publish(hints)


def _unavailable(error: BaseException) -> Unavailable:
    return Unavailable("database_failed", f"the database could not read or write its file: {error}")


def _tell(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(call)
