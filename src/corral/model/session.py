"""Sessions, kernels and what is written about them: the rows of the ledger as frozen values.

A change is never made in place: code that decides takes a `Session`, returns a new one beside the history it made, and
the store writes the pair as one guarded update (`Change`). What is made by the thousand is a `NamedTuple`: a frozen
dataclass of thirty fields costs six times as much to make.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from corral.model.faults import Invalid
from corral.model.lifecycle import ExitClass, Outcome, Phase, Wanted
from corral.model.spec import SessionSpec

ID_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford base32: no i, l, o, u
ID_LENGTH = 10


class Token(NamedTuple):
    """The launch token: names (session, attempt, rank) of one control-plane generation for ever."""

    generation: int
    session: str
    attempt: int
    rank: int

    def __str__(self) -> str:
        return f"{self.generation}-{path_name(self.session)}-{self.attempt}-{self.rank}"


def parse_token(text: str) -> Token:
    """The token written as `text`; `Invalid` when it is not one."""
    parts = text.split("-")
    if len(parts) == 4 and all(part.isascii() and part.isdigit() for part in (parts[0], parts[2], parts[3])):
        array, underscore, index = parts[1].partition("_")
        session = f"{array}[{index}]" if underscore and index.isdigit() else parts[1]
        return Token(int(parts[0]), session, int(parts[2]), int(parts[3]))
    raise Invalid("bad_token", f"{text[:80]!r} is not a launch token")


def path_name(session_id: str) -> str:
    """The session's name in paths and tokens: an array's member `ID[7]` is `ID_7` there, since a shell reads brackets
    in an unquoted path as a pattern."""
    return session_id.replace("[", "_").removesuffix("]") if session_id.endswith("]") else session_id


class Why(NamedTuple):
    """A reason with a stable code and one line for people."""

    code: str
    message: str = ""


class StopFor(StrEnum):
    """Why the system (not the user) stops an attempt; set once from null (docs/protocol.md 2)."""

    TIME_LIMIT = "time_limit"
    START_DEADLINE = "start_deadline"
    REQUEUE = "requeue"
    PREEMPTED = "preempted"
    DRAINED = "drained"


class Certificate(StrEnum):
    """The proofs of death of docs/protocol.md 11; nothing else releases a kernel."""

    EXIT = "exit"
    VOID = "void"
    NODE_REBOOTED = "node_rebooted"
    OPERATOR = "operator"
    NEVER_SERVED = "never_served"


@dataclass(frozen=True, slots=True)
class Result:
    """How a kernel's main process ended. Exactly one of `exit_code` and `signal` is set, unless it never began."""

    exit_code: int | None = None
    signal: int | None = None
    exit_class: ExitClass = ExitClass.OK
    started: bool = True

    @property
    def code(self) -> int:
        """The exit code a shell would show: 128 + signal, 124 for the time limit; for a command that never began 130
        when it was cancelled, 1 when it could not be set up."""
        if self.exit_class is ExitClass.TIMEOUT:
            return 124
        if self.signal is not None:
            return 128 + self.signal
        if self.exit_code is None:
            return 130 if self.exit_class is ExitClass.CANCELLED else 1
        return self.exit_code

    @property
    def good(self) -> bool:
        return self.exit_class is ExitClass.OK


class Kernel(NamedTuple):
    """One rank of one attempt on one node, and the facts known of it, each kept by its first write."""

    token: str
    session: str
    attempt: int
    rank: int
    node: str
    node_epoch: int
    run_id: str
    claimed_version: int | None = None
    stop_asked: bool = False
    go: bool = False
    accepted_at: float | None = None
    ready_at: float | None = None
    port: int | None = None
    result_at: float | None = None
    result: Result | None = None
    refused: Why | None = None
    failed: Why | None = None
    exit_reason: str | None = None
    certificate: Certificate | None = None
    certified_at: float | None = None

    @property
    def lost(self) -> bool:
        """Proven dead without a result, though it was claimed and neither refused nor failed to prepare."""
        return (
            self.certificate in (Certificate.EXIT, Certificate.NODE_REBOOTED, Certificate.OPERATOR)
            and self.result is None
            and self.refused is None
            and self.failed is None
        )

    @property
    def phase(self) -> str:
        if self.certificate is not None:
            return "ended"
        if self.result_at is not None or self.stop_asked:
            return "stopping"
        if self.ready_at is not None:
            return "running"
        return "placed" if self.claimed_version is None else "starting"


class Session(NamedTuple):
    """One row of the ledger. `attempt` numbers the current try from 1; `seq` the last line of its history.

    `failures` counts attempts that ended by the user's own fault, `infra_failures` those that did not; only the first
    are charged to `retries`. `continuations` counts how often it went on because its command asked for it.
    `next_check_at` is when the reconciler looks even if nothing happens (SE5).

    `preemptions` counts how often it was asked to make way, `preempted_for` names for whom just now; `room_by` is of
    one that others make way for: until then room is being made, and nobody else is stopped for it (docs/protocol.md
    15). One that stops and has it goes on in room that is kept for it already.
    """

    id: str
    ordinal: int
    spec: SessionSpec
    owner: str
    submitted_at: float
    phase: Phase = Phase.PENDING
    attempt: int = 1
    seq: int = 1
    wanted: Wanted = Wanted.RUN
    group: str | None = None
    priority: int = 0
    time_limit_s: int | None = None
    outcome: Outcome | None = None
    exit_class: ExitClass | None = None
    exit_code: int | None = None
    reason: Why | None = None
    cause: Why | None = None
    stop_for: StopFor | None = None
    phase_at: float = 0.0
    started_at: float | None = None
    ended_at: float | None = None
    not_before: float = 0.0
    next_check_at: float | None = None
    failures: int = 0
    infra_failures: int = 0
    refusals: int = 0
    requeue_of: str | None = None
    error: str | None = None
    preemptions: int = 0
    preempted_for: str | None = None
    room_by: float | None = None
    continuations: int = 0

    @property
    def ranks(self) -> int:
        return self.spec.ranks


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a session's history. `fact` is a Fact's value, or what a user did (`submitted`, `cancel`, …). Of a
    group's history, which has no phases, `target` is None."""

    fact: str
    source: Phase | None
    target: Phase | None
    attempt: int
    by: str
    detail: Mapping[str, object] = field(default_factory=dict[str, object])


class Verdict(NamedTuple):
    """How an attempt ended; also how the session ended, unless it is requeued."""

    outcome: Outcome
    exit_class: ExitClass
    exit_code: int
    reason: Why | None = None
    cause: Why | None = None
    requeue: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """One guarded update: written only if the row still has `before`'s phase, attempt and seq.

    `verdict` is set when an attempt ends with this change; `started_at` is when that attempt's command began.
    """

    before: Session
    after: Session
    history: tuple[Entry, ...]
    verdict: Verdict | None = None
    started_at: float | None = None


class FactKind(StrEnum):
    """What a node reports about one kernel."""

    ACCEPTED = "accepted"
    READY = "ready"
    RESULT = "result"
    EXITED = "exited"
    VOID = "void"
    REFUSED = "refused"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class KernelFact:
    """One report about one kernel.

    `port` comes with ready, `result` with result, `why` with refused, failed and exited (`supervisor_lost` …).
    `at` is the node's wall clock, for display only.
    """

    token: str
    kind: FactKind
    at: float
    port: int | None = None
    result: Result | None = None
    why: Why | None = None
