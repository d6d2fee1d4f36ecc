"""Estimated starts: each says what it rests on, and nothing is made up where nothing is known."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.model.quota import NOTHING, Amounts, Claimant, Held, Quota, Quotas
from corral.model.resources import GpuRequest
from corral.scheduling.explaining.estimate import Ended, Lately, estimate, lately_of, shorter_time_s, unknown_why
from corral.scheduling.limits import amounts_of
from corral.scheduling.snapshot import Pin, Reservation, Running, Snapshot
from tests.unit.test_heads import HOUR, backfill, on, picture, running, waiting
from tests.unit.test_scheduling import NOW, a_node, a_spec, gpus

NOTHING_LATELY = Lately()


def test_what_was_lately_is_a_mean_of_parts_of_lengths_and_of_gaps() -> None:
    ended = [Ended(0.0, 50.0, 100), Ended(10.0, 110.0, 100), Ended(20.0, 320.0, 100), Ended(40.0, 46.0, None)]
    assert lately_of(ended) == Lately(part=(0.5 + 1 + 1) / 3, ran_s=6.0, gap_s=40 / 3)
    assert lately_of(ended[:1]) == Lately(part=0.5)
    assert lately_of([]) == NOTHING_LATELY


def test_where_there_is_room_it_starts_now() -> None:
    found = estimate(picture([], [a_node()]), waiting(0, a_spec(1)), NOTHING_LATELY)
    assert found is not None
    assert (found.at, found.basis, found.latest) == (NOW, "now", None)


def test_where_others_would_be_stopped_it_is_when_they_have_had_their_grace() -> None:
    node = a_node("n1", cpus=4)
    weak = running("r", NOW + HOUR, on(node, 4))._replace(preemptible=True, grace_s=20)
    asked = waiting(0, a_spec(4))._replace(priority=5)
    stops = backfill("easy", preemption="priority", preemption_min_runtime=0.0)
    snapshot = replace(picture([asked], [node], [weak]), groups={"default": stops})
    found = estimate(snapshot, asked, Lately(part=0.2))
    assert found is not None
    assert (found.at, found.basis) == (NOW + 20, "stops")
    weaker = asked._replace(priority=0)
    found = estimate(replace(snapshot, waiting=[weaker]), weaker, Lately(part=0.2))
    assert found is not None and found.basis == "lately"


def test_by_limits_alone_it_is_when_all_their_time_is_taken() -> None:
    node = a_node("n1", cpus=4)
    line = [waiting(0, a_spec(4, time_limit_s=HOUR - 30)), waiting(1, a_spec(4, time_limit_s=HOUR - 30))]
    snapshot = picture(line, [node], [running("r", NOW + HOUR, on(node, 4))])
    first, second = (estimate(snapshot, one, NOTHING_LATELY) for one in line)
    assert first is not None and second is not None
    assert (first.at, first.basis, first.latest) == (NOW + HOUR, "limits", NOW + HOUR)
    assert (second.at, second.basis, second.latest) == (NOW + 2 * HOUR, "limits", None)
    last = estimate(snapshot, waiting(7, a_spec(4), id="new"), NOTHING_LATELY)
    assert last is not None and last.at == NOW + 3 * HOUR, "one that is not there yet would be the last"


def test_as_it_was_lately_those_before_it_are_done_earlier() -> None:
    node = a_node("n1", cpus=4)
    line = [waiting(0, a_spec(4, time_limit_s=1000)), waiting(1, a_spec(4, time_limit_s=1000))]
    ran = running("r", NOW + 990, on(node, 4))._replace(started_at=NOW - 10)
    found = estimate(picture(line, [node], [ran]), line[1], Lately(part=0.2))
    assert found is not None
    assert (found.at, found.basis) == (NOW + 0.2 * 1000 - 10 + 0.2 * 1000, "lately")
    overdue = ran._replace(started_at=NOW - 500, ends_at=NOW + 500)
    first = estimate(picture(line, [node], [overdue]), line[0], Lately(part=0.2))
    assert first is not None
    assert (first.at, first.latest) == (NOW + 250, NOW + 500), "who took longer already may take all of it"


def test_sessions_without_a_limit_take_as_long_as_others_did() -> None:
    node = a_node("n1", cpus=4)
    ran = running("r", None, on(node, 4))._replace(started_at=NOW - 10)
    snapshot = picture([waiting(0, a_spec(4))], [node], [ran])
    found = estimate(snapshot, snapshot.waiting[0], Lately(ran_s=100.0))
    assert found is not None
    assert (found.at, found.basis, found.latest) == (NOW + 90, "lately", None)
    old = replace(snapshot, running=[ran._replace(started_at=NOW - 400)])
    again = estimate(old, old.waiting[0], Lately(ran_s=100.0))
    assert again is not None and again.at == NOW + 400
    assert estimate(snapshot, snapshot.waiting[0], NOTHING_LATELY) is None, "nobody knows"


@pytest.mark.parametrize("limit", [None, 2 * HOUR])
def test_short_as_others_were_nobody_starts_into_a_reservation(limit: int | None) -> None:
    keep = Reservation("m", ("n1",), NOW + HOUR, NOW + 2 * HOUR)
    asked = waiting(0, a_spec(1, time_limit_s=limit))
    found = estimate(picture([asked], [a_node("n1")], reservations=[keep]), asked, Lately(part=0.01, ran_s=10.0))
    assert found is not None
    assert (found.at, found.latest) == (NOW + 2 * HOUR, NOW + 2 * HOUR)
    second = waiting(1, a_spec(1, time_limit_s=limit), id="second")
    snapshot = picture([asked, second], [a_node("n1")], reservations=[keep])
    after = estimate(snapshot, second, Lately(part=0.01, ran_s=10.0))
    assert after is not None and after.at >= NOW + 2 * HOUR


def test_far_back_in_line_it_goes_by_the_pace() -> None:
    node = a_node("n1", cpus=1)
    line = [waiting(number, a_spec(1, time_limit_s=100)) for number in range(80)]
    snapshot = picture(line, [node], [running("r", NOW + 100, on(node, 1))])
    found = estimate(snapshot, line[70], Lately(part=1.0, gap_s=90.0), position=71)
    assert found is not None
    assert (found.at, found.basis) == (NOW + 71 * 90, "pace")
    assert estimate(snapshot, line[70], Lately(part=1.0)) is None
    near = estimate(snapshot, line[20], Lately(part=1.0, gap_s=90.0), position=21)
    assert near is not None and near.basis == "lately"


@pytest.mark.parametrize(("limit", "shorter"), [(None, 3540), (7200, 3540), (3570, None)])
def test_the_longest_time_that_fits_before_a_reservation_or_a_planned_start(
    limit: int | None, shorter: int | None
) -> None:
    keep = Reservation("m", ("n1",), NOW + HOUR, NOW + 2 * HOUR)
    asked = waiting(1, a_spec(1, time_limit_s=limit))
    assert shorter_time_s(picture([asked], [a_node("n1")], reservations=[keep]), asked) == shorter
    node = a_node("n1", cpus=4)
    line = [waiting(0, a_spec(4)), asked]
    held = picture(line, [node], [running("r", NOW + HOUR, on(node, 3))])
    assert shorter_time_s(held, asked) == shorter
    assert shorter_time_s(picture(line, [node], held.running, None, backfill("none")), asked) is None


# --- under quotas


def under(snapshot: Snapshot, *quotas: Quota, **changes) -> Snapshot:
    """What runs is held under the quotas."""
    capacity = {one.uuid: one.capacity_mib for ones in snapshot.devices.values() for one in ones}
    held = [Held(Claimant(one.owner, one.project, one.group), amounts_of(one.ranks, capacity))
            for one in snapshot.running]  # fmt: skip
    return replace(snapshot, quotas=Quotas(quotas, held=tuple(held)), **changes)


def of_ann(id_: str, ends_at: float | None, *ranks, **changes) -> Running:
    return running(id_, ends_at, *ranks)._replace(owner="ann", **changes)


ONE_AT_ONCE = Quota("q", owner="ann", limits={"sessions": 1})


def test_who_is_held_by_a_quota_starts_when_one_under_it_has_ended() -> None:
    node = a_node("n1", cpus=64)
    line = [waiting(number, a_spec(1, time_limit_s=HOUR - 30)) for number in range(3)]
    ran = [of_ann("r", NOW + HOUR, on(node, 1)), running("other", NOW + 60, on(node, 1))]
    snapshot = under(picture(line, [node], ran), ONE_AT_ONCE)
    found = [estimate(snapshot, one, NOTHING_LATELY) for one in line]
    assert [one and (one.at, one.basis, one.latest) for one in found] == [
        (NOW + (1 + number) * HOUR, "limits", None) for number in range(3)
    ]
    assert found[0] is not None and found[0].message == "if everybody takes all of its time limit; quota q counted"
    lately = estimate(snapshot, line[1], Lately(part=0.5))
    assert lately is not None
    assert (lately.at, lately.basis) == (pytest.approx(NOW + 0.5 * HOUR + 0.5 * HOUR, abs=60), "lately")


def test_who_waits_for_room_and_would_be_too_many_then_waits_for_both() -> None:
    """Both wait for the one node; the first takes the only place that the quota has."""
    node = a_node("n1", cpus=4)
    line = [waiting(0, a_spec(2, time_limit_s=3 * HOUR - 30)), waiting(1, a_spec(2, time_limit_s=60))]
    snapshot = picture(line, [node], [running("r", NOW + HOUR, on(node, 4))])
    free = estimate(snapshot, line[1], NOTHING_LATELY)
    assert free is not None and free.at == NOW + HOUR
    held = estimate(under(snapshot, ONE_AT_ONCE), line[1], NOTHING_LATELY)
    assert held is not None and held.at == NOW + 4 * HOUR
    room = under(picture(line[1:], [node], [running("r", NOW + 3 * HOUR, on(node, 3)),
                                            of_ann("mine", NOW + HOUR, on(node, 1))]), ONE_AT_ONCE)  # fmt: skip
    both = estimate(room, line[1], NOTHING_LATELY)
    assert both is not None and both.at == NOW + 3 * HOUR, "the quota lets it in before there is room"


def test_where_no_end_under_the_quota_is_known_nothing_is_made_up() -> None:
    node = a_node("n1", cpus=64)
    asked = waiting(0, a_spec(1, time_limit_s=60))
    ran = [of_ann("r", None, on(node, 1)), running("other", NOW + 60, on(node, 1))]
    snapshot = under(picture([asked], [node], ran), ONE_AT_ONCE)
    assert estimate(snapshot, asked, NOTHING_LATELY, position=1) is None
    assert estimate(snapshot, asked, Lately(part=0.5, gap_s=10.0), position=1) is None, "the pace says nothing of it"
    assert "quota q would let it in" in unknown_why(snapshot, asked)
    known = estimate(snapshot, asked, Lately(ran_s=100.0))
    assert known is not None and known.at == pytest.approx(NOW + 91, abs=5)
    shut = under(snapshot, replace(ONE_AT_ONCE, limits={"sessions": 0}))
    assert estimate(shut, asked, Lately(part=1.0, ran_s=1.0)) is None
    too_long = under(snapshot, Quota("q", owner="ann", limits={"time_limit_s": 30, "sessions": 1}))
    assert estimate(too_long, asked, Lately(part=0.01, ran_s=1.0)) is None, "short as others were it may not be so long"


def test_a_quota_that_has_enough_for_all_that_wait_counts_for_nothing() -> None:
    node = a_node("n1", cpus=1)
    line = [waiting(number, a_spec(1, time_limit_s=100)) for number in range(80)]
    snapshot = picture(line, [node], [running("r", NOW + 100, on(node, 1))])
    wide = under(snapshot, Quota("q", owner="ann", limits={"sessions": 80}))
    assert estimate(wide, line[70], Lately(part=1.0, gap_s=90.0), 71) == (
        estimate(snapshot, line[70], Lately(part=1.0, gap_s=90.0), 71)
    )
    narrow = under(snapshot, Quota("q", owner="ann", limits={"sessions": 79}))
    found = estimate(narrow, line[70], Lately(part=1.0, gap_s=90.0), 71)
    assert found is not None and found.basis == "lately", "not the pace"
    assert found.at == pytest.approx(NOW + 7100, rel=0.05)


def test_what_is_kept_for_a_session_is_its_own_until_it_is_over() -> None:
    node = a_node("n1", cpus=4)
    pin = Pin("s0", on(node, 2), NOW + HOUR)
    line = [waiting(1, a_spec(4, time_limit_s=60)), waiting(0, a_spec(4, time_limit_s=60, on_labels={"a": "b"}))]
    snapshot = picture(line, [replace(node, cpu_used_milli=0)], [])
    own = {"s0": Held(Claimant("ann", "default", "default"), Amounts(2000, 64, 0, 0, 1))}
    quotas = Quotas((Quota("q", owner="*", limits={"cpu_milli": 5000}),), pinned=own)
    used = replace(node, cpu_used_milli=2000, memory_used_mib=64)
    kept = replace(snapshot, pins=[pin], nodes=[used], quotas=quotas)
    found = estimate(kept, line[0], NOTHING_LATELY)
    assert found is not None and found.at == NOW + HOUR


RUNNING = st.lists(
    st.tuples(st.sampled_from(["ann", "bob"]), st.integers(1, 3), st.sampled_from([None, 600, 1200, 5000, 90_000])),
    max_size=5,
)
LIMITS = st.dictionaries(st.sampled_from(["cpu_milli", "gpu_milli", "sessions"]), st.integers(0, 6), min_size=1)
MUCH = {"cpu_milli": 1000, "gpu_milli": 1000, "sessions": 1}


@settings(max_examples=150, deadline=None)
@given(RUNNING, LIMITS, st.lists(st.tuples(st.sampled_from(["ann", "bob"]), st.integers(1, 4)), max_size=4),
       st.integers(1, 4), st.booleans())  # fmt: skip
def test_no_estimate_is_before_the_quota_could_let_it_in(
    ran: list[tuple[str, int, int | None]],
    limits: dict[str, int],
    line: list[tuple[str, int]],
    count: int,
    lately: bool,
) -> None:
    node, devices = a_node("n1", cpus=32), {"n1": gpus("n1", 16)}
    taken = iter(devices["n1"])
    runs = [
        running(f"r{n}", None if end is None else NOW + end, *[on(node, 1, next(taken)) for _ in range(gpu)])._replace(
            owner=owner
        )
        for n, (owner, gpu, end) in enumerate(ran)
    ]
    specs = [*line, ("ann", count)]
    before = [waiting(n, a_spec(gpu, 64, GpuRequest(gpu), time_limit_s=600), owner=owner)
              for n, (owner, gpu) in enumerate(specs)]  # fmt: skip
    quota = Quota("q", owner="ann", limits={name: value * MUCH[name] for name, value in limits.items()})
    snapshot = under(picture(before, [node], runs, devices), quota)
    asked = before[-1]
    found = estimate(snapshot, asked, Lately(part=1.0, gap_s=1.0) if lately else NOTHING_LATELY, len(before))
    if found is None:
        return
    held = NOTHING
    for one in runs:
        if one.owner == "ann" and (one.ends_at is None or one.ends_at > found.at):
            held = held.plus(amounts_of(one.ranks, {device.uuid: device.capacity_mib for device in devices["n1"]}))
    held = held.plus(Amounts(1000 * count, 0, 1000 * count, 0, 1))
    assert all(getattr(held, name) <= limit for name, limit in quota.limits.items())


@pytest.mark.parametrize(("limit", "shorter"), [(None, 1800), (HOUR, 1800), (1800, None), (60, None)])
def test_the_time_that_a_quota_allows_is_named(limit: int | None, shorter: int | None) -> None:
    asked = waiting(1, a_spec(1, time_limit_s=limit))
    quota = Quota("q", owner="ann", limits={"time_limit_s": 1800})
    assert shorter_time_s(under(picture([asked], [a_node("n1")]), quota), asked) == shorter
    keep = Reservation("m", ("n1",), NOW + 1200, NOW + 2 * HOUR)
    both = under(picture([asked], [a_node("n1")], reservations=[keep]), quota)
    assert shorter_time_s(both, asked) == (None if limit == 60 else 1140)
