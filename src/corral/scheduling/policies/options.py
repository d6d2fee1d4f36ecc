"""What a policy may be told beside its name: each option declared with its kind and default, and held against that.

Pure. `checked` is for what somebody asks for, `complete` for what a policy is given. A wrong one is `Invalid`, with the
option's name, what was given and what is taken.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, cast

from corral.model.faults import Invalid
from corral.model.resources import parse_duration_s
from corral.model.spec import LABEL_KEY
from corral.model.wording import length, span

MOST_WEIGHTS = 1000
MOST_LABELS = 8
LEAST_WEIGHT, GREATEST_WEIGHT = 1e-6, 1e9
LONGEST_NAME = 256
LONGEST_SHOWN = 80


class Kind(StrEnum):
    NUMBER = "number"
    DURATION = "duration"  # seconds, or text like `7d`
    CHOICE = "choice"
    LABELS = "labels"  # names of labels, like `rack` or `rack,room`
    WEIGHTS = "weights"  # a mapping of names to numbers, or text like `ann:2,bob:1`


@dataclass(frozen=True, slots=True)
class Option:
    """One option: what it may be, and what it is when nobody says. `least` and `most` bound numbers and seconds. Of a
    `personal` one, a mapping by people's names, everyone but administrators sees only what is their own."""

    kind: Kind
    default: Any
    help: str
    least: float = 0.0
    most: float = 1e9
    choices: tuple[str, ...] = ()
    personal: bool = False


Options = Mapping[str, Option]


def checked(declared: Options, given: Mapping[str, Any], policy: str | None) -> dict[str, Any]:
    """The given options in their one stored form; `Invalid` for one that is unknown or makes no sense.
    `policy` None: of every group, whatever its policies."""
    whose = "every group" if policy is None else f"policy {policy}"
    found: dict[str, Any] = {}
    for name, value in sorted(given.items()):
        option = declared.get(name)
        if option is None:
            there = f"it takes {', '.join(sorted(declared))}" if declared else "it takes none"
            taker = "a group" if policy is None else whose
            raise Invalid("unknown_option", f"{taker} has no option {name[:LONGEST_SHOWN]!r}; {there}",
                          subject=name[:LONGEST_SHOWN])  # fmt: skip
        found[name] = _value(option, value, f"option {name} of {whose}", name)
    return found


def complete(declared: Options, given: Mapping[str, Any], policy: str | None) -> dict[str, Any]:
    """Every option's value: what was given, the default for the rest. Weights that were stored when any were taken are
    brought within the bounds."""
    bounded = {name: _within_bounds(declared.get(name), value) for name, value in given.items()}
    return {name: option.default for name, option in declared.items()} | checked(declared, bounded, policy)


def _within_bounds(option: Option | None, value: Any) -> Any:
    if option is None or option.kind is not Kind.WEIGHTS or not isinstance(value, Mapping):
        return value
    weights = cast("Mapping[object, object]", value).items()
    return {
        name: min(GREATEST_WEIGHT, max(LEAST_WEIGHT, one)) if isinstance(one, int | float) and one > 0 else one
        for name, one in weights
    }


def visible_to(declared: Options | None, values: Mapping[str, Any], person: str | None) -> dict[str, Any]:
    """The values as this person may see them; None: everything. Of options that nobody declares any more, whatever
    names anybody is kept back."""
    if person is None:
        return dict(values)
    return {name: _own(value, person) if _is_personal(declared, name) else value for name, value in values.items()}


def _is_personal(declared: Options | None, name: str) -> bool:
    option = None if declared is None else declared.get(name)
    return option is None or option.personal


def _own(value: Any, person: str) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {name: one for name, one in cast("Mapping[str, Any]", value).items() if name == person}


def _value(option: Option, value: object, what: str, name: str) -> Any:
    if option.kind is Kind.NUMBER:
        return _bounded(option, _number(value), value, what, name, "a number")
    if option.kind is Kind.DURATION:
        return _bounded(option, _seconds(value), value, what, name, "a duration like 90s, 12h or 7d")
    if option.kind is Kind.CHOICE:
        if value in option.choices:
            return value
        raise _bad(what, value, f"one of {', '.join(option.choices)}", name)
    if option.kind is Kind.LABELS:
        return _labels(value, what, name)
    return _weights(value, what, name)


def _bounded(option: Option, number: float | None, value: object, what: str, name: str, kind: str) -> float:
    if number is None or not option.least <= number <= option.most:
        least, most = f"{option.least:g}", f"{option.most:g}"
        if option.kind is Kind.DURATION:
            least, most = length(int(option.least)), span(option.most)
        raise _bad(what, value, f"{kind} between {least} and {most}", name)
    return number


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _seconds(value: object) -> float | None:
    number = _number(value)
    if number is not None or not isinstance(value, str):
        return number
    try:
        return float(parse_duration_s(value))
    except Invalid:
        return None


def _labels(value: object, what: str, name: str) -> str:
    keys = [part.strip() for part in value.split(",")] if isinstance(value, str) else []
    if not 0 < len(keys) <= MOST_LABELS or len(set(keys)) < len(keys) or not all(map(LABEL_KEY.match, keys)):
        raise _bad(what, value, f"at most {MOST_LABELS} names of labels, like rack or rack,room", name)
    return ",".join(keys)


def _weights(value: Any, what: str, name: str) -> dict[str, float]:
    wanted = f"names with weights between {LEAST_WEIGHT:g} and {GREATEST_WEIGHT:g}, like ann:2,bob:1"
    pairs: dict[str, object] = {}
    if isinstance(value, str):
        for part in filter(None, value.split(",")):
            key, _, weight = part.rpartition(":")
            if key.strip() in pairs:
                raise _bad(what, value, f"{wanted}, each name once", name)
            pairs[key.strip()] = weight
    elif isinstance(value, Mapping):
        pairs = {str(key): weight for key, weight in cast("Mapping[object, object]", value).items()}
    else:
        raise _bad(what, value, wanted, name)
    found: dict[str, float] = {}
    for key, weight in sorted(pairs.items()):
        number = _number(weight)
        if not 0 < len(key) <= LONGEST_NAME or number is None or not LEAST_WEIGHT <= number <= GREATEST_WEIGHT:
            raise _bad(what, value, wanted, name)
        found[key] = number
    if len(found) > MOST_WEIGHTS:
        raise Invalid("bad_option", f"{what} names {len(found)}; at most {MOST_WEIGHTS}", subject=name)
    return found


def _bad(what: str, value: Any, wanted: str, name: str) -> Invalid:
    return Invalid("bad_option", f"{what} is {str(value)[:LONGEST_SHOWN]!r}; it takes {wanted}", subject=name)
