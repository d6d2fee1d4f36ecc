"""PostgreSQL: any number of managers on one database, READ COMMITTED, a few threads with one connection each.

Every write transaction begins with an operation id. When the answer to its COMMIT was lost, the id tells whether it
stands; a body is run again only when it surely does not. Hints travel by LISTEN/NOTIFY and are sent with the COMMIT.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import psycopg
from psycopg import errors
from psycopg.sql import SQL, Literal

from corral.model.faults import Unavailable
from corral.ports import Clock, CrashPoint, Deed, Ids, Reads, Tx, no_crash
from corral.store import sql
from corral.store.connection import PostgresConnection
from corral.store.faults import Conflict, MovedMeanwhile, unstorable
from corral.store.postgres_link import CUT_FROZEN, LOST, OF_CORRAL, Link
from corral.store.reads import SqlReads
from corral.store.tx import SqlTx
from corral.store.wakeups import Hints

T = TypeVar("T")
PATIENCE_S = 10.0  # how long a unit of work is tried again before it is `Unavailable`
RESOLVE_S = 30.0  # how long the outcome of a commit whose answer was lost is asked for
SILENCE_S = 45.0  # above the server's own statement time-out
FIRST_PAUSE_S, LAST_PAUSE_S = 0.01, 0.5
LISTEN_RETRY_S = 1.0
CUT_EVERY_S = 2.0
PAYLOAD_BYTES = 7_900  # a notification carries less than 8,000
RETRIED = (errors.SerializationFailure, errors.DeadlockDetected, errors.LockNotAvailable, MovedMeanwhile)


def _tell_nobody(_what: str) -> None:
    """Of a store whose owner does not ask whom it cut off."""


class NothingDone(Exception):
    """The unit of work surely changed nothing: it may run again."""


class PostgresStore:
    """ports.Store on PostgreSQL. Run `listen` on the event loop whose loops are to be woken by other managers."""

    def __init__(
        self,
        url: str,
        clock: Clock,
        ids: Ids,
        connections: int = 8,
        patience_s: float = PATIENCE_S,
        silence_s: float = SILENCE_S,
        point: CrashPoint = no_crash,
    ) -> None:
        self._point = point
        self.wakeups = Hints()
        self._url = url
        self._clock = clock
        self._ids = ids
        self._patience_s = patience_s
        self._silence_s = silence_s
        self._local = threading.local()
        self._links: list[Link] = []
        self._threads = ThreadPoolExecutor(connections, thread_name_prefix="corral-pg")
        self._closing = threading.Event()
        self._deeds = Counter[Deed]()
        self._counting = threading.Lock()
        self._watch = threading.Thread(target=self._watch_links, name="corral-pg-watch", daemon=True)
        self._watch.start()

    @property
    def deeds(self) -> Mapping[Deed, int]:
        with self._counting:
            return dict(self._deeds)

    async def tx(self, name: str, fn: Callable[[Tx], T]) -> T:
        answer, hints = await self._try(name, lambda link: self._write(link, fn))
        self.wakeups.publish(hints)
        return answer

    async def read(self, name: str, fn: Callable[[Reads], T]) -> T:
        return await self._try(name, lambda link: _read(link, fn))

    async def listen(self) -> None:
        """Pass other managers' hints on, for ever; after a lost connection wake everyone, since hints were missed."""
        while True:
            with contextlib.suppress(psycopg.Error, OSError):
                connecting = psycopg.AsyncConnection.connect(self._url, autocommit=True, **OF_CORRAL)
                async with await connecting as connection:
                    await connection.execute("LISTEN corral")
                    self.wakeups.publish_all()
                    async for note in connection.notifies():
                        if all(note.pid != link.backend for link in self._links):
                            self.wakeups.publish(note.payload.split())
            await self._clock.sleep(LISTEN_RETRY_S)

    async def cut_frozen(self, tell: Callable[[str], object] = _tell_nobody) -> None:
        """End, for ever, what managers that are frozen began and left open: nobody waits for their locks. The server's
        own time-outs do not see a client that falls silent within a pipeline or a message. `tell` hears of each."""
        while True:
            with contextlib.suppress(psycopg.Error, OSError):
                connecting = psycopg.AsyncConnection.connect(self._url, autocommit=True, **OF_CORRAL)
                async with await connecting as connection:
                    while True:
                        for pid, host, silent_s, cut in await (await connection.execute(CUT_FROZEN)).fetchall():
                            if cut:
                                tell(f"backend {pid} of a manager on {host or 'this host'}, silent for {silent_s} s "
                                     "within a transaction, was cut off")  # fmt: skip
                        await self._clock.sleep(CUT_EVERY_S)
            await self._clock.sleep(LISTEN_RETRY_S)

    def close(self) -> None:
        """Finish what was begun, then let go of the connections."""
        self._threads.shutdown()
        self._closing.set()
        self._watch.join()
        for link in self._links:
            link.drop()

    async def _try(self, name: str, work: Callable[[Link], T]) -> T:
        """Run one unit of work in a thread, and again while it surely changed nothing and patience lasts."""
        if self._closing.is_set():
            raise Unavailable("database_closed", "the database is closed; the control plane is stopping")
        deadline = self._clock.mono() + self._patience_s
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                return await asyncio.get_running_loop().run_in_executor(self._threads, self._on_link, work)
            except NothingDone as error:
                if self._clock.mono() >= deadline:
                    raise Unavailable("database_unreachable", f"no answer to {name!r}: {error}") from error
            await self._clock.sleep(pause_s)
            pause_s = min(LAST_PAUSE_S, pause_s * 2)

    def _on_link(self, work: Callable[[Link], T]) -> T:
        link: Link | None = getattr(self._local, "link", None)
        if link is None:
            link = self._local.link = Link(self._url, self._clock.mono)
            self._links.append(link)
        return work(link)

    def _watch_links(self) -> None:
        while not self._closing.wait(min(1.0, self._silence_s / 4)):
            for link in list(self._links):
                link.cut_if_silent(self._silence_s)

    def _write(self, link: Link, fn: Callable[[Tx], T]) -> tuple[T, list[str]]:
        operation = self._ids.nonce()
        try:
            with link.used() as raw:
                answer, hints, deeds = _run_body(raw, operation, fn)
                ending = _ending(hints)
                self._point("manager.before_commit")
                try:
                    raw.execute(ending)
                except (*LOST, *RETRIED) as error:
                    if not self._stands(operation, raw):
                        raise NothingDone(_first_line(error)) from error
                with self._counting:
                    self._deeds.update(deeds)
                self._point("manager.after_commit")
                return answer, hints
        except (*LOST, *RETRIED) as error:
            raise NothingDone(_first_line(error)) from error

    def _stands(self, operation: str, lost: psycopg.Connection[Any]) -> bool:
        """Whether the commit whose answer was lost did happen. Waits for the server to decide; never guesses."""
        with contextlib.suppress(psycopg.Error, OSError):
            lost.close()
        link = Link(self._url, self._clock.mono)
        self._links.append(link)
        deadline = self._clock.mono() + RESOLVE_S
        try:
            while self._clock.mono() < deadline:
                with contextlib.suppress(psycopg.Error), link.used() as raw:
                    return _recorded(raw, operation)
                self._closing.wait(FIRST_PAUSE_S * 10)
        finally:
            self._links.remove(link)
            link.drop()
        raise Unavailable("commit_unknown", "the database cannot be reached to learn whether a change was made")


def _run_body(
    raw: psycopg.Connection[Any], operation: str, fn: Callable[[Tx], T]
) -> tuple[T, list[str], Mapping[Deed, int]]:
    """Everything of a transaction but its COMMIT; after an error it is rolled back."""
    now = "extract(epoch FROM clock_timestamp())"
    begin = SQL("BEGIN ISOLATION LEVEL READ COMMITTED; INSERT INTO operation (id, at) VALUES ({}, {})")
    tx = SqlTx(PostgresConnection(raw))
    try:
        raw.execute(begin.format(Literal(operation), SQL(now)))
        return fn(tx), list(tx.hints), tx.deeds
    except BaseException as error:
        with contextlib.suppress(psycopg.Error):
            raw.execute("ROLLBACK")
        if isinstance(error, psycopg.IntegrityError):
            raise Conflict(f"the database refused a change: {_first_line(error)}") from error
        if isinstance(error, psycopg.DataError):
            raise unstorable(error) from error
        raise


def _ending(hints: list[str]) -> SQL | Any:
    """The COMMIT, with the hints to be sent by it."""
    payloads: list[str] = []
    for hint in hints:
        if payloads and len(payloads[-1]) + len(hint) < PAYLOAD_BYTES:
            payloads[-1] += f" {hint}"
        else:
            payloads.append(hint)
    notes = [SQL("SELECT pg_notify('corral', {}); ").format(Literal(payload)) for payload in payloads]
    return SQL("").join([*notes, SQL("COMMIT")])


def _recorded(raw: psycopg.Connection[Any], operation: str) -> bool:
    """The lost transaction may be running still: inserting its id waits for its end, and then collides or does not."""
    raw.execute("BEGIN")
    try:
        PostgresConnection(raw).run(sql.ADD_OPERATION, id=operation, now=0.0)
    except errors.UniqueViolation:
        return True
    finally:
        raw.execute("ROLLBACK")
    return False


def _read(link: Link, fn: Callable[[Reads], T]) -> T:
    try:
        with link.used() as raw:
            raw.execute("BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            try:
                return fn(SqlReads(PostgresConnection(raw)))
            except psycopg.DataError as error:
                raise unstorable(error) from error
            finally:
                with contextlib.suppress(psycopg.Error):
                    raw.execute("ROLLBACK")
    except (*LOST, *RETRIED) as error:
        raise NothingDone(_first_line(error)) from error


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
