"""When a session may begin, as it was asked for: a moment, or a time after its submit. Kept as text, since only the
submit that is stored says when that was."""

from __future__ import annotations

from datetime import datetime

from corral.model.faults import Invalid
from corral.model.resources import parse_duration_s

FURTHEST_S = 10 * 365 * 86400
LAST_YEAR = 2100
LONGEST_SHOWN = 80


def begin_at(text: str, now: float, option: str = "--begin") -> float:
    """Seconds since 1970. `now`, `+2h` and `now+2h` count from `now`; anything else is a moment as RFC 3339 has it,
    with its offset, like `2026-12-01T18:00+01:00`. What lies in the past begins at once. `option` is what is wrong."""
    if text == "now":
        return now
    relative = text.removeprefix("now")
    if not relative.startswith("+"):
        return _moment(text, option)
    try:
        after_s = parse_duration_s(relative[1:])
    except Invalid as error:
        raise _bad(text, error.message, option) from None
    if after_s > FURTHEST_S:
        raise _bad(text, "that is more than ten years away", option)
    return now + after_s


def _moment(text: str, option: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None and moment.year < LAST_YEAR:
            return max(0.0, moment.timestamp())
    except (ValueError, OverflowError):
        pass
    if text.startswith("-"):
        raise _bad(text, f"that is in the past; a time ahead is written like +2h, and now without {option}", option)
    raise _bad(text, "write a time with its offset like 2026-12-01T18:00+01:00, or +2h", option)


def _bad(text: str, why: str, option: str) -> Invalid:
    return Invalid(f"bad_{option[2:]}", f"{option} {text[:LONGEST_SHOWN]!r}: {why}", subject=option)
