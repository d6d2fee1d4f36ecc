"""A start that takes minutes delays nothing else, in its own group or another (B2)."""

from pathlib import Path

from tests.end_to_end.control_plane import Plane, wait_until


def test_a_hanging_start_delays_nothing(own: Plane, tmp_path: Path) -> None:
    """The bootstrap of one session hangs on a named pipe nobody writes to; others start, run and end meanwhile."""
    pipe = tmp_path / "pipe"
    import os

    os.mkfifo(pipe)
    slow = tmp_path / "slow.sh"
    slow.write_text(f"#!/bin/sh\ncat {pipe}\n")
    hanging = own.submit("--cpus", "0.1", "--bootstrap", str(slow), "--", "true")
    own.wait_phase(hanging, "starting", "running")
    quick = [own.submit("--cpus", "0.1", "--", "true") for _ in range(10)]
    assert own.run("wait", *quick, timeout_s=30).code == 0
    assert own.show(hanging)["phase"] in ("starting", "running")
    pipe.write_text("")
    assert own.run("wait", hanging).code == 0


def test_a_node_that_never_serves_its_claims_delays_no_other_group(tmp_path: Path) -> None:
    """The agent of one group is frozen: its session stays `starting` for as long as it takes, the other group works."""
    import os
    import signal
    import subprocess
    import sys

    from tests.end_to_end.control_plane import plane

    with plane(tmp_path, "--cpus", "2", "--memory", "4GiB") as running:
        command = [
            sys.executable,
            "-m",
            "corral.agent",
            "--manager",
            running.url,
            "--name",
            "frozen",
            "--group",
            "slow",
        ]
        command += ["--token-file", str(running.data_dir / "agent.token"), "--state-dir", str(tmp_path / "frozen")]
        agent = subprocess.Popen(command)
        try:
            wait_until(lambda: "frozen" in running.run("nodes", "-o", "name").out, "the second node")
            os.kill(agent.pid, signal.SIGSTOP)
            stuck = running.submit("--group", "slow", "--", "true")
            running.wait_phase(stuck, "starting")
            quick = [running.submit("--group", "default", "--cpus", "0.1", "--", "true") for _ in range(10)]
            assert running.run("wait", *quick, timeout_s=30).code == 0
            assert running.show(stuck)["phase"] == "starting"
            os.kill(agent.pid, signal.SIGCONT)
            assert running.run("wait", stuck).code == 0
        finally:
            os.kill(agent.pid, signal.SIGCONT)
            agent.terminate()
            agent.wait(10)
