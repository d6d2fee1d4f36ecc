"""PostgreSQL: any number of managers on one database, READ COMMITTED, one pooled connection per transaction.

Every write transaction carries an operation id. When the answer to a COMMIT was lost, the id tells whether it stands;
a body is run again only when it surely does not. Hints travel by LISTEN/NOTIFY and are sent at commit.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import psycopg
from psycopg import errors
from psycopg_pool import ConnectionPool, PoolTimeout

from corral.model.faults import Unavailable
from corral.ports import Clock, Ids, Reads, Tx
from corral.store import sql
from corral.store.connection import PostgresConnection
from corral.store.reads import SqlReads
from corral.store.tx import SqlTx
from corral.store.wakeups import Hints

T = TypeVar("T")
TRIES = 8
CONNECT_TIMEOUT_S = 10.0
RESOLVE_TRIES = 20
LISTEN_RETRY_S = 1.0
STATEMENT_TIMEOUT_MS = 30_000
RETRIED = (errors.SerializationFailure, errors.DeadlockDetected, errors.LockNotAvailable)
LOST = (psycopg.OperationalError, psycopg.InterfaceError)
OPTIONS = (
    f"-c statement_timeout={STATEMENT_TIMEOUT_MS} -c lock_timeout=10000 "
    "-c idle_in_transaction_session_timeout=30000 -c default_transaction_isolation='read\\ committed'"
)


class NotCommitted(Exception):
    """The connection was lost, and the transaction surely did not commit: its body may run again."""


class PostgresStore:
    """ports.Store on PostgreSQL. Call `listen` once, on the event loop whose loops are to be woken."""

    def __init__(self, url: str, clock: Clock, ids: Ids, connections: int = 8) -> None:
        self.wakeups = Hints()
        self._url = url
        self._clock = clock
        self._ids = ids
        self._pool = ConnectionPool(
            url,
            kwargs={"autocommit": True, "options": OPTIONS, "connect_timeout": 5, **KEEPALIVES},
            min_size=1,
            max_size=connections,
            timeout=CONNECT_TIMEOUT_S,
            open=True,
        )
        self._threads = ThreadPoolExecutor(connections, thread_name_prefix="corral-pg")

    async def tx(self, name: str, fn: Callable[[Tx], T]) -> T:
        operation = self._ids.nonce()
        for attempt in range(TRIES):
            try:
                answer, hints = await self._in_thread(self._write, operation, fn)
            except (NotCommitted, *RETRIED):
                await self._clock.sleep(0.01 * 2**attempt)
                continue
            self.wakeups.publish(hints)
            return answer
        raise Unavailable("database_busy", f"transaction {name} met conflicts {TRIES} times in a row; try again")

    async def read(self, name: str, fn: Callable[[Reads], T]) -> T:
        return await self._in_thread(self._read, fn)

    async def listen(self) -> None:
        """Pass other processes' hints on, for ever; after a lost connection wake everyone, since hints were missed."""
        while True:
            with contextlib.suppress(psycopg.Error, OSError):
                async with await psycopg.AsyncConnection.connect(
                    self._url, autocommit=True, **KEEPALIVES
                ) as connection:
                    await connection.execute("LISTEN corral")
                    self.wakeups.publish_all()
                    async for note in connection.notifies():
                        self.wakeups.publish([note.payload])
            await self._clock.sleep(LISTEN_RETRY_S)

    def close(self) -> None:
        self._threads.shutdown()
        self._pool.close()

    async def _in_thread(self, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)
        except (psycopg.OperationalError, psycopg.InterfaceError, PoolTimeout) as error:
            if isinstance(error, RETRIED):
                raise
            text = str(error).strip().splitlines() or ["no reason given"]
            raise Unavailable("database_unreachable", f"the database did not answer: {text[0]}") from error

    def _write(self, operation: str, fn: Callable[[Tx], T]) -> tuple[T, list[str]]:
        with self._pool.connection() as raw:
            connection = PostgresConnection(raw)
            tx = SqlTx(connection)
            raw.execute("BEGIN")
            try:
                answer = fn(tx)
                connection.run(sql.ADD_OPERATION, id=operation, now=connection.now())
                connection.notify(tx.hints)
            except BaseException as error:
                with contextlib.suppress(psycopg.Error):
                    raw.execute("ROLLBACK")
                if isinstance(error, LOST):
                    raise NotCommitted from error  # no COMMIT was sent
                raise
            try:
                raw.execute("COMMIT")
            except LOST as error:
                if not self._stands(operation):
                    raise NotCommitted from error
            return answer, list(tx.hints)

    def _stands(self, operation: str) -> bool:
        """Whether the commit whose answer was lost did happen. Waits for the server to decide; never guesses."""
        for _ in range(RESOLVE_TRIES):
            with contextlib.suppress(psycopg.Error, PoolTimeout), self._pool.connection() as raw:
                # The lost transaction may still be running: inserting its id waits for it, and then collides or not.
                raw.execute("BEGIN")
                try:
                    PostgresConnection(raw).run(sql.ADD_OPERATION, id=operation, now=0.0)
                except errors.UniqueViolation:
                    return True
                finally:
                    raw.execute("ROLLBACK")
                return False
        raise Unavailable("commit_unknown", "the database cannot be reached to learn whether a change was made")

    def _read(self, fn: Callable[[Reads], T]) -> T:
        with self._pool.connection() as raw:
            raw.execute("BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            try:
                return fn(SqlReads(PostgresConnection(raw)))
            finally:
                with contextlib.suppress(psycopg.Error):
                    raw.execute("ROLLBACK")


KEEPALIVES: dict[str, Any] = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
