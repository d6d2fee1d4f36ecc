"""How people are told spans, moments and numbers of things: in every message and every table the same."""

from __future__ import annotations

from datetime import UTC, datetime

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


def instant(seconds: float) -> str:
    """A moment, to the second, in UTC: 2026-12-01T18:00:00Z."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def number_of(number: float, thing: str, things: str | None = None) -> str:
    """1 GPU, 2 GPUs, 0.5 GPUs."""
    return f"{number:g} {thing if number == 1 else things or f'{thing}s'}"
