"""The floor: the same work with nothing around it."""

from __future__ import annotations

import os
import time


def spawn_all(count: int, in_flight: int = 2, program: str = "/bin/true") -> float:
    """Seconds to spawn and wait for `count` processes, `in_flight` at a time, with posix_spawn."""
    began = time.perf_counter()
    living: set[int] = set()
    for _ in range(count):
        if len(living) >= in_flight:
            pid, _ = os.wait()
            living.discard(pid)
        living.add(os.posix_spawn(program, [program], {}))
    while living:
        pid, _ = os.wait()
        living.discard(pid)
    return time.perf_counter() - began


def spawn_latency(script: str) -> float:
    """Seconds from asking for a process until its first line can be read."""
    reader, writer = os.pipe()
    began = time.perf_counter()
    pid = os.posix_spawn("/bin/sh", ["/bin/sh", "-c", script], {}, file_actions=[(os.POSIX_SPAWN_DUP2, writer, 1)])
    os.close(writer)
    os.read(reader, 1)
    took = time.perf_counter() - began
    os.close(reader)
    os.waitpid(pid, 0)
    return took
