"""One line of a script that holds options."""

from __future__ import annotations

from typing import NamedTuple


class Directive(NamedTuple):
    """Its line number, and its options as words for the command's own parser."""

    line: int
    words: list[str]
