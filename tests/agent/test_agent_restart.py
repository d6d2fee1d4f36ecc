"""What survives the agent: kill -9 at any point, another boot, a lost run directory, a lost store, a second agent."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import uuid
from pathlib import Path

import pytest

from corral.agent import jobdir, jobs, launcher, looking, outbox
from corral.model.lifecycle import ExitClass
from corral.model.session import FactKind, Result
from tests.agent.agents import Agent, lives
from tests.agent.manager import ScriptedManager
from tests.agent.node import PATIENCE_S, until

A = "aaaaaaaaaa"
T1, T2 = f"1-{A}-1-0", "1-bbbbbbbbbb-1-0"
WAITS = "echo $$ >{pid}; until [ -e {go} ]; do sleep 0.02; done; exit 7"


def waiting(agent: Agent, name: str = "job") -> tuple[tuple[str, ...], Path, Path]:
    """A command that writes its pid, waits for a file, and exits 7."""
    pid, go = agent.root / f"{name}.pid", agent.root / f"{name}.go"
    return ("sh", "-c", WAITS.format(pid=pid, go=go)), pid, go


def pid_in(path: Path) -> int:
    return int(until(lambda: path.exists() and path.read_text().strip(), f"a pid in {path}"))


def began(agent: Agent, manager: ScriptedManager, starts: int) -> None:
    until(lambda: len(manager.registrations) >= starts, f"registration {starts}: {agent.output()}")


def shim_of(agent: Agent, token: str) -> int:
    started = until(lambda: jobdir.read_object(f"{agent.run}/jobs/{token}", jobdir.STARTED), f"{token} started")
    return started["pid"]


# --- kill -9


def test_a_job_that_runs_on_is_adopted(manager: ScriptedManager, agent: Agent) -> None:
    command, pid, go = waiting(agent)
    manager.launch(T1, *command)
    manager.wait_for(T1, "ready")
    agent.kill()
    assert lives(pid_in(pid))
    manager.forget_facts()
    agent.start()
    began(agent, manager, 2)
    assert manager.registrations[1].run_id == manager.registrations[0].run_id
    until(lambda: manager.kinds(T1) == ["accepted", "ready"], "adopted")
    go.touch()
    manager.wait_for(T1, "exited")
    assert manager.wait_for(T1, "result").result == Result(7, None, ExitClass.USER)


def test_a_job_that_ends_while_no_agent_lives_is_reported_once(manager: ScriptedManager, agent: Agent) -> None:
    command, pid, go = waiting(agent)
    manager.launch(T1, *command)
    manager.wait_for(T1, "ready")
    job = pid_in(pid)
    agent.kill()
    go.touch()
    until(lambda: not lives(job), "the end")
    agent.start()
    manager.wait_for(T1, "exited")
    until(lambda: agent.tokens() == [], "collected")
    agent.restart()
    began(agent, manager, 3)
    manager.launch(T2, "true")
    manager.wait_for(T2, "exited")
    results = [fact for fact in manager.arrivals if (fact.token, fact.kind) == (T1, FactKind.RESULT)]
    assert [fact.result for fact in results] == [Result(7, None, ExitClass.USER)]


def test_a_stop_given_after_a_restart_ends_the_job(manager: ScriptedManager, agent: Agent) -> None:
    manager.launch(T1, "sleep", "300")
    manager.wait_for(T1, "ready")
    agent.restart()
    manager.stop(T1)
    manager.wait_for(T1, "exited")
    assert manager.wait_for(T1, "result").result == Result(None, 15, ExitClass.CANCELLED)


def test_sigterm_ends_the_agent_and_no_job(manager: ScriptedManager, agent: Agent) -> None:
    command, pid, go = waiting(agent)
    manager.launch(T1, *command)
    job = pid_in(pid)
    assert agent.terminate() == 0
    assert lives(job)
    agent.start()
    go.touch()
    assert manager.wait_for(T1, "result").result == Result(7, None, ExitClass.USER)


POINTS = sorted({*jobs.CRASH_POINTS, *looking.CRASH_POINTS, *launcher.CRASH_POINTS, *outbox.CRASH_POINTS})
NEVER_WITHOUT_A_STOP = {"agent.before_void", "agent.after_void", "agent.before_stop", "agent.after_stop"}


@pytest.mark.parametrize("point", [point for point in POINTS if point not in NEVER_WITHOUT_A_STOP])
def test_an_agent_killed_at_any_point_starts_nothing_twice(manager: ScriptedManager, point: str) -> None:
    agent = Agent(manager.url)
    starts = agent.root / "starts"
    try:
        agent.start(crash=point)
        began(agent, manager, 1)
        manager.launch(T1, "sh", "-c", f"echo x >>{starts}; exit 7")
        assert agent.ended() == -signal.SIGKILL
        agent.start()
        ends = {FactKind.EXITED, FactKind.VOID, FactKind.REFUSED}
        until(lambda: any(fact.token == T1 and fact.kind in ends for fact in manager.facts), f"{T1} ended")
        until(lambda: agent.tokens() == [], "collected")
        began_at_all = starts.exists()
        if began_at_all:
            assert starts.read_text() == "x\n"
            assert manager.wait_for(T1, "result").result == Result(7, None, ExitClass.USER)
        else:
            assert "result" not in manager.kinds(T1)
    finally:
        print(agent.output())
        agent.close()


@pytest.mark.parametrize("point", sorted(NEVER_WITHOUT_A_STOP))
@pytest.mark.parametrize("running", [True, False])
def test_an_agent_killed_while_it_stops_something_stops_it_still(
    manager: ScriptedManager, point: str, running: bool
) -> None:
    agent = Agent(manager.url)
    ran = agent.root / "ran"
    try:
        agent.start()
        began(agent, manager, 1)
        agent.kill()
        agent.start(crash=point)
        began(agent, manager, 2)
        manager.launch(T1, "sh", "-c", f"touch {ran}; exec sleep 300", ranks=1 if running else 2)
        manager.wait_for(T1, "ready")
        if running:
            until(ran.exists, "the command to have begun")
        manager.stop(T1)
        if "void" not in point:
            assert agent.ended() == -signal.SIGKILL
            agent.start()
        manager.wait_for(T1, "exited")
        result = manager.wait_for(T1, "result").result
        assert result is not None
        assert result.exit_class is ExitClass.CANCELLED
        assert ran.exists() == running
    finally:
        print(agent.output())
        agent.close()


# --- the shim's death


@pytest.mark.parametrize("restart", [False, True])
def test_a_shim_that_dies_is_lost_once_its_tree_is_gone(manager: ScriptedManager, agent: Agent, restart: bool) -> None:
    left, pid = agent.root / "left", agent.root / "pid"
    manager.launch(T1, "sh", "-c", f"setsid sleep 300 & echo $! >{left}; echo $$ >{pid}; sleep 300")
    processes = [pid_in(left), pid_in(pid)]
    shim = shim_of(agent, T1)
    if restart:
        agent.kill()
    os.kill(shim, signal.SIGKILL)
    if restart:
        agent.start()
    assert manager.why(T1, "exited").code == "supervisor_lost"
    assert not any(lives(process) for process in processes)
    assert manager.fact(T1, FactKind.RESULT) is None


def test_a_shim_that_is_only_slow_is_not_lost(manager: ScriptedManager, agent: Agent) -> None:
    command, _, go = waiting(agent)
    manager.launch(T1, *command)
    manager.wait_for(T1, "ready")
    shim = shim_of(agent, T1)
    os.kill(shim, signal.SIGSTOP)
    agent.restart()
    began(agent, manager, 2)
    go.touch()
    manager.launch(T2, "true")
    manager.wait_for(T2, "exited")
    assert manager.fact(T1, FactKind.EXITED) is None
    os.kill(shim, signal.SIGCONT)
    manager.wait_for(T1, "exited")
    assert manager.wait_for(T1, "result").result == Result(7, None, ExitClass.USER)


# --- what is lost with a directory


def test_a_lost_run_directory_means_all_dead_and_lost(manager: ScriptedManager, agent: Agent) -> None:
    command, pid, _ = waiting(agent)
    manager.launch(T1, *command)
    manager.wait_for(T1, "ready")
    job = pid_in(pid)
    agent.kill()
    shutil.rmtree(agent.run)
    agent.run.mkdir(0o700)
    agent.start()
    assert manager.why(T1, "exited").code == "supervisor_lost"
    assert not lives(job)
    assert manager.registrations[-1].run_id != manager.registrations[0].run_id


def test_a_run_directory_lost_under_a_living_agent(manager: ScriptedManager, agent: Agent) -> None:
    """Whether the agent notices or ends, the next start proves the job dead."""
    command, pid, _ = waiting(agent)
    manager.launch(T1, *command)
    manager.wait_for(T1, "ready")
    job = pid_in(pid)
    shutil.rmtree(agent.run)
    agent.run.mkdir(0o700)
    agent.restart()
    assert manager.why(T1, "exited").code in ("supervisor_lost", "run_dir_lost")
    assert not lives(job)


def test_a_lost_store_loses_no_running_job(manager: ScriptedManager, agent: Agent) -> None:
    command, _, go = waiting(agent)
    manager.launch(T1, *command)
    manager.wait_for(T1, "ready")
    agent.kill()
    for path in agent.state.glob("node.db*"):
        path.unlink()
    agent.start()
    began(agent, manager, 2)
    go.touch()
    manager.wait_for(T1, "exited")
    assert manager.wait_for(T1, "result").result == Result(7, None, ExitClass.USER)


# --- another boot


@pytest.fixture
def other_boot(tmp_path: Path) -> list[str]:
    """A prefix for a command that makes it see another boot id."""
    fake = tmp_path / "boot_id"
    fake.write_text(f"{uuid.uuid4()}\n")
    prefix = ["unshare", "-m", "sh", "-c", f'mount --bind {fake} /proc/sys/kernel/random/boot_id && exec "$@"', "sh"]
    tried = subprocess.run(
        [*prefix, "cat", "/proc/sys/kernel/random/boot_id"], capture_output=True, text=True, timeout=PATIENCE_S
    )
    if tried.stdout != fake.read_text():
        pytest.skip(f"no mount namespace of one's own here: {tried.stderr.strip()}")
    return prefix


def test_after_a_reboot_old_launches_are_nobodys(manager: ScriptedManager, agent: Agent, other_boot: list[str]) -> None:
    """A run directory on disk outlives a reboot; what it names are other processes now."""
    starts = agent.root / "starts"
    manager.launch(T1, "sh", "-c", f"echo x >>{starts}; sleep 300")
    until(starts.exists, "the start")
    command, _, go = waiting(agent, "second")
    manager.launch(T2, *command)
    until(lambda: manager.fact(T2, FactKind.READY), "the second running")
    manager.lose_answers = 1_000_000  # nothing that is said from here on counts as said
    go.touch()
    until(lambda: manager.fact(T2, FactKind.RESULT), "its result, durable")
    agent.kill()
    manager.lose_answers = 0
    manager.forget_facts()
    agent.start(before=other_boot)
    began(agent, manager, 2)
    registration = manager.registrations[-1]
    assert registration.boot_id != manager.registrations[0].boot_id
    assert {(fact.token, fact.kind) for fact in registration.facts} >= {(T2, FactKind.RESULT)}
    assert not any(fact.token == T1 for fact in registration.facts)
    until(lambda: agent.tokens() == [], "the old directories gone")
    assert starts.read_text() == "x\n"


# --- two agents


def test_a_second_agent_on_one_state_directory_is_refused(manager: ScriptedManager, agent: Agent) -> None:
    second = subprocess.run(agent.command(), capture_output=True, text=True, timeout=PATIENCE_S)
    assert second.returncode == 1
    assert len(second.stderr.strip().splitlines()) == 1
    assert str(agent.state) in second.stderr
    assert agent.alive


def test_a_second_agent_on_one_run_directory_is_refused(manager: ScriptedManager, agent: Agent) -> None:
    second = Agent(manager.url, "node-2")
    try:
        own, second.run = second.run, agent.run
        tried = subprocess.run(second.command(), capture_output=True, text=True, timeout=PATIENCE_S)
        assert tried.returncode == 1, tried.stderr
        assert str(agent.run) in tried.stderr
        second.run = own
    finally:
        second.close()


def test_two_agents_on_one_machine_do_not_disturb_each_other(manager: ScriptedManager, agent: Agent) -> None:
    other_manager = ScriptedManager()
    second = Agent(other_manager.url, "node-2")
    try:
        second.start()
        began(second, other_manager, 1)
        command, pid, _ = waiting(agent)
        manager.launch(T1, *command)
        job = pid_in(pid)
        second.kill()
        shutil.rmtree(second.run)
        second.run.mkdir()
        second.start()
        began(second, other_manager, 2)
        assert other_manager.registrations[0].hardware_id != manager.registrations[0].hardware_id
        assert lives(job)
    finally:
        second.close()
        other_manager.close()
