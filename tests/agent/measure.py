"""What a launch costs, beside its floor in the same run: `python -m tests.agent.measure [JOBS]`. Asserts nothing."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from corral.agent import jobdir, trees
from tests.agent.node import Node, until

IN_FLIGHT = 2


def bare(jobs: int) -> float:
    """posix_spawn and wait for /bin/true, two in flight."""
    began = time.perf_counter()
    running: set[int] = set()
    for _ in range(jobs):
        if len(running) == IN_FLIGHT:
            running.discard(os.waitpid(-1, 0)[0])
        running.add(os.posix_spawn("/bin/true", ["/bin/true"], {}))
    for _ in range(len(running)):
        os.waitpid(-1, 0)
    return jobs / (time.perf_counter() - began)


def launches(node: Node, jobs: int, **changes: Any) -> float:
    """Accept, spawn and wait for the exit record of /bin/true, two in flight, by the zygote's news."""
    began = time.perf_counter()
    running: set[str] = set()
    for number in range(jobs):
        token = f"1-m-{number}-0"
        while len(running) == IN_FLIGHT:
            reap(node, running)
        node.accept(token, "/bin/true", **changes)
        node.zygote.send(node.request(token))
        running.add(token)
    while running:
        reap(node, running)
    took = time.perf_counter() - began
    for number in range(jobs):
        shutil.rmtree(node.folder(f"1-m-{number}-0"))
    return jobs / took


def reap(node: Node, running: set[str]) -> None:
    token = node.zygote.news()
    if os.path.exists(f"{node.folder(token)}/{jobdir.EXIT}"):
        running.discard(token)


def memory(node: Node, jobs: int) -> tuple[float, float]:
    """(KiB of PSS, KiB of it private) of an idle shim."""
    tokens = [f"1-i{jobs}-{number}-0" for number in range(jobs)]
    for token in tokens:
        node.launch(token, "/bin/sleep", "1000", make_dirs=[], cwd="/")
    pids = [node.wait_for(token, jobdir.STARTED)["pid"] for token in tokens]
    until(lambda: all(Path(f"/proc/{pid}/task/{pid}/children").read_text() for pid in pids), "all running")
    rollups = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in pids]
    for token in tokens:
        node.tell(token, jobdir.STOP, reason="over", grace_s=0)
    for token in tokens:
        node.finish(token)
    return (sum(field(text, "Pss:") for text in rollups) / jobs, sum(private(text) for text in rollups) / jobs)


def field(rollup: str, name: str) -> int:
    return next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith(name))


def private(rollup: str) -> int:
    return field(rollup, "Private_Clean:") + field(rollup, "Private_Dirty:")


def measure(kind: str, jobs: int, shm: bool, **changes: Any) -> float | None:
    try:
        containment = trees.detect(f"corral-measure-{os.getpid()}", kind)
    except OSError:
        return None
    root = Path(tempfile.mkdtemp(prefix="corral-measure-", dir="/dev/shm" if shm else None))
    node = Node(root / "node", containment)
    try:
        return launches(node, jobs, **changes)
    finally:
        node.close()
        shutil.rmtree(root)


def main(jobs: int) -> None:
    cases: list[tuple[str, str, bool, dict[str, Any]]] = [
        ("marker, tmpfs", "marker", True, {}),
        ("cgroup2, tmpfs", "cgroup2", True, {}),
        ("cgroup2, disk", "cgroup2", False, {}),
        ("cgroup2 and pids limit, tmpfs", "cgroup2", True, {"limits": {"pids": 100}}),
        ("cgroup1, tmpfs", "cgroup1", True, {}),
    ]
    for name, kind, shm, changes in cases:
        floor, rate = bare(jobs), measure(kind, jobs, shm, **changes)
        if rate is None:
            print(f"{name:32} not available here")
        else:
            print(f"{name:32} {rate:7.0f} jobs/s   bare posix_spawn {floor:7.0f}/s   {floor / rate:4.1f} times")
    root = Path(tempfile.mkdtemp(prefix="corral-measure-", dir="/dev/shm"))
    node = Node(root / "node", trees.detect(f"corral-measure-{os.getpid()}", "marker"))
    try:
        for count in (10, 200):
            pss, own = memory(node, count)
            print(f"{count} idle shims: {pss:.0f} KiB of PSS each, {own:.0f} KiB private")
    finally:
        node.close()
        shutil.rmtree(root)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 500)
