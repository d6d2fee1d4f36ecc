"""What the deciding code needs of the world, as Protocols. The store, the agent's runtime and the simulator implement
them; nothing here knows how.

A transaction body is synchronous, short and re-runnable, and does no I/O but through its `Tx`: so a transaction is one
step in simulation and can never hold a lock across a network call.

Locks are taken in one order everywhere: nodes by name, then sessions by id (`Tx.lock`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from corral.model.array import Array, Due, Missed, Tally
from corral.model.dependency import Dependency, DependencyKind
from corral.model.lifecycle import Outcome, Phase
from corral.model.node import Device, Holding, Node, NodeState, ResourceGroup
from corral.model.quota import Bucket, Claimant, Quota, Quotas
from corral.model.reservation import ReservationRow
from corral.model.session import Certificate, Change, Entry, Kernel, KernelFact, Session
from corral.model.spec import SessionSpec
from corral.scheduling.plan import PlannedStart
from corral.scheduling.snapshot import Pin, Running, Snapshot, Usage
from corral.wire import Registration, StreamOrder

if TYPE_CHECKING:  # it knows arrays, which nobody else needs
    from corral.scheduling.estimate import Ended
    from corral.scheduling.picture import Picture

T = TypeVar("T")

# Hint channels. A hint carries no state: whoever is woken reads the database.
PLACE, CLAIM, SETTLE, MEMBERS, EVENTS = "place", "claim", "settle", "members", "events"


def node_channel(name: str) -> str:
    return f"node:{name}"


def session_channel(session_id: str) -> str:
    return f"session:{session_id}"


class Clock(Protocol):
    """Three clocks, never mixed: `wall` to show, `mono` (seconds, suspend included) for local durations, `sleep`."""

    def wall(self) -> datetime: ...
    def mono(self) -> float: ...
    async def sleep(self, seconds: float) -> None: ...


class Ids(Protocol):
    """The only source of chance."""

    def session_id(self) -> str: ...
    def nonce(self) -> str: ...


class CrashPoint(Protocol):
    """A named place where a test may kill the process. Costs nothing otherwise."""

    def __call__(self, name: str, /) -> None: ...


def no_crash(_name: str) -> None:
    """The CrashPoint of a process that nobody told to die."""


class Watch(Protocol):
    """A subscription to hint channels. `wait` answers True when hinted since the last wait, False on the time-out."""

    async def wait(self, timeout_s: float) -> bool: ...
    def close(self) -> None: ...


class Wakeups(Protocol):
    def watch(self, *channels: str) -> Watch: ...


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


class Reads(Protocol):
    """Questions. Each answers from one snapshot and changes nothing."""

    @property
    def now(self) -> float:
        """Seconds since 1970 by the database's clock: the only clock that expiry is judged by."""
        ...

    def generation(self) -> int: ...
    def sessions(self, ids: Iterable[str]) -> dict[str, Session]: ...
    def broken(self, ids: Iterable[str]) -> dict[str, str]:
        """Of these sessions, those whose stored row cannot be read, with the error (D12)."""
        ...

    def newest_session(self, owner: str) -> str | None:
        """Or the newest array, if that came later."""
        ...

    def find_sessions(self, prefix: str, limit: int = 3) -> list[str]: ...
    def list_sessions(self, what: SessionFilter) -> list[Session]: ...
    # arrays
    def arrays(self, ids: Iterable[str]) -> dict[str, Array]: ...
    def tallies(self, arrays: Sequence[Array]) -> dict[str, Tally]: ...
    def list_arrays(self, what: SessionFilter) -> list[tuple[Array, Tally]]: ...
    def unmade(self, what: SessionFilter) -> list[Session]:
        """Members without rows, as they would be listed."""
        ...

    def first_unmade(self, array: Array) -> Session | None:
        """The first member without a row."""
        ...

    def has_member(self, array: Array, place: int) -> bool:
        """Whether the member in this place has a row."""
        ...

    def live_members(self, array_id: str) -> list[str]:
        """Those with rows that have not ended."""
        ...

    def arrays_due(self, window: int, limit: int) -> list[str]:
        """Arrays of which members may get their turn, not more than a window of them waiting; and those that are
        over."""
        ...

    def members_due(self, array: Array, window: int, limit: int) -> Due: ...
    def arrays_decided(self, limit: int) -> list[str]:
        """As `decided_dependents`, of arrays that wait for others."""
        ...

    def first_not_good(self, array: Array) -> Missed | None:
        """Of an array that is over, the first member in order that did not end well."""
        ...

    def count_sessions(self) -> dict[str, int]:
        """All of them, members without rows too, by phase; looks at every row there ever was."""
        ...

    def count_live(self) -> dict[str, int]:
        """Those that have not ended, by phase; looks at no other row."""
        ...

    def position(self, session: Session) -> int | None:
        """Its place among those that wait for its group; None when it does not wait, or its group goes by more than
        age: then `scheduling.ordering.position_of` knows."""
        ...

    def refusals(self, ids: Iterable[str]) -> dict[str, list[dict[str, Any]]]: ...
    def dependencies(self, ids: Iterable[str]) -> dict[str, list[DependencyRow]]: ...
    def still_dependent(self, ids: Iterable[str]) -> set[str]:
        """Of these sessions, those that were not let go yet."""
        ...

    def count_dependents(self, owner: str) -> int:
        """How many of the owner's sessions wait for others to end."""
        ...

    def decided_dependents(self, limit: int) -> list[str]:
        """Sessions that wait for others, of which all ended as wished, or one as it must not."""
        ...

    def kernels(self, ids: Iterable[str]) -> dict[str, list[Kernel]]:
        """The kernels of each session's current attempt, by rank."""
        ...

    def launches(self, session_id: str) -> list[LaunchRow]: ...
    def attempts(self, session_id: str) -> list[dict[str, Any]]: ...
    def holdings(self, ids: Iterable[str]) -> dict[str, list[Holding]]:
        """The room each session's current attempt holds, or held last."""
        ...

    def tokens_sessions(self, tokens: Iterable[str]) -> dict[str, tuple[str, int]]: ...
    def history(self, session_id: str, after: int = 0, limit: int = 1000) -> list[EventRow]: ...
    def events(self, after: int, limit: int = 1000, owner: str | None = None) -> list[EventRow]:
        """Events in commit order, none above the oldest transaction still open (docs/protocol.md 17). With an owner,
        none of other people's sessions."""
        ...

    def last_event(self) -> int: ...
    def nodes(self, names: Iterable[str] | None = None) -> dict[str, Node]: ...
    def foreign(self) -> list[Foreign]: ...
    def devices(self, nodes: Iterable[str] | None = None) -> list[Device]: ...
    def groups(self) -> dict[str, ResourceGroup]: ...
    def live_in_group(self, name: str) -> int:
        """How many sessions that have not ended are in it, or wait for it."""
        ...

    def group_history(self, name: str, after: int = 0, limit: int = 1000) -> list[EventRow]:
        """Its lines after that version, in the order of the versions."""
        ...

    def quotas(self, *, held: bool = True, owners: Iterable[str] | None = None) -> Quotas:
        """All quotas, and what is held under them, if it is asked for: by these owners, or by everybody."""
        ...

    def all_held(self) -> Quotas:
        """All quotas, and what is held even if none of them limits it."""
        ...

    def waiting_of(self, owners: Iterable[str] | None) -> list[tuple[Claimant, int]]:
        """How many sessions wait, by whose they are: of these owners, or of everybody."""
        ...

    def quota_version(self, name: str) -> int:
        """The last one that there was of this name; 0: none ever."""
        ...

    def quota_history(self, name: str, after: int = 0, limit: int = 1000) -> list[EventRow]: ...
    def usage(self, groups: Sequence[ResourceGroup]) -> list[Usage]:
        """Who holds what in these groups, and who used what, faded by each group's half-life."""
        ...

    def running(self, groups: Sequence[str]) -> list[Running]:
        """Who holds room in these groups, where, and until when at most."""
        ...

    def reservations(self) -> list[ReservationRow]:
        """Those that are not over, soonest first."""
        ...

    def all_reservations(self, limit: int) -> list[ReservationRow]:
        """Every one that was ever made, newest first."""
        ...

    def reservation_version(self, name: str) -> int:
        """The last one of this name; 0: there never was one."""
        ...

    def ended_lately(self, group: str) -> list[Ended]:
        """Some of those that ran in this group and ended, newest submit first."""
        ...

    def planned(self, ids: Iterable[str] | None = None) -> dict[str, float]:
        """When these sessions, which wait, are to start, of those for which that is planned; of nobody asked for, all
        that is noted."""
        ...

    def snapshot(self, per_shape: int, picture: Picture | None = None) -> Snapshot:
        """What a pass sees: everything anew, of each shape the first to have their turn, as many as `per_shape` at
        least; or what the picture knows, which is told first what has changed."""
        ...

    def due(self, limit: int) -> list[str]: ...
    def in_phase(self, phase: str, limit: int) -> list[str]: ...
    def stale_kernels(self, limit: int) -> list[str]:
        """Sessions with an uncertified kernel of an older epoch than its node's (docs/protocol.md 10)."""
        ...

    def pins(self, owners: Iterable[str] | None = None) -> list[Pin]:
        """Room kept for these sessions, or for any."""
        ...

    def bound(self, ids: Iterable[str]) -> tuple[set[str], set[str]]:
        """What is to be locked with these sessions: nodes where room is kept for them; sessions they make way for."""
        ...

    def making_way(self, id_: str) -> list[str]:
        """The sessions that are being stopped for this one."""
        ...

    def sessions_on(self, node: str) -> list[str]:
        """Sessions with an uncertified kernel on this node."""
        ...

    def orders(self, node: str, have_version: int) -> list[Order]: ...
    def streams(self, node: str) -> list[StreamOrder]: ...
    def has_blob(self, digest: str) -> bool: ...
    def blob(self, digest: str) -> bytes | None: ...
    def credential(self, digest: str) -> tuple[str, str] | None: ...
    def has_credentials(self) -> bool: ...
    def members(self) -> list[Member]: ...
    def ledger(self) -> Iterable[tuple[str, Mapping[str, Any]]]:
        """Every row that model.invariants looks at, as (table, row)."""
        ...


class Tx(Reads, Protocol):
    """Writes. Each names the state it expects; what it could not change it says."""

    def hint(self, *channels: str) -> None: ...
    def lock(self, nodes: Iterable[str], sessions: Iterable[str]) -> None: ...

    # sessions
    def submit(self, new: Sequence[NewSession]) -> list[Session]: ...
    def write(self, changes: Sequence[Change], by: str) -> set[str]:
        """Write each guarded change with its history; the ids that took. Ends or reopens attempts with it."""
        ...

    # arrays: locked before nodes and sessions
    def submit_arrays(self, new: Sequence[NewSession]) -> list[Array]: ...
    def lock_arrays(self, ids: Iterable[str]) -> dict[str, Array]: ...
    def write_array(self, before: Array, after: Array, entry: Entry) -> Array: ...
    def make_members(self, array: Array, places: Sequence[int], reached: int, by: str, *, turn: bool) -> list[str]:
        """Give members of a locked array rows; without `turn` they wait for it."""
        ...

    def give_turns(self, ids: Sequence[str]) -> int: ...
    def take_turns_back(self, ids: Sequence[str]) -> None:
        """From those of these sessions that are members, and held."""
        ...

    def array_waits_for(self, array_id: str, needs: Sequence[Dependency]) -> None: ...
    def array_waited(self, array_id: str) -> None: ...

    def set_aside(self, session_id: str) -> str | None:
        """Make a row that cannot be read one that can: what stood for its spec is kept as content, whose digest is the
        answer, and a stand-in that may not run again takes its place. None: there is no such session."""
        ...

    def wait_for(self, session_id: str, needs: Sequence[Dependency]) -> None:
        """Keep a new session from being placed until these have ended; `stop_waiting` lets it go."""
        ...

    def stop_waiting(self, ids: Sequence[str]) -> None: ...
    def set_spec(self, session_id: str, spec: SessionSpec) -> None: ...
    def note_refusals(self, refusals: Mapping[str, str]) -> None:
        """Why these pending sessions do not start, each as JSON text."""
        ...

    def mark_broken(self, session_id: str, error: str, check_at: float) -> None: ...
    def postpone(self, ids: Iterable[str], check_at: float) -> None: ...

    # room and kernels
    def hold(self, placements: Sequence[Placement], by: str) -> None: ...
    def hold_more(self, kernel: Kernel, cpu_milli: int, memory_mib: int) -> None:
        """What the kernel holds of its node grows by so much."""
        ...

    def claim(self, kernels: Sequence[Kernel], by: str) -> None: ...
    def record(self, facts: Sequence[KernelFact], by: str = "") -> set[str]:
        """Record each kernel fact by first write, acknowledged by `by`; the tokens for which something was new."""
        ...

    def dispute(self, session: Session, fact: KernelFact, by: str) -> Session: ...
    def certify(self, tokens: Sequence[str], certificate: Certificate, by: str = "") -> None: ...
    def ask_stop(self, tokens: Sequence[str]) -> None: ...
    def release_barrier(self, tokens: Sequence[str]) -> None: ...
    def ask_again(self, tokens: Sequence[str]) -> None: ...
    def give_room_back(self, attempts: Sequence[tuple[str, int]], kept: Mapping[str, Keep] = NOTHING_KEPT) -> None:
        """Of the sessions in `kept` all of it becomes pins."""
        ...

    def keep_pins(self, owner: str, until: float) -> None: ...
    def drop_pins(self, owners: Sequence[str]) -> None: ...
    def drop_old_pins(self, nodes: Sequence[str]) -> int:
        """Those on these nodes whose time is over; how many parts of room were freed."""
        ...

    # nodes
    def add_group(self, group: ResourceGroup) -> bool:
        """Whether it was new. Either way nobody can drop it until this transaction ends. Locked after all sessions."""
        ...

    def lock_group(self, name: str) -> None: ...
    def share_groups(self, names: Iterable[str]) -> set[str]:
        """Which of these groups there are; none of them changes or goes until this transaction ends. Locked after all
        sessions."""
        ...

    def set_group(self, group: ResourceGroup, old_version: int) -> bool: ...
    def drop_group(self, name: str) -> None: ...
    def had_turns(self, last: Mapping[str, str]) -> None:
        """Which node of each group was given something last."""
        ...

    def note_group(self, name: str, version: int, fact: str, by: str, detail: Mapping[str, object]) -> None:
        """A line of the group's history."""
        ...

    # quotas
    def lock_quotas(self, names: Iterable[str]) -> None:
        """Nobody else changes them, or places what they limit, until this transaction ends. Locked after all else."""
        ...

    def set_quota(self, quota: Quota, above: Sequence[Above], old_version: int | None) -> bool:
        """Whether it took: there was one at that version, or none."""
        ...

    def drop_quota(self, name: str, old_version: int) -> bool: ...
    def set_domains(self, domains: Mapping[str, str]) -> None:
        """Of which domain these projects are."""
        ...

    def note_quota(self, name: str, version: int, fact: str, by: str, detail: Mapping[str, object]) -> None:
        """A line of the quota's history."""
        ...

    def count_usage(self, limit: int) -> int:
        """Add up to so many ended holdings to what their owners have used, each once; how many were."""
        ...

    def register(self, registration: Registration, before: Node | None, epoch: int) -> bool: ...
    def touch_node(self, name: str, incarnation: str, nonces: tuple[str, str]) -> bool: ...
    def served(self, name: str, version: int, have_version: int) -> None: ...
    def set_node_state(self, names: Sequence[str], state: NodeState, before: float) -> set[str]: ...
    def back_off(self, node: str, until: float) -> None: ...
    def note_foreign(self, node: str, tokens: Sequence[str]) -> None: ...

    # what lies ahead
    def add_reservation(self, new: ReservationRow) -> bool:
        """Whether there was none of that name and version."""
        ...

    def drop_reservation(self, name: str, version: int, by: str) -> bool: ...
    def note_planned(self, planned: Mapping[str, PlannedStart], gone: Sequence[str]) -> None:
        """These starts are planned, and of those that are gone none is."""
        ...

    # the rest
    def add_stream(self, node: str, order: StreamOrder) -> None: ...
    def drop_stream(self, stream_id: str) -> None: ...
    def put_blob(self, digest: str, data: bytes) -> None: ...
    def add_credential(self, name: str, kind: str, digest: str) -> None: ...
    def seen_member(self, member_id: str, url: str) -> None: ...
    def prune(self, before: float) -> int: ...


class Store(Protocol):
    """The database. `tx` commits what `fn` did or nothing; a commit whose answer was lost is resolved by its
    operation id, never by a blind retry. Raises `Unavailable` when the database cannot be reached."""

    @property
    def wakeups(self) -> Wakeups: ...
    def tx(self, name: str, fn: Callable[[Tx], T]) -> Awaitable[T]: ...
    def read(self, name: str, fn: Callable[[Reads], T]) -> Awaitable[T]: ...
