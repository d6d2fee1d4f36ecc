"""(g) What a manager's scheduling pass costs, through the real store on SQLite: read, decide, commit; in seconds of all
its threads' time, so that what else the machine does matters little.

`python -m benchmarks.passes --database postgresql://…` does the same on an empty database of PostgreSQL, with the whole
line only; what the server takes is in the times by the clock alone. It counts how many writes of a row were HOT, which
leave the indices alone, and what node rows would cost without the mark that tells passes of a change.

10,000 nodes of one GPU, 500 shapes of shares. First 100,000 sessions wait and 500 are placed in each pass until nothing
fits. Then one session ends while 1,000, 10,000 or 100,000 wait, and a pass looks whose turn it is; and one looks again
though nothing has happened. A manager that starts then reads everything once.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import resource
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any, LiteralString, NamedTuple

import psycopg

from corral.clock import SystemClock, SystemIds
from corral.model.node import DeviceInventory, Inventory
from corral.model.resources import GpuRequest, Resources
from corral.model.spec import SessionSpec
from corral.ports import NewSession, Store
from corral.reconcile import exchange, intents
from corral.reconcile.placement import place_pass
from corral.scheduling.kept.picture import Picture
from corral.server import GC_THRESHOLDS
from corral.store import open_store, upgrade
from corral.testing.builders import Play, registration, whole_run

NODES, SHAPES, WAITING = 10_000, 500, 100_000
BATCH = 250
BY = "manager:benchmark"
GPU_MIB = 80_000
WRITES = """
SELECT relname, n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables
WHERE relname IN ('node', 'device', 'session') ORDER BY relname"""
BACKENDS = "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
MARKED = 40
MARKING: dict[str, LiteralString] = {
    "marked": "UPDATE node SET cpu_used_milli = 1 - SIGN(cpu_used_milli), changed = changed + 1 WHERE name = ANY(%s)",
    "unmarked": "UPDATE node SET cpu_used_milli = 1 - SIGN(cpu_used_milli) WHERE name = ANY(%s)",
}


class Cost(NamedTuple):
    cpu_s: float
    wall_s: float


def run(nodes: int = NODES, shapes: int = SHAPES, waiting: int = WAITING, database: str = "") -> dict[str, float]:
    gc.set_threshold(*GC_THRESHOLDS)  # as a manager has it
    if database:
        return _on_postgres(database, nodes, shapes, waiting)
    with tempfile.TemporaryDirectory(prefix="corral-passes-") as folder:
        url = f"sqlite://{Path(folder).resolve() / 'corral.db'}"
        upgrade(url)
        store = open_store(url, SystemClock(), SystemIds())
        try:
            sizes = sorted({waiting // 100, waiting // 10, waiting})
            return asyncio.run(_measured(_Plane(store, nodes, shapes), waiting, sizes))
        finally:
            store.close()


def _on_postgres(url: str, nodes: int, shapes: int, waiting: int) -> dict[str, float]:
    upgrade(url)
    store = open_store(url, SystemClock(), SystemIds())
    with psycopg.connect(url, autocommit=True) as connection:
        try:
            plane = _Plane(store, nodes, shapes, lambda: _server_s(connection))
            found = asyncio.run(_measured(plane, waiting, [waiting]))
            for table, writes, hot in connection.execute(WRITES).fetchall():
                found |= {f"{table}_writes": writes, f"{table}_hot_percent": 100 * hot / max(writes, 1)}
        finally:
            store.close()
        return found | _marks(connection)


def _server_s(connection: psycopg.Connection[Any]) -> float:
    """What the server's own processes for this database have used of a CPU; nothing where they are elsewhere."""
    pids = [row[0] for row in connection.execute(BACKENDS).fetchall()]
    stats = [Path(f"/proc/{pid}/stat") for pid in pids]
    ticks = [one.read_text().rpartition(")")[2].split()[11:13] for one in stats if one.exists()]
    return sum(int(user) + int(system) for user, system in ticks) / os.sysconf("SC_CLK_TCK")


def _marks(connection: psycopg.Connection[Any]) -> dict[str, float]:
    """What one node's row takes when its room changes, with the mark and without: of the server's time, and written to
    its log."""
    names = [row[0] for row in connection.execute("SELECT name FROM node ORDER BY name LIMIT 1000").fetchall()]
    found = dict.fromkeys((f"node_row_{kind}_{what}" for kind in MARKING for what in ("us", "wal_bytes")), 0.0)
    for _ in range(MARKED):
        for kind, write in MARKING.items():
            began, log = _server_s(connection), _log_bytes(connection)
            connection.execute(write, (names,))
            found[f"node_row_{kind}_us"] += 1e6 * (_server_s(connection) - began) / len(names) / MARKED
            found[f"node_row_{kind}_wal_bytes"] += (_log_bytes(connection) - log) / len(names) / MARKED
        connection.execute("VACUUM node")
    return found


def _log_bytes(connection: psycopg.Connection[Any]) -> float:
    row = connection.execute("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')").fetchone()
    assert row is not None
    return float(row[0])


async def _measured(plane: _Plane, waiting: int, sizes: Sequence[int]) -> dict[str, float]:
    await plane.join()
    await plane.submit(waiting)
    found = await plane.fill()
    count = await plane.waiting()
    for wanted in sizes:
        if count > wanted:
            await plane.cancel(count - wanted)
        else:
            await plane.submit(wanted - count)
        count = wanted
        found |= {f"{name}_{wanted}": value for name, value in (await plane.passes()).items()}
    plane.picture = Picture()
    cost = await _cost(plane.place)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    found |= {"begin_s": cost.cpu_s, "begin_wall_s": cost.wall_s, "peak_mib": peak_mib}
    return found


class _Plane:
    """A control plane without loops: each step is done when it is asked for."""

    def __init__(self, store: Store, nodes: int, shapes: int, server: Callable[[], float] = lambda: 0.0) -> None:
        self._server = server
        self.store = store
        self.play = Play(store)
        self.picture = Picture()
        self._nodes = [f"n{number:05}" for number in range(nodes)]
        self._chance = Random(3)
        self._specs = _specs(shapes)
        self._numbers = iter(range(10**9))
        self._live: list[str] = []

    async def join(self) -> None:
        for begin in range(0, len(self._nodes), BATCH):
            names = self._nodes[begin : begin + BATCH]
            messages = [registration(name, inventory=_inventory(name)) for name in names]
            await self.store.tx("join", lambda tx, some=messages: [exchange.register(tx, one, BY) for one in some])
            for one in messages:
                self.play.know(one, 1)

    async def submit(self, count: int) -> None:
        for begin in range(0, count, BATCH):
            new = [
                NewSession(f"{next(self._numbers):010}", self._chance.choice(self._specs), "admin")
                for _ in range(min(BATCH, count - begin))
            ]
            await self.store.tx("submit", lambda tx, new=new: intents.submit(tx, new, "user:admin"))

    async def place(self) -> int:
        return await place_pass(self.store, BY, claiming=True, picture=self.picture)

    async def fill(self) -> dict[str, float]:
        """Pass after pass, as one hints the next, until nothing is placed any more."""
        passes, placed, total = 0, 1, 0
        began, wall, served = time.process_time(), time.monotonic(), self._server()
        first = await _cost(self.place)
        while placed:
            placed = await self.place()
            total, passes = total + placed, passes + 1
        return {
            "first_pass_s": first.cpu_s,
            "first_pass_wall_s": first.wall_s,
            "fill_s": time.process_time() - began,
            "fill_wall_s": time.monotonic() - wall,
            "fill_server_s": self._server() - served,
            "fill_passes": float(passes + 1),
            "fill_placed": float(total),
        }

    async def waiting(self) -> int:
        return (await self.store.read("counts", lambda reads: reads.count_live())).get("pending", 0)

    async def cancel(self, count: int) -> None:
        ids = await self.store.read("pending", lambda reads: reads.in_phase("pending", count))
        for begin in range(0, len(ids), BATCH):
            some = ids[begin : begin + BATCH]
            await self.store.tx("cancel", lambda tx, some=some: [intents.cancel(tx, id_, "user:admin") for id_ in some])

    async def passes(self) -> dict[str, float]:
        """What one pass costs after one end, and one after nothing: the middle of some."""
        await self.place()
        await self.place()
        after, idle, walls, idle_walls = [], [], [], []
        served = 0.0
        for _ in range(7):
            await self._end_one()
            before = self._server()
            cost = await _cost(self.place)
            served += self._server() - before
            after.append(cost.cpu_s)
            walls.append(cost.wall_s)
            while await self.place():
                pass
            cost = await _cost(self.place)
            idle.append(cost.cpu_s)
            idle_walls.append(cost.wall_s)
        return {
            "pass_ms": 1000 * sorted(after)[3],
            "pass_wall_ms": 1000 * sorted(walls)[3],
            "pass_server_ms": 1000 * served / 7,
            "idle_ms": 1000 * sorted(idle)[3],
            "idle_wall_ms": 1000 * sorted(idle_walls)[3],
        }

    async def _end_one(self) -> None:
        if not self._live:
            self._live = await self.store.read("live", lambda reads: reads.in_phase("starting", 10**6))
            self._chance.shuffle(self._live)
        id_ = self._live.pop()
        (kernel,) = (await self.store.read("kernels", lambda reads: reads.kernels([id_])))[id_]
        await self.play.exchange(kernel.node, *whole_run(kernel.token))


def _inventory(name: str) -> Inventory:
    return Inventory(16_000, 131_072, (DeviceInventory(f"{name}-gpu", 0, "nvidia", "A100", "sm_80", GPU_MIB),))


def _specs(count: int) -> Sequence[SessionSpec]:
    chance, found = Random(3), dict[Resources, SessionSpec]()
    while len(found) < count:
        gpu = GpuRequest(share_milli=chance.randrange(50, 1000, 10))
        resources = Resources(chance.choice((500, 1000, 2000, 4000)), chance.choice((2048, 4096, 8192, 16_384)), gpu)
        found[resources] = SessionSpec(("true",), resources=resources, group="default")
    return list(found.values())


async def _cost(work: Callable[[], Awaitable[object]]) -> Cost:
    began, wall = time.process_time(), time.monotonic()
    await work()
    return Cost(time.process_time() - began, time.monotonic() - wall)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.passes")
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--shapes", type=int, default=SHAPES)
    parser.add_argument("--waiting", type=int, default=WAITING)
    parser.add_argument("--database", default="", help="an empty database of PostgreSQL; else SQLite's in a folder")
    return parser.parse_args()


if __name__ == "__main__":
    for name, value in run(**vars(_arguments())).items():
        print(f"{name:24} {value:10.2f}")
