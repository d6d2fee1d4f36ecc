"""Files as people give them: packed or not, and rows that say where they were broken."""

from __future__ import annotations

import csv
import gzip
import io
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from corral.model.faults import Invalid


def read_text(path: Path) -> str:
    """The text of a file, unpacked when its name ends in .gz; `Invalid` when it is not text."""
    packed = path.suffix == ".gz"
    try:
        data = gzip.decompress(path.read_bytes()) if packed else path.read_bytes()
        return data.decode("utf-8-sig")
    except (UnicodeDecodeError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise Invalid("bad_file", f"{path}: not {'a gzip file of ' * packed}UTF-8 text ({error})") from None


class Row:
    """One row of a table; a value that is not what it should be is told with the line it stands in."""

    def __init__(self, place: str, values: Mapping[str, str]) -> None:
        self.place = place
        self.values = values

    def text(self, column: str) -> str:
        return self.values[column]

    def number(self, column: str, *, least: float = 0.0) -> float:
        text = self.values[column].strip()
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= 1e15:
            raise self.wrong(f"{column} {text[:40]!r} is not a number, {least:g} or more")
        return value

    def whole(self, column: str, *, least: int = 0) -> int:
        value = self.number(column, least=least)
        if value != int(value):
            raise self.wrong(f"{column} {self.values[column][:40]!r} is not a whole number")
        return int(value)

    def wrong(self, why: str) -> Invalid:
        return Invalid("bad_row", f"{self.place}: {why}")


def rows(name: str, text: str, needed: Sequence[str]) -> Iterator[Row]:
    """The rows of comma-separated text with a head line."""
    lines = _lines(name, text)
    head = [column.strip() for column in next(lines, ("", list[str]()))[1]]
    missing = [column for column in needed if column not in head]
    if missing:
        raise Invalid("bad_head", f"{name}, line 1: there is no column {missing[0]!r}")
    for place, values in lines:
        if not values:
            continue
        if len(values) != len(head):
            raise Invalid("bad_row", f"{place}: {len(values)} values for {len(head)} columns")
        yield Row(place, dict(zip(head, values, strict=True)))


def _lines(name: str, text: str) -> Iterator[tuple[str, list[str]]]:
    """Each line's place and values, the head line's too."""
    lines = csv.reader(io.StringIO(text, newline=""))
    try:
        for values in lines:
            yield f"{name}, line {lines.line_num}", values
    except csv.Error as error:
        raise Invalid("bad_row", f"{name}, line {lines.line_num}: {error}") from None
