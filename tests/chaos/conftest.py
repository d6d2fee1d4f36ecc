"""Seeds, lengths, and worlds that end however the test does."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from corral.store import upgrade
from tests.chaos.work import Tale
from tests.chaos.world import World, up_world

SHORT_S, LONG_S = 8.0, 600.0


@pytest.fixture
def seconds(pytestconfig: pytest.Config, long: bool) -> float:
    """How long faults strike."""
    return pytestconfig.getoption("--chaos-seconds") or (LONG_S if long else SHORT_S)


@pytest.fixture
def tale(pytestconfig: pytest.Config) -> Iterator[Tale]:
    """The seed is printed; `--chaos-seed` makes the same choices again."""
    given = pytestconfig.getoption("--chaos-seed")
    told = Tale(secrets.randbelow(10**9) if given is None else given)
    print(f"seed {told.seed}: repeat its choices with --chaos-seed {told.seed}")
    yield told
    print(f"{len(told.submitted)} sessions, {len(told.cancelled)} cancelled, struck:", *told.struck, sep="\n  ")


@pytest.fixture
def database(postgres_database: str) -> str:
    upgrade(postgres_database)
    return postgres_database


@pytest.fixture
def up(tmp_path: Path, own_end: Callable[[World], None]) -> Iterator[World]:
    with up_world(tmp_path) as world:
        yield world
    own_end(world)


@pytest.fixture
def own_end() -> Callable[[World], None]:
    def nothing_is_left(world: World) -> None:
        assert world.left_over() == []

    return nothing_is_left
