"""(b) From submit to the command's first line, one at a time, against a bare spawn."""

from __future__ import annotations

import os
import statistics
import tempfile
import time

from benchmarks.floor import spawn_latency
from benchmarks.plane import plane

COUNT = 200


def run(count: int = COUNT) -> dict[str, float]:
    """Milliseconds, medians over `count`: until the job itself writes to a pipe we read."""
    floors = [spawn_latency("echo x") for _ in range(count)]
    ours: list[float] = []
    with tempfile.TemporaryDirectory() as folder, plane() as running:
        fifo = f"{folder}/fifo"
        os.mkfifo(fifo)
        reader = os.open(fifo, os.O_RDWR)
        for _ in range(count):
            began = time.perf_counter()
            body = {"command": ["/bin/sh", "-c", f"echo x > {fifo}"], "memory": "8MiB"}
            running.http.post("/api/v1/sessions", json=body).raise_for_status()
            os.read(reader, 2)
            ours.append(time.perf_counter() - began)
        running.wait_ended(count)
        os.close(reader)
    floor, took = statistics.median(floors) * 1000, statistics.median(ours) * 1000
    p95 = statistics.quantiles(ours, n=20)[-1] * 1000
    return {"floor_ms": floor, "corral_ms": took, "over_ms": took - floor, "p95_ms": p95}
