"""One launch's trouble is its own: jobs that stop their shims, directories damaged or lost, under a real agent."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from corral.agent import jobdir
from corral.model.lifecycle import ExitClass
from corral.model.session import FactKind, Result
from tests.agent.agents import Agent, lives, registered
from tests.agent.manager import ScriptedManager
from tests.agent.node import until

T1, T2 = "1-aaaaaaaaaa-1-0", "1-bbbbbbbbbb-1-0"
TRACE = """
import ctypes, signal, sys
if ctypes.CDLL(None).ptrace(16, int(sys.argv[1]), None, None) == 0:
    print("traced", flush=True)
    signal.pause()
"""
SLEEPS = "echo $$ >{pid}.new; mv {pid}.new {pid}; exec sleep 600"


@pytest.fixture
def hasty(manager: ScriptedManager) -> Iterator[Agent]:
    """An agent with little patience for what does not act on a stop."""
    with registered(manager, "--kill-grace", "1") as one:
        yield one


def sleeping(manager: ScriptedManager, agent: Agent, token: str = T1) -> int:
    """The pid of a command that runs."""
    pid = agent.root / f"{token}.pid"
    manager.launch(token, "sh", "-c", SLEEPS.format(pid=pid))
    manager.wait_for(token, "ready")
    return int(until(lambda: pid.exists() and pid.read_text().strip(), f"the pid of {token}"))


def shim_of(agent: Agent, token: str) -> int:
    started = jobdir.read_object(f"{agent.run}/jobs/{token}", jobdir.STARTED)
    assert started is not None
    return started["pid"]


def still_serves(manager: ScriptedManager, agent: Agent) -> None:
    """The same process goes on, and starts the next launch."""
    manager.launch(T2, "true")
    manager.wait_for(T2, "exited")
    assert agent.alive
    assert len(manager.registrations) == 1


# --- stopped shims


def test_a_stopped_shim_hears_of_a_stop(manager: ScriptedManager, agent: Agent) -> None:
    job = sleeping(manager, agent)
    os.kill(shim_of(agent, T1), signal.SIGSTOP)
    manager.stop(T1, grace_s=30)
    manager.wait_for(T1, "exited")
    assert manager.wait_for(T1, "result").result == Result(None, signal.SIGTERM, ExitClass.CANCELLED)
    assert not lives(job)


def test_a_job_that_stops_its_shim_again_and_again_is_ended(manager: ScriptedManager, hasty: Agent) -> None:
    pid = hasty.root / "pid"
    loop = f"trap '' TERM; echo $$ >{pid}; while :; do kill -STOP $PPID; done"
    manager.launch(T1, "sh", "-c", loop)
    manager.wait_for(T1, "ready")
    job = int(until(lambda: pid.exists() and pid.read_text().strip(), "the job's pid"))
    shim = shim_of(hasty, T1)
    manager.stop(T1, grace_s=0)
    why = manager.wait_for(T1, "exited").why
    assert why is None or why.code == "supervisor_lost"
    assert not lives(job)
    until(lambda: hasty.tokens() == [], "collected")
    still_serves(manager, hasty)
    assert why is None or not lives(shim)


def test_a_shim_that_never_acts_on_a_stop_is_killed(manager: ScriptedManager, hasty: Agent) -> None:
    job = sleeping(manager, hasty)
    shim = shim_of(hasty, T1)
    with traced(shim):
        manager.stop(T1, grace_s=0)
        assert manager.why(T1, "exited").code == "supervisor_lost"
        assert not lives(job)
    still_serves(manager, hasty)


@contextlib.contextmanager
def traced(pid: int) -> Generator[None]:
    """Stopped by a tracer, which keeps it from going on whatever signal it gets but SIGKILL."""
    with subprocess.Popen([sys.executable, "-c", TRACE, str(pid)], stdout=subprocess.PIPE, text=True) as tracer:
        try:
            assert tracer.stdout is not None
            if tracer.stdout.readline() != "traced\n":
                pytest.skip("this machine does not let one process trace another")
            until(lambda: state_of(pid) == "t", "the shim stopped")
            yield
        finally:
            tracer.kill()


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


# --- directories


def test_a_directory_that_cannot_be_read_is_one_launchs_end(manager: ScriptedManager, agent: Agent) -> None:
    job = sleeping(manager, agent)
    (agent.run / "jobs" / T1 / jobdir.EXIT).mkdir()
    manager.ask(T1)
    why = manager.why(T1, "exited")
    assert why.code == "job_dir_damaged"
    assert jobdir.EXIT in why.message
    assert not lives(job)
    until(lambda: agent.tokens() == [], "collected")
    still_serves(manager, agent)


def test_a_launch_that_cannot_be_prepared_is_refused(manager: ScriptedManager, agent: Agent) -> None:
    control = agent.run / "control"
    control.mkdir()
    (control / T1).write_text("in the way")
    manager.launch(T1, "true")
    why = manager.why(T1, "refused")
    assert why.code == "prepare_failed"
    assert f"control/{T1}" in why.message
    assert agent.tokens() == []
    still_serves(manager, agent)


def test_a_launch_whose_directory_is_gone_is_ended(manager: ScriptedManager, agent: Agent) -> None:
    job = sleeping(manager, agent)
    shutil.rmtree(agent.run / "jobs" / T1)
    manager.ask(T1)
    assert manager.why(T1, "exited").code == "run_dir_lost"
    assert not lives(job)
    still_serves(manager, agent)


@pytest.mark.parametrize("way", ["removed", "replaced"])
def test_a_lost_run_directory_is_noticed_before_the_next_launch(
    manager: ScriptedManager, agent: Agent, way: str
) -> None:
    job = sleeping(manager, agent)
    if way == "removed":
        shutil.rmtree(agent.run)
    else:
        (agent.run / "run_id").write_text("another")
    assert agent.ended() == 1
    assert "the run directory was removed or replaced" in agent.output()
    assert lives(job)
    manager.ask(T1)
    agent.start()
    assert manager.wait_for(T1, FactKind.EXITED).why is not None
    assert not lives(job)
    until(lambda: len(manager.registrations) == 2, "the second registration")
