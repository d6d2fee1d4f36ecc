"""One control plane per module where tests do not disturb it, and one per test where they do."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.control_plane import Plane, plane


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """One node of eight simulated CPUs and four simulated GPUs."""
    folder = tmp_path_factory.mktemp("plane")
    with plane(folder, "--simulate-gpus", "4xA100:80GB:sm_80", "--cpus", "8", "--memory", "16GiB") as running:
        yield running


@pytest.fixture(scope="module")
def three_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    folder = tmp_path_factory.mktemp("plane")
    with plane(folder, "--nodes", "3", "--cpus", "4", "--memory", "8GiB") as running:
        yield running


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Plane]:
    with plane(tmp_path, "--simulate-gpus", "2xA100:80GB", "--cpus", "4", "--memory", "8GiB") as running:
        yield running
