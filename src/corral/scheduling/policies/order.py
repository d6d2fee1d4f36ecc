"""In which order waiting sessions are tried. A policy sorts; it never refuses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from corral.scheduling.snapshot import Waiting

OrderPolicy = Callable[[Sequence[Waiting], float], Sequence[Waiting]]


def fifo(waiting: Sequence[Waiting], now: float) -> Sequence[Waiting]:
    """Oldest submit first; a retried session keeps its place."""
    return sorted(waiting, key=lambda one: one.ordinal)


ORDERS: Mapping[str, OrderPolicy] = {"fifo": fifo}
