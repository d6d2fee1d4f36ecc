"""One launch on real processes, from its job directory to the proof of its end."""

from __future__ import annotations

from corral.agent import jobdir
from tests.agent.node import Node, until


def test_a_command_runs_and_its_end_is_proven(each_node: Node) -> None:
    each_node.launch("1-a-1-0", "sh", "-c", "echo out; echo err >&2; exit 7")
    result = each_node.finish("1-a-1-0")
    assert (result["exit_code"], result["signal"], result["not_started"]) == (7, None, False)
    assert each_node.output("1-a-1-0") == b"out\n"
    assert each_node.output("1-a-1-0", "stderr") == b"err\n"
    started = each_node.wait_for("1-a-1-0", jobdir.STARTED)
    assert started["says"] == "run"
    assert started["boot_id"] == each_node.boot_id
    ended = each_node.wait_for("1-a-1-0", jobdir.EXIT)
    assert ended["logs"] == {"stdout": {"end": 4, "lost": 0}, "stderr": {"end": 4, "lost": 0}}
    until(lambda: not jobdir.probe_lock(each_node.folder("1-a-1-0")), "the shim gone")
