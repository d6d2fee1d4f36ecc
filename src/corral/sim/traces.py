"""Traces that others published: openb's pods, Philly's jobs, Muri's jobs, and the Standard Workload Format.

Each reader answers jobs in the order of the file. What a row cannot mean is an error that names its line; what it
means but nobody can run (a job without a run time) is left out and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache

from corral.model.faults import Invalid
from corral.model.resources import WHOLE_GPU_MILLI, GpuRequest, Resources
from corral.sim.files import Row, rows
from corral.sim.fleets import PerNode
from corral.sim.jobs import Job, Trace, cpu_shape, gpu_shape, shape_of

MURI_OVERHEAD = 1.015  # Muri's simulator makes every iteration so much longer
LARGEST = 2**20

Reader = Callable[[str, str, PerNode], Trace]


def muri(name: str, text: str, per_node: PerNode) -> Trace:
    """Muri's simulator (SIGCOMM '22): submit_time in ms, iterations of iteration_time ms."""
    jobs: list[Job] = []
    for row in rows(name, text, ("job_id", "num_gpu", "submit_time", "iterations", "iteration_time")):
        run_s = row.number("iterations") * row.number("iteration_time") * MURI_OVERHEAD / 1000
        jobs.append(Job(row.text("job_id"), row.number("submit_time") / 1000, run_s, _gpus(row, "num_gpu", per_node)))
    return Trace(name, tuple(jobs))


def philly(name: str, text: str, per_node: PerNode) -> Trace:
    """The Philly trace as one table: timestamp, duration (s), num_gpus, cluster (a virtual cluster)."""
    read = [
        (_moment(row), row.number("duration"), _gpus(row, "num_gpus", per_node), row.text("cluster"))
        for row in rows(name, text, ("timestamp", "duration", "num_gpus", "cluster"))
    ]
    zero = min((at for at, *_ in read), default=0.0)
    return Trace(name, tuple(
        Job(str(number), at - zero, run_s, shape, owner=cluster, project=cluster)
        for number, (at, run_s, shape, cluster) in enumerate(read)
    ))  # fmt: skip


def openb(name: str, text: str, per_node: PerNode) -> Trace:
    """openb's pods (Alibaba): cpu_milli, memory_mib, num_gpu, gpu_milli, gpu_spec, creation_time, deletion_time (s)."""
    needed = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec", "creation_time", "deletion_time")
    jobs: list[Job] = []
    left_out: Counter[str] = Counter()
    for row in rows(name, text, needed):
        created = row.number("creation_time")
        if not row.values.get("scheduled_time", "-").strip():
            left_out["never started"] += 1
            continue
        began = row.number("scheduled_time") if "scheduled_time" in row.values else created
        ended = row.number("deletion_time")
        if ended <= began:
            left_out["without a run time"] += 1
            continue
        resources = Resources(row.whole("cpu_milli"), row.whole("memory_mib"), _share(row))
        jobs.append(Job(row.text("name"), created, ended - began, _shape(resources), owner=row.values.get("qos", "-")))
    return Trace(name, tuple(jobs), left_out)


@lru_cache(maxsize=65536)
def _shape(resources: Resources):  # equal requests are one object, which makes them quick to tell apart
    return shape_of(resources)


def _share(row: Row) -> GpuRequest | None:
    count, milli = row.whole("num_gpu"), row.whole("gpu_milli")
    if not count:
        return None
    if milli > WHOLE_GPU_MILLI or count > LARGEST:
        raise row.wrong(f"gpu_milli {milli} is more than a whole GPU")
    models = row.text("gpu_spec").strip() or None
    if count == 1:
        return GpuRequest(share_milli=milli or WHOLE_GPU_MILLI, model=models)
    return GpuRequest(count, model=models)


def swf(name: str, text: str, per_node: PerNode) -> Trace:
    """Standard Workload Format: 18 numbers a line; processors become CPUs, the requested time the time limit."""
    jobs: list[Job] = []
    left_out: Counter[str] = Counter()
    cpus: int | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith(";"):
            words = line.replace(":", " ").split()
            if len(words) == 3 and words[1] in ("MaxProcs", "MaxNodes") and words[2].isdigit() and int(words[2]):
                cpus = int(words[2]) if words[1] == "MaxProcs" or cpus is None else cpus
            continue
        if not line.strip():
            continue
        row = _swf_row(f"{name}, line {number}", line)
        processors = max(row.whole("allocated", least=-1), row.whole("requested", least=-1))
        run_s = row.number("run", least=-1)
        if processors <= 0 or run_s < 0:
            left_out["without processors" if processors <= 0 else "without a run time"] += 1
            continue
        if processors > LARGEST:
            raise row.wrong(f"{processors} processors are more than {LARGEST}")
        asked_s = row.number("limit", least=-1)
        shape = cpu_shape(processors, per_node.cpus or cpus or LARGEST)
        jobs.append(Job(row.text("job"), row.number("submit"), run_s, shape,
                        limit_s=asked_s if asked_s > 0 else None, owner=row.text("user")))  # fmt: skip
    return Trace(name, tuple(jobs), left_out, cpus)


def _swf_row(place: str, line: str) -> Row:
    fields = ("job", "submit", "wait", "run", "allocated", "cpu", "memory", "requested", "limit", "asked_memory",
              "status", "user", "unix_group", "executable", "queue", "partition", "after", "think")  # fmt: skip
    values = line.split()
    if len(values) != len(fields):
        raise Invalid("bad_row", f"{place}: {len(values)} values where Standard Workload Format has {len(fields)}")
    return Row(place, dict(zip(fields, values, strict=True)))


def _gpus(row: Row, column: str, per_node: PerNode):
    gpus = row.whole(column)
    if gpus > LARGEST:
        raise row.wrong(f"{gpus} GPUs are more than {LARGEST}")
    return gpu_shape(gpus, per_node.gpus or LARGEST)


def _moment(row: Row) -> float:
    text = row.text("timestamp").strip()
    try:
        return datetime.fromisoformat(f"{text}+00:00" if text[-6:-5] not in "+-" else text).timestamp()
    except ValueError:
        raise row.wrong(f"timestamp {text[:40]!r} is not a date and a time") from None
