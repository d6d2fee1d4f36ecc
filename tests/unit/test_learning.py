"""A claim from what others took: whose neighbours ended soon goes first, and the same again says the same."""

from dataclasses import dataclass

from corral.scheduling.claiming.claims import Served
from corral.scheduling.claiming.learning import GRID_S, Learning
from corral.sim.fleets import machines_of
from corral.sim.jobs import Job, gpu_shape
from corral.sim.policies import policy_of
from corral.sim.replay import Replay


@dataclass
class Session:
    ordinal: int
    size: float
    run_s: float = 0.0
    is_over: bool = False

    def attained_at(self, now_s: float) -> float:
        return self.run_s


def served(one: Session, *, running: bool = False, overdue: bool = False) -> Served:
    return Served(one.ordinal, one.size, one.run_s, float("inf"), running, overdue)


def learned(*others: tuple[int, float, bool], size: float = 1.0) -> tuple[Learning, Session]:
    """A claim that has seen these others (ordinal, how long, over), and one in the middle that waits."""
    claim, middle = Learning(), Session(50, size)
    sessions = sorted([middle, *(Session(*other[:1], size, *other[1:]) for other in others)], key=lambda s: s.ordinal)
    for one in sessions:
        claim.came(one)
    for one in sessions:
        if one.is_over:
            claim.ended(one, 0.0)
    return claim, middle


def cost(claim: Learning, one: Session, **how: bool) -> float:
    return claim.key(served(one, **how))[0]


def test_whose_neighbours_ended_soon_goes_first() -> None:
    short, one = learned((49, 100.0, True), (51, 120.0, True))
    long, other = learned((49, 90_000.0, True), (51, 80_000.0, True))
    nothing, third = learned()
    assert cost(short, one) < cost(nothing, third) < cost(long, other)


def test_one_that_still_runs_says_that_it_takes_longer() -> None:
    without, one = learned((49, 100.0, True))
    with_it, other = learned((49, 100.0, True), (51, 50_000.0, False))
    assert cost(without, one) < cost(with_it, other)


def test_the_nearer_one_counts_more() -> None:
    near, one = learned((48, 90_000.0, True), (49, 100.0, True))
    far, other = learned((48, 100.0, True), (49, 90_000.0, True))
    assert cost(near, one) < cost(far, other)


def test_gpus_count_and_who_runs_stays_and_who_is_overdue_goes_first() -> None:
    small, one = learned((49, 1000.0, True))
    large, other = learned((49, 1000.0, True), size=8.0)
    assert cost(small, one) < cost(large, other)
    assert cost(small, one, running=True) < cost(small, one)
    assert small.key(served(one, overdue=True)) < small.key(served(one, running=True))


def test_it_is_told_whose_claims_may_have_changed() -> None:
    claim, middle = learned()
    others = [Session(60 + number, 1.0) for number in range(40)]
    elsewhere = Session(200, 4.0)
    for one in (*others, elsewhere):
        claim.came(one)
    middle.is_over = True
    near = claim.ended(middle, 0.0)
    assert [one.ordinal for one in near] == [one.ordinal for one in others[:16]]
    claim.came(others[3])  # waits again: it is known already
    assert len(claim.ended(middle, 0.0)) == 16


def test_times_beyond_the_grid_are_taken() -> None:
    claim, one = learned((49, GRID_S[-1] * 10, True))
    one.run_s = GRID_S[-1] * 20
    assert cost(claim, one) > 0


def test_what_is_submitted_beside_short_ones_overtakes_what_is_beside_long_ones() -> None:
    """Eight long and eight short in turn on one node: once the first of each have ended, the short ones go first."""
    machines = machines_of("1x1xV100:32GB")
    long = [Job(f"long{n}", n / 100, 50_000, gpu_shape(1, 1)) for n in range(8)]
    short = [Job(f"short{n}", 1 + n / 100, 60, gpu_shape(1, 1)) for n in range(8)]
    done = Replay(machines, policy_of("learning")).run([*long, *short])
    ended = {run.job.id: run.ended_s or 0.0 for run in done.ended}
    assert max(ended[job.id] for job in short) < sorted(ended[job.id] for job in long)[1]
    assert max(run.preempted for run in done.ended) <= 8
