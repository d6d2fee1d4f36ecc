"""Settling sessions: lock, load, decide, write guarded, act — in one transaction, for as many sessions as asked.

Effects on our own nodes are rows (what a node is told), so they are written here, in the transaction of the change.
One session that cannot be read or decided is marked and left; the others go on (D12).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from corral.model.lifecycle import Effect, Phase, Wanted
from corral.model.session import Certificate, Change, Entry, Kernel, Session
from corral.ports import PLACE, Keep, Reads, Store, Tx
from corral.reconcile.decide import CHECK_AFTER_S, Decision, overdue, settle

SWEEP_LIMIT = 500
BROKEN_CHECK_S = 60.0
PIN_S = 60.0  # room is kept for so long after it was expected


def lock_with_nodes(tx: Tx, ids: Iterable[str], nodes: Iterable[str] = ()) -> dict[str, Session]:
    """Lock these sessions, those they make way for, and every node that their kernels, or pins of theirs, are on, in
    the one order; the sessions as they are then. Where one of them was placed, or others began to make way, before it
    was locked, all is let go and begun again: who held it while waiting for one more node might wait for ever."""
    listed = list(ids)
    pinned, claimants = tx.bound(listed) if listed else (set[str](), set[str]())
    locked = {*nodes, *pinned, *_nodes_under(tx, listed)}
    tx.lock(locked, {*listed, *claimants})
    sessions = tx.sessions(listed)
    if _nodes_under(tx, listed) - locked or _bound_meanwhile(tx, sessions, locked, {*listed, *claimants}):
        tx.begin_again("a session was placed before it was locked")
    return sessions


def _bound_meanwhile(tx: Tx, sessions: Mapping[str, Session], nodes: set[str], locked: set[str]) -> bool:
    claimed = (one.preempted_for for one in sessions.values() if one.phase is not Phase.ENDED)
    if any(claimant is not None and claimant not in locked for claimant in claimed):
        return True
    expecting = [one.id for one in sessions.values() if one.room_by is not None]
    return bool(expecting) and not tx.bound(expecting)[0] <= nodes


def _nodes_under(tx: Tx, ids: Sequence[str]) -> set[str]:
    return {kernel.node for group in tx.kernels(ids).values() for kernel in group} if ids else set()


def settle_locked(tx: Tx, ids: Iterable[str], by: str) -> list[Session]:
    """Everything that follows now for these locked sessions; the sessions that changed, as they are now."""
    listed = list(ids)
    sessions, kernels = tx.sessions(listed), tx.kernels(listed)
    served = _served_versions(tx, kernels.values())
    decisions: list[Decision] = []
    for session in sessions.values():
        mine = kernels.get(session.id, [])
        unserved = {k.token for k in mine if k.claimed_version is not None and k.claimed_version > served[k.node]}
        try:
            decision = settle(session, mine, unserved, tx.now, by)
        except Exception as error:  # one broken session never stops the others
            tx.mark_broken(session.id, f"cannot be decided: {error!r}", tx.now + BROKEN_CHECK_S)
            continue
        if decision is not None:
            decisions.append(decision)
    return _carry_out(tx, decisions, by)


def _served_versions(tx: Tx, groups: Iterable[Sequence[Kernel]]) -> dict[str, int]:
    names = {kernel.node for group in groups for kernel in group}
    return {node.name: node.served_version for node in tx.nodes(names).values()} if names else {}


def _carry_out(tx: Tx, decisions: Sequence[Decision], by: str) -> list[Session]:
    if not decisions:
        return []
    taken = tx.write([decision.change for decision in decisions], by)
    mine = [decision for decision in decisions if decision.change.before.id in taken]
    tx.certify([token for decision in mine for token in decision.withdrawn], Certificate.NEVER_SERVED, by)
    tx.ask_stop([token for decision in mine for token in decision.stop])
    tx.release_barrier([token for decision in mine for token in decision.go])
    freed = [decision.change.before for decision in mine if Effect.GIVE_ROOM_BACK in decision.effects]
    over = [one.change for one in mine if Effect.DROP_PINS in one.effects or one.change.after.phase is Phase.ENDED]
    tx.drop_pins([change.before.id for change in over if change.before.room_by is not None])
    tx.give_room_back([(session.id, session.attempt) for session in freed], _kept(tx, freed))
    if freed or any(decision.change.after.phase in (Phase.PENDING, Phase.ENDED) for decision in mine):
        tx.hint(PLACE)  # there is room, one waits again, or others waited for this end
    return [decision.change.after for decision in mine]


def _kept(tx: Tx, freed: Sequence[Session]) -> Mapping[str, Keep]:
    """For whom the room of these is kept: whom they were stopped for, if that one still waits for it."""
    claimants = {session.id: session.preempted_for for session in freed if session.preempted_for is not None}
    if not claimants:
        return {}
    tx.lock((), claimants.values())
    waiting = tx.sessions(claimants.values())
    until = {
        one.id: max(one.room_by, tx.now) + PIN_S
        for one in waiting.values()
        if one.phase is Phase.PENDING and one.wanted is Wanted.RUN and one.room_by is not None
    }
    return {id_: Keep(owner, until[owner]) for id_, owner in claimants.items() if owner in until}


def settle_sessions(tx: Tx, ids: Iterable[str], by: str) -> list[Session]:
    return settle_locked(tx, lock_with_nodes(tx, ids), by)


async def sweep_due(store: Store, by: str) -> int:
    """Look at every session whose time to be looked at has come: settle it, or ask its nodes what became of it."""
    due = await store.read("due sessions", lambda reads: reads.due(SWEEP_LIMIT))
    if due:
        await store.tx("settle due sessions", lambda tx: look_again(tx, due, by))
    return len(due)


def look_again(tx: Tx, ids: Sequence[str], by: str) -> None:
    sessions = lock_with_nodes(tx, ids)
    for id_, error in tx.broken(ids).items():
        tx.mark_broken(id_, error, tx.now + BROKEN_CHECK_S)
    stopped = [_stop_for(tx, session, by) for session in sessions.values() if overdue(session, tx.now)]
    moved = {session.id for session in settle_locked(tx, sessions, by)}
    waiting = [
        session for session in tx.sessions(ids).values() if session.id not in moved and session.id not in stopped
    ]
    _ask_nodes(tx, [session for session in waiting if session.phase in (Phase.STARTING, Phase.STOPPING)])
    for session in waiting:
        if session.phase in CHECK_AFTER_S:
            tx.postpone([session.id], tx.now + CHECK_AFTER_S[session.phase])
    if any(session.phase is Phase.PENDING for session in waiting):
        tx.hint(PLACE)


def _stop_for(tx: Tx, session: Session, by: str) -> str:
    why = overdue(session, tx.now)
    entry = Entry("stop_asked", session.phase, session.phase, session.attempt, by, {"for": why and why.value})
    tx.write([change_of(session, session._replace(stop_for=why), entry)], by)
    return session.id


def change_of(before: Session, after: Session, entry: Entry) -> Change:
    """A change that is no step of the table: what a user asked for, or the system noted, with its line of history."""
    return Change(before, after._replace(seq=before.seq + 1), (entry,), None, before.started_at)


def _ask_nodes(tx: Tx, sessions: Sequence[Session]) -> None:
    """Have the nodes say again all they know of these kernels: how a state that lasts too long is resolved (B6)."""
    kernels = tx.kernels([session.id for session in sessions]) if sessions else {}
    tx.ask_again([kernel.token for group in kernels.values() for kernel in group if kernel.certificate is None])


def was_asked(reads: Reads, id_: str, what: str, key: str) -> bool:
    """Whether history says that this was asked before, with this idempotency key."""
    after = 0
    while lines := reads.history(id_, after):
        if any(one.entry.fact == what and one.entry.detail.get("key") == key for one in lines):
            return True
        after = lines[-1].seq
    return False
