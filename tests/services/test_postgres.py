"""The tests' own PostgreSQL: databases are fresh, nothing is left behind."""

import fcntl
import os
from pathlib import Path

import psycopg
import pytest

from tests.services import postgres
from tests.services.absence import absent, service_named_in
from tests.services.postgres import Server


def test_a_database_is_empty_and_gone_afterwards(postgres_server: Server) -> None:
    with postgres_server.fresh_database() as url, psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE mark (n int)")
        connection.commit()
        with postgres_server.fresh_database() as other, psycopg.connect(other) as second:
            assert second.execute("SELECT to_regclass('mark')").fetchone() == (None,)
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(url)


def test_a_database_can_be_a_copy_of_another(postgres_server: Server) -> None:
    with postgres_server.fresh_database() as template_url:
        with psycopg.connect(template_url) as connection:
            connection.execute("CREATE TABLE mark (n int)")
        name = template_url.rpartition("/")[2]
        with postgres_server.fresh_database(template=name) as copy, psycopg.connect(copy) as connection:
            assert connection.execute("SELECT count(*) FROM mark").fetchone() == (0,)


def test_it_reads_committed_in_utc(postgres_database: str) -> None:
    with psycopg.connect(postgres_database) as connection:
        assert connection.execute("SHOW transaction_isolation").fetchone() == ("read committed",)
        assert connection.execute("SHOW timezone").fetchone() == ("UTC",)


def test_only_folders_that_nobody_holds_are_removed(tmp_path: Path) -> None:
    held, abandoned, unfinished = (
        tmp_path / f"{postgres.FOLDER_PREFIX}{name}" for name in ("held", "abandoned", "new")
    )
    for folder in (held, abandoned, unfinished):
        folder.mkdir()
    (abandoned / "lock").touch()
    with (held / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        postgres.remove_abandoned_folders(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted([held.name, unfinished.name])


def test_an_absent_service_is_skipped_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception) as skipped:
        absent("PostgreSQL", "why")
    assert service_named_in(str(skipped.value)) == "PostgreSQL"


def test_an_absent_service_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="absent service: PostgreSQL"):
        absent("PostgreSQL", "why")
