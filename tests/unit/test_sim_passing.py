"""Policies as resource groups have them, in a replay: what passes decide comes out, and nobody is forgotten."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.model.faults import Invalid
from corral.model.quota import NO_QUOTAS
from corral.scheduling.claiming.contention import Places
from corral.sim.fleets import Machines, machines_of
from corral.sim.grouped import quotas_of
from corral.sim.jobs import Job, gpu_shape
from corral.sim.nodeevents import NodeEvent
from corral.sim.policies import policy_of
from corral.sim.replay import Replay
from corral.sim.state import Run

TWO_NODES = machines_of("2x4xV100:32GB")
POLICIES = (
    "group:fifo",
    "group:fifo+backfill=none+placement=spread",
    "group:priority+preemption=priority+preemption_min_runtime=5+preemption_budget=2",
    "group:fair-share+backfill=conservative+half_life=60s",
    "group:drf+backfill=none+preemption=fair-share+preemption_min_runtime=5",
    "group:shortest-first+placement=round-robin",
)


def job(name: str, at_s: float, run_s: float, gpus: int, owner: str = "ann", priority: int = 0) -> Job:
    return Job(name, at_s, run_s, gpu_shape(gpus, 4), run_s, owner, priority=priority)


def replayed(policy: str, *jobs: Job, quotas: str | None = None, **settings: object) -> dict[str, Run]:
    chosen = policy_of(policy, quotas=NO_QUOTAS if quotas is None else quotas_of(quotas, "quotas.json"))
    done = Replay(TWO_NODES, chosen, **settings).run(jobs)  # pyright: ignore[reportArgumentType]
    return {run.job.id: run for run in [*done.ended, *done.waiting]}


def starts(runs: dict[str, Run]) -> dict[str, float | None]:
    return {name: run.first_began_s for name, run in runs.items()}


def test_backfill_is_what_it_is_elsewhere() -> None:
    line = (job("a", 0, 100, 4), job("b", 1, 100, 8), job("c", 2, 97, 4), job("d", 3, 500, 4))
    assert starts(replayed("group:fifo", *line)) == {"a": 0, "c": 2, "b": 100, "d": 200}
    assert starts(replayed("group:fifo+backfill=none", *line)) == {"a": 0, "c": 2, "d": 99, "b": 599}
    assert replayed("group:fifo", *line)["b"].planned_s == 100


def test_fair_share_lets_those_go_first_who_used_less() -> None:
    jobs = (job("a1", 0, 100, 8), job("a2", 1, 100, 8), job("b1", 2, 100, 8, owner="bob"))
    assert starts(replayed("group:fifo", *jobs)) == {"a1": 0, "a2": 100, "b1": 200}
    assert starts(replayed("group:fair-share", *jobs)) == {"a1": 0, "b1": 100, "a2": 200}


def test_ageing_lifts_who_waits() -> None:
    jobs = (job("a", 0, 4 * 3600, 8), job("low", 1, 60, 8), job("high", 3 * 3600, 60, 8, priority=2))
    assert starts(replayed("group:priority+ageing=0", *jobs))["low"] == 4 * 3600 + 60
    assert starts(replayed("group:priority+ageing=1", *jobs))["low"] == 4 * 3600


def test_who_is_stopped_for_a_higher_priority_goes_on_later_and_pays() -> None:
    jobs = (job("low", 0, 100, 8), job("high", 10, 50, 4, priority=5))
    policy = "group:priority+preemption=priority+preemption_min_runtime=30+restart=7"
    runs = replayed(policy, *jobs)
    assert runs["high"].first_began_s == 30  # not before it had its least run time
    assert (runs["low"].preempted, runs["low"].ended_s) == (1, 80 + 70 + 7)


def test_quotas_hold_back() -> None:
    listed = [{"name": "each", "owner": "*", "project": None, "domain": None, "group": None, "version": 1, "used": [],
               "of": "each owner", "limits": {"gpus": 4.0, "cpus": None, "sessions": None}}]  # fmt: skip
    jobs = (job("a1", 0, 100, 4), job("a2", 0, 100, 4), job("b1", 1, 100, 4, owner="bob"))
    runs = replayed("group:fifo", *jobs, quotas=json.dumps(listed))
    assert starts(runs) == {"a1": 0, "b1": 1, "a2": 100}
    with pytest.raises(Invalid, match="not quotas"):
        quotas_of('[{"name": "x"}]', "quotas.json")


def test_a_node_that_fails_is_seen_by_the_passes() -> None:
    events = (NodeEvent(10, "node-00000", "fail"), NodeEvent(50, "node-00000", "join"))
    runs = replayed("group:fifo", job("a", 0, 30, 4), job("b", 0, 100, 4), node_events=events)
    assert sorted((run.failed, run.ended_s) for run in runs.values()) == [(0, 100), (1, 80)]


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("group:nope", "unknown_policy"),
        ("group:fifo+nope=1", "unknown_option"),
        ("group:fifo+backfill", "bad_policy"),
        ("group:fifo+backfill=maybe", "bad_option"),
        ("group:fifo+placement=nope", "unknown_policy"),
        ("group:fifo+restart=soon", "bad_duration"),
    ],
)
def test_what_makes_no_sense_is_told(name: str, code: str) -> None:
    with pytest.raises(Invalid) as told:
        policy_of(name)
    assert told.value.code == code


class Watched(Replay):
    """Holds every start and stop against the fleet, and whether a gang starts whole."""

    def begin_watch(self, machines: Machines) -> None:
        self.free = {device.uuid: 1000 for devices in machines.devices.values() for device in devices}

    def start(self, run: Run, places: Places) -> None:
        super().start(run, places)
        assert len({place.node for place in run.places}) == run.job.shape.nodes
        self._move(run, -1)

    def _off(self, run: Run) -> None:
        self._move(run, 1)
        super()._off(run)

    def _move(self, run: Run, sign: int) -> None:
        for place in run.places:
            for grant in place.grants:
                self.free[grant.uuid] += sign * grant.share_milli
        assert all(0 <= free <= 1000 for free in self.free.values()) or sign > 0


TRACES = st.lists(
    st.tuples(st.integers(0, 300), st.integers(1, 200), st.integers(1, 8), st.integers(1, 3), st.integers(0, 3)),
    min_size=1, max_size=20,
)  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=15, deadline=None)
@given(trace=TRACES)
def test_gangs_start_whole_everybody_ends_and_nobody_is_stopped_for_ever(
    policy: str, trace: list[tuple[int, ...]]
) -> None:
    """No gang waits for a gang that waits for it, stops come to an end, and the same again gives the same."""
    jobs = [
        Job(str(n), at, run, gpu_shape(gpus, 4), run * factor, owner=f"owner{rank}", priority=rank)
        for n, (at, run, gpus, factor, rank) in enumerate(trace)
    ]
    outcomes: list[list[tuple[object, ...]]] = []
    for _ in range(2):
        replay = Watched(TWO_NODES, policy_of(policy))
        replay.begin_watch(TWO_NODES)
        done = replay.run(jobs)
        assert not done.waiting and len(done.ended) == len(jobs)
        assert all(free == 1000 for free in replay.free.values())
        assert max(run.preempted for run in done.ended) <= (2 if "budget=2" in policy else 3)
        for run in done.ended:
            assert math.isclose(run.attained_s, run.job.run_s + run.lost_s, abs_tol=1e-6)
        outcomes.append([(run.ordinal, run.ended_s, run.preempted) for run in done.ended])
    assert outcomes[0] == outcomes[1]


@settings(max_examples=15, deadline=None)
@given(lengths=st.lists(st.integers(20, 100), min_size=30, max_size=40), known=st.booleans())
def test_a_gang_that_needs_everything_is_not_starved_by_a_stream_of_small_ones(lengths: list[int], known: bool) -> None:
    """With known ends it starts when those that run have ended; without, once its patience is over and they have."""
    small = [job(f"s{n}", 10 * n, run_s, 1, owner="bob") for n, run_s in enumerate(lengths * 4)]
    gang = job("gang", 35, 50, 8)
    jobs = [gang, *small] if known else [replace(one, limit_s=None) for one in (gang, *small)]
    runs = replayed("group:fifo+backfill_patience=60s", *jobs)
    began_s = runs["gang"].first_began_s
    assert began_s is not None and began_s <= 35 + (0 if known else 60) + 100
