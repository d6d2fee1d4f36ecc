"""Stopping sessions so that another finds room, as a pass planned it; and letting go of room that was kept too long.

One transaction guards the claimant and every victim, or writes nothing (docs/protocol.md 15). What a victim gives back
is kept for the claimant by whoever proves it free (`sessions`); `placement` uses and drops what was kept.
"""

from __future__ import annotations

from collections.abc import Sequence

from corral import wire
from corral.model.faults import Refused
from corral.model.lifecycle import Phase, Wanted
from corral.model.node import ResourceGroup
from corral.model.pin_invariants import PREEMPTED
from corral.model.session import Change, Entry, Session, StopFor
from corral.ports import PLACE, Store, Tx
from corral.reconcile import quotas
from corral.reconcile.sessions import PIN_S, change_of, lock_with_nodes, settle_locked
from corral.scheduling.places import RankPlace
from corral.scheduling.plan import Placed, Preemption, Refusal
from corral.scheduling.policies.group_options import preempts
from corral.scheduling.snapshot import Pin, Running, Waiting
from corral.scheduling.stopping.preemption import being_made

ROOM_MARGIN_S = 30.0  # beside the longest grace: the node has to hear of it, to kill and to tell


async def preempt_all(store: Store, planned: Sequence[Preemption], by: str) -> int:
    """Carry out what still holds of these, each by itself: how many."""
    real = [one for one in planned if one.victims]
    return sum([await store.tx("preempt", lambda tx, one=one: preempt(tx, one, by)) for one in real])


def preempt(tx: Tx, planned: Preemption, by: str) -> bool:
    """Ask every victim to stop for the claimant; False, with nothing written, where one of them is not as planned."""
    sessions = lock_with_nodes(tx, [planned.claimant.id, *(victim.id for victim in planned.victims)])
    claimant = sessions.get(planned.claimant.id)
    pairs = [(sessions[one.id], one) for one in planned.victims if one.id in sessions]
    victims = [session for session, one in pairs if may_go(session, one)]
    stands = claimant is not None and may_claim(claimant, planned.claimant, tx.now)
    holds = claimant is not None and stands and len(victims) == len(planned.victims) and _asked_for(tx, planned.group)
    if claimant is None or not holds or not let_in(tx, planned.claimant, planned.group, planned.ranks):
        tx.hint(PLACE)
        return False
    room_by = tx.now + max(victim.spec.grace_s for victim in victims) + ROOM_MARGIN_S
    changes = [claiming(claimant, victims, room_by, by), *(_going(victim, claimant, by) for victim in victims)]
    if len(tx.write(changes, by)) < len(changes):
        raise Refused("moved_meanwhile", f"session {claimant.id}, or one to be stopped for it, moved while locked")
    tx.keep_pins(claimant.id, room_by + PIN_S)
    tx.note_refusals({claimant.id: told(being_made(len(victims), room_by))})
    settle_locked(tx, [victim.id for victim in victims], by)
    return True


def let_in(tx: Tx, claimant: Waiting, group: str, ranks: Sequence[RankPlace]) -> bool:
    """Whether its quotas let it in there, beside what is held and all for whom others stop. Looked at locked: of two
    that would have others stopped at once, under a quota that has room for one, one does."""
    return claimant.id in quotas.allowed(tx, [Placed(claimant, group, tuple(ranks))])


def may_claim(session: Session, planned: Waiting, now: float) -> bool:
    """Whether it waits as it did, and nobody stops for it already."""
    return (
        session.phase is Phase.PENDING
        and session.wanted is Wanted.RUN
        and (session.attempt, session.seq) == (planned.attempt, planned.seq)
        and (session.room_by is None or session.room_by <= now)
    )


def may_go(session: Session, planned: Running) -> bool:
    """Whether it still holds its room as it did, and nothing stops it yet."""
    return (
        session.phase in (Phase.PLACED, Phase.STARTING, Phase.RUNNING)
        and (session.attempt, session.seq) == (planned.attempt, planned.seq)
        and session.wanted is not Wanted.STOP
        and session.stop_for is None
    )


def _asked_for(tx: Tx, group: str) -> bool:
    found = tx.groups().get(group, ResourceGroup(group))
    return preempts(found) and not found.paused


def claiming(claimant: Session, victims: Sequence[Session], room_by: float, by: str) -> Change:
    """It is told that these stop for it."""
    detail = {"victims": [victim.id for victim in victims], "room_by": room_by}
    entry = Entry("preempting", claimant.phase, claimant.phase, claimant.attempt, by, detail)
    return change_of(claimant, claimant._replace(room_by=room_by), entry)


def _going(victim: Session, claimant: Session, by: str) -> Change:
    entry = Entry(PREEMPTED, victim.phase, victim.phase, victim.attempt, by, {"for": claimant.id})
    after = victim._replace(stop_for=StopFor.PREEMPTED, preempted_for=claimant.id, preemptions=victim.preemptions + 1)
    return change_of(victim, after, entry)


def told(refusal: Refusal) -> str:
    """As it is noted with the session."""
    return wire.encode([{"code": refusal.code, "message": refusal.message, "counts": dict(refusal.counts)}]).decode()


async def drop_old_pins(store: Store, pins: Sequence[Pin], now: float) -> None:
    """Give back room that was kept and is over its time."""
    nodes = sorted({pin.place.node for pin in pins if pin.expires_at <= now})
    if nodes:
        await store.tx("drop pins", lambda tx: _drop(tx, nodes))


def _drop(tx: Tx, nodes: Sequence[str]) -> None:
    tx.lock(nodes, ())
    if tx.drop_old_pins(nodes):
        tx.hint(PLACE)


def forget_room(tx: Tx, session: Session) -> Session:
    """The locked session without a claim to room that others were stopped for; what was kept for it is free."""
    if session.room_by is None:
        return session
    tx.drop_pins([session.id])
    tx.hint(PLACE)
    return session._replace(room_by=None)
