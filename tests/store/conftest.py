"""Databases of both kinds for the store's tests, at the newest revision."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.clock import SystemClock, SystemIds
from corral.store import PostgresStore, SqliteStore, open_store, upgrade
from tests.services.postgres import Server

pytest.register_assert_rewrite("corral.testing.builders", "corral.testing.conformance")


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    url = f"sqlite://{tmp_path}/corral.db"
    upgrade(url)
    return url


@pytest.fixture(scope="session")
def migrated(postgres_server: Server) -> Iterator[str]:
    """The name of a database to copy: migrating one takes longer than a copy."""
    with postgres_server.fresh_database() as url:
        upgrade(url)
        yield url.rpartition("/")[2]


@pytest.fixture
def postgres_url_migrated(postgres_server: Server, migrated: str) -> Iterator[str]:
    with postgres_server.fresh_database(template=migrated) as url:
        yield url


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> str:
    """A migrated database of each kind in turn."""
    return request.getfixturevalue({"sqlite": "sqlite_url", "postgres": "postgres_url_migrated"}[request.param])


@pytest.fixture
def store(database_url: str) -> Iterator[SqliteStore | PostgresStore]:
    opened = open_store(database_url, SystemClock(), SystemIds())
    yield opened
    opened.close()
