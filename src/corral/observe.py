"""What can be seen of a running manager: metrics for Prometheus and structured logs. Decides nothing."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Protocol, TextIO, TypeVar, cast

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from corral.ports import Clock, Deed, Reads, Store, Tx, Wakeups

T = TypeVar("T")
BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)


class _Stderr:
    """stderr as it is now. A reader that is gone, or a full disk, must not stop who has something to say."""

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()


def configure_logging(level: int = logging.INFO) -> None:
    """One JSON object a line on stderr; what a terminal sees is for people."""
    terminal = sys.stderr.isatty()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            structlog.dev.ConsoleRenderer() if terminal else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, _Stderr())),
        cache_logger_on_first_use=True,
    )


class LoopNumbers(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def ticks(self) -> int: ...
    @property
    def errors(self) -> int: ...
    @property
    def restarts(self) -> int: ...
    @property
    def running(self) -> bool: ...
    @property
    def last_success_at(self) -> float | None: ...


class Metrics:
    """One manager's numbers, in a registry of their own so that several can live in one process."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._sessions = Gauge("corral_sessions", "Sessions by phase", ["phase"], registry=registry)
        self._nodes = Gauge("corral_nodes", "Nodes by state", ["state"], registry=registry)
        of_quota = ["quota", "what"]
        self._used = Gauge("corral_quota_used", "What is held under a quota", of_quota, registry=registry)
        self._limits = Gauge("corral_quota_limit", "What may be held under a quota", of_quota, registry=registry)
        self._ticks = Gauge("corral_loop_ticks", "Passes begun by a loop", ["loop"], registry=registry)
        self._errors = Gauge("corral_loop_errors", "Passes of a loop that failed", ["loop"], registry=registry)
        self._restarts = Gauge("corral_loop_restarts", "Times a loop was started again", ["loop"], registry=registry)
        self._running = Gauge("corral_loop_running", "1 while the loop runs", ["loop"], registry=registry)
        self._age = Gauge("corral_loop_success_age_seconds", "Since a loop's last success", ["loop"], registry=registry)
        self._deeds = _Deeds()
        registry.register(self._deeds)
        self._exchanges = Counter("corral_exchanges", "Exchanges with agents", ["answer"], registry=registry)
        self._facts = Counter("corral_facts", "Kernel facts received", registry=registry)
        self._tx = Histogram("corral_transaction_seconds", "Transactions by name", ["name"], buckets=BUCKETS_S,
                             registry=registry)  # fmt: skip
        self._tx_failed = Counter("corral_transactions_failed", "Transactions that raised", ["name"], registry=registry)

    def exchanged(self, answer: str, facts: int) -> None:
        self._exchanges.labels(answer).inc()
        self._facts.inc(facts)

    def transaction(self, name: str, seconds: float, failed: bool) -> None:
        self._tx.labels(name).observe(seconds)
        if failed:
            self._tx_failed.labels(name).inc()

    def page(
        self,
        sessions: Mapping[str, int],
        nodes: Mapping[str, int],
        loops: Iterable[LoopNumbers],
        now: float,
        quotas: Iterable[tuple[str, str, float, float]] = (),
        deeds: Mapping[Deed, int] | None = None,
    ) -> bytes:
        """The text that Prometheus scrapes, with these numbers as of now."""
        for gauge, counts in ((self._sessions, sessions), (self._nodes, nodes)):
            gauge.clear()
            for label, count in counts.items():
                gauge.labels(label).set(count)
        self._deeds.counted = deeds or {}
        self._used.clear()
        self._limits.clear()
        for quota, what, used, limit in quotas:
            self._used.labels(quota, what).set(used)
            self._limits.labels(quota, what).set(limit)
        for loop in loops:
            self._ticks.labels(loop.name).set(loop.ticks)
            self._errors.labels(loop.name).set(loop.errors)
            self._restarts.labels(loop.name).set(loop.restarts)
            self._running.labels(loop.name).set(int(loop.running))
            if loop.last_success_at is not None:
                self._age.labels(loop.name).set(max(0.0, now - loop.last_success_at))
        return generate_latest(self._registry)


class _Deeds(Collector):
    """What the store has counted, as counters: they begin at 0 with the process, as counters do."""

    def __init__(self) -> None:
        self.counted: Mapping[Deed, int] = {}

    def collect(self) -> Iterable[Metric]:
        words = ["outcome", "exit_class"]
        ended = CounterMetricFamily("corral_sessions_ended", "Sessions whose end this manager recorded", labels=words)
        stopped = CounterMetricFamily("corral_sessions_preempted", "Sessions that this manager asked to make way",
                                      labels=["why"])  # fmt: skip
        for deed, count in sorted(self.counted.items()):
            if deed.what == "ended":
                ended.add_metric([deed.outcome, deed.exit_class], count)
            else:
                stopped.add_metric([deed.what], count)
        return (ended, stopped)


class Measured:
    """A store whose transactions are timed. The store beneath is none the wiser."""

    def __init__(self, store: Store, metrics: Metrics, clock: Clock) -> None:
        self._store = store
        self._metrics = metrics
        self._clock = clock

    @property
    def wakeups(self) -> Wakeups:
        return self._store.wakeups

    @property
    def deeds(self) -> Mapping[Deed, int]:
        return self._store.deeds

    async def tx(self, name: str, fn: Callable[[Tx], T]) -> T:
        return await self._timed(name, self._store.tx(name, fn))

    async def read(self, name: str, fn: Callable[[Reads], T]) -> T:
        return await self._timed(name, self._store.read(name, fn))

    async def _timed(self, name: str, answer: Awaitable[T]) -> T:
        began = self._clock.mono()
        failed = True
        try:
            result = await answer
            failed = False
            return result
        finally:
            self._metrics.transaction(name, self._clock.mono() - began, failed)
