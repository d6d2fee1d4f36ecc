"""The life of a session: every phase, every fact, and the one table that joins them.

`step` is the only way a phase changes. The SQL CHECKs, the picture in docs/lifecycle.md and the property tests are
derived from TABLE. What the facts mean, and which kernel facts they are derived from, is in reconcile.decide.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple


class Phase(StrEnum):
    PENDING = "pending"
    PLACED = "placed"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"

    @property
    def holds_room(self) -> bool:
        """Whether a session in this phase keeps room that nobody else may be given."""
        return self not in (Phase.PENDING, Phase.ENDED)


class Fact(StrEnum):
    """What was seen to have happened to a session."""

    PLACED = "placed"
    CLAIMED = "claimed"
    READY = "ready"
    EXITED = "exited"
    DECIDED = "decided"
    FAILED = "failed"
    REFUSED = "refused"
    LOST = "lost"
    UNWANTED = "unwanted"
    DOOMED = "doomed"
    RELEASED = "released"
    REQUEUED = "requeued"


class Effect(StrEnum):
    """What the world is asked to do; written in the transaction of the change, carried out afterwards."""

    HOLD_ROOM = "hold-room"
    LAUNCH = "launch"
    RELEASE_BARRIER = "release-barrier"
    STOP = "stop"
    GIVE_ROOM_BACK = "give-room-back"
    NEXT_ATTEMPT = "next-attempt"
    DROP_PINS = "drop-pins"


class Outcome(StrEnum):
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class ExitClass(StrEnum):
    OK = "ok"
    USER = "user"
    INFRA = "infra"
    TIMEOUT = "timeout"
    OOM = "oom"
    PREEMPTED = "preempted"
    CANCELLED = "cancelled"
    LOST = "lost"


class Wanted(StrEnum):
    """What the user wants of a session. Written by users only (docs/protocol.md 2)."""

    RUN = "run"
    HOLD = "hold"
    STOP = "stop"


class Edge(NamedTuple):
    sources: frozenset[Phase]
    fact: Fact
    target: Phase
    effects: tuple[Effect, ...] = ()


def _edge(sources: str, fact: Fact, target: Phase, *effects: Effect) -> Edge:
    return Edge(frozenset(Phase(source) for source in sources.split()), fact, target, effects)


TABLE: Final = (
    #     from                       when           to              and ask for
    _edge("pending",                 Fact.PLACED,   Phase.PLACED,   Effect.HOLD_ROOM, Effect.DROP_PINS),
    _edge("pending",                 Fact.UNWANTED, Phase.ENDED,    Effect.DROP_PINS),
    _edge("pending",                 Fact.DOOMED,   Phase.ENDED,    Effect.DROP_PINS),
    _edge("placed",                  Fact.CLAIMED,  Phase.STARTING, Effect.LAUNCH),
    _edge("placed starting",         Fact.FAILED,   Phase.STOPPING, Effect.STOP),
    _edge("starting",                Fact.REFUSED,  Phase.STOPPING, Effect.STOP),
    _edge("starting",                Fact.READY,    Phase.RUNNING,  Effect.RELEASE_BARRIER),
    _edge("starting running",        Fact.DECIDED,  Phase.STOPPING, Effect.STOP),
    _edge("placed starting running", Fact.UNWANTED, Phase.STOPPING, Effect.STOP),
    _edge("placed starting running", Fact.LOST,     Phase.STOPPING, Effect.STOP),
    _edge("stopping",                Fact.READY,    Phase.STOPPING),
    _edge("stopping",                Fact.EXITED,   Phase.STOPPING),
    _edge("stopping",                Fact.FAILED,   Phase.STOPPING),
    _edge("stopping",                Fact.REFUSED,  Phase.STOPPING),
    _edge("stopping",                Fact.LOST,     Phase.STOPPING),
    _edge("stopping",                Fact.UNWANTED, Phase.STOPPING),
    _edge("stopping",                Fact.RELEASED, Phase.ENDED,    Effect.GIVE_ROOM_BACK),
    _edge("stopping",                Fact.REQUEUED, Phase.PENDING,  Effect.GIVE_ROOM_BACK, Effect.NEXT_ATTEMPT),
)  # fmt: skip

NEXT: Final = {(source, edge.fact): edge for edge in TABLE for source in edge.sources}


def step(phase: Phase, fact: Fact) -> Edge | None:
    """The row of the table for this fact in this phase; None when the table does not list it (`disputed`)."""
    return NEXT.get((phase, fact))


def mermaid() -> str:
    """The table as the state diagram of docs/lifecycle.md."""
    rows = [f"    {source} --> {edge.target}: {edge.fact}" for edge in TABLE for source in sorted(edge.sources)]
    return "\n".join(["stateDiagram-v2", "    [*] --> pending: submitted", *rows, "    ended --> [*]"])
