"""Migrations: they lead to the schema of the code, up and down, and a database of another revision is refused."""

import asyncio
import re
import sqlite3
import subprocess
import sys
import zipfile
from pathlib import Path

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, text

from corral.clock import SystemClock, SystemIds
from corral.model.faults import Invalid, Refused, Unavailable
from corral.model.node import ResourceGroup
from corral.reconcile import groups
from corral.store import current_revision, downgrade, newest_revision, open_store, upgrade
from corral.store.revision import MIGRATIONS
from corral.store.schema import metadata
from corral.testing.builders import Play, spec, whole_run
from tests.services.postgres import Server

ROOT = Path(__file__).parent.parent.parent
SQLITE_SHAPE = "SELECT type, name, tbl_name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'"
POSTGRES_SHAPE = """
SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
WHERE connamespace = 'public'::regnamespace AND conrelid::regclass::text <> 'alembic_version'
UNION ALL
SELECT tablename, indexname, indexdef FROM pg_indexes
WHERE schemaname = 'public' AND tablename <> 'alembic_version'
UNION ALL
SELECT table_name, column_name, concat_ws(' ', ordinal_position, data_type, is_nullable, column_default, is_identity)
FROM information_schema.columns WHERE table_schema = 'public' AND table_name <> 'alembic_version'"""


@pytest.fixture(params=["sqlite", "postgres"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite://{tmp_path}/corral.db"
    return request.getfixturevalue("postgres_database")


def engine_of(url: str):
    return create_engine(re.sub("^postgresql:", "postgresql+psycopg:", url.replace("sqlite:///", "sqlite:////")))


def tables_of(url: str) -> set[str]:
    with engine_of(url).connect() as connection:
        statement = (
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
            if url.startswith("sqlite")
            else "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
        )
        return {row[0] for row in connection.execute(text(statement))}


def sqlite_shape(path: Path) -> set[tuple[str, ...]]:
    """Every table with the parts of its definition in any order, every index word for word."""
    found: set[tuple[str, ...]] = set()
    with sqlite3.connect(path) as raw:
        for kind, name, table, definition in raw.execute(SQLITE_SHAPE):
            if table == "alembic_version":
                continue
            plain = re.sub(r"\s+", " ", definition or "")
            parts = sorted(part.strip(" )") for part in re.split(r",(?![^()]*\))", plain.partition("(")[2]))
            found.add((kind, name, table, *parts))
    return found


def test_the_migrations_lead_to_the_schema_on_sqlite(tmp_path: Path) -> None:
    migrated, made = tmp_path / "migrated.db", tmp_path / "made.db"
    upgrade(f"sqlite://{migrated}")
    metadata.create_all(engine_of(f"sqlite://{made}"))
    assert sqlite_shape(migrated) == sqlite_shape(made)
    assert len(sqlite_shape(made)) >= len(metadata.tables)


def test_the_migrations_lead_to_the_schema_on_postgresql(postgres_server: Server) -> None:
    with postgres_server.fresh_database() as migrated, postgres_server.fresh_database() as made:
        upgrade(migrated)
        metadata.create_all(engine_of(made))
        with psycopg.connect(migrated) as first, psycopg.connect(made) as second:
            left = set(first.execute(POSTGRES_SHAPE).fetchall())
            assert left == set(second.execute(POSTGRES_SHAPE).fetchall())
        assert len(left) > 100
        with engine_of(migrated).connect() as connection:
            context = MigrationContext.configure(
                connection, opts={"compare_server_default": True, "compare_type": True}
            )
            assert compare_metadata(context, metadata) == []


def test_up_down_and_up_again(empty_url: str) -> None:
    assert current_revision(empty_url) is None
    assert upgrade(empty_url) == "base"
    assert current_revision(empty_url) == newest_revision()
    assert tables_of(empty_url) == {*metadata.tables, "alembic_version"}
    assert upgrade(empty_url) == newest_revision(), "a second time changes nothing"
    downgrade(empty_url, "base")
    assert tables_of(empty_url) == {"alembic_version"}
    assert current_revision(empty_url) is None
    upgrade(empty_url)
    open_store(empty_url, SystemClock(), SystemIds()).close()


def test_a_migration_that_fails_leaves_the_old_revision(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("power failure")

    monkeypatch.setattr("alembic.op.create_index", fail)
    with pytest.raises(RuntimeError, match="power failure"):
        upgrade(empty_url)
    monkeypatch.undo()
    assert tables_of(empty_url) == set()
    upgrade(empty_url)


def test_another_revision_is_refused_with_what_to_do(empty_url: str) -> None:
    def refused() -> Refused:
        with pytest.raises(Refused) as found:
            open_store(empty_url, SystemClock(), SystemIds())
        return found.value

    assert refused().code == "database_empty"
    assert "corral db upgrade" in str(refused())
    upgrade(empty_url)
    with engine_of(empty_url).begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    assert refused().code == "database_newer"
    assert "9999" in str(refused())
    with pytest.raises(Refused) as found:
        upgrade(empty_url)
    assert found.value.code == "database_newer"


def test_an_older_revision_is_refused(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    upgrade(empty_url)
    monkeypatch.setattr("corral.store.revision.newest_revision", lambda: "9998")
    with pytest.raises(Refused, match="corral db upgrade") as found:
        open_store(empty_url, SystemClock(), SystemIds())
    assert found.value.code == "database_older"


@pytest.mark.parametrize("url", ["mysql://h/d", "sqlite://", "sqlite:///", "sqlite://relative", "", "postgres:x"])
def test_another_kind_of_url_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(Invalid) as found:
        open_store(url, SystemClock(), SystemIds())
    assert found.value.code == "bad_database_url"


def test_a_password_is_never_shown() -> None:
    with pytest.raises(Invalid) as found:
        open_store("mysql://ann:secret@host/db", SystemClock(), SystemIds())
    assert "secret" not in str(found.value)


def test_a_server_that_is_not_there_is_unavailable() -> None:
    with pytest.raises(Unavailable) as found:
        open_store("postgresql://ann:secret@127.0.0.1:1/none", SystemClock(), SystemIds())
    assert "secret" not in str(found.value)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "corral.db"
    path.write_text("not a database, but long enough to be taken for one" * 100)
    with pytest.raises(Unavailable) as found:
        upgrade(f"sqlite://{path}")
    assert found.value.code == "database_unreadable"


def test_nobody_migrates_under_a_running_manager(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/corral.db"
    upgrade(url)
    store = open_store(url, SystemClock(), SystemIds())
    try:
        for call in (upgrade, lambda url: downgrade(url, "base")):
            with pytest.raises(Refused) as found:
                call(url)
            assert found.value.code == "database_in_use"
    finally:
        store.close()
    assert (tmp_path / "corral.db").stat().st_mode & 0o077 == 0


def test_the_wheel_brings_the_migrations(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=100)
    (wheel,) = tmp_path.glob("*.whl")
    inside = set(zipfile.ZipFile(wheel).namelist())
    own = {str(path.relative_to(ROOT / "src")) for path in MIGRATIONS.rglob("*.py")}
    assert len(own) >= 2
    assert own <= inside


def test_what_was_there_goes_down_a_revision_and_up_again(empty_url: str) -> None:
    """Groups, sessions and what they held stay; what the older Corral cannot know is dropped, and begins anew."""
    upgrade(empty_url)
    store = open_store(empty_url, SystemClock(), SystemIds())
    play = Play(store)

    async def live() -> list[str]:
        group = ResourceGroup("default", "priority", order_options={"ageing": 2})
        await store.tx("create", lambda tx: groups.create(tx, group, "user:admin"))
        await play.join("n1")
        ids = await play.submit_and_claim(spec(cpus=2))
        (token,) = await play.tokens(ids)
        await play.exchange("n1", *whole_run(token))
        await store.tx("count", lambda tx: tx.count_usage(10))
        return [*ids, *await play.submit(spec())]

    async def look() -> tuple[ResourceGroup, list[str], int]:
        group = (await again.read("groups", lambda reads: reads.groups()))["default"]
        waiting = [one.id for one in (await again.read("snapshot", lambda reads: reads.snapshot(9))).waiting]
        return group, waiting, await again.tx("count", lambda tx: tx.count_usage(10))

    ended, waits = asyncio.run(live())
    store.close()
    downgrade(empty_url, "0001")
    assert current_revision(empty_url) == "0001"
    assert not {"usage", "dependency"} & tables_of(empty_url)
    with engine_of(empty_url).connect() as connection:
        assert connection.execute(text("SELECT * FROM resource_group")).fetchall() == [
            ("default", "priority", "pack", "nodes")
        ]
        assert connection.execute(text("SELECT COUNT(*) FROM event WHERE session IS NULL")).scalar() == 0
        assert {row[0] for row in connection.execute(text("SELECT session FROM event"))} == {ended, waits}
    upgrade(empty_url)
    again = open_store(empty_url, SystemClock(), SystemIds())
    group, waiting, counted = asyncio.run(look())
    again.close()
    assert group == ResourceGroup("default", "priority")
    assert waiting == [waits]
    assert counted == 1, "what was used before is not forgotten"
