"""Faults drawn at random from a seed, while sessions are submitted, run, end and are cancelled."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.chaos.driver import CUTS, KILLS, Driver
from tests.chaos.work import Tale
from tests.chaos.world import World, managed_world
from tests.services.proxy import proxy_to

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(2400)]


def test_one_machine_on_sqlite(up: World, tale: Tale, seconds: float) -> None:
    Driver(up, tale).run(seconds, KILLS)


def test_two_managers_on_postgresql(database: str, tmp_path: Path, tale: Tale, seconds: float) -> None:
    with ExitStack() as stack:
        proxies = [stack.enter_context(proxy_to(database)) for _ in range(2)]
        world = stack.enter_context(managed_world(tmp_path, [proxy.url(database) for proxy in proxies]))
        Driver(world, tale, proxies).run(seconds, KILLS | CUTS)
    assert world.left_over() == []
