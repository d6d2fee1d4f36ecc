"""Why a session that waits does not start: what is its own, what it waits for, and what the scheduler told it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from corral.api.membership import turn_refusals
from corral.model.begin import begin_at
from corral.model.dependency import is_met
from corral.model.lifecycle import Phase, Wanted
from corral.model.session import Session
from corral.model.spec import SessionSpec
from corral.model.wording import instant, span
from corral.ports import DependencyRow, Reads
from corral.reconcile.quotas import held_back


def refusals_of(
    reads: Reads, sessions: Sequence[Session], waiting: Sequence[str]
) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """All that keeps each of them from starting: what is its own first, then what the scheduler told it, or others that
    ask for the same."""
    told: dict[str, list[Mapping[str, Any]]] = {id_: [] for id_ in waiting}
    own = {one.id: own_refusals(one, reads.now) for one in sessions if one.id in told}
    turns, needs = turn_refusals(reads, list(sessions)), dependency_refusals(reads, sessions)
    for part in (own, turns, needs, quota_refusals(reads, sessions), reads.refusals(waiting)):
        for id_, refusals in part.items():
            known = {one["code"] for one in told[id_]}
            told[id_] += [one for one in refusals if one["code"] not in known]
    return told


def asked_refusals(spec: SessionSpec, needs: Sequence[DependencyRow], now: float) -> list[dict[str, Any]]:
    """What would keep one that is not submitted yet from starting, whatever room there is. `needs`: how those that it
    is to wait for are."""
    found: list[dict[str, Any]] = []
    if spec.hold:
        found.append({"code": "held", "message": "it is submitted held; `corral release` lets it start", "counts": {}})
    if spec.begin is not None and (at := begin_at(spec.begin, now)) > now:
        found.append(begin_message(at, now))
    missed = [one for one in needs if is_met(one.kind, one.phase, one.outcome) is False]
    if missed:
        named = ", ".join(f"{one.needs} ended {one.outcome} (wanted: {one.kind})" for one in missed[:3])
        message = f"it would end without a start: {named}" + f" and {len(missed) - 3} more" * (len(missed) > 3)
        found.append({"code": "dependency_failed", "message": message, "counts": {"sessions": len(missed)}})
    elif message := needs_message(needs):
        found.append(message)
    return found


def own_refusals(session: Session, now: float) -> list[dict[str, Any]]:
    """What a session that waits says itself of why it does not start."""
    found: list[dict[str, Any]] = []
    if session.wanted is Wanted.HOLD:
        message = f"it is held; `corral release {session.id}` lets it start"
        found.append({"code": "held", "message": message, "counts": {}})
    if begins := begin_refusal(session, now):
        found.append(begins)
    elif session.not_before > now:
        message = f"it is tried again in {span(session.not_before - now)}"
        found.append({"code": "backing_off", "message": message, "counts": {}})
    if session.error is not None:
        found.append({"code": "broken", "message": f"its record is broken: {session.error}", "counts": {}})
    return found


def quota_refusals(reads: Reads, sessions: Iterable[Session]) -> dict[str, list[dict[str, Any]]]:
    """Of those that quotas hold back, which and why, as it is now."""
    return {
        id_: [{"code": one.code, "message": one.message, "counts": dict(one.counts)} for one in told]
        for id_, told in held_back(reads, sessions).items()
    }


def dependency_refusals(reads: Reads, sessions: Iterable[Session]) -> dict[str, list[dict[str, Any]]]:
    """Of those that wait for others to end, which they are."""
    dependents = [one.id for one in sessions if one.spec.after and one.phase is Phase.PENDING]
    told: dict[str, list[dict[str, Any]]] = {}
    for id_, needs in reads.dependencies(dependents).items() if dependents else ():
        if message := needs_message(needs):
            told[id_] = [message]
    return told


def needs_message(needs: Iterable[DependencyRow]) -> dict[str, Any] | None:
    still = [f"{row.needs} ({row.phase}, wanted: {row.kind})" for row in needs if row.phase is not Phase.ENDED]
    if not still:
        return None
    message = f"it waits for the end of {', '.join(still[:3])}" + f" and {len(still) - 3} more" * (len(still) > 3)
    return {"code": "dependency", "message": message, "counts": {"sessions": len(still)}}


def begin_refusal(session: Session, now: float) -> dict[str, Any] | None:
    """Why a session that waits for its time does not start; None of one that does not."""
    if session.spec.begin is None or session.attempt > 1 or session.phase is not Phase.PENDING:
        return None
    return None if session.not_before <= now else begin_message(session.not_before, now)


def begin_message(at: float, now: float) -> dict[str, Any]:
    message = f"it may begin at {instant(at)}, in {span(at - now)}"
    return {"code": "begin_not_reached", "message": message, "counts": {}}
