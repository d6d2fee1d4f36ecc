"""A manager's face over a real SQLite file: in process for breadth, behind a real server where the network matters."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.store.revision import upgrade
from tests.api.face import Face, Served


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An upgraded database without rows, to be copied."""
    path = tmp_path_factory.mktemp("empty") / "corral.db"
    upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture
def database(empty_database: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(empty_database, tmp_path / "corral.db"))


@pytest.fixture
def face(database: Path) -> Iterator[Face]:
    """The application in process, without loops: nothing happens that the test does not do."""
    with Face(database) as face:
        yield face


@pytest.fixture
def served(database: Path) -> Iterator[Served]:
    """The application behind uvicorn, with a manager's real loops."""
    with Served(database) as served:
        yield served


@pytest.fixture(scope="module")
def deaf(empty_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Face]:
    """One application for many requests that must leave no trace."""
    with Face(Path(shutil.copy(empty_database, tmp_path_factory.mktemp("deaf") / "corral.db"))) as face:
        yield face
