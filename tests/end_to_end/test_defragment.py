"""Sessions that move so that a gang finds room, with real processes: they keep their work, and go where it was said."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.control_plane import Plane, plane
from tests.end_to_end.test_preemption import CHECKPOINTED, FOR_EVER, history


@pytest.fixture
def scattered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    folder = tmp_path_factory.mktemp("scattered")
    with plane(folder, "--nodes", "3", "--simulate-gpus", "4xA100:80GB", "--cpus", "4", "--memory", "8GiB") as running:
        options = ("--placement", "spread", "--option", "preemption_min_runtime=0")
        assert running.run("group", "set", "default", *options).code == 0
        yield running


def nodes_of(running: Plane, id_: str) -> list[str]:
    return [kernel["node"] for kernel in running.show(id_)["kernels"]]


def test_two_move_and_a_gang_fits(scattered: Plane, tmp_path: Path) -> None:
    ids: list[str] = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()  # that all nodes see
        script = CHECKPOINTED.replace("$CORRAL_CHECKPOINT_DIR", str(tmp_path / name))
        ids.append(scattered.submit("--gpus", "1", "--", "sh", "-c", script))
    stays = scattered.submit("--gpus", "1", "--no-preemptible", "--", "sh", "-c", FOR_EVER)
    for id_ in (*ids, stays):
        scattered.wait_phase(id_, "running")
    before = {id_: nodes_of(scattered, id_) for id_ in (*ids, stays)}
    assert sorted(node for nodes in before.values() for node in nodes) == ["node-1", "node-2", "node-3"]
    gang = scattered.submit("--nodes", "2", "--gpus", "4", "--", "true")
    plan = scattered.run("defragment", "-o", "json").json()
    assert {move["session"]: [place["node"] for place in move["there"]] for move in plan["moves"]} == dict.fromkeys(
        ids, before[stays]
    )
    assert {scattered.show(id_)["phase"] for id_ in ids} == {"running"}, "to look is not to move"
    done = scattered.run("defragment", "--run")
    assert (done.code, f"Asked to move: {', '.join(move['session'] for move in plan['moves'])}" in done.out) == (
        0,
        True,
    )
    assert scattered.run("wait", gang, *ids).code == 0
    assert sorted(nodes_of(scattered, gang)) == sorted(before[ids[0]] + before[ids[1]])
    for id_ in ids:
        shown = scattered.show(id_)
        assert (shown["outcome"], shown["attempt"], shown["preemptions"]) == ("succeeded", 2, 1)
        assert nodes_of(scattered, id_) == before[stays]
        assert "attempt 2 begins at 1" in scattered.run("logs", id_).out
        (told,) = [one["detail"] for one in history(scattered, id_) if one["fact"] == "moving"]
        assert (told["to"], told["for"]) == (before[stays], gang)
    assert scattered.show(stays)["attempt"] == 1
    assert scattered.run("doctor").code == 0
