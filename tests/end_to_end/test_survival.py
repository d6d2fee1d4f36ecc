"""Everything of Corral is killed at once, and nothing is lost: running sessions run on, results are kept."""

import glob
import os
import shutil
import signal
from pathlib import Path

from tests.end_to_end.control_plane import Plane, children_of, command_of, processes_marked, wait_until


def test_a_restart_leaves_running_sessions_running(own: Plane, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    session = own.submit("--", "sh", "-c", f"echo start >> {marks}; sleep 25; echo end >> {marks}; exit 3")
    own.wait_phase(session, "running")
    own.stop()
    own.start()
    assert own.show(session)["phase"] == "running"
    assert own.run("wait", session).code == 3
    assert marks.read_text().split() == ["start", "end"]


def test_kill_of_everything_at_once_loses_and_doubles_nothing(own: Plane, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    body = f"echo start-$CORRAL_SESSION_ID >> {marks}; sleep $0; exit 0"
    ends_meanwhile = [own.submit("--cpus", "0.1", "--", "sh", "-c", body, "1") for _ in range(3)]
    runs_on = [own.submit("--cpus", "0.1", "--", "sh", "-c", body, "6") for _ in range(3)]
    waits = own.submit("--cpus", "4", "--", "sh", "-c", body, "0")
    for session in ends_meanwhile + runs_on:
        own.wait_phase(session, "running", "ended")
    own.kill_everything()
    wait_until(lambda: marks.exists(), "marks")
    import time

    time.sleep(1.5)  # long enough for the short ones to end with nobody watching
    own.start()
    sessions = [*ends_meanwhile, *runs_on, waits]
    assert own.run("wait", *sessions, timeout_s=90).code == 0
    started = marks.read_text().split()
    assert sorted(started) == sorted(f"start-{session}" for session in sessions)
    assert {own.show(session)["attempt"] for session in sessions} == {1}


def test_an_agent_killed_while_jobs_run_and_end_reports_each_result_once(own: Plane, tmp_path: Path) -> None:
    end = tmp_path / "end"
    scripts = [f"until [ -e {end} ]; do sleep 0.1; done; exit {code}" for code in (0, 5)]
    sessions = [own.submit("--cpus", "0.1", "--", "sh", "-c", script) for script in scripts]
    for session in sessions:
        own.wait_phase(session, "running")
    for pid in own.agent_pids():
        for victim in (pid, *children_of(pid)):
            os.kill(victim, signal.SIGKILL)
    end.touch()
    assert [own.run("wait", session).code for session in sessions] == [0, 5]
    for session in sessions:
        facts = [line["fact"] for line in own.run("history", session, "-o", "json").json()]
        assert facts.count("decided") == facts.count("released") == 1


def test_a_killed_supervisor_is_lost_not_forgotten_and_runs_again_only_after_proof(own: Plane, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    script = f"echo $CORRAL_ATTEMPT $PPID >> {marks}; [ $CORRAL_ATTEMPT = 2 ] || sleep 300"
    session = own.submit("--", "sh", "-c", script)
    wait_until(lambda: marks.exists() and marks.read_text().strip(), "the first attempt to begin")
    shim = int(marks.read_text().split()[1])
    os.kill(shim, signal.SIGKILL)
    assert own.run("wait", session).code == 0
    assert [line.split()[0] for line in marks.read_text().splitlines()] == ["1", "2"]
    attempts = own.run("show", session, "-o", "json").json()["attempt"]
    assert attempts == 2
    launches = own.run("audit-launch", session, "-o", "json").json()["launches"]
    assert "supervisor_lost" in str(launches[0]["steps"])


def test_stop_sessions_ends_them_with_the_control_plane(tmp_path: Path) -> None:
    from tests.end_to_end.control_plane import plane, processes_marked

    with plane(tmp_path, "--cpus", "2", "--memory", "4GiB", "--stop-sessions") as running:
        session = running.submit("--grace", "0s", "--", "sleep", "300")
        running.wait_phase(session, "running")
        running.stop()
        assert processes_marked(session) == []
        running.start()
        assert running.show(session)["outcome"] == "cancelled"


def test_a_killed_up_takes_its_agents_along_so_that_the_next_one_finds_their_place_free(own: Plane) -> None:
    """An agent that outlived its keeper would hold the node's state, and the next `corral up` would never be ready."""
    session = own.submit("--", "sh", "-c", "sleep 4; exit 6")
    own.wait_phase(session, "running")
    agents = own.agent_pids()
    assert own.process is not None
    own.process.kill()
    own.process.wait(10)
    wait_until(lambda: not any("corral.agent" in command_of(pid) for pid in agents), "the agents to end", 15)
    own.start()
    assert own.run("wait", session).code == 6
    assert own.show(session)["attempt"] == 1


def test_a_cancel_after_the_job_directory_vanished_ends_the_tree_all_the_same(own: Plane) -> None:
    """Whoever has a tree has begun: the agent must not call a launch void because its directory is gone."""
    session = own.submit("--grace", "1s", "--", "sleep", "300")
    shown = own.wait_phase(session, "running")
    token = shown["kernels"][0]["token"]
    for pid in own.agent_pids():
        os.kill(pid, signal.SIGKILL)
    places = ["/run/corral/*/jobs", "/dev/shm/corral-*/*/jobs", f"{own.data_dir}/nodes/*/run/jobs"]
    folders = [folder for place in places for folder in glob.glob(f"{place}/{token}")]
    assert len(folders) == 1
    shutil.rmtree(folders[0])
    assert own.run("cancel", session).code == 0
    assert own.run("wait", session).code == 130
    assert processes_marked(session) == []
