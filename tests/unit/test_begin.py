"""When a session may begin: moments with their offsets, and times after the submit."""

import time
from datetime import UTC, datetime, timedelta, timezone

import pytest

from corral.cli.request import begin_of
from corral.model.begin import begin_at
from corral.model.faults import Invalid

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("text", "after_s"),
    [
        ("now", 0), ("+90", 90), ("+2h", 7200), ("now+1d12h", 129_600), ("+1-00:00:00", 86_400),
        ("2026-11-29T13:00Z", 3600), ("2026-11-29T13:00+01:00", 0), ("2026-11-29T11:00:30+00:00", -3570),
    ],
)  # fmt: skip
def test_what_is_a_time(text: str, after_s: float) -> None:
    assert begin_at(text, NOW) - NOW == after_s


@pytest.mark.parametrize(
    "text", ["", "soon", "+", "+x", "now-1h", "18:00", "2026-11-29", "2026-11-29T13:00", "+11000d", "2100-01-01T00:00Z"]
)
def test_what_is_none(text: str) -> None:
    with pytest.raises(Invalid) as found:
        begin_at(text, NOW)
    assert (found.value.code, found.value.subject) == ("bad_begin", "--begin")


def test_the_callers_clock_gives_the_offset() -> None:
    here = datetime.now().astimezone()
    soon, past = here + timedelta(minutes=5), here - timedelta(minutes=5)
    for asked in (soon, past):
        said = datetime.fromisoformat(begin_of(f"{asked:%H:%M:%S}", here))
        assert timedelta(0) < said - here <= timedelta(days=1, hours=1)
        assert said.strftime("%H:%M:%S") == asked.strftime("%H:%M:%S")
    assert datetime.fromisoformat(begin_of("2026-12-01T08:00", here)).tzinfo is not None
    assert begin_of("2026-12-01", here).startswith("2026-12-01T00:00:00")
    for left_alone in ("2026-12-01T08:00+05:00", "+2h", "whenever", "25:00", ""):
        assert begin_of(left_alone, here.astimezone(timezone(timedelta(hours=3)))) == left_alone


def test_where_clocks_are_put_forward_or_back_nothing_begins_too_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        here = datetime.fromisoformat("2027-03-27T12:00+01:00")
        assert begin_of("2027-03-28T02:30", here) == "2027-03-28T03:30:00+02:00", "there is no half past two"
        assert datetime.fromisoformat(begin_of("02:30", here)) == datetime.fromisoformat("2027-03-28T03:30+02:00")
        assert begin_of("2027-10-31T02:30", here) == "2027-10-31T02:30:00+02:00", "there are two"
        assert begin_of("2027-03-28T12:00", here) == "2027-03-28T12:00:00+02:00"
    finally:
        monkeypatch.undo()
        time.tzset()
