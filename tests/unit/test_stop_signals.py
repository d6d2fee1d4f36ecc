"""Which stops come with the signal that a session asked for, and which with SIGTERM."""

import pytest

from corral.model.lifecycle import Phase, Wanted
from corral.model.session import Kernel, Session, StopFor
from corral.model.spec import EarlySignal, SessionSpec
from corral.ports import Order
from corral.reconcile.launches import order_for

NOW = 1000.0


def told(signal: EarlySignal | None = EarlySignal("USR1", 60), **changes) -> str | None:  # noqa: B008
    spec = SessionSpec(("x",), early_signal=signal)
    session = Session("s", 1, spec, "ann", NOW, phase=Phase.STOPPING, **changes)
    kernel = Kernel("1-s-1-0", "s", 1, 0, "n1", 1, "run", claimed_version=1, stop_asked=True)
    stop = order_for(Order(kernel, session, (), (kernel,)), {}, "http://here", NOW).stop
    assert stop is not None
    return stop.signal


@pytest.mark.parametrize(
    ("changes", "signal"),
    [
        ({"stop_for": StopFor.PREEMPTED, "preempted_for": "other"}, "USR1"),
        ({"stop_for": StopFor.PREEMPTED, "room_by": NOW + 60}, "USR1"),
        ({"stop_for": StopFor.PREEMPTED, "preempted_for": "other", "wanted": Wanted.STOP}, None),
        ({"stop_for": StopFor.REQUEUE}, None),
        ({"stop_for": StopFor.TIME_LIMIT}, None),
        ({"wanted": Wanted.STOP}, None),
        ({}, None),
    ],
    ids=["preempted", "moved", "cancelled-meanwhile", "requeued", "time-limit", "cancelled", "decided"],
)
def test_only_who_makes_way_is_told_by_the_signal_it_asked_for(changes, signal: str | None) -> None:
    assert told(**changes) == signal
    assert told(None, **changes) is None
