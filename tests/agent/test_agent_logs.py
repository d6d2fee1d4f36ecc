"""Logs by stream: byte ranges, following, what was dropped, and what this node does not have."""

from __future__ import annotations

from tests.agent.agents import Agent
from tests.agent.manager import ScriptedManager
from tests.agent.node import until

T1 = "1-aaaaaaaaaa-1-0"


def test_a_finished_log_comes_whole_from_any_offset(manager: ScriptedManager, agent: Agent) -> None:
    manager.launch(T1, "sh", "-c", "echo hello; echo wrong >&2")
    manager.wait_for(T1, "exited")
    out, rest, err = manager.read_log(T1), manager.read_log(T1, offset=2), manager.read_log(T1, "stderr")
    until(lambda: out.over and rest.over and err.over, "all three served")
    assert (out.data, rest.data, err.data) == (b"hello\n", b"llo\n", b"wrong\n")
    assert out.heads[-1] == {"start": 0, "next": 6, "end": True, "dropped": 0}


def test_following_ends_with_the_kernel(manager: ScriptedManager, agent: Agent) -> None:
    go = agent.root / "go"
    manager.launch(T1, "sh", "-c", f"echo one; until [ -e {go} ]; do sleep 0.02; done; echo two")
    manager.wait_for(T1, "ready")
    followed = manager.read_log(T1, follow=True)
    until(lambda: followed.data == b"one\n", "the first line, while it runs")
    assert not followed.over
    go.touch()
    until(lambda: followed.over, "the end of the log")
    assert followed.data == b"one\ntwo\n"


def test_a_reader_that_does_not_follow_gets_what_is_there(manager: ScriptedManager, agent: Agent) -> None:
    manager.launch(T1, "sh", "-c", "echo one; sleep 300")
    manager.wait_for(T1, "ready")
    until(lambda: _served(manager) == b"one\n", "the line so far")


def _served(manager: ScriptedManager) -> bytes:
    got = manager.read_log(T1)
    until(lambda: got.over, "served")
    return got.data


def test_what_was_dropped_is_said(manager: ScriptedManager, agent: Agent) -> None:
    size = 40_000_000
    manager.launch(T1, "sh", "-c", f"head -c {size} /dev/zero; echo the end")
    manager.wait_for(T1, "exited")
    next(agent.state.glob("logs/**/stdout.0000000000000000")).unlink()
    got = manager.read_log(T1)
    until(lambda: got.over, "served", 60)
    dropped = sum(head["dropped"] for head in got.heads)
    assert dropped > 0
    assert dropped + len(got.data) == size + len("the end\n")
    assert got.data.endswith(b"the end\n")


def test_a_log_that_is_not_here_is_unavailable_and_not_empty(manager: ScriptedManager, agent: Agent) -> None:
    for token, stream in (("1-zzzzzzzzzz-1-0", "stdout"), ("rubbish", "stdout"), ("../../etc", "passwd")):
        got = manager.read_log(token, stream)
        until(lambda got=got: got.over, "an answer")
        assert got.unavailable
        assert got.data == b""


def test_logs_outlive_the_agent(manager: ScriptedManager, agent: Agent) -> None:
    manager.launch(T1, "echo", "hello")
    manager.wait_for(T1, "exited")
    agent.restart()
    got = manager.read_log(T1)
    until(lambda: got.over, "served")
    assert got.data == b"hello\n"
