"""SQLite: one manager, group commit, and what stands after a kill or a full disk."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.clock import SystemClock, SystemIds
from corral.model.faults import Refused, Unavailable
from corral.ports import Tx
from corral.store import SqliteStore, open_store, upgrade
from corral.testing.builders import Play, new_session, spec

WRITER = """
import asyncio, sys
from corral.clock import SystemClock, SystemIds
from corral.store import open_store
from corral.testing.builders import spec
from corral.ports import NewSession

async def main():
    ids = SystemIds()
    store = open_store(sys.argv[1], SystemClock(), ids)
    async def submit():
        while True:
            new = NewSession(ids.session_id(), spec(), "ann")
            (made,) = await store.tx("submit", lambda tx: tx.submit([new]))
            print(made.id, flush=True)
    await asyncio.gather(*(submit() for _ in range(8)))

asyncio.run(main())
"""


def opened(url: str) -> SqliteStore:
    store = open_store(url, SystemClock(), SystemIds())
    assert isinstance(store, SqliteStore)
    return store


@pytest.fixture
def sqlite(sqlite_url: str) -> Iterator[SqliteStore]:
    store = opened(sqlite_url)
    yield store
    store.close()


def test_a_second_manager_is_refused_and_the_next_is_not(sqlite_url: str) -> None:
    first = opened(sqlite_url)
    with pytest.raises(Refused) as refused:
        opened(sqlite_url)
    assert refused.value.code == "database_in_use"
    first.close()
    opened(sqlite_url).close()


def test_a_second_process_is_refused(sqlite: SqliteStore, sqlite_url: str) -> None:
    child = subprocess.run([sys.executable, "-c", WRITER, sqlite_url], capture_output=True, text=True, timeout=60)
    assert child.returncode == 1
    assert "SQLite serves one manager" in child.stderr


def test_a_killed_manager_loses_no_acknowledged_submit(sqlite_url: str) -> None:
    for _ in range(3):
        command = [sys.executable, "-c", WRITER, sqlite_url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            acknowledged = [child.stdout.readline().strip() for _ in range(60)]
            child.send_signal(signal.SIGKILL)
            acknowledged += [line.strip() for line in child.stdout if line.endswith("\n")]
        store = opened(sqlite_url)
        try:
            found = asyncio.run(_found(store, acknowledged))
            assert found == set(acknowledged)
            assert asyncio.run(Play(store).violations()) == []
        finally:
            store.close()


async def _found(store: SqliteStore, ids: list[str]) -> set[str]:
    return set(await store.read("look", lambda reads: reads.sessions(ids)))


def test_bodies_that_wait_share_a_commit_and_one_that_fails_takes_nobody_with_it(sqlite: SqliteStore) -> None:
    ids: list[str] = []

    def failing(tx: Tx) -> None:
        tx.submit([new_session()])
        raise RuntimeError("on purpose")

    def refused_by_a_constraint(tx: Tx) -> None:
        new = new_session()
        tx.submit([new])
        tx.submit([new])

    def good(tx: Tx) -> str:
        (made,) = tx.submit([new_session()])
        ids.append(made.id)
        return made.id

    async def body() -> list[object]:
        bodies = [good, failing, good, refused_by_a_constraint, good]
        calls = [sqlite.tx(f"body {n}", fn) for n, fn in enumerate(bodies)]
        return await asyncio.gather(*calls, return_exceptions=True)

    answers = asyncio.run(body())
    assert [type(answer).__name__ for answer in answers] == ["str", "RuntimeError", "str", "Conflict", "str"]
    assert asyncio.run(sqlite.read("count", lambda reads: reads.count_sessions())) == {"pending": 3}


def test_a_commit_is_shared(sqlite: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    groups: list[int] = []
    commit = SqliteStore._commit
    monkeypatch.setattr(SqliteStore, "_commit", lambda self, group: (groups.append(len(group)), commit(self, group)))

    async def body() -> None:
        await asyncio.gather(*(sqlite.tx("submit", lambda tx: tx.submit([new_session()])) for _ in range(200)))

    asyncio.run(body())
    assert sum(groups) == 200
    assert len(groups) < 100


def test_a_closed_store_says_so(sqlite_url: str) -> None:
    store = opened(sqlite_url)
    store.close()
    for call in (store.tx("late", lambda tx: None), store.read("late", lambda reads: None)):
        with pytest.raises(Unavailable) as late:
            asyncio.run(call)
        assert late.value.code == "database_closed"


def test_a_closed_store_lets_go_of_its_files(sqlite_url: str) -> None:
    store = opened(sqlite_url)
    asyncio.run(Play(store).submit(spec()))
    asyncio.run(store.read("count", lambda reads: reads.count_sessions()))
    store.close()
    folder = str(Path(sqlite_url.removeprefix("sqlite://")).parent)
    links = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    assert [target for link in links if link.is_symlink() and (target := os.readlink(link)).startswith(folder)] == []


def test_what_was_queued_before_closing_is_written(sqlite_url: str) -> None:
    store = opened(sqlite_url)

    async def body() -> list[object]:
        calls = [asyncio.ensure_future(store.tx("submit", lambda tx: tx.submit([new_session()]))) for _ in range(20)]
        await asyncio.gather(*calls[:1])
        store.close()
        return await asyncio.gather(*calls)

    assert len(asyncio.run(body())) == 20
    with sqlite3.connect(sqlite_url.removeprefix("sqlite://")) as raw:
        assert raw.execute("SELECT count(*) FROM session").fetchone() == (20,)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "corral-test", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_unavailable_and_nothing_half_done_is_left(small_disk: Path) -> None:
    url = f"sqlite://{small_disk}/corral.db"
    upgrade(url)
    store = opened(url)
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * (1 << 20))

    async def fill() -> int:
        for written in range(100):
            blob = os.urandom(100_000)
            await store.tx("blob", lambda tx, n=written, blob=blob: (tx.put_blob(f"sha256:{n}", blob), None)[1])
        return -1

    async def body() -> None:
        with pytest.raises(Unavailable) as full:
            await fill()
        assert full.value.code == "database_failed"
        mixed = [
            store.tx("blob", lambda tx: tx.put_blob("sha256:big", os.urandom(2_000_000))),
            store.tx("submit", lambda tx: tx.submit([new_session(spec(name="mixed"))])),
        ]
        answers = await asyncio.gather(*mixed, return_exceptions=True)
        assert isinstance(answers[0], Unavailable)
        ballast.unlink()
        counted = await store.read("count", lambda reads: reads.count_sessions())
        assert counted == ({} if isinstance(answers[1], Unavailable) else {"pending": 1})
        assert await store.read("blob", lambda reads: reads.blob("sha256:big")) is None
        await store.tx("again", lambda tx: tx.submit([new_session()]))
        assert await Play(store).violations() == []

    try:
        asyncio.run(body())
    finally:
        store.close()
