"""How far off estimated starts are, on lublin_256: each job is told at its submit when it will start, and it is held
against when it did. Time limits are made up, one to four times the run time, since the trace has none. Once more with
owners made up, and a quota of a part of the CPUs for each of them."""

from __future__ import annotations

import heapq
import random
import statistics
import time
from collections import defaultdict, deque
from dataclasses import dataclass, field, replace
from pathlib import Path

from corral.model.node import ResourceGroup
from corral.model.quota import NO_QUOTAS, Claimant, Held, Quota, Quotas
from corral.scheduling.cycle import cycle
from corral.scheduling.explaining.estimate import Ended, Lately, estimate, lately_of
from corral.scheduling.limits import amounts_of
from corral.scheduling.snapshot import Running, Snapshot, Waiting
from corral.sim.jobs import Job
from corral.sim.simulating import Wanted, prepare

TRACE = Path(__file__).parent / "data" / "jct" / "lublin_256.swf.gz"
JOBS, EVERY, SEED, KEPT = 3000, 5, 11, 200
GROUP = "default"
OWNERS, QUOTA_CPUS = 4, 64  # of 256


@dataclass
class World:
    """One group with easy backfill, a pass after each event, in virtual time."""

    jobs: list[Job]
    quota_cpus: int | None = None
    now: float = 0.0
    line: list[Waiting] = field(default_factory=list[Waiting])
    running: dict[str, Running] = field(default_factory=dict[str, Running])
    ends: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])
    started: dict[str, float] = field(default_factory=dict[str, float])
    ended: deque[Ended] = field(default_factory=lambda: deque[Ended](maxlen=KEPT))
    guesses: defaultdict[str, list[tuple[str, float, float]]] = field(
        default_factory=lambda: defaultdict[str, list[tuple[str, float, float]]](list)
    )

    def __post_init__(self) -> None:
        self.machines = prepare(Wanted(TRACE), ["fifo"]).machines
        self.by_id = {job.id: job for job in self.jobs}

    def snapshot(self) -> Snapshot:
        (node,) = self.machines.nodes
        used = [rank for one in self.running.values() for rank in one.ranks]
        node = replace(node, cpu_used_milli=sum(rank.cpu_milli for rank in used),
                       memory_used_mib=sum(rank.memory_mib for rank in used))  # fmt: skip
        groups = {GROUP: ResourceGroup(GROUP)}
        return Snapshot(self.now, [node], {}, list(self.line), groups, running=list(self.running.values()),
                        quotas=self.quotas())  # fmt: skip

    def quotas(self) -> Quotas:
        if self.quota_cpus is None:
            return NO_QUOTAS
        held = [Held(Claimant(one.owner, one.project, GROUP), amounts_of(one.ranks, {}))
                for one in self.running.values()]  # fmt: skip
        return Quotas((Quota("each", owner="*", limits={"cpu_milli": 1000 * self.quota_cpus}),), held=tuple(held))

    def turn(self) -> None:
        for placed in cycle(self.snapshot(), max_placements=10**9).placements:
            one, job = placed.session, self.by_id[placed.session.id]
            assert one.time_limit_s is not None
            ends_at = self.now + one.time_limit_s
            self.running[one.id] = Running(one.id, one.ordinal, 1, 1, GROUP, one.owner, "p", 0, one.shape, placed.ranks,
                                           self.now, self.now, ends_at)  # fmt: skip
            self.started[one.id] = self.now
            heapq.heappush(self.ends, (self.now + job.run_s, one.id))
        self.line = [one for one in self.line if one.id not in self.running]

    def run(self) -> None:
        coming = deque(self.jobs)
        chance = random.Random(SEED)
        while coming or self.ends:
            until = min(
                coming[0].submitted_s if coming else float("inf"), self.ends[0][0] if self.ends else float("inf")
            )
            self.now = until
            while self.ends and self.ends[0][0] <= until:
                self.end(heapq.heappop(self.ends)[1])
            fresh: list[Waiting] = []
            while coming and coming[0].submitted_s <= until:
                job = coming.popleft()
                limit_s = max(1, round(job.run_s * chance.uniform(1, 4)))
                ordinal = len(self.jobs) - len(coming)
                fresh.append(
                    Waiting(
                        job.id,
                        ordinal,
                        1,
                        1,
                        0,
                        f"o{ordinal % OWNERS}",
                        "p",
                        until,
                        job.shape,
                        None,
                        limit_s,
                        grace_s=0,
                    )
                )
            self.line += fresh
            self.turn()
            for one in fresh:
                if one.ordinal % EVERY == 0 and one.id not in self.running:
                    self.guess(one)

    def end(self, id_: str) -> None:
        gone = self.running.pop(id_)
        assert gone.started_at is not None and gone.ends_at is not None
        self.ended.append(Ended(gone.started_at, self.now, round(gone.ends_at - gone.started_at)))

    def guess(self, one: Waiting) -> None:
        position = 1 + sum(other.ordinal < one.ordinal for other in self.line)
        for name, lately in (("lately", lately_of(self.ended)), ("limits", Lately())):
            found = estimate(self.snapshot(), one, lately, position)
            if found is not None:
                self.guesses[one.id].append((name if found.basis != "pace" else "pace", found.at, self.now))


def run() -> dict[str, float]:
    """Prints the table; the median errors."""
    jobs = sorted(prepare(Wanted(TRACE), ["fifo"]).jobs, key=lambda job: job.submitted_s)[:JOBS]
    found = _measured(World(jobs))
    print(f"under a quota of {QUOTA_CPUS} CPUs for each of {OWNERS} owners; who asks for more is left out")
    within = [job for job in jobs if job.shape.resources.cpu_milli <= 1000 * QUOTA_CPUS]
    found |= {f"{name}, quotas": value for name, value in _measured(World(within, QUOTA_CPUS)).items()}
    return found


def _measured(world: World) -> dict[str, float]:
    began, jobs = time.perf_counter(), world.jobs
    world.run()
    errors: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for id_, guesses in world.guesses.items():
        for basis, at, told_at in guesses:
            errors[basis].append((at - world.started[id_], max(world.started[id_] - told_at, 60.0)))
    print(f"{len(world.guesses)} estimates of {len(jobs)} jobs in {time.perf_counter() - began:.0f} s")
    print(f"{'basis':<10}{'number':>8}{'wait, mean s':>14}{'error, median s':>17}{'mean s':>10}{'late, %':>9}"
          f"{'error/wait, median':>20}")  # fmt: skip
    found: dict[str, float] = {}
    for basis, ones in sorted(errors.items()):
        off = [abs(error) for error, _ in ones]
        relative = [abs(error) / wait for error, wait in ones]
        late = 100 * sum(error < 0 for error, _ in ones) / len(ones)
        found[basis] = statistics.median(relative)
        print(f"{basis:<10}{len(ones):>8}{statistics.fmean(wait for _, wait in ones):>14,.0f}"
              f"{statistics.median(off):>17,.0f}{statistics.fmean(off):>10,.0f}{late:>9.0f}"
              f"{found[basis]:>20.2f}")  # fmt: skip
    return found
