"""Plain columns, the same on a terminal and in a pipe: nothing is cut off, nothing is drawn."""

from __future__ import annotations

import textwrap
from collections.abc import Container, Iterable, Iterator, Sequence

from corral.cli.terminal import one_line

WIDTH = 120  # of a table whose last column is wrapped
LEAST_LAST = 30  # of which that column has so much, however wide the others are


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    width: int | None = None,
    nothing: str = "-",
    right: Container[int] = (),
) -> str:
    """Columns as wide as they need to be; None and nothing show as a dash. With a `width` the last column is prose,
    which goes on in the line below. Columns of `right` are numbers to compare."""
    lines = [tuple(head), *[tuple(_cell(value, nothing) for value in row) for row in rows]]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    if width is not None:
        widths[-1] = max(width - sum(size + 2 for size in widths[:-1]), LEAST_LAST)
        lines = [part for line in lines for part in _wrapped(line, widths[-1])]
    return "\n".join("  ".join(_placed(line, widths, right)).rstrip() for line in lines)


def _placed(line: Sequence[str], widths: Sequence[int], right: Container[int]) -> Iterator[str]:
    for column, (cell, size) in enumerate(zip(line, widths, strict=True)):
        yield cell.rjust(size) if column in right else cell.ljust(size)


def _wrapped(line: Sequence[str], size: int) -> Iterable[tuple[str, ...]]:
    first, *more = textwrap.wrap(line[-1], size, break_on_hyphens=False) or [""]
    yield (*line[:-1], first)
    yield from ((*[""] * (len(line) - 1), part) for part in more)


def listing(pairs: Iterable[tuple[str, object]]) -> str:
    """One fact a line; facts that are None are left out."""
    shown = [(name, one_line(str(value))) for name, value in pairs if value not in (None, "", [], {})]
    width = max((len(name) for name, _ in shown), default=0)
    return "\n".join(f"{name.ljust(width)}  {value}" for name, value in shown)


def _cell(value: object, nothing: str) -> str:
    return nothing if value in (None, "") else one_line(str(value))
