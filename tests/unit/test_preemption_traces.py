"""Random traces through the pass: whoever is stopped cannot have its preemptor stopped, nobody is stopped more often
than its budget, nobody starves, and room that is kept goes to its owner."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.model.spec import SessionSpec
from corral.scheduling.cycle import cycle
from corral.scheduling.places import RankPlace
from corral.scheduling.plan import check
from corral.scheduling.snapshot import Pin, Snapshot, shape_of
from corral.scheduling.stopping.preemption_check import check_preemptions
from tests.unit.test_preemption import NOW, a_node, a_picture, a_spec, running, waiting

GRACE_S = 3.0
STEP_S = 1.0
MOST_STEPS = 4000
UNBOUNDED: dict[str, Any] = {"preemption_min_runtime": 0.0, "preemption_budget": 10_000}


@dataclass
class Job:
    """Work of `lasts_s`, begun anew each time it is stopped unless it keeps what it has done."""

    name: str
    number: int
    spec: SessionSpec
    priority: int
    owner: str
    arrives_at: float
    lasts_s: float
    keeps: bool
    done_s: float = 0.0
    ranks: tuple[RankPlace, ...] = ()
    began: float = 0.0
    going_at: float | None = None
    going_for: str | None = None
    room_by: float | None = None
    preemptions: int = 0
    ended: bool = False


@dataclass
class Trace:
    """The rest of Corral in a few lines: places, stops, releases and keeps room as the pass has it."""

    jobs: list[Job]
    nodes: int
    options: Mapping[str, Any]
    now: float = NOW
    pins: list[Pin] = field(default_factory=list)
    pairs: list[tuple[str, str]] = field(default_factory=list)

    def snapshot(self) -> Snapshot:
        line = [
            waiting(job.name, job.spec, job.priority, job.number, job.owner, room_by=job.room_by)
            for job in self.jobs
            if not job.ended and not job.ranks and job.arrives_at <= self.now
        ]
        held = [self._running(job) for job in self.jobs if job.ranks]
        picture = a_picture(
            line, held, [a_node(f"n{n}", 4) for n in range(self.nodes)], 2, pins=self.pins, **self.options
        )
        group = replace(picture.groups["default"], order="priority")
        return replace(picture, now=self.now, groups={"default": group})

    def _running(self, job: Job):
        since = self.now - job.began
        one = running(job.name, *job.ranks, priority=job.priority, owner=job.owner, ordinal=job.number)
        return one._replace(
            placed_at=job.began, started_at=job.began, preemptions=job.preemptions, shape=shape_of(job.spec),
            stopping=job.going_at is not None, preempted_for=job.going_for, ends_at=job.going_at,
        ) if since >= 0 else one  # fmt: skip

    def step(self) -> None:
        self._release()
        snapshot = self.snapshot()
        plan = cycle(snapshot)
        assert check(snapshot, plan) == []
        assert check_preemptions(snapshot, plan) == []
        by_name = {job.name: job for job in self.jobs}
        for placed in plan.placements:
            job = by_name[placed.session.id]
            job.ranks, job.began, job.room_by = placed.ranks, self.now, None
            self.pins = [pin for pin in self.pins if pin.owner != job.name]
        for one in plan.preemptions:
            for victim in one.victims:
                job = by_name[victim.id]
                job.going_at, job.going_for = self.now + GRACE_S, one.claimant.id
                job.preemptions += 1
                self.pairs.append((one.claimant.id, victim.id))
            if one.victims:
                by_name[one.claimant.id].room_by = self.now + GRACE_S + 30.0
        self.now += STEP_S

    def _release(self) -> None:
        by_name = {job.name: job for job in self.jobs}
        for job in self.jobs:
            if not job.ranks:
                continue
            if self.now >= job.began + job.lasts_s - job.done_s:
                job.ended = True
            elif job.going_at is None or self.now < job.going_at:
                continue
            elif job.keeps:
                job.done_s += self.now - job.began
            claimant = by_name.get(job.going_for or "")
            if claimant is not None and not claimant.ranks and not claimant.ended and claimant.room_by is not None:
                self.pins += [Pin(claimant.name, rank, claimant.room_by + 60.0) for rank in job.ranks]
            job.ranks, job.going_at, job.going_for = (), None, None

    def run(self) -> None:
        for _ in range(MOST_STEPS):
            if all(job.ended for job in self.jobs):
                return
            self.step()
        left = [(job.name, job.priority, job.preemptions) for job in self.jobs if not job.ended]
        raise AssertionError(f"after {MOST_STEPS} steps {left} had not ended")


def jobs_of(draw: st.DrawFn, nodes: int) -> list[Job]:
    count = draw(st.integers(2, 9))
    return [
        Job(
            name=f"j{number}",
            number=number,
            spec=a_spec(
                draw(st.sampled_from((1, 2, 4))),
                draw(st.sampled_from((0, 0, 1, 2))),
                nodes=draw(st.sampled_from((1, 1, 1, nodes))),
            ),
            priority=draw(st.sampled_from((0, 0, 5, 10))),
            owner=draw(st.sampled_from(("ann", "bob", "eve"))),
            arrives_at=NOW + draw(st.integers(0, 40)),
            lasts_s=draw(st.sampled_from((2.0, 10.0, 60.0))),
            keeps=draw(st.booleans()),
        )
        for number in range(count)
    ]


@st.composite
def traces(draw: st.DrawFn, **options) -> Trace:
    nodes = draw(st.integers(1, 3))
    return Trace(jobs_of(draw, nodes), nodes, {"backfill": draw(st.sampled_from(("none", "easy")))} | options)


@settings(max_examples=60, deadline=None)
@given(traces(**UNBOUNDED))
def test_by_priority_all_end_and_none_is_stopped_by_whom_it_had_stopped(trace: Trace) -> None:
    trace.run()
    by_name = {job.name: job for job in trace.jobs}
    assert all(by_name[claimant].priority > by_name[victim].priority for claimant, victim in trace.pairs)
    assert trace.pins == []


@settings(max_examples=60, deadline=None)
@given(traces(preemption="fair-share", **UNBOUNDED))
def test_by_share_all_end_and_stopping_does_not_go_round(trace: Trace) -> None:
    """Shares change as others come and go, so the two may meet again; but not more often than somebody did."""
    trace.run()
    by_name = {job.name: job for job in trace.jobs}
    assert all(by_name[claimant].owner != by_name[victim].owner for claimant, victim in trace.pairs)
    assert len(trace.pairs) <= len(trace.jobs) ** 2


@settings(max_examples=40, deadline=None)
@given(traces(preemption_min_runtime=5.0, preemption_budget=2))
def test_nobody_is_stopped_more_often_than_its_budget(trace: Trace) -> None:
    trace.run()
    assert all(job.preemptions <= 2 for job in trace.jobs)
    assert all(count <= 2 for count in Counter(victim for _, victim in trace.pairs).values())


@pytest.mark.parametrize("mode", ["priority", "fair-share"])
def test_a_stream_of_strong_ones_starves_nobody_for_ever(mode: str) -> None:
    """The budget is what ends it: then the weak one stays."""
    stream = [Job(f"s{n:02}", n, a_spec(4), 10, "ann", NOW + 8.0 * n, 4.0, keeps=False) for n in range(1, 60)]
    weak = Job("weak", 0, a_spec(4), 0, "bob", NOW, 30.0, keeps=False)
    trace = Trace([weak, *stream], 1, {"preemption": mode, "preemption_min_runtime": 0.0, "preemption_budget": 3})
    while not weak.ended:
        assert trace.now < NOW + 400.0
        trace.step()
    assert weak.preemptions == (3 if mode == "priority" else 0)
