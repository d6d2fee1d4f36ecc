"""(c) A thousand running `sleep` sessions: memory of agent and shims per session, and what the idle plane costs."""

from __future__ import annotations

import time

import psutil

from benchmarks.plane import Plane, plane

COUNT = 1000
IDLE_S = 20.0


def run(count: int = COUNT) -> dict[str, float]:
    """MiB of proportional set size per session, and percent of one core over twenty idle seconds."""
    with plane() as running:
        ids = running.submit(
            [{"command": ["/bin/sleep", "1000"], "cpus": "0.001", "memory": "8MiB", "grace": 0}] * count
        )
        _wait_running(running, count)
        time.sleep(5)
        manager = psutil.Process(running.process.pid)
        agents = [child for child in manager.children() if "corral.agent" in " ".join(child.cmdline())]
        shims = [child for child in manager.children(recursive=True) if child.name() == "corral-shim"]
        pss = sum(process.memory_full_info().pss for process in [*agents, *shims])
        before = _cpu_s([manager, *agents])
        time.sleep(IDLE_S)
        idle = (_cpu_s([manager, *agents]) - before) / IDLE_S * 100
        return {
            "sessions": len(ids),
            "shims": len(shims),
            "pss_per_session_mib": pss / count / 2**20,
            "idle_cpu_percent": idle,
        }


def _cpu_s(processes: list[psutil.Process]) -> float:
    return sum(process.cpu_times().user + process.cpu_times().system for process in processes)


def _wait_running(running: Plane, count: int) -> None:
    deadline = time.monotonic() + 300
    while running.phases().get("running", 0) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"not all running: {running.phases()}")
        time.sleep(0.2)
