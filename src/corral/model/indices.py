"""Which indices an array has, and in which place each stands: as ranges, however many there are.

Ranges may interleave, overlap and repeat one another (`0-8:2,1-9:2`): an index that is in several counts once, and
the places go by the indices. Nothing is ever listed; where ranges are tangled, places are found by counting.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from corral.model.faults import Invalid

MOST_MEMBERS = 1_000_000
MOST_TANGLED = 256  # ranges that lie across one another; and what has to be counted of them
LONGEST_SHOWN = 80
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", re.ASCII)


class Range(NamedTuple):
    """Every `step`th index from `first` to `last`, which is one of them."""

    first: int
    last: int
    step: int = 1

    @property
    def size(self) -> int:
        return (self.last - self.first) // self.step + 1

    def has(self, index: int) -> bool:
        return self.first <= index <= self.last and (index - self.first) % self.step == 0

    def up_to(self, index: int) -> int:
        """How many are no larger than this."""
        return 0 if index < self.first else (min(index, self.last) - self.first) // self.step + 1

    def __str__(self) -> str:
        if self.first == self.last:
            return str(self.first)
        return f"{self.first}-{self.last}" + (f":{self.step}" if self.step > 1 else "")


class Stretch(NamedTuple):
    """Ranges that lie across one another, with `before` indices in front of them. Each of `counted` counts so often,
    which makes every index count once; with one range that is all."""

    first: int
    before: int
    ranges: tuple[Range, ...]
    counted: Mapping[Range, int]

    @property
    def size(self) -> int:
        return sum(times * one.size for one, times in self.counted.items())

    def up_to(self, index: int) -> int:
        return sum(times * one.up_to(index) for one, times in self.counted.items())

    def at(self, place: int) -> int:
        """The index in this place of the stretch."""
        if len(self.ranges) == 1:
            return self.ranges[0].first + place * self.ranges[0].step
        low, high = self.first, max(one.last for one in self.ranges)
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.up_to(middle) > place else (middle + 1, high)
        return low


class Indices(NamedTuple):
    """The indices of an array, and how many members may live at once (None: as many as fit)."""

    ranges: tuple[Range, ...]
    throttle: int | None = None

    @property
    def size(self) -> int:
        last = _stretches(self.ranges)[-1]
        return last.before + last.size

    def at(self, place: int) -> int:
        """The index in this place, counted from 0."""
        if not 0 <= place < self.size:
            raise IndexError(place)
        stretches = _stretches(self.ranges)
        one = stretches[bisect_right(stretches, place, key=lambda stretch: stretch.before) - 1]
        return one.at(place - one.before)

    def place_of(self, index: int) -> int | None:
        """Where this index stands; None when it is not among them."""
        stretches = _stretches(self.ranges)
        one = stretches[max(bisect_right(stretches, index, key=lambda stretch: stretch.first) - 1, 0)]
        return one.before + one.up_to(index) - 1 if any(each.has(index) for each in one.ranges) else None

    def __str__(self) -> str:
        return ",".join(map(str, self.ranges)) + (f"%{self.throttle}" if self.throttle is not None else "")


@lru_cache(maxsize=1024)
def indices_of(text: str) -> Indices:
    """From `0-99`, `0-99%8`, `1,3,20-30:2`: indices in ranges, and after `%` how many may live at once."""
    listed, percent, most = text.partition("%")
    throttle = int(most) if re.fullmatch(r"\d{1,9}", most, re.ASCII) else 0
    if percent and throttle < 1:
        raise _bad(text, f"after % stands how many members may live at once, 1 or more, not {most[:LONGEST_SHOWN]!r}")
    ranges = _merged(_range_of(text, part) for part in listed.split(","))
    try:
        indices = Indices(tuple(_needed(ranges)), throttle if percent else None)
        size = indices.size
    except OverflowError:
        raise _bad(text, "too many of its ranges lie across one another; write it with fewer, or submit several "
                   "arrays") from None  # fmt: skip
    if size > MOST_MEMBERS:
        raise Invalid(
            "array_too_large", f"--array {text[:LONGEST_SHOWN]!r} has {size} members; at most {MOST_MEMBERS}: "
            "submit several arrays", subject="--array",
        )  # fmt: skip
    return indices


def _range_of(text: str, part: str) -> Range:
    match = _RANGE.fullmatch(part.strip())
    if match is None:
        shown = part.strip()[:LONGEST_SHOWN]
        raise _bad(text, f"{shown!r} is no index or range; write 0-99, 0-99:2 or 1,5,9, each below 1000000000")
    first = int(match[1])
    last, step = first if match[2] is None else int(match[2]), 1 if match[3] is None else int(match[3])
    if last < first:
        raise _bad(text, f"the range {part.strip()} ends before it begins")
    if step < 1:
        raise _bad(text, f"the range {part.strip()} has a step of 0")
    return _to(first, last, step)


def _to(first: int, last: int, step: int) -> Range:
    """Every `step`th from `first` on, none beyond `last`; of one index always the same."""
    last -= (last - first) % step
    return Range(first, last, step if last > first else 1)


def _bad(text: str, why: str) -> Invalid:
    return Invalid("bad_array", f"--array {text[:LONGEST_SHOWN]!r}: {why}", subject="--array")


# --- ranges that lie across one another


def _merged(ranges: Iterable[Range]) -> list[Range]:
    """In order; those that go on from one another in the same steps are one where they overlap."""
    found: defaultdict[tuple[int, int], list[Range]] = defaultdict(list)
    for one in sorted(ranges):
        alike = found[one.step, one.first % one.step]
        if alike and one.first <= alike[-1].last:
            alike[-1] = alike[-1]._replace(last=max(alike[-1].last, one.last))
        else:
            alike.append(one)
    return sorted(one for alike in found.values() for one in alike)


def _across(ranges: Sequence[Range]) -> Iterable[Sequence[Range]]:
    """Those that lie across one another together; `OverflowError` where these are too many."""
    begin, last = 0, -1
    for number, one in enumerate(ranges):
        if one.first > last and number > begin:
            yield ranges[begin:number]
            begin = number
        last = max(last, one.last)
        if number - begin >= MOST_TANGLED:
            raise OverflowError
    yield ranges[begin:]


def _needed(ranges: Sequence[Range]) -> Iterable[Range]:
    """Without those whose every index is in another one."""
    for together in _across(ranges):
        for one in together:
            others = (other for other in together if other is not one)
            if len(together) == 1 or not any(_in_both(one, other) == one for other in others):
                yield one


@lru_cache(maxsize=1024)
def _stretches(ranges: tuple[Range, ...]) -> Sequence[Stretch]:
    found: list[Stretch] = []
    before = 0
    for together in _across(ranges):
        found.append(Stretch(together[0].first, before, tuple(together), _counted(together)))
        before += found[-1].size
    return found


def _counted(ranges: Sequence[Range]) -> Mapping[Range, int]:
    """How often to count which ranges so that every index counts once: what a range shares with those before it is
    taken off again. `OverflowError` where that is too much."""
    counted: dict[Range, int] = {}
    for one in ranges:
        changes = defaultdict[Range, int](int, {one: 1})
        for other, times in counted.items():
            both = _in_both(one, other)
            if both is not None:
                changes[both] -= times
        for each, times in changes.items():
            counted[each] = counted.get(each, 0) + times
        counted = {each: times for each, times in counted.items() if times}
        if len(counted) > MOST_TANGLED:
            raise OverflowError
    return counted


def _in_both(one: Range, other: Range) -> Range | None:
    """The indices that two ranges share, which are again every so-manyth."""
    apart, common = other.first - one.first, math.gcd(one.step, other.step)
    if apart % common:
        return None
    period = other.step // common
    steps = apart // common * pow(one.step // common, -1, period) % period
    first, step = one.first + steps * one.step, one.step * period
    low, last = max(one.first, other.first), min(one.last, other.last)
    first += -(-max(low - first, 0) // step) * step
    return None if first > last else _to(first, last, step)
