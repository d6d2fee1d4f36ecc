"""Sessions that wait for the end of others: those whose wait is over are let go, those it can never end well for end.

Level-triggered: every placing pass asks which of them are decided, so no end of a session needs to remember its
dependents.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence

from corral.model.dependency import Dependency, is_met
from corral.model.faults import Refused
from corral.model.lifecycle import ExitClass, Fact, Outcome, Phase, step
from corral.model.session import Change, Entry, Session, Verdict, Why
from corral.ports import PLACE, DependencyRow, Reads, Tx
from corral.reconcile.sessions import change_of, lock_with_nodes

DECIDED_LIMIT = 500
MOST_DEPENDENTS = 10_000  # of one owner; each pass looks at all that wait for others
BROKEN_CHECK_S = 60.0
QUICK_S, PART = 0.005, 0.05  # a look that takes longer is made so seldom that all take this part of the time


class Pace:
    """So that looking at those who wait for others takes a small part of a manager's time, however many there are: a
    look that took long is followed by a while without one. `mono` is the local monotonic clock in seconds."""

    def __init__(self, mono: Callable[[], float]) -> None:
        self._mono = mono
        self._next_s = -math.inf
        self._put_off = False

    def look(self, reads: Reads) -> list[str]:
        """Those that are decided; none while it is too early to look again."""
        began = self._mono()
        self._put_off = began < self._next_s
        if self._put_off:
            return []
        decided = reads.decided_dependents(DECIDED_LIMIT)
        now = self._mono()
        if len(decided) < DECIDED_LIMIT and now - began > QUICK_S:
            self._next_s = now + (now - began) / PART
        return decided

    def until_due(self) -> float:
        """Seconds until a look that was put off may be made; without end where none was."""
        return max(0.0, self._next_s - self._mono()) if self._put_off else math.inf


def let_wait(
    tx: Tx, owner: str, needs: Mapping[str, Sequence[Dependency]], arrays: Collection[str] = frozenset()
) -> None:
    """Keep these new sessions of the owner's from being placed until what they name has ended. `arrays`: which of them
    are arrays, whose members so all wait."""
    waiting = tx.count_dependents(owner) if needs else 0
    if waiting + len(needs) > MOST_DEPENDENTS:
        raise Refused("too_many_dependents", f"{waiting} sessions of {owner} wait for others already, and "
                      f"{len(needs)} more would; at most {MOST_DEPENDENTS} may at a time")  # fmt: skip
    for session_id, named in needs.items():
        if session_id in arrays:
            tx.array_waits_for(session_id, named)
        else:
            tx.wait_for(session_id, named)


def settle_dependents(tx: Tx, ids: Sequence[str], by: str) -> None:
    """Let these sessions go, or end them, as the ends of those they wait for have it by now. Another manager may have
    let some of them go since they were read."""
    sessions = lock_with_nodes(tx, ids)
    for id_, error in tx.broken(ids).items() if len(sessions) < len(ids) else ():
        tx.mark_broken(id_, error, tx.now + BROKEN_CHECK_S)  # and not looked at again until it can be read
    waiting = tx.still_dependent(ids)
    needs = tx.dependencies(ids)
    changes: list[Change] = []
    free: list[str] = []
    for id_, session in sessions.items():
        if session.phase is not Phase.PENDING or id_ not in waiting:
            continue
        met = [(row, is_met(row.kind, row.phase, row.outcome)) for row in needs.get(id_, [])]
        failed = next((row for row, answer in met if answer is False), None)
        if failed is not None:
            changes.append(_doomed(session, failed, tx.now, by))
        elif all(answer for _, answer in met):
            entry = Entry("dependency_met", session.phase, session.phase, session.attempt, by)
            changes.append(change_of(session, session, entry))
            free.append(id_)
    taken = tx.write(changes, by)
    tx.drop_pins([change.before.id for change in changes if change.before.room_by is not None])
    tx.stop_waiting([id_ for id_ in free if id_ in taken])
    if changes:
        tx.hint(PLACE)


def _doomed(session: Session, failed: DependencyRow, now: float, by: str) -> Change:
    edge = step(session.phase, Fact.DOOMED)
    assert edge is not None
    why = Why("dependency_failed", f"it was to start after {failed.needs}:{failed.kind}, which ended {failed.outcome}")
    verdict = Verdict(Outcome.CANCELLED, ExitClass.CANCELLED, 130, why)
    after = session._replace(
        phase=edge.target,
        phase_at=now,
        seq=session.seq + 1,
        outcome=verdict.outcome,
        exit_class=verdict.exit_class,
        exit_code=verdict.exit_code,
        reason=why,
        ended_at=now,
        next_check_at=None,
        room_by=None,
    )
    detail = {"needs": failed.needs, "kind": failed.kind, "outcome": failed.outcome}
    entry = Entry(Fact.DOOMED.value, session.phase, edge.target, session.attempt, by, detail)
    return Change(session, after, (entry,), verdict)
