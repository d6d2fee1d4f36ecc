"""A replay: known traces give known answers, nobody holds more than there is, the same again gives the same."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.model.node import ResourceGroup
from corral.model.resources import GpuRequest, Resources
from corral.scheduling.claiming.claims import LeastAttained, Served, ShortestRemaining
from corral.scheduling.cycle import cycle
from corral.scheduling.snapshot import Snapshot, Waiting
from corral.sim.fleets import Machines, machines_of
from corral.sim.jobs import Job, gpu_shape, shape_of
from corral.sim.nodeevents import NodeEvent
from corral.sim.policies import HOW, ORDERS, PREEMPTIVE, policy_of
from corral.sim.replay import Replay
from corral.sim.report import report, slowdown
from corral.sim.room import FleetRoom
from corral.sim.state import Run

POLICIES = [*PREEMPTIVE, *(f"{order}+{how}" for order in ORDERS for how in HOW)]
TWO_NODES = machines_of("2x4xV100:32GB")


def job(name: str, at_s: float, run_s: float, gpus: int, limit_s: float | None = None, owner: str = "-") -> Job:
    return Job(name, at_s, run_s, gpu_shape(gpus, 4), limit_s or run_s, owner)


def replayed(policy: str, *jobs: Job, machines: Machines = TWO_NODES, **settings: object) -> dict[str, Run]:
    done = Replay(machines, policy_of(policy), **settings).run(jobs)  # pyright: ignore[reportArgumentType]
    return {run.job.id: run for run in [*done.ended, *done.waiting]}


# a takes one node, b all, c one node: b waits for a, c fits beside a at once.
LINE = (job("a", 0, 100, 4), job("b", 1, 100, 8), job("c", 2, 97, 4), job("d", 3, 500, 4))


@pytest.mark.parametrize(
    ("policy", "starts"),
    [
        ("fifo+strict", {"a": 0, "b": 100, "c": 200, "d": 200}),  # nobody overtakes b
        ("fifo", {"a": 0, "c": 2, "d": 99, "b": 599}),  # whoever fits: b waits for both
        ("easy", {"a": 0, "c": 2, "b": 100, "d": 200}),  # c is done before b can start, d is not
        ("conservative", {"a": 0, "c": 2, "b": 100, "d": 200}),
        ("shortest-first", {"a": 0, "c": 2, "d": 99, "b": 599}),
        ("lifo+strict", {"a": 0, "b": 599, "c": 2, "d": 99}),
    ],
)
def test_who_may_overtake(policy: str, starts: dict[str, float]) -> None:
    runs = replayed(policy, *LINE)
    assert {name: run.first_began_s for name, run in runs.items()} == starts


def test_conservative_delays_nobody_easy_only_spares_the_head() -> None:
    sizes = {"a": (0, 100, 6), "head": (1, 50, 8), "second": (2, 100, 4), "late": (3, 97, 2)}
    jobs = [Job(name, at, run, gpu_shape(gpus, 8), run) for name, (at, run, gpus) in sizes.items()]
    machines = machines_of("1x8xV100:32GB")
    easy, both = (replayed(policy, *jobs, machines=machines) for policy in ("easy", "conservative"))
    assert easy["late"].first_began_s == both["late"].first_began_s == 3
    assert both["second"].planned_s == both["second"].first_began_s == 150
    assert easy["second"].planned_s == 150  # once it is the head itself
    assert easy["head"].planned_s == both["head"].planned_s == 100


def test_an_early_end_brings_planned_starts_forward() -> None:
    jobs = (job("a", 0, 40, 8, limit_s=100), job("b", 1, 10, 8, limit_s=100), job("c", 2, 10, 8))
    runs = replayed("conservative", *jobs)
    assert (runs["b"].planned_s, runs["b"].first_began_s, runs["b"].ended_s) == (100, 40, 50)
    assert (runs["c"].planned_s, runs["c"].first_began_s) == (200, 50)


def test_of_those_who_may_overtake_the_shortest_goes_first_if_so_asked() -> None:
    jobs = (job("a", 0, 100, 3), job("b", 0, 3, 1), job("head", 1, 50, 4), job("long", 2, 40, 1))
    jobs = (*jobs, job("short", 2, 20, 1))
    machines = machines_of("1x4xV100:32GB")
    starts = {how: replayed(f"fifo+{how}", *jobs, machines=machines) for how in ("easy", "easy-shortest")}
    easy, shortest = ({name: run.first_began_s for name, run in runs.items()} for runs in starts.values())
    assert easy == {"a": 0, "b": 0, "head": 100, "long": 3, "short": 43}
    assert shortest == {"a": 0, "b": 0, "head": 100, "long": 23, "short": 3}


@pytest.mark.parametrize("policy", ["fifo", "easy", "srtf"])
def test_in_rounds_nobody_starts_in_between(policy: str) -> None:
    jobs = (job("a", 1, 25, 8), job("b", 2, 5, 8), job("c", 91, 5, 8))
    runs = replayed(policy, *jobs, round_s=10.0)
    first = ("b", "a") if policy == "srtf" else ("a", "b")
    began = {name: run.first_began_s for name, run in runs.items()}
    assert began == {first[0]: 10, first[1]: 20 if policy == "srtf" else 40, "c": 100}


def test_a_run_ends_at_its_node_events() -> None:
    events = (NodeEvent(10, "node-00000", "fail"), NodeEvent(50, "node-00000", "join"))
    runs = replayed("fifo", job("a", 0, 30, 4), job("b", 0, 100, 4), node_events=events)
    assert (runs["a"].failed, runs["a"].ended_s, runs["a"].lost_s) == (1, 80, 10)  # from the beginning, at 50
    assert (runs["b"].failed, runs["b"].ended_s) == (0, 100)
    saved = replayed("fifo", job("a", 0, 30, 4), job("b", 0, 100, 4), node_events=events, checkpoint_s=4)
    assert (saved["a"].ended_s, saved["a"].lost_s) == (72, 2)


def test_a_node_that_leaves_ends_nothing_and_one_that_joins_was_not_there() -> None:
    events = (NodeEvent(10, "node-00000", "leave"), NodeEvent(20, "node-00001", "join"))
    runs = replayed("fifo", job("a", 0, 100, 4), job("b", 0, 10, 4), job("c", 11, 10, 4), node_events=events)
    assert [runs[name].first_began_s for name in "abc"] == [0, 20, 30]
    assert runs["a"].ended_s == 100


@pytest.mark.parametrize("policy", ["fifo", "easy", "srtf"])
def test_a_node_that_left_counts_until_it_is_empty_and_leaves_the_rest_alone(policy: str) -> None:
    jobs = (job("a", 0, 100, 4), job("b", 20, 100, 4), job("c", 21, 120, 4))
    done = Replay(TWO_NODES, policy_of(policy), node_events=(NodeEvent(10, "node-00000", "leave"),)).run(jobs)
    assert {run.job.id: run.first_began_s for run in done.ended} == {"a": 0, "b": 20, "c": 120}
    assert report(done).utilisation == pytest.approx((100 + 100 + 120) / (100 * 2 + 140))
    assert max(used for _, used, _ in done.watch.series) <= 1.0


def test_a_preempted_job_pays_for_its_restart_and_loses_no_work() -> None:
    policy = replace(policy_of("srtf"), restart_s=7.0)
    done = Replay(TWO_NODES, policy).run((job("long", 0, 100, 8), job("short", 10, 5, 8)))
    runs = {run.job.id: run for run in done.ended}
    assert (runs["short"].first_began_s, runs["short"].ended_s) == (10, 15)
    assert (runs["long"].preempted, runs["long"].ended_s, runs["long"].lost_s) == (1, 15 + 90 + 7, 7)


def test_minimum_run_time_and_budget_hold_a_session_where_it_is() -> None:
    shorts = [job(f"s{number}", 10 + 50 * number, 5, 8) for number in range(4)]
    policy = replace(policy_of("srtf"), least_run_s=30.0, budget=2)
    done = Replay(TWO_NODES, policy).run((job("long", 0, 400, 8), *shorts))
    runs = {run.job.id: run for run in done.ended}
    assert runs["s0"].first_began_s == 30
    assert runs["long"].preempted == 2
    assert runs["s2"].first_began_s == runs["long"].ended_s


def test_attained_service_puts_the_new_before_the_old() -> None:
    runs = replayed("tiresias-l", job("old", 0, 5000, 8), job("new", 2000, 100, 8))
    assert runs["new"].first_began_s == 2000  # 16,000 GPU-seconds of the one, none of the other
    assert runs["old"].ended_s == 5100


def test_among_equals_the_newest_goes_first_unless_somebody_is_overdue() -> None:
    """A day's work comes every day, one more than can be done: the surplus waits to the end, or for a week."""
    day = 86400.0
    jobs = [job("first", 0, day, 8), *(job(f"{n}", n * day, day, 8) for n in range(25))]
    waits: dict[str, float] = {}
    for policy in ("newest", "newest-patient"):
        patience_s = policy_of(policy).patience_s / 30 * 7
        done = Replay(TWO_NODES, replace(policy_of(policy), patience_s=patience_s)).run(jobs)
        waits[policy] = max((run.ended_s or 0.0) - run.job.submitted_s for run in done.ended)
    assert waits["newest"] > 24 * day
    assert waits["newest-patient"] < 12 * day


def test_the_span_ends_with_the_last_end_whatever_was_to_come() -> None:
    jobs = (job("a", 0, 1000, 8), job("b", 1, 1000, 8))
    events = (NodeEvent(50_000, "node-00000", "leave"),)
    for policy in ("fifo", "newest-patient"):
        told = report(Replay(TWO_NODES, policy_of(policy), node_events=events).run(jobs))
        assert told.all.ended == 2
        assert told.span_s == pytest.approx(2000, abs=200)
        assert told.utilisation == pytest.approx(1.0)


class Impatient:
    """Wants to look again at once, as long as there is somebody; or at a time that it gives up again."""

    def __init__(self, decider: object, late_s: float) -> None:
        self.line, self._decider, self._late_s = decider.line, decider, late_s  # pyright: ignore
        self.looks: list[float] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._decider, name)

    def decide(self, now_s: float) -> float | None:
        self.looks.append(now_s)
        self._decider.decide(now_s)  # pyright: ignore
        return now_s + self._late_s if len(self.looks) < 4 else None


@pytest.mark.parametrize(("late_s", "begin_s"), [(0.0, 1.7e12), (1e-9, 1.7e12), (1e6, 0.0)])
def test_time_never_stands_still_and_a_look_given_up_does_not_come(late_s: float, begin_s: float) -> None:
    replay = Replay(TWO_NODES, policy_of("fifo"))
    decider = Impatient(replay._decider, late_s)  # pyright: ignore
    replay._decider = decider  # pyright: ignore
    told = report(replay.run([job(name, begin_s + at, 10, 4) for at, name in enumerate("abcd")]))
    assert told.all.ended == 4
    assert len(set(decider.looks)) == len(decider.looks)
    assert max(decider.looks) <= begin_s + 100


@pytest.mark.parametrize("policy", PREEMPTIVE)
def test_times_may_be_large(policy: str) -> None:
    jobs = [job(str(n), 1.7e12 + 3000.1 * n, 5000.1 * (1 + n % 3), 1 + n % 8) for n in range(12)]
    assert all(run.ended_s is not None for run in replayed(policy, *jobs).values())


def test_a_claim_weakens_by_running_on_and_only_then() -> None:
    claim = LeastAttained((100.0, 1000.0), newest_first=True)
    old, new = Served(1, 4.0, 0.0, math.inf, False), Served(2, 4.0, 0.0, math.inf, False)
    assert claim.key(new) < claim.key(old) < claim.key(new._replace(attained_s=25.0))
    assert claim.key(old._replace(running=True)) < claim.key(new)
    assert claim.key(old._replace(overdue=True)) < claim.key(new)
    assert claim.weaker_after_s(old._replace(attained_s=20.0)) == 5.0
    assert claim.weaker_after_s(old._replace(attained_s=250.0)) == math.inf
    assert ShortestRemaining(by_service=True).key(old._replace(left_s=10.0))[0] == 40.0


def test_in_order_is_what_a_pass_of_the_control_plane_does() -> None:
    """At one moment, with everything submitted: the same sessions on the same nodes as `cycle` places."""
    shapes = [shape_of(Resources(1000 * (1 + n % 3), 512, GpuRequest(1 + n % 4) if n % 3 else None)) for n in range(40)]
    machines = machines_of("3x4xV100:32GB+16cpus+8GiB,2x8cpus+4GiB")
    jobs = [Job(f"{n:02d}", 0, 10, shape) for n, shape in enumerate(shapes)]
    waiting = [Waiting(one.id, n, 1, 0, 0, "o", "p", 0.0, one.shape) for n, one in enumerate(jobs)]
    plan = cycle(Snapshot(0.0, machines.nodes, machines.devices, waiting, {"default": ResourceGroup("default")}))
    expected = {placed.session.id: placed.ranks for placed in plan.placements}
    replay = Replay(machines, policy_of("fifo"))
    seen: dict[str, object] = {}
    start = replay.start

    def watched(run: Run, places: tuple[object, ...]) -> None:
        if replay.now_s == 0:
            seen[run.job.id] = places
        start(run, places)  # pyright: ignore[reportArgumentType]

    replay.start = watched  # pyright: ignore[reportAttributeAccessIssue]
    replay.run(jobs)
    assert seen == expected
    assert 0 < len(expected) < len(jobs)


TRACES = st.lists(
    st.tuples(st.integers(0, 300), st.integers(1, 200), st.integers(1, 8), st.integers(1, 3)), min_size=1, max_size=25
)


class Watched(Replay):
    """Holds every start and stop against the fleet."""

    def begin_watch(self, machines: Machines) -> None:
        self.free = {device.uuid: 1000 for devices in machines.devices.values() for device in devices}
        self.stretches = 0

    def start(self, run: Run, places: object) -> None:
        super().start(run, places)  # pyright: ignore[reportArgumentType]
        self.stretches += 1
        self._move(run, -1)

    def _off(self, run: Run) -> None:
        self._move(run, 1)
        super()._off(run)

    def _move(self, run: Run, sign: int) -> None:
        assert len({place.node for place in run.places}) == run.job.shape.nodes
        for place in run.places:
            for grant in place.grants:
                self.free[grant.uuid] += sign * grant.share_milli
        assert all(0 <= free <= 1000 for free in self.free.values()) or sign > 0


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=20, deadline=None)
@given(trace=TRACES)
def test_everybody_ends_nobody_is_over_committed_and_all_repeats(policy: str, trace: list[tuple[int, ...]]) -> None:
    jobs = [Job(str(n), at, run, gpu_shape(gpus, 4), run * factor) for n, (at, run, gpus, factor) in enumerate(trace)]
    outcomes: list[list[tuple[object, ...]]] = []
    for _ in range(2):
        replay = Watched(TWO_NODES, policy_of(policy))
        replay.begin_watch(TWO_NODES)
        done = replay.run(jobs)
        assert not done.waiting and len(done.ended) == len(jobs)
        assert all(free == 1000 for free in replay.free.values())
        assert replay.stretches == len(jobs) + sum(run.preempted for run in done.ended)
        for run in done.ended:
            assert run.ended_s is not None and run.first_began_s is not None
            assert run.first_began_s >= run.job.submitted_s
            assert math.isclose(run.attained_s, run.job.run_s + run.lost_s, abs_tol=1e-6)
            assert slowdown(run) >= 1
        outcomes.append([(run.ordinal, run.ended_s, run.preempted) for run in done.ended])
    assert outcomes[0] == outcomes[1]


FRACTIONS = st.lists(
    st.tuples(
        st.floats(0, 50), st.one_of(st.floats(0, 50), st.sampled_from([0.0, 0.1, 0.3, 1e-7])), st.integers(1, 8),
        st.sampled_from([1.0, 1.0, 1.0000001, 1.5]),
    ),
    min_size=2, max_size=25,
)  # fmt: skip


def test_one_that_moves_up_takes_no_planned_start_from_one_behind_it() -> None:
    """`a` ends early, so that `wide` could have both nodes from 6 on; but `small` was told 5, for 3 seconds."""
    rows = [("a", 0.0, 1.0, 2, 10.0), ("c", 0.0, 6.0, 2, 6.0), ("b", 0.0, 5.0, 4, 5.0), ("wide", 0.1, 1.0, 8, 1.0),
            ("small", 0.2, 3.0, 4, 3.0)]  # fmt: skip
    jobs = [Job(name, at, run, gpu_shape(gpus, 4), limit) for name, at, run, gpus, limit in rows]
    ended = {run.job.id: run for run in Replay(TWO_NODES, policy_of("conservative")).run(jobs).ended}
    assert [(ended[name].planned_s, ended[name].first_began_s) for name in ("wide", "small")] == [
        (10.0, 8.0),
        (5.0, 5.0),
    ]


@pytest.mark.parametrize("policy", ["easy", "conservative", "shortest-first+easy"])
@settings(max_examples=60, deadline=None)
@given(trace=FRACTIONS)
def test_fractional_times_over_commit_nobody_either(policy: str, trace: list[tuple[float, float, int, float]]) -> None:
    jobs = [Job(str(n), at, run, gpu_shape(gpus, 4), run * f) for n, (at, run, gpus, f) in enumerate(trace)]
    replay = Watched(TWO_NODES, policy_of(policy))
    replay.begin_watch(TWO_NODES)
    done = replay.run(jobs)
    assert not done.waiting and len(done.ended) == len(jobs)
    for run in done.ended:
        if policy != "shortest-first+easy" and run.planned_s is not None:
            assert run.first_began_s is not None and run.first_began_s <= run.planned_s


@settings(max_examples=40, deadline=None)
@given(trace=TRACES)
def test_with_exact_limits_nobody_starts_after_the_start_that_conservative_backfill_planned(
    trace: list[tuple[int, ...]],
) -> None:
    jobs = [Job(str(n), at, run, gpu_shape(gpus, 4), run) for n, (at, run, gpus, _) in enumerate(trace)]
    for run in Replay(TWO_NODES, policy_of("conservative")).run(jobs).ended:
        if run.planned_s is not None:
            assert run.first_began_s == pytest.approx(run.planned_s)


@settings(max_examples=40, deadline=None)
@given(trace=TRACES)
def test_easy_never_delays_its_head(trace: list[tuple[int, ...]]) -> None:
    """A planned start is a promise as long as limits hold, also when sessions end before theirs."""
    jobs = [Job(str(n), at, run, gpu_shape(gpus, 4), run * f) for n, (at, run, gpus, f) in enumerate(trace)]
    for run in Replay(TWO_NODES, policy_of("easy")).run(jobs).ended:
        if run.planned_s is not None:
            assert run.first_began_s is not None and run.first_began_s <= run.planned_s + 1e-6


def test_a_report_adds_up() -> None:
    done = Replay(TWO_NODES, policy_of("fifo+strict")).run(LINE)
    told = report(done)
    assert told.all.jobs == told.all.ended == 4
    assert told.all.wait_mean_s == pytest.approx((0 + 99 + 198 + 197) / 4)
    assert told.all.completion_mean_s == pytest.approx((100 + 199 + 295 + 697) / 4)
    assert told.all.completion_median_s == 199 and told.all.completion_p95_s == 697
    assert told.span_s == 700
    assert told.utilisation == pytest.approx((400 + 800 + 97 * 4 + 2000) / (700 * 8))
    assert set(told.by_size) == {"3-4", "5-8"}
    assert told.by_size["5-8"].wait_mean_s == 99
    assert sum(one.jobs for one in told.by_size.values()) == 4
    assert told.idle_while_waiting == pytest.approx(99 * 4 / (700 * 8))


def test_a_node_may_have_several_kinds_of_gpu() -> None:
    machines = machines_of("2x4xA100:80GB+4xL4:24GB+16cpus")
    assert [device.model for device in machines.devices["node-00001"]] == ["A100"] * 4 + ["L4"] * 4
    assert (machines.gpus, machines.nodes[0].cpu_milli) == (16, 16000)


def test_a_fleet_knows_what_it_has() -> None:
    room = FleetRoom(machines_of("2x4xV100:32GB+8cpus+64GiB"), "pack")
    assert room.capacity == (16000, 2 * 65536, 8000)
    room.set_in("node-00001", False)
    assert room.capacity == (8000, 65536, 4000)
    assert room.place(gpu_shape(8, 4)) is None
