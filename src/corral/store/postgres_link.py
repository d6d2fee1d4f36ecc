"""One thread's connection to PostgreSQL: opened when needed, dropped when lost, cut when the server falls silent.

Knows sessions settings, keepalives and how to interrupt a call that nobody answers. Never knows what is asked.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import errors
from psycopg.abc import Buffer
from psycopg.types.numeric import Int8Dumper
from psycopg.types.string import StrDumperUnknown

CONNECT_TIMEOUT_S = 5
SETTINGS = """
SET statement_timeout = '30s'; SET lock_timeout = '10s'; SET idle_in_transaction_session_timeout = '8s';
SET timezone = 'UTC'"""
# Nothing that works is silent for so long within a transaction; who is cut off by mistake does the work again.
CUT_FROZEN = """
SELECT pid, host(client_addr), extract(epoch FROM clock_timestamp() - greatest(xact_start, state_change))::int,
    pg_terminate_backend(pid)
FROM pg_stat_activity
WHERE datname = current_database() AND usename = current_user AND application_name = 'corral'
  AND pid <> pg_backend_pid() AND wait_event_type = 'Client' AND state <> 'idle'
  AND greatest(xact_start, state_change) < clock_timestamp() - interval '5 s'"""
OF_CORRAL: dict[str, Any] = {
    "application_name": "corral",
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
    "connect_timeout": CONNECT_TIMEOUT_S,
}
# The server is gone, going, full or not the primary: what was not committed is not, and another try may go better.
LOST = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    errors.IdleInTransactionSessionTimeout,
    errors.ReadOnlySqlTransaction,
)


class TextDumper(StrDumperUnknown):
    """PostgreSQL has no text with NUL in it. A node that reports one, or a reader who asks for one, gets no error for
    it: what is stored says that a character was there, what is looked up is not found."""

    def dump(self, obj: str) -> Buffer | None:
        return super().dump(obj.replace("\x00", "\ufffd"))


class Link:
    """A connection that its thread uses, and that any thread may cut. `mono` is the local monotonic clock."""

    def __init__(self, url: str, mono: Callable[[], float]) -> None:
        self._url = url
        self._mono = mono
        self._lock = threading.Lock()
        self._raw: psycopg.Connection[Any] | None = None
        self._busy_since: float | None = None

    @property
    def backend(self) -> int | None:
        """The server's process behind this link, which signs the notifications that it sends."""
        raw = self._raw
        return None if raw is None or raw.closed else raw.info.backend_pid

    @contextmanager
    def used(self) -> Generator[psycopg.Connection[Any]]:
        """The connection, for one unit of work. It is dropped when the work leaves it in an unknown state."""
        raw = self._raw
        if raw is None or raw.closed:
            raw = psycopg.connect(self._url, autocommit=True, prepare_threshold=2, **OF_CORRAL)
            raw.adapters.register_dumper(str, TextDumper)
            raw.adapters.register_dumper(int, Int8Dumper)  # one type for every int: one prepared statement
            raw.prepared_max = 300
            raw.execute(SETTINGS)
            self._raw = raw
        with self._lock:
            self._busy_since = self._mono()
        try:
            yield raw
        except LOST:
            self.drop()
            raise
        finally:
            with self._lock:
                self._busy_since = None
            if raw.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                self.drop()

    def cut_if_silent(self, limit_s: float) -> None:
        """End the network connection of a unit of work that has gone on for longer than `limit_s`: its call fails."""
        with self._lock:
            if self._busy_since is None or self._mono() - self._busy_since < limit_s:
                return
            raw = self._raw
            if raw is not None and not raw.closed:
                with contextlib.suppress(OSError), socket.socket(fileno=os.dup(raw.pgconn.socket)) as wire:
                    wire.shutdown(socket.SHUT_RDWR)

    def drop(self) -> None:
        with self._lock:
            raw, self._raw = self._raw, None
        if raw is not None:
            with contextlib.suppress(psycopg.Error, OSError):
                raw.close()
