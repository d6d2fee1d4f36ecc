"""What one scheduling pass sees: waiting sessions grouped by shape, and the free room of every node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from corral.model.node import Device, Node, ResourceGroup
from corral.model.quota import NO_QUOTAS, Quotas
from corral.model.resources import Resources
from corral.model.spec import SessionSpec
from corral.scheduling.places import RankPlace


@dataclass(frozen=True, slots=True)
class Shape:
    """What placement needs to know of a session: equal requests share one shape, and one answer."""

    group: str | None
    resources: Resources
    nodes: int
    ranks_per_node: int
    exclusive: bool
    on_labels: tuple[tuple[str, str], ...]
    on_nodes: tuple[str, ...]
    not_nodes: tuple[str, ...]
    runtime: str


def shape_of(spec: SessionSpec) -> Shape:
    return Shape(
        group=spec.group,
        resources=spec.resources,
        nodes=spec.nodes,
        ranks_per_node=spec.ranks_per_node,
        exclusive=spec.exclusive,
        on_labels=tuple(sorted(spec.on_labels.items())),
        on_nodes=tuple(sorted(spec.on_nodes)),
        not_nodes=tuple(sorted(spec.not_nodes)),
        runtime=spec.runtime,
    )


class Preferred(NamedTuple):
    """What a session would rather have of its nodes: labels, and those nodes where its last attempt left what it
    saved."""

    labels: tuple[tuple[str, str], ...] = ()
    nodes: tuple[str, ...] = ()


def preferred_of(spec: SessionSpec) -> Preferred | None:
    return Preferred(spec.prefer) if spec.prefer else None


class Waiting(NamedTuple):
    """A pending session that may be placed now, in submit order by `ordinal`. `refused` is what it was last told, as
    JSON text, so that nothing is written when the answer is the same. `cpu_s` and `gpu_s` are what its earlier attempts
    have used, in seconds of one CPU and one GPU, where its group's order asks for it."""

    id: str
    ordinal: int
    attempt: int
    seq: int
    priority: int
    owner: str
    project: str
    submitted_at: float
    shape: Shape
    refused: str | None = None
    time_limit_s: int | None = None
    cpu_s: float = 0.0
    gpu_s: float = 0.0
    grace_s: int = 30
    room_by: float | None = None  # until then room is being made for it: nobody else is stopped
    shunned: frozenset[str] = frozenset()  # nodes on which an earlier attempt failed, was lost or refused: last
    preferred: Preferred | None = None  # no part of the shape: whoever fits, fits whatever it would rather have


class Usage(NamedTuple):
    """One owner's in one project of one group: what is held now, and what was used, faded as the group's order has it.
    `gpu_milli` counts a share as the larger of its parts of time and memory."""

    group: str
    owner: str
    project: str
    cpu_milli: float = 0.0
    memory_mib: float = 0.0
    gpu_milli: float = 0.0
    cpu_s: float = 0.0
    gpu_s: float = 0.0


class Running(NamedTuple):
    """An attempt that holds room, from its placing on until that room is proven free. `ends_at` is when it surely gives
    it back, by its time limit and grace; None: nobody knows. `stopping`: it has been asked to go. One that outlives its
    end has one that is past: whoever plans must not take that for now."""

    id: str
    ordinal: int
    attempt: int
    seq: int
    group: str
    owner: str
    project: str
    priority: int
    shape: Shape
    ranks: tuple[RankPlace, ...]
    placed_at: float
    started_at: float | None = None
    ends_at: float | None = None
    stopping: bool = False
    preemptible: bool | None = None  # None: as its group has it
    preemptions: int = 0
    preempted_for: str | None = None
    grace_s: int = 0


class Pin(NamedTuple):
    """Room kept for the session `owner` until the database's time is `expires_at`; counted as used on its node."""

    owner: str
    place: RankPlace
    expires_at: float


class Reservation(NamedTuple):
    """Nodes kept free from `starts_at` to `ends_at` (database time): for maintenance where nobody is named, else for
    these owners and projects."""

    id: str
    nodes: tuple[str, ...]
    starts_at: float
    ends_at: float
    owners: tuple[str, ...] = ()
    projects: tuple[str, ...] = ()


class Promise(NamedTuple):
    """A start that an earlier pass planned: what the session was `told` (database time), and from when on what room of
    which nodes is held for it as planned now. `priority` is what it had then. Without ranks nothing is held."""

    told: float
    at: float
    group: str
    ranks: tuple[RankPlace, ...] = ()
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One consistent picture. `now` is the database's time in seconds; `last_read` names, of each shape of which more
    may wait than were read, the last session that was; `usage` and `running` are there for groups that ask for them.
    `unread` are groups that ask who runs, in whose line nobody was refused yet: there nobody passes a head that is
    refused now, and the next pass knows. `turns` names the node of each group that takes turns which had the last one.
    `planned` are the starts that earlier passes promised, by session. `expected` is how much each shape counts
    among those to come; None: those that wait and run here."""

    now: float
    nodes: Sequence[Node]
    devices: Mapping[str, Sequence[Device]]
    waiting: Sequence[Waiting]
    groups: Mapping[str, ResourceGroup] = field(default_factory=dict[str, ResourceGroup])
    last_read: Sequence[str] = ()
    usage: Sequence[Usage] = ()
    running: Sequence[Running] = ()
    turns: Mapping[str, str] = field(default_factory=dict[str, str])
    pins: Sequence[Pin] = ()
    reservations: Sequence[Reservation] = ()
    quotas: Quotas = NO_QUOTAS
    unread: frozenset[str] = frozenset()
    planned: Mapping[str, Promise] = field(default_factory=dict[str, Promise])
    expected: Mapping[Shape, float] | None = None
