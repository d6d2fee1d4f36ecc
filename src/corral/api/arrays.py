"""An array as the same JSON that a session is: what all its members have in common, and how many of them are how."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from corral.api.explaining import ExplainView, explain_view
from corral.api.membership import array_part
from corral.api.policy import Caller
from corral.api.render import Rows, SessionView, session_view, slurm_state
from corral.api.waits import begin_message, needs_message
from corral.model.array import Array, Tally, phase_of
from corral.model.lifecycle import Phase, Wanted
from corral.model.session import Session
from corral.ports import Reads

KIND = "array"


def array_view(reads: Reads, array: Array) -> SessionView:
    """One, with what the first of its members that wait was told."""
    return _view(array, reads.tallies([array])[array.id], _refusals(reads, array))


def listed_views(reads: Reads, found: Sequence[tuple[Array, Tally]]) -> list[SessionView]:
    return [_view(array, counted, _own_refusals(reads, array)) for array, counted in found]


def explain_array(reads: Reads, asking: Caller, array: Array) -> ExplainView:
    """How many are how, and of the first that waits why."""
    counted = reads.tallies([array])[array.id]
    phase = phase_of(array, counted)
    summary = told(counted)
    first = _first_waiting(reads, array)
    if first is None:
        if array.reason is not None:
            summary += f"; {array.reason.message}"
        return ExplainView(array.id, phase, summary, False, False, None, [], [])
    found = explain_view(reads, asking, first)
    found.id, found.phase, found.position = array.id, phase, None
    found.summary = f"{summary}; {first.id}: {found.summary}"
    return found


def told(found: Tally) -> str:
    """In one line, those that ended by how they did."""
    parts = {**found.phases, **found.outcomes}
    parts.pop(Phase.ENDED, None)
    return ", ".join(f"{count} {name}" for name, count in parts.items())


def _first_waiting(reads: Reads, array: Array) -> Session | None:
    sessions = reads.sessions(reads.live_members(array.id))
    waiting = next((one for one in sessions.values() if one.phase is Phase.PENDING), None)
    if waiting is not None or array.ended_at is not None:
        return waiting
    return reads.first_unmade(array)


def _view(array: Array, found: Tally, refusals: Sequence[dict[str, Any]]) -> SessionView:
    phase = phase_of(array, found)
    whole = Session(
        id=array.id,
        ordinal=array.ordinal,
        spec=array.spec,
        owner=array.owner,
        submitted_at=array.submitted_at,
        phase=phase,
        wanted=array.wanted,
        group=array.group,
        priority=array.priority,
        time_limit_s=array.time_limit_s,
        outcome=array.outcome,
        exit_class=array.exit_class,
        exit_code=array.exit_code,
        reason=array.reason,
        ended_at=array.ended_at,
        requeue_of=array.requeue_of,
    )
    view = session_view(whole, Rows(refusals={array.id: refusals}))
    view.kind = KIND
    view.slurm_state = slurm_state(whole)
    view.array = array_part(array, found)
    return view


def _refusals(reads: Reads, array: Array) -> list[dict[str, Any]]:
    own = _own_refusals(reads, array)
    if own or array.ended_at is not None:
        return own
    sessions = reads.sessions(reads.live_members(array.id))
    waiting = [one.id for one in sessions.values() if one.phase is Phase.PENDING and one.wanted is Wanted.RUN]
    return reads.refusals(waiting[:1]).get(waiting[0], []) if waiting else []


def _own_refusals(reads: Reads, array: Array) -> list[dict[str, Any]]:
    """Why none of its members starts yet."""
    if array.ended_at is not None:
        return []
    if array.waits:
        needs = reads.dependencies([array.id]).get(array.id, [])
        return [message] if (message := needs_message(needs)) else []
    return [begin_message(array.not_before, reads.now)] if array.not_before > reads.now else []
