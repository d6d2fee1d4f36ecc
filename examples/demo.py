"""The main job on one machine: `make demo`. Starts Corral with three nodes of simulated GPUs in a temporary folder,
submits the first 200 tasks of a real task list, a session of three ranks that compute something together, one that is
cancelled and one that makes way for an urgent one and goes on afterwards, shows what happened, and stops everything
again. Exits 0 only if all of it went as it should.
"""

from __future__ import annotations

import csv
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from corral.client import Client, Session, SessionFields

HERE = Path(__file__).resolve().parent
TASKS = HERE / "data" / "openb_first_200.csv"
NODES, GPUS_PER_NODE = 3, 8
SIZE = ["--nodes", str(NODES), "--simulate-gpus", f"{GPUS_PER_NODE}xA100:80GB", "--cpus", "96", "--memory", "512GiB"]
SCALE = 600_000  # one second here is about a week of the recorded time …
SHORTEST_S = 0.2  # … but none is shorter than this
LIMIT_S = 100.0
CORRAL = [sys.executable, "-m", "corral"]

console = Console(highlight=False)


def main() -> int:
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="corral-demo-", ignore_cleanup_errors=True) as folder:
        config = Path(folder) / "data" / "client.toml"
        with running(Path(folder)), Client(config=config) as corral:
            problems = show(corral, config, started + LIMIT_S)
    console.print(f"everything stopped again, after {time.monotonic() - started:.0f} s")
    for problem in problems:
        console.print(f"[red]not as it should be:[/] {problem}")
    return 1 if problems else 0


@contextmanager
def running(folder: Path) -> Iterator[None]:
    """`corral up` until the block is left, with data and log in `folder`."""
    command = [*CORRAL, "up", "--data-dir", str(folder / "data"), "--listen", "127.0.0.1:0", "--no-login",
               "--stop-sessions", *SIZE]  # fmt: skip
    console.print(f"$ corral {' '.join(command[3:])}", soft_wrap=True)
    with open(folder / "up.log", "w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        ready = process.stdout.readline().strip()
        if not ready.startswith("ready "):
            raise SystemExit(f"corral up did not start:\n{(folder / 'up.log').read_text()[-2000:]}")
        console.print(ready)
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(5)


def show(corral: Client, config: Path, deadline: float) -> list[str]:
    """Do the job and tell of it; answers what was not as it should be."""
    training, urgent = make_way(corral, deadline)
    tasks = corral.submit_batch([fields_of(row) for row in read_tasks()])
    console.print(f"submitted {len(tasks)} tasks of a real task list ({TASKS.name})")
    team = corral.submit(
        {"command": [sys.executable, str(HERE / "sum_of_squares.py")], "name": "sum-of-squares", "nodes": 3,
         "gpus": 1, "priority": 10, "time": "1m"}
    )  # fmt: skip
    endless = corral.submit({"command": ["sleep", "600"], "name": "to-be-cancelled", "priority": 10})
    console.print("submitted sum-of-squares, three ranks on three nodes, and to-be-cancelled")
    wait_running(corral, endless["id"], deadline)
    corral.cancel(endless["id"])
    ended = [wait_ended(corral, one["id"], deadline) for one in [team, endless, training, urgent, *tasks]]
    text = b"".join(corral.logs(team["id"])).decode()
    console.print(f"sum-of-squares, rank 0:\n  {text.strip().replace(chr(10), chr(10) + '  ')}", soft_wrap=True)
    console.print(*tables(ended), sep="\n")
    told = [b"".join(corral.logs(training["id"], attempt=attempt)).decode() for attempt in (1, 2)]
    console.print(stopped(ended[2], ended[3], told))
    console.print("not in this demo yet: a node drained")
    problems = (*judged(ended[0], ended[1], ended[3:], text), *judged_again(ended[2], told))
    return [*problems, *doctor(config)]


def make_way(corral: Client, deadline: float) -> tuple[Session, Session]:
    """Long work runs, and is stopped because something urgent needs every GPU; it may be, and knows how to go on."""
    corral.change_group("default", options={"preemption": "priority", "preemption_min_runtime": 0, "preemptible": "no"})
    training = corral.submit(
        {"command": [sys.executable, str(HERE / "training.py")], "name": "training", "gpus": GPUS_PER_NODE,
         "preemptible": True, "node": ["node-1"]}
    )  # fmt: skip
    wait_running(corral, training["id"], deadline)
    time.sleep(1.0)  # so that there is work to lose
    urgent = corral.submit(
        {"command": ["sleep", "0.5"], "name": "urgent", "nodes": NODES, "gpus": GPUS_PER_NODE, "priority": 20}
    )
    console.print("training ran on 8 GPUs when urgent came, which needs all 24")
    while corral.get(urgent["id"])["phase"] == "pending" and time.monotonic() < deadline:
        time.sleep(0.1)
    return training, urgent


def read_tasks() -> list[dict[str, str]]:
    with TASKS.open(newline="") as file:
        return list(csv.DictReader(file))


def fields_of(row: dict[str, str]) -> SessionFields:
    """One recorded task as a session: what it needed as recorded, how long it was there scaled down."""
    recorded_s = int(row["deletion_time"]) - int(row["creation_time"])
    fields: SessionFields = {
        "name": row["name"],
        "command": ["sleep", f"{max(SHORTEST_S, recorded_s / SCALE):.2f}"],
        "cpus": f"{row['cpu_milli']}m",
        "memory": f"{row['memory_mib']}MiB",
        "labels": {"from": "openb"},
    }
    count, share = int(row["num_gpu"]), int(row["gpu_milli"])
    if count:
        fields["gpus"] = count if share == 1000 else share / 1000
    return fields


def wait_running(corral: Client, id_: str, deadline: float) -> None:
    while corral.get(id_)["phase"] not in ("running", "stopping", "ended"):
        if time.monotonic() > deadline:
            raise SystemExit(f"session {id_} did not start in time: {corral.explain(id_)['summary']}")
        time.sleep(0.1)


def wait_ended(corral: Client, id_: str, deadline: float) -> Session:
    session = corral.wait(id_, max(0.0, deadline - time.monotonic()))
    if session["phase"] != "ended":
        raise SystemExit(f"session {id_} did not end in time: {corral.explain(id_)['summary']}")
    return session


# --- what happened


def tables(ended: Sequence[Session]) -> list[Table]:
    return [outcomes(ended), use(ended)]


def outcomes(ended: Sequence[Session]) -> Table:
    table = Table(title="Sessions by outcome", title_justify="left")
    for head in ("outcome", "sessions", "of them with GPUs", "ranks"):
        table.add_column(head, justify="left" if head == "outcome" else "right")
    for outcome, count in Counter(one["outcome"] for one in ended).most_common():
        these = [one for one in ended if one["outcome"] == outcome]
        with_gpus = sum(one["resources"]["gpus"] is not None for one in these)
        table.add_row(outcome, str(count), str(with_gpus), str(sum(len(one["kernels"]) for one in these)))
    return table


def use(ended: Sequence[Session]) -> Table:
    """GPU use and waits. The last few tasks run alone, so the first half says more about the placement."""
    table = Table(title="GPUs and waits", title_justify="left", show_header=False)
    first = min(moment(one["submitted_at"]) for one in ended)
    span_s = max(moment(one["ended_at"]) for one in ended) - first
    waits = sorted(moment(one["started_at"]) - moment(one["submitted_at"]) for one in ended if one["started_at"])
    table.add_row("GPUs", f"{NODES * GPUS_PER_NODE} simulated A100 on {NODES} nodes")
    table.add_row("time from first submit to last end", f"{span_s:.1f} s")
    for what, end_s in (("all of the time", span_s), ("the time until half had started", statistics.median(waits))):
        share = gpu_seconds(ended, first, first + end_s) / (NODES * GPUS_PER_NODE * end_s)
        table.add_row(f"GPU use over {what}", f"{share:.0%}")
    table.add_row("wait for the start, median", f"{statistics.median(waits):.2f} s")
    table.add_row("wait for the start, 95 of 100 within", f"{waits[int(len(waits) * 0.95)]:.2f} s")
    table.add_row("wait for the start, longest", f"{waits[-1]:.2f} s")
    return table


def stopped(training: Session, urgent: Session, told: Sequence[str]) -> Table:
    table = Table(title="Preempted and resumed", title_justify="left", show_header=False)
    table.add_row("training was stopped for others", f"{training['preemptions']} time, for urgent ({urgent['id']})")
    for number, text in enumerate(told, 1):
        table.add_row(f"attempt {number}", "\n".join(text.strip().splitlines()))
    table.add_row("outcome", f"{training['outcome']}, after attempt {training['attempt']}")
    return table


def gpu_seconds(ended: Sequence[Session], begin: float, end: float) -> float:
    """GPUs times seconds in use between two moments."""
    total = 0.0
    for one in ended:
        if one["started_at"] is not None:
            seconds = min(moment(one["ended_at"]), end) - max(moment(one["started_at"]), begin)
            total += max(0.0, seconds) * (one["resources"]["gpus"] or 0) * len(one["kernels"])
    return total


def moment(text: str | None) -> float:
    assert text is not None
    return datetime.fromisoformat(text).timestamp()


def judged(team: Session, cancelled: Session, tasks: Sequence[Session], text: str) -> Iterator[str]:
    """What is not as it should be."""
    for one in tasks:
        if one["outcome"] != "succeeded":
            yield f"{one['name']} ({one['id']}) ended {one['outcome']}: {one['reason'] or one['cause']}"
    nodes = {kernel["node"] for kernel in team["kernels"]}
    if team["outcome"] != "succeeded" or "(right)" not in text or len(nodes) != 3:
        yield f"sum-of-squares ({team['id']}) ended {team['outcome']} on {sorted(nodes)}: {team['reason']}"
    if cancelled["outcome"] != "cancelled":
        yield f"to-be-cancelled ({cancelled['id']}) ended {cancelled['outcome']}"


def judged_again(training: Session, told: Sequence[str]) -> Iterator[str]:
    if (training["outcome"], training["attempt"], training["preemptions"]) != ("succeeded", 2, 1):
        yield f"training ({training['id']}) ended {training['outcome']} after attempt {training['attempt']}"
    saved = told[0].partition("saved at step ")[2].partition(":")[0]
    if not saved or f"begins at step {saved}" not in told[1]:
        yield f"training ({training['id']}) did not go on where it was stopped: {told}"


def doctor(config: Path) -> Iterator[str]:
    done = subprocess.run(
        [*CORRAL, "doctor", "--config", str(config)], capture_output=True, text=True, timeout=30, env=dict(os.environ)
    )
    console.print(f"$ corral doctor\n{(done.stdout + done.stderr).strip()}", soft_wrap=True)
    if done.returncode != 0:
        yield f"corral doctor exited {done.returncode}"


if __name__ == "__main__":
    sys.exit(main())
