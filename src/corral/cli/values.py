"""Single values of answers, as people read them; in JSON they stay as they came. Takes JSON, answers text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, cast

from corral.model.wording import instant, length, size, span

THOUSANDTHS = {"cpu_milli": "cpus", "gpu_milli": "gpus", "share_milli": "share"}
MIB = "_mib"
EMPTY: tuple[Any, ...] = (None, {}, [])


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def age(at: str | None, now: datetime) -> str | None:
    """How long ago."""
    return None if at is None else span((now - moment(at)).total_seconds())


def when(at: str | None) -> str | None:
    """A moment to the second."""
    return None if at is None else instant(moment(at).timestamp())


def yes_or_no(value: bool | None) -> str | None:
    return None if value is None else "yes" if value else "no"


def mebibytes(amount: int | None, more: str = "") -> str | None:
    return f"{size(amount)}{more}" if amount else None


def reason_of(reason: Mapping[str, Any] | None) -> str | None:
    """A reason with its code."""
    if reason is None:
        return None
    return f"{reason['code']}: {reason['message']}" if reason["message"] else reason["code"]


def pairs(values: Mapping[str, Any]) -> str:
    """What stands beside a line of history: amounts with their units, moments as moments; nothing of what is empty."""
    return " ".join(f"{name}={text}" for name, text in _told(values))


def _told(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and name.endswith("options"):
            yield from _told(cast("Mapping[str, Any]", value))
        elif value not in EMPTY:
            yield _named(name, value)


def _named(name: str, value: Any) -> tuple[str, str]:
    """Its name without the unit, which the value has then."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return name, _plain(value)
    if name in THOUSANDTHS:
        return THOUSANDTHS[name], f"{value / 1000:g}"
    if name.endswith(MIB):
        return name.removesuffix(MIB), size(int(value))
    if name.endswith("_s"):
        return name.removesuffix("_s").removesuffix("_limit"), length(int(value)) if value == int(value) else span(
            value
        )
    if name == "room_by" or name.endswith("_at"):
        return name, instant(value)
    return name, _plain(value)


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ",".join(f"{name}:{_plain(one)}" for name, one in cast("Mapping[str, Any]", value).items())
    if isinstance(value, list):
        return ",".join(map(_plain, cast("list[Any]", value)))
    if isinstance(value, float):
        return f"{value:.15g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
