"""What a reservation means for a session: who may use its nodes, and what is told to those who may not.

A session may start on a node if it surely ends before the next reservation there begins, or if the reservation names
its owner or project.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Protocol, TypeVar

from corral.scheduling.snapshot import Reservation, Waiting


class KeepsNodes(Protocol):
    """A reservation, as a pass sees it or as it is stored."""

    @property
    def nodes(self) -> tuple[str, ...]: ...
    @property
    def starts_at(self) -> float: ...
    @property
    def ends_at(self) -> float: ...
    @property
    def owners(self) -> tuple[str, ...]: ...
    @property
    def projects(self) -> tuple[str, ...]: ...


Kept = TypeVar("Kept", bound=KeepsNodes)


def usable_by(reservations: Sequence[Reservation], waiting: Waiting) -> frozenset[str]:
    """The reservations that are for this session."""
    return frozenset(one.id for one in reservations if is_for(one, waiting.owner, waiting.project))


def is_for(reservation: KeepsNodes, owner: str, project: str) -> bool:
    """Of a project that it names, and of all below that."""
    return owner in reservation.owners or any(
        project == one or project.startswith(f"{one}/") for one in reservation.projects
    )


def in_the_way(
    reservations: Iterable[Kept], nodes: Iterable[str], owner: str, project: str, now: float, until: float
) -> Kept | None:
    """The first reservation that a session of theirs on these nodes would run into."""
    names = set(nodes)
    met = [
        one
        for one in reservations
        if one.starts_at < until and one.ends_at > now and not names.isdisjoint(one.nodes)
        and not is_for(one, owner, project)
    ]  # fmt: skip
    return min(met, key=lambda one: one.starts_at, default=None)


def reserved(reservations: Iterable[Reservation], name: str) -> str:
    one = next(one for one in reservations if one.id == name)
    return f"reserved from {moment(one.starts_at)} to {moment(one.ends_at)} ({one.id})"


def moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
