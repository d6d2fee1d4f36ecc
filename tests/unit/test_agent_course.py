"""When a command is warned, told to stop and killed: arithmetic, no processes."""

from __future__ import annotations

from typing import Any

from corral.agent.jobspec import Spec, Stop
from corral.agent.shim import Course


def course(**changes: Any) -> Course:
    spec = Spec("t", "b", "r", 1, ("true",), {}, "/", "out", "err", **changes)
    made = Course(spec)
    made.begin(100.0)
    return made


def test_without_a_limit_or_a_stop_nothing_ever_falls_due() -> None:
    calm = course()
    assert calm.due(1e9) == []
    assert calm.next_s() is None


def test_a_time_limit_warns_then_stops_then_kills() -> None:
    timed = course(time_limit_s=60, warn_signal=10, warn_before_s=20, grace_s=5)
    assert timed.next_s() == 140
    assert timed.due(139.9) == []
    assert timed.due(140) == ["warn"]
    assert timed.next_s() == 160
    assert timed.due(160) == ["term"]
    assert timed.timed_out
    assert timed.next_s() == 165
    assert timed.due(164.9) == []
    assert timed.due(165) == ["kill"]
    assert timed.outcome().timed_out
    assert timed.outcome().killed


def test_a_warning_longer_than_the_limit_comes_at_once() -> None:
    assert course(time_limit_s=10, warn_signal=10, warn_before_s=60).due(100) == ["warn"]


def test_no_warning_follows_a_stop() -> None:
    stopped = course(time_limit_s=60, warn_signal=10, warn_before_s=20)
    stopped.stop(Stop("cancelled", grace_s=100), 110)
    assert stopped.due(145) == ["term"]


def test_a_stop_may_come_with_a_signal_of_its_own_unless_that_was_sent_before() -> None:
    stopped = course(time_limit_s=60, warn_signal=10, warn_before_s=20)
    stopped.stop(Stop("preempted", grace_s=30, signal=10), 110)
    assert (stopped.due(110), stopped.stop_signal) == (["term"], 10)
    assert stopped.due(139.9) == []
    assert stopped.due(140) == ["kill"]
    warned = course(time_limit_s=60, warn_signal=10, warn_before_s=20)
    assert warned.due(140) == ["warn"]
    warned.stop(Stop("preempted", grace_s=30, signal=10), 150)
    assert (warned.due(150), warned.stop_signal) == (["term"], None)
    cancelled = course()
    cancelled.stop(Stop("cancelled", grace_s=30), 110)
    cancelled.stop(Stop("preempted", grace_s=30, signal=10), 111)
    assert (cancelled.due(111), cancelled.stop_signal) == (["term"], None)


def test_a_later_stop_only_shortens() -> None:
    stopped = course()
    stopped.stop(Stop("cancelled", grace_s=30), 110)
    assert stopped.due(110) == ["term"]
    stopped.stop(Stop("cancelled", grace_s=300), 111)
    assert stopped.next_s() == 140
    stopped.stop(Stop("preempted", grace_s=1), 112)
    assert stopped.next_s() == 113
    assert stopped.due(112) == []
    assert stopped.due(113) == ["kill"]
    assert stopped.outcome().stopped == "cancelled"


def test_a_grace_of_nothing_kills_at_once() -> None:
    stopped = course()
    stopped.stop(Stop("cancelled", grace_s=0), 110)
    assert stopped.due(110) == ["term", "kill"]


def test_killing_is_repeated_with_growing_pauses() -> None:
    stopped = course()
    stopped.stop(Stop("cancelled", grace_s=0), 110)
    stopped.due(110)
    pauses: list[float] = []
    now = 110.0
    for _ in range(20):
        at = stopped.next_s()
        assert at is not None
        pauses.append(at - now)
        now = at
        assert stopped.due(now) == ["kill"]
    assert pauses == sorted(pauses)
    assert pauses[-1] == 1.0


def test_a_stop_after_the_limit_struck_leaves_the_limit_as_the_reason_and_may_hasten_the_end() -> None:
    timed = course(time_limit_s=60, grace_s=30)
    timed.due(160)
    timed.stop(Stop("cancelled", grace_s=2), 161)
    assert timed.next_s() == 163
    assert (timed.outcome().timed_out, timed.outcome().stopped) == (True, None)


def test_a_limit_can_be_moved_and_lifted_until_it_strikes() -> None:
    timed = course(time_limit_s=60, grace_s=30)
    timed.limit(90)
    assert timed.due(160) == []
    assert timed.next_s() == 190
    timed.limit(None)
    assert timed.next_s() is None
    timed.limit(70)
    assert timed.due(180) == ["term"]
    timed.limit(None)
    assert timed.next_s() == 210
