"""What is asked of the store and what it answers, beside sessions and kernels: plain data. Next: `ports`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from corral.model.dependency import DependencyKind
from corral.model.lifecycle import Outcome, Phase
from corral.model.node import Holding
from corral.model.quota import Bucket
from corral.model.session import Entry, Kernel, Session
from corral.model.spec import SessionSpec


class NewSession(NamedTuple):
    """A submit: `id` proposed by the caller, the key's scope is the project, `digest` identifies the request; `by` is
    who asked, the owner unless another is named; `older` are digests that earlier Corrals gave the same request."""

    id: str
    spec: SessionSpec
    owner: str
    idempotency_key: str | None = None
    digest: str = ""
    requeue_of: str | None = None
    by: str | None = None
    older: Sequence[str] = ()


class Placement(NamedTuple):
    """One session's kernels with the room each will hold."""

    session: Session
    group: str
    kernels: Sequence[Kernel]
    holdings: Sequence[Holding]


class Deed(NamedTuple):
    """What a transaction did that is counted: `ended` (with outcome and class), `preempted` or `moved`."""

    what: str
    outcome: str = ""
    exit_class: str = ""


class Keep(NamedTuple):
    """For whom room that is given back is kept, until which time of the database."""

    owner: str
    until: float


NOTHING_KEPT: Mapping[str, Keep] = {}


class Order(NamedTuple):
    """What a node is told about one kernel: the row, the session's spec, its devices and its siblings."""

    kernel: Kernel
    session: Session
    holdings: Sequence[Holding]
    siblings: Sequence[Kernel]


class SessionFilter(NamedTuple):
    """What `ps` lists. `after` is the ordinal of the last row of the previous page, newest first. Arrays' members are
    listed if asked for, all or one array's."""

    phases: Sequence[str] = ()
    owner: str | None = None
    project: str | None = None
    group: str | None = None
    name: str | None = None
    labels: Mapping[str, str] = {}
    limit: int = 100
    after: int | None = None
    members: bool = False
    in_array: str | None = None


class Unreadable(NamedTuple):
    """A session, or an array, whose stored row cannot be read: what can be told of it all the same (D12)."""

    id: str
    ordinal: int
    owner: str
    project: str
    name: str
    labels: Mapping[str, str]
    phase: str
    wanted: str
    group: str | None
    priority: int
    submitted_at: float
    error: str
    attempt: int = 1
    started_at: float | None = None
    ended_at: float | None = None
    outcome: str | None = None
    exit_class: str | None = None
    exit_code: int | None = None
    is_array: bool = False


class EventRow(NamedTuple):
    """One line of the outbox. `id` grows in commit order; `seq` is gapless within the session. A line of a group's
    history has no session, and its version as `seq`."""

    id: int
    at: float
    session: str | None
    seq: int
    entry: Entry
    group: str | None = None
    quota: str | None = None


class LaunchRow(NamedTuple):
    """One kernel of any attempt as `audit-launch` shows it: the row, and who wrote what when."""

    kernel: Kernel
    placed_at: float
    placed_by: str
    claimed_at: float | None
    claimed_by: str | None
    served_at: float | None
    certified_by: str | None


class DependencyRow(NamedTuple):
    """What one session waits for, and how that one is."""

    needs: str
    kind: DependencyKind
    phase: Phase
    outcome: Outcome | None


class Foreign(NamedTuple):
    """A launch that a node reported and the ledger does not know: when it last did."""

    node: str
    token: str
    seen_at: float


class Member(NamedTuple):
    """A live manager: where other managers' readers and agents reach it, and when it was last seen."""

    id: str
    url: str
    seen_at: float


Above = tuple[Bucket, Mapping[str, int]]  # of what a quota counts apart, that which was more than it allows
