"""Arrays: one request, a member for each index. An array is a view over its members, never a session.

Knows what a member is called, and in which place it stands (`indices`). A member gets a row of its own when its turn
comes near, or when something is asked of it; until then `member` tells what it would be.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from corral.model.indices import Indices, indices_of
from corral.model.lifecycle import ExitClass, Outcome, Phase, Wanted
from corral.model.session import Session, Why
from corral.model.spec import SessionSpec

_MEMBER = re.compile(r"([0-9a-z]+)\[(0|[1-9]\d{0,8})\]", re.ASCII)


# --- members


def member_id(array: str, index: int) -> str:
    return f"{array}[{index}]"


def member_of(session_id: str) -> tuple[str, int] | None:
    """Which member of which array is called so; None of what is no member."""
    match = _MEMBER.fullmatch(session_id) if session_id.endswith("]") else None
    return None if match is None else (match[1], int(match[2]))


class Array(NamedTuple):
    """One row. `ordinal` is its place among all that was submitted; its members have the places right behind it.

    `made` members have rows; in every place before `reached`. `waits` for the end of others. `group`,
    `priority` and `time_limit_s` are what members without rows will have; `succeeded` and `failed` count members once
    all have ended.
    """

    id: str
    ordinal: int
    spec: SessionSpec
    owner: str
    submitted_at: float
    seq: int = 1
    wanted: Wanted = Wanted.RUN
    group: str | None = None
    priority: int = 0
    time_limit_s: int | None = None
    reached: int = 0
    made: int = 0
    not_before: float = 0.0
    waits: bool = False
    ended_at: float | None = None
    outcome: Outcome | None = None
    exit_class: ExitClass | None = None
    exit_code: int | None = None
    reason: Why | None = None
    requeue_of: str | None = None
    succeeded: int = 0
    failed: int = 0

    @property
    def indices(self) -> Indices:
        return indices_of(self.spec.array or "0")

    @property
    def size(self) -> int:
        return self.indices.size

    @property
    def unmade(self) -> int:
        return self.size - self.made

    def ordinal_at(self, place: int) -> int:
        return self.ordinal + 1 + place

    def id_at(self, place: int) -> str:
        return member_id(self.id, self.indices.at(place))

    def id_with(self, ordinal: int) -> str:
        """The member in that place among all that was submitted."""
        return self.id_at(ordinal - self.ordinal - 1)


def member(array: Array, place: int) -> Session:
    """The member in this place as long as it has no row: it waits for its turn, or has ended with its array."""
    stopped = array.wanted is Wanted.STOP
    return Session(
        id=array.id_at(place),
        ordinal=array.ordinal_at(place),
        spec=array.spec,
        owner=array.owner,
        submitted_at=array.submitted_at,
        phase=Phase.ENDED if stopped else Phase.PENDING,
        seq=0,
        wanted=array.wanted,
        group=array.group,
        priority=array.priority,
        time_limit_s=array.time_limit_s,
        outcome=Outcome.CANCELLED if stopped else None,
        exit_class=ExitClass.CANCELLED if stopped else None,
        exit_code=130 if stopped else None,
        reason=array.reason if stopped else None,
        phase_at=array.submitted_at,
        ended_at=array.ended_at if stopped else None,
        not_before=array.not_before,
    )


def has_row(session: Session) -> bool:
    """Whether it is a row of the ledger, and not only told of as a member whose turn has not come."""
    return session.seq > 0


def variables(session: Session) -> dict[str, str]:
    """What a member's command is told of where it stands; of any other session nothing."""
    found = member_of(session.id)
    if found is None or session.spec.array is None:
        return {}
    size = indices_of(session.spec.array).size
    return {"CORRAL_ARRAY_ID": found[0], "CORRAL_ARRAY_INDEX": str(found[1]), "CORRAL_ARRAY_SIZE": str(size)}


def alone(session: Session) -> SessionSpec:
    """What a member asks for, for a session outside its array that does the same again."""
    return replace(session.spec, array=None, environment={**session.spec.environment, **variables(session)})


class Tally(NamedTuple):
    """How many members are in which phase, and how those that ended did; members without rows are counted."""

    phases: Mapping[str, int]
    outcomes: Mapping[str, int]


def tally(array: Array, rows: Sequence[tuple[str, str | None, int]]) -> Tally:
    """From how many rows there are of each (phase, outcome)."""
    phases = dict.fromkeys((phase.value for phase in Phase), 0)
    outcomes = dict.fromkeys((outcome.value for outcome in Outcome), 0)
    if array.ended_at is not None:
        outcomes |= {Outcome.SUCCEEDED: array.succeeded, Outcome.FAILED: array.failed}
        outcomes[Outcome.CANCELLED] = array.size - array.succeeded - array.failed
        return Tally({Phase.ENDED.value: array.size}, {str(name): count for name, count in outcomes.items() if count})
    for phase, outcome, count in rows:
        phases[phase] += count
        if outcome is not None:
            outcomes[outcome] += count
    if array.wanted is Wanted.STOP:
        phases[Phase.ENDED] += array.unmade
        outcomes[Outcome.CANCELLED] += array.unmade
    else:
        phases[Phase.PENDING] += array.unmade
    return Tally({name: count for name, count in phases.items() if count},
                 {name: count for name, count in outcomes.items() if count})  # fmt: skip


def phase_of(array: Array, found: Tally) -> Phase:
    """One word for all: ended once every member has, running as soon as any is under way."""
    if array.ended_at is not None:
        return Phase.ENDED
    return Phase.PENDING if found.phases.keys() <= {Phase.PENDING} else Phase.RUNNING


def outcome_of(found: Tally) -> Outcome:
    """How an array ended whose members all have: failed if any failed, else cancelled if any was."""
    for outcome in (Outcome.FAILED, Outcome.CANCELLED):
        if found.outcomes.get(outcome):
            return outcome
    return Outcome.SUCCEEDED


class Due(NamedTuple):
    """Whose turn has come, oldest first: members that have rows, places of those that get one now; and up to where
    every place will have one then."""

    waiting: tuple[str, ...]
    places: tuple[int, ...]
    reached: int


class Missed(NamedTuple):
    """A member that did not end well, and how it ended."""

    id: str
    exit_code: int
    exit_class: ExitClass
