"""One name replaced: what mutants are made of."""

from __future__ import annotations

from typing import Any, NamedTuple


class Patch(NamedTuple):
    """`target` is a module or a class that has `name` itself, not by inheritance."""

    target: Any
    name: str
    value: Any
