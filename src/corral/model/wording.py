"""How people are told spans, moments and numbers of things: in every message and every table the same."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

FURTHEST, LONGEST_COMPARED = 16, 128  # names further apart, or longer, are not like one another
_UNITS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))


def span(seconds: float) -> str:
    """About how long: 12s, 3m04s, 23h22m, 5d."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m" if whole < 2 * 86400 else f"{whole // 86400}d"


def length(seconds: int) -> str:
    """Exactly how long, as it can be given to an option: 90s is 1m30s, 93600s is 1d2h."""
    parts: list[str] = []
    for unit, size in _UNITS:
        number, seconds = divmod(seconds, size)
        if number:
            parts.append(f"{number}{unit}")
    return "".join(parts) or "0s"


def size(mib: int) -> str:
    """Memory, as it can be given to an option: 512GiB, or 1536MiB where it is no whole number of those."""
    return f"{mib // 1024}GiB" if mib and mib % 1024 == 0 else f"{mib}MiB"


def instant(seconds: float) -> str:
    """A moment, to the second, in UTC: 2026-12-01T18:00:00Z."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def number_of(number: float, thing: str, things: str | None = None) -> str:
    """1 GPU, 2 GPUs, 0.5 GPUs."""
    return f"{number:g} {thing if number == 1 else things or f'{thing}s'}"


def like(name: str, known: Iterable[str]) -> str:
    """The question whether the known name that is nearest was meant, to put behind what is wrong; else nothing."""
    most = max(1, len(name) // 4)
    near = min(((_apart(name.lower(), one.lower()), one) for one in known), default=(most + 1, ""))
    return f"; did you mean {near[1]!r}?" if near[0] <= most else ""


def _apart(left: str, right: str) -> int:
    """How many letters must be put in, left out, changed or swapped with the next."""
    if abs(len(left) - len(right)) > FURTHEST or max(len(left), len(right)) > LONGEST_COMPARED:
        return FURTHEST + len(left)
    before: list[int] = []
    row = list(range(len(right) + 1))
    for i, one in enumerate(left, 1):
        last, before, row = before, row, [i]
        for j, other in enumerate(right, 1):
            row.append(min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (one != other)))
            if i > 1 and j > 1 and one == right[j - 2] and left[i - 2] == other:
                row[j] = min(row[j], last[j - 2] + 1)
    return row[-1]
