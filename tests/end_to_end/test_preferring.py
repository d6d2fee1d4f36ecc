"""What a session would rather have of its nodes, with real agents: labels, and where its work was left."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.control_plane import CORRAL, Plane, plane, wait_until

# Adds to its checkpoint and asks to go on, until it has gone on twice.
IN_PARTS = """
echo "$CORRAL_NODE_NAME" >> "$CORRAL_CHECKPOINT_DIR/went"
[ "$CORRAL_ATTEMPT" -lt 3 ] && exit 85
cat "$CORRAL_CHECKPOINT_DIR/went"
"""


@pytest.fixture
def two_zones(tmp_path: Path) -> Iterator[Plane]:
    """`node-1` in zone a, and an agent of its own in zone b, which comes after it by name."""
    with plane(tmp_path / "plane", "--label", "zone=a", "--cpus", "4") as running:
        place = tmp_path / "other"
        command = [*CORRAL, "agent", "--manager", running.url, "--token-file", str(running.data_dir / "agent.token"),
                   "--name", "other", "--state-dir", str(place / "state"), "--run-dir", str(place / "run"),
                   "--label", "zone=b", "--cpus", "4"]  # fmt: skip
        with (tmp_path / "other.log").open("w") as log:
            agent = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            wait_until(lambda: len(running.run("nodes", "-o", "json").json()) == 2, "the other node joins")
            yield running
        finally:
            agent.terminate()
            agent.wait(20)


def node_of(running: Plane, id_: str) -> str:
    assert running.run("wait", id_).code == 0
    return running.show(id_)["kernels"][0]["node"]


def test_it_goes_where_it_would_rather_be_and_back_to_what_it_saved(two_zones: Plane) -> None:
    went = {
        words: node_of(two_zones, two_zones.submit(*words, "--", "true"))
        for words in ((), ("--prefer", "zone=b"), ("--prefer", "zone=c", "--prefer", "zone=a"))
    }
    assert list(went.values()) == ["node-1", "other", "node-1"]
    full = two_zones.submit("--cpus", "4", "--prefer", "zone=b", "--", "sleep", "600")
    assert two_zones.wait_phase(full, "running")["kernels"][0]["node"] == "other"
    assert node_of(two_zones, two_zones.submit("--prefer", "zone=b", "--", "true")) == "node-1", "it waits for none"
    told = two_zones.run("submit", "--prefer", "zone=b", "--dry-run", "--", "true").out
    assert "zone=b: 1 of the nodes it may go to, with room on 0 now" in told
    assert ["prefers", "zone=b"] in [line.split() for line in two_zones.run("show", full).out.splitlines()]
    assert "zone=b: 1 of its 1 node" in two_zones.run("explain", full).out
    two_zones.run("cancel", full)
    two_zones.wait_phase(full, "ended")
    assert two_zones.run("group", "set", "default", "--placement", "round-robin").code == 0
    id_ = two_zones.submit("--", "sh", "-c", IN_PARTS)
    assert node_of(two_zones, id_) == two_zones.run("logs", id_).out.split()[0]
    assert len(set(two_zones.run("logs", id_).out.split())) == 1
    assert len(two_zones.run("logs", id_).out.split()) == 3, "each attempt found what the one before saved"
