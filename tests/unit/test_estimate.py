"""Estimated starts: each says what it rests on, and nothing is made up where nothing is known."""

from dataclasses import replace

import pytest

from corral.scheduling.explaining.estimate import Ended, Lately, estimate, lately_of, shorter_time_s
from corral.scheduling.snapshot import Reservation
from tests.unit.test_heads import HOUR, backfill, on, picture, running, waiting
from tests.unit.test_scheduling import NOW, a_node, a_spec

NOTHING = Lately()


def test_what_was_lately_is_a_mean_of_parts_of_lengths_and_of_gaps() -> None:
    ended = [Ended(0.0, 50.0, 100), Ended(10.0, 110.0, 100), Ended(20.0, 320.0, 100), Ended(40.0, 46.0, None)]
    assert lately_of(ended) == Lately(part=(0.5 + 1 + 1) / 3, ran_s=6.0, gap_s=40 / 3)
    assert lately_of(ended[:1]) == Lately(part=0.5)
    assert lately_of([]) == NOTHING


def test_where_there_is_room_it_starts_now() -> None:
    found = estimate(picture([], [a_node()]), waiting(0, a_spec(1)), NOTHING)
    assert found is not None
    assert (found.at, found.basis, found.latest) == (NOW, "now", None)


def test_by_limits_alone_it_is_when_all_their_time_is_taken() -> None:
    node = a_node("n1", cpus=4)
    line = [waiting(0, a_spec(4, time_limit_s=HOUR - 30)), waiting(1, a_spec(4, time_limit_s=HOUR - 30))]
    snapshot = picture(line, [node], [running("r", NOW + HOUR, on(node, 4))])
    first, second = (estimate(snapshot, one, NOTHING) for one in line)
    assert first is not None and second is not None
    assert (first.at, first.basis, first.latest) == (NOW + HOUR, "limits", NOW + HOUR)
    assert (second.at, second.basis, second.latest) == (NOW + 2 * HOUR, "limits", None)
    last = estimate(snapshot, waiting(7, a_spec(4), id="new"), NOTHING)
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
    assert estimate(snapshot, snapshot.waiting[0], NOTHING) is None, "nobody knows"


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
