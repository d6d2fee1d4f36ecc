"""What holds for every test: an environment of its own, a time limit, and an honest count of what was skipped.

Fixtures about one part of Corral live beside that part's tests.
"""

import os
from collections import Counter
from typing import Any

import hypothesis
import pytest

from corral.scheduling import cycle as cycle_module
from corral.scheduling.plan import Plan, check
from corral.scheduling.snapshot import Snapshot
from tests.services.absence import service_named_in

pytest_plugins = ["tests.services.postgres"]

hypothesis.settings.register_profile("corral", deadline=None, derandomize=os.environ.get("CI") == "true")
hypothesis.settings.load_profile("corral")


_cycle = cycle_module.cycle


def _checked_cycle(snapshot: Snapshot, *rest: Any, **options: Any) -> Plan:
    """Every plan that is made in any test of this process is held against its snapshot."""
    plan = _cycle(snapshot, *rest, **options)
    assert check(snapshot, plan) == []
    return plan


cycle_module.cycle = _checked_cycle  # before anybody imports it by name


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="let tests that choose their own length run for long")
    parser.addoption("--sim-seconds", type=float, default=150.0, help="how long fresh seeds are simulated (150)")
    parser.addoption("--chaos-seconds", type=float, help="how long faults strike in each test of tests/chaos")
    parser.addoption("--chaos-seed", type=int, help="the choices of a run that failed, once more")


@pytest.fixture(scope="session")
def long(pytestconfig: pytest.Config) -> bool:
    """True when the run may take its time (`--long`)."""
    return bool(pytestconfig.getoption("--long"))


@pytest.fixture(scope="session", autouse=True)
def own_environment(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keeps the caller's Corral, its settings and its data out of the tests, and the tests out of them."""
    for name in [name for name in os.environ if name.startswith("CORRAL_") and not name.startswith("CORRAL_TEST_")]:
        del os.environ[name]
    for kind in ("CONFIG", "DATA", "STATE", "CACHE", "RUNTIME"):
        folder = tmp_path_factory.mktemp(f"xdg-{kind.lower()}")
        os.environ[f"XDG_{kind}_DIR" if kind == "RUNTIME" else f"XDG_{kind}_HOME"] = str(folder)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "postgres_server" in getattr(item, "fixturenames", ()):
            item.add_marker("postgres")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.getreports("skipped")
    reasons = [report.longrepr[2] for report in skipped if isinstance(report.longrepr, tuple)]
    absent = Counter(name for reason in reasons if (name := service_named_in(reason)))
    for name, count in sorted(absent.items()):
        terminalreporter.write_line(f"NOT TESTED: {count} tests skipped, since {name} is absent here", yellow=True)
