"""What a replay amounts to: waits, completion times, slowdown, use of the fleet; in all, by size and by owner."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from corral.sim.replay import Replayed
from corral.sim.state import Run

SHORTEST_S = 10.0  # a run time below this counts as this in a bounded slowdown
MOST_OWNERS = 20


@dataclass(frozen=True, slots=True)
class Numbers:
    """Of those that ended; times in seconds. None where nobody ended."""

    jobs: int
    ended: int
    wait_mean_s: float | None
    wait_median_s: float | None
    wait_p95_s: float | None
    completion_mean_s: float | None
    completion_median_s: float | None
    completion_p95_s: float | None
    slowdown_mean: float | None
    preemptions: int
    most_preemptions: int
    failures: int
    lost_hours: float


@dataclass(frozen=True, slots=True)
class Report:
    """`utilisation` and `idle_while_waiting` are parts of the fleet's GPUs (CPUs, if it has no GPU) over the time from
    the first event to the last end; the latter lay idle while somebody waited: in fragments, or for somebody else."""

    policy: str
    all: Numbers
    by_size: dict[str, Numbers]
    by_owner: dict[str, Numbers]
    span_s: float
    utilisation: float
    idle_while_waiting: float
    waiting_mean: float
    planned: int

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def report(replayed: Replayed) -> Report:
    watch = replayed.watch
    runs = [*replayed.ended, *replayed.waiting]
    owners = _groups(runs, lambda run: run.job.owner)
    largest = sorted(owners, key=lambda owner: (-len(owners[owner]), owner))[:MOST_OWNERS]
    capacity_time = watch.capacity_time or 1.0
    return Report(
        policy=replayed.policy,
        all=numbers(runs),
        by_size={size: numbers(ones) for size, ones in _groups(sorted(runs, key=_size), _size_band).items()},
        by_owner={owner: numbers(owners[owner]) for owner in largest},
        span_s=watch.span_s,
        utilisation=watch.used_time / capacity_time,
        idle_while_waiting=watch.idle_while_waiting_time / capacity_time,
        waiting_mean=watch.waiting_time / (watch.span_s or 1.0),
        planned=sum(run.planned_s is not None for run in runs),
    )


def numbers(runs: Sequence[Run]) -> Numbers:
    ended = [run for run in runs if run.ended_s is not None]
    waits = sorted((run.first_began_s or 0.0) - run.job.submitted_s for run in ended)
    completions = sorted(completion_s(run) for run in ended)
    return Numbers(
        jobs=len(runs),
        ended=len(ended),
        wait_mean_s=_mean(waits),
        wait_median_s=_quantile(waits, 0.5),
        wait_p95_s=_quantile(waits, 0.95),
        completion_mean_s=_mean(completions),
        completion_median_s=_quantile(completions, 0.5),
        completion_p95_s=_quantile(completions, 0.95),
        slowdown_mean=_mean([slowdown(run) for run in ended]),
        preemptions=sum(run.preempted for run in runs),
        most_preemptions=max((run.preempted for run in runs), default=0),
        failures=sum(run.failed for run in runs),
        lost_hours=max(0.0, round(sum(run.lost_s * run.job.size for run in runs) / 3600, 6)),
    )


def completion_s(run: Run) -> float:
    return (run.ended_s or 0.0) - run.job.submitted_s


def slowdown(run: Run) -> float:
    """Bounded: completion time by run time, of which at least ten seconds; never below 1."""
    return max(1.0, completion_s(run) / max(SHORTEST_S, run.job.run_s))


def job_rows(replayed: Replayed) -> Iterable[list[object]]:
    """One row a job, in the order of submits: what it asked for and what became of it."""
    for run in sorted([*replayed.ended, *replayed.waiting], key=lambda run: run.ordinal):
        job = run.job
        yield [replayed.policy, job.id, job.owner, f"{job.size:g}", job.submitted_s, run.planned_s, run.first_began_s,
               run.ended_s, run.preempted, run.failed]  # fmt: skip


JOB_HEAD = ("policy", "job", "owner", "size", "submitted_s", "planned_s", "started_s", "ended_s", "preempted", "failed")


def _size(run: Run) -> float:
    return run.job.size


def _size_band(run: Run) -> str:
    """Sizes are told apart by powers of two: `1`, `2`, `3-4`, `5-8`."""
    size = run.job.size
    if size <= 1:
        return f"{size:g}" if size in (0.0, 1.0) else "<1"
    top = 2 ** math.ceil(math.log2(size))
    return f"{top // 2 + 1}-{top}" if top > 2 else "2"


def _groups(runs: Iterable[Run], name: Callable[[Run], str]) -> dict[str, list[Run]]:
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(name(run), []).append(run)
    return groups


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _quantile(ordered: Sequence[float], part: float) -> float | None:
    """The smallest value that at least this part of them does not exceed."""
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)] if ordered else None
