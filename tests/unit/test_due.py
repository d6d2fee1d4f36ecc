"""When to look again although nothing happens: whatever the snapshot names of time, by the database's clock."""

import math
from dataclasses import replace

import pytest

from corral.model.node import ResourceGroup
from corral.reconcile.agenda import SOONEST_S, Agenda
from corral.scheduling.ahead.due import next_due
from corral.scheduling.cycle import cycle
from corral.scheduling.kept.picture import QUIET_S, Changed, Mark, Picture
from corral.scheduling.snapshot import Pin, Snapshot
from tests.unit.test_heads import on, picture, reserved, running, waiting
from tests.unit.test_scheduling import NOW, a_node, a_spec

NODE = a_node("n1", cpus=4)


def due(snapshot: Snapshot) -> float:
    return next_due(snapshot, cycle(snapshot)) - NOW


def full(ends_at: float | None = None, **options) -> Snapshot:
    group = ResourceGroup("default", options={"backfill": "none", **options})
    return picture([waiting(0, a_spec(4))], [NODE], [running("r", ends_at, on(NODE, 4))], None, group)


def test_where_nothing_hangs_on_time_nothing_is_due() -> None:
    assert due(full()) == math.inf
    assert due(full(NOW + 100)) == math.inf, "an end is told when it comes"


@pytest.mark.parametrize(("starts", "ends", "at"), [(100, 200, 100), (-100, 200, 200), (-200, -100, math.inf)])
def test_a_reservation_begins_and_ends(starts: float, ends: float, at: float) -> None:
    assert due(replace(full(), reservations=[reserved("n1", starts=starts, ends=ends)])) == at


def test_a_planned_start_comes_and_patience_runs_out() -> None:
    assert due(full(NOW + 100, backfill="easy")) == 100
    assert due(full(backfill="easy", backfill_patience=600.0)) == 600
    long_ago = replace(full(backfill="easy", backfill_patience=600.0), waiting=[waiting(0, a_spec(4), submitted_at=0)])
    assert due(long_ago) == math.inf


def test_whoever_runs_may_be_stopped_from_then_on() -> None:
    assert due(full(preemption="priority", preemption_min_runtime=60.0)) == 51, "it has run for nine seconds"
    nobody = replace(full(preemption="priority"), waiting=[])
    assert next_due(nobody, cycle(nobody)) == math.inf


def test_a_node_has_backed_off_and_kept_room_is_let_go() -> None:
    away = replace(full(), nodes=[replace(NODE, backoff_until=NOW + 30)])
    assert due(away) == 30
    assert due(replace(away, pins=[Pin("x", on(NODE), NOW + 20)])) == 20
    assert due(replace(full(), waiting=[waiting(0, a_spec(4), room_by=NOW + 7)])) == 7


class Clock:
    def __init__(self, at: float) -> None:
        self.at = at

    def __call__(self) -> float:
        return self.at


def test_an_agenda_counts_from_the_time_of_the_database() -> None:
    clock = Clock(5.0)
    agenda = Agenda(clock)
    assert agenda.until_due() == math.inf
    agenda.saw(NOW, math.inf)
    assert agenda.comes_due(NOW + 10) == NOW + 10
    clock.at = 12.0
    assert agenda.until_due() == pytest.approx(3)
    clock.at = 99.0
    assert agenda.until_due() == SOONEST_S
    agenda.saw(NOW + 94, NOW + 96)
    assert agenda.until_due() == pytest.approx(2), "what came is not waited for again"
    assert agenda.comes_due(math.inf) == NOW + 96
    agenda.saw(NOW + 96, math.inf)
    assert agenda.until_due() == math.inf


def test_a_picture_is_quiet_until_something_is_due() -> None:
    kept = Picture()
    later = waiting(1, a_spec(1))
    kept.merge(Changed(Mark("d", 1, 1), True, [NODE], (), [(waiting(0, a_spec(9)), 0.0), (later, NOW + 50)]), NOW)
    assert kept.next_begin == NOW + 50
    kept.line({"default": ResourceGroup("default")})
    assert kept.fleet is not None
    for until, quiet_s in ((math.inf, QUIET_S), (NOW + 1, 1.0)):
        kept.settle(until)
        for after_s, settled in ((quiet_s - 0.1, True), (quiet_s, False)):
            kept.merge(Changed(Mark("d", 1, 1), False), NOW + after_s)
            kept.line({"default": ResourceGroup("default")})
            assert kept.is_settled is settled
        kept.merge(Changed(Mark("d", 1, 1), False), NOW)
