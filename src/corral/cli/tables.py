"""Plain columns, the same on a terminal and in a pipe: nothing is cut off, nothing is drawn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from corral.cli.terminal import one_line


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Columns as wide as they need to be; None and nothing show as a dash."""
    lines = [tuple(head), *[tuple(_cell(value) for value in row) for row in rows]]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
                     for line in lines)  # fmt: skip


def listing(pairs: Iterable[tuple[str, object]]) -> str:
    """One fact a line; facts that are None are left out."""
    shown = [(name, one_line(str(value))) for name, value in pairs if value not in (None, "", [], {})]
    width = max((len(name) for name, _ in shown), default=0)
    return "\n".join(f"{name.ljust(width)}  {value}" for name, value in shown)


def _cell(value: object) -> str:
    return "-" if value in (None, "") else one_line(str(value))
