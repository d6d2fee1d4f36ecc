"""(a) 2,000 one-rank `/bin/true` sessions submitted in bulk until all are recorded ended, against a bare spawn loop."""

from __future__ import annotations

import statistics
import time

from benchmarks.floor import spawn_all
from benchmarks.plane import plane

COUNT = 2000
ROUNDS = 3


def run(count: int = COUNT, cpus: str = "0.01") -> dict[str, float]:
    """Seconds of each, medians, and their ratio. `cpus` is what each session asks for of the machine's own."""
    floors: list[float] = []
    ours: list[float] = []
    with plane() as running:
        ended = 0
        for _ in range(ROUNDS):
            floors.append(spawn_all(count))
            began = time.perf_counter()
            running.submit([{"command": ["/bin/true"], "cpus": cpus, "memory": "8MiB"}] * count)
            ended += count
            running.wait_ended(ended)
            ours.append(time.perf_counter() - began)
    floor, took = statistics.median(floors), statistics.median(ours)
    return {"floor_s": floor, "corral_s": took, "ratio": took / floor, "sessions_per_s": count / took}
