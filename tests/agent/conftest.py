from __future__ import annotations

import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.agent import trees
from tests.agent.agents import Agent, registered
from tests.agent.manager import ScriptedManager
from tests.agent.node import Node


def _node(kind: str | None) -> Iterator[Node]:
    try:
        containment = trees.detect(f"corral-test-{uuid.uuid4().hex[:8]}", kind)
    except OSError as error:
        pytest.skip(str(error))
    root = Path(tempfile.mkdtemp(prefix="corral-node-"))
    node = Node(root, containment)
    try:
        yield node
    finally:
        node.close()
        removed(root)


def removed(root: Path) -> None:
    """Supervisors that were just killed may leave a last file behind while it is done."""
    deadline = time.monotonic() + 10
    while root.exists():
        try:
            shutil.rmtree(root)
        except OSError:
            if time.monotonic() > deadline:
                raise


@pytest.fixture
def node() -> Iterator[Node]:
    """The strongest containment this machine gives."""
    yield from _node(None)


@pytest.fixture(params=["cgroup2", "cgroup1", "marker"])
def each_node(request: pytest.FixtureRequest) -> Iterator[Node]:
    yield from _node(request.param)


@pytest.fixture
def manager() -> Iterator[ScriptedManager]:
    running = ScriptedManager()
    yield running
    running.close()


@pytest.fixture
def agent(manager: ScriptedManager) -> Iterator[Agent]:
    """An agent that has registered, with two simulated devices."""
    with registered(manager, "--simulate-gpus", "2xA100:80GB") as one:
        yield one
