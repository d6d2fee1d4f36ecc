"""A client outlives its control plane: everything of Corral's is killed under a `run`, and comes back."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.control_plane import plane

LINES = 40


@pytest.mark.slow
def test_run_goes_on_when_the_control_plane_is_killed_and_comes_back(tmp_path: Path) -> None:
    script = f"i=0; while [ $i -lt {LINES} ]; do echo line $i; i=$((i+1)); sleep 0.15; done; exit 3"
    with plane(tmp_path, "--cpus", "4", "--memory", "4GiB") as running:
        environment = os.environ | {"CORRAL_URL": running.url, "CORRAL_TOKEN": running.token()}
        command = [sys.executable, "-m", "corral", "run", "-q", "--", "sh", "-c", script]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as run:
            assert run.stdout is not None
            first = [run.stdout.readline() for _ in range(3)]
            running.kill_everything()
            running.start()
            rest = run.stdout.read()  # not communicate, which passes by what readline has read ahead
            run.wait(60)
    assert "".join(first) + rest == "".join(f"line {number}\n" for number in range(LINES))
    assert run.returncode == 3
