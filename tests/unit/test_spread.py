"""The spread-interval clock: evenly spaced turns, whatever local clocks say."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.ports import Member
from corral.reconcile.spread import BEAT_ALONE_S, BEAT_S, DEAD_AFTER_S, EARLY, INTERVAL_S, Spread, until_tick


@given(st.floats(0, 2e9), st.integers(1, 9), st.data())
def test_a_turn_comes_once_in_an_interval(now: float, live: int, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, live - 1))
    wait = until_tick(now, INTERVAL_S, place, live)
    assert INTERVAL_S * EARLY < wait <= INTERVAL_S * (1 + EARLY)
    for early in (0.0, 1e-6, -1e-6):
        assert until_tick(now + wait - early, INTERVAL_S, place, live) == pytest.approx(INTERVAL_S, abs=1e-4)


@pytest.mark.parametrize("live", [1, 2, 3, 8])
def test_many_managers_leave_shorter_gaps(live: int) -> None:
    now = 1_000_003.7
    ticks = sorted(now + until_tick(now, INTERVAL_S, place, live) for place in range(live))
    ticks.append(ticks[0] + INTERVAL_S)
    gaps = [after - before for before, after in pairwise(ticks)]
    assert gaps == pytest.approx([INTERVAL_S / live] * live)


def test_a_wrong_local_clock_moves_no_turn() -> None:
    """Local monotonic clocks begin anywhere; only the database's time says when."""
    members = [Member(name, "", 999.0) for name in ("a", "b")]
    turns: list[float] = []
    for begun in (0.0, 12_345.6, 9e6):
        mono = begun
        spread = Spread("b", lambda mono=mono: mono)
        spread.learn(1000.5, members)
        turns.append(1000.5 + spread.until_tick())
    assert turns == pytest.approx([turns[0]] * 3)
    assert turns[0] % INTERVAL_S == pytest.approx(INTERVAL_S / 2)


def test_who_is_silent_is_passed_over_within_an_interval_and_who_is_new_gets_a_turn() -> None:
    spread = Spread("b", lambda: 0.0)
    spread.learn(1000.0, [Member("a", "", 1000.0 - DEAD_AFTER_S - 0.1), Member("c", "", 990.0)])
    assert spread.until_tick() == until_tick(1000.0, INTERVAL_S, 0, 1)
    assert spread.until_beat() == BEAT_ALONE_S
    spread.learn(1000.0, [Member("a", "", 998.0), Member("c", "", 999.0)])
    assert spread.until_tick() == until_tick(1000.0, INTERVAL_S, 1, 3)
    assert spread.until_beat() == BEAT_S
    assert DEAD_AFTER_S + BEAT_S < INTERVAL_S
    assert BEAT_ALONE_S < DEAD_AFTER_S


def test_before_the_time_is_known_it_does_not_wait_for_long() -> None:
    assert Spread("a", lambda: 0.0).until_tick() <= 1.0
