"""(d) What the command line costs: `corral --help` and `corral ps`, whole processes, against a bare interpreter."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.plane import plane

COUNT = 15


def run(count: int = COUNT) -> dict[str, float]:
    """Milliseconds, medians."""
    corral = str(Path(sys.executable).with_name("corral"))
    bare = _median_ms([sys.executable, "-c", "pass"], count, {})
    shown = _median_ms([corral, "--help"], count, {})
    with plane() as running:
        running.submit([{"command": ["/bin/true"], "cpus": "0.01", "memory": "8MiB"}] * 20)
        running.wait_ended(20)
        listed = _median_ms([corral, "ps"], count, {"CORRAL_URL": running.url, "CORRAL_TOKEN": running.token})
    return {"python_ms": bare, "help_ms": shown, "ps_ms": listed}


def _median_ms(command: list[str], count: int, environment: dict[str, str]) -> float:
    times: list[float] = []
    for _ in range(count):
        began = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ | environment)
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1000
