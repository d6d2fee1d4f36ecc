"""What users ask for: each a synchronous transaction body that writes the intent and settles what follows at once.

Cancelling is a barrier from its acknowledgement: in pending the session ends here; in placed and starting its claims
are withdrawn here unless a node was told of them, and then the node is told to stop (docs/protocol.md 2, 11).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from corral.model.array import Array, alone
from corral.model.faults import NotFound, Refused
from corral.model.lifecycle import Phase, Wanted
from corral.model.node import NodeState
from corral.model.session import Certificate, Entry, Session, StopFor
from corral.model.spec import UNREADABLE
from corral.model.wording import span
from corral.ports import PLACE, NewSession, Tx
from corral.reconcile import arrays, quotas
from corral.reconcile.groups import no_such_group
from corral.reconcile.nodes import no_such_node
from corral.reconcile.preempting import forget_room
from corral.reconcile.sessions import change_of, lock_with_nodes, settle_locked, was_asked

CONFIRM_AFTER_S = 60.0  # start_ttl: no start on permission older than this (docs/protocol.md 7)


def submit(tx: Tx, new: Sequence[NewSession], by: str) -> list[Session]:
    """Store new sessions, all or none, in groups that there are; a repeated idempotency key answers the session that it
    made."""
    sessions = _store(tx, new, by)
    _check(tx, list(zip(new, sessions, strict=True)))
    return sessions


def submit_all(tx: Tx, new: Sequence[NewSession], by: str) -> list[Session | Array]:
    """As `submit`, of sessions and arrays together."""
    asked = [one for one in new if one.spec.array is not None]
    made = iter(arrays.submit(tx, asked, by) if asked else [])
    sessions = iter(_store(tx, [one for one in new if one.spec.array is None], by))
    stored = [next(sessions) if one.spec.array is None else next(made) for one in new]
    _check(tx, list(zip(new, stored, strict=True)))
    return stored


def _store(tx: Tx, new: Sequence[NewSession], by: str) -> list[Session]:
    tx.hint(PLACE)
    return tx.submit([one._replace(by=by) for one in new])


def _check(tx: Tx, stored: Sequence[tuple[NewSession, Session | Array]]) -> None:
    """Groups first, then quotas: the one order everywhere."""
    fresh = [one for one, made in stored if made.id == one.id]
    _keep_groups(tx, [one.spec.group for one in fresh if one.spec.group is not None])
    quotas.check_submit(tx, fresh)


def _keep_groups(tx: Tx, names: Sequence[str]) -> None:
    """None of these groups may go while this is not committed."""
    if missing := sorted(set(names) - tx.share_groups(names)):
        raise no_such_group(missing[0], tx.groups())


def cancel(tx: Tx, session_id: str, by: str) -> Session:
    """Ask that the session stop. Idempotent; of an ended session it changes nothing. One whose record cannot be read
    is set aside first, so that what is known of its launches still leads it to a proven end."""
    if (told := arrays.make_member(tx, session_id, by)) is not None:
        return told
    lock_with_nodes(tx, [session_id])
    if session_id not in tx.sessions([session_id]):
        _set_aside(tx, session_id, by)
    session = _locked(tx, session_id, by)
    if session.phase is not Phase.ENDED and session.wanted is not Wanted.STOP:
        _note(tx, session, session._replace(wanted=Wanted.STOP), "cancel", by)
        settle_locked(tx, [session_id], by)
    return tx.sessions([session_id])[session_id]


def _set_aside(tx: Tx, session_id: str, by: str) -> None:
    error = tx.broken([session_id]).get(session_id)
    digest = tx.set_aside(session_id) if error is not None else None
    if digest is None:
        return
    session = tx.sessions([session_id]).get(session_id)
    if session is None:
        raise Refused(
            "broken_record", f"the record of session {session_id} cannot be read, nor mended: {error}; keep the "
            "database and report it", subject=session_id,
        )  # fmt: skip
    if session.phase is not Phase.ENDED:
        _note(tx, session, session, "set_aside", by, {"kept": digest, "error": error})


def hold(tx: Tx, session_id: str, by: str) -> Session:
    """Keep a waiting session from being placed."""
    session = _locked(tx, session_id, by)
    if session.phase is not Phase.PENDING or session.wanted is Wanted.STOP:
        raise Refused("not_pending", f"session {session_id} is {session.phase}; only a pending session can be held")
    if session.wanted is not Wanted.HOLD:
        _note(tx, session, forget_room(tx, session)._replace(wanted=Wanted.HOLD), "hold", by)
        tx.take_turns_back([session_id])
    return tx.sessions([session_id])[session_id]


def release(tx: Tx, session_id: str, by: str) -> Session:
    """Let a held session be placed again. Of one that is not held it changes nothing."""
    session = _locked(tx, session_id, by)
    if session.wanted is Wanted.HOLD:
        _note(tx, session, session._replace(wanted=Wanted.RUN), "release", by)
        tx.hint(PLACE)
    return tx.sessions([session_id]).get(session_id, session)


def requeue(tx: Tx, session_id: str, new_id: str, by: str, key: str | None = None) -> Session:
    """Run it again: a live session is stopped and queued again; an ended one gets a new session linked to it. Asked
    again with the same key it does no more."""
    session = _locked(tx, session_id, by)
    if key is not None and was_asked(tx, session_id, "requeue", key):
        return session
    if kept := session.spec.options.get(UNREADABLE):
        raise Refused(
            "broken_record", f"what session {session_id} was to run could not be read (kept as {kept}); submit it anew",
            subject=session_id,
        )  # fmt: skip
    if session.phase is Phase.ENDED:
        spec = replace(alone(session), hold=False, begin=None, after=())
        again = NewSession(new_id, spec, session.owner, key, f"requeue of {session_id}", requeue_of=session_id)
        return submit(tx, [again], by)[0]
    if session.wanted is Wanted.STOP:
        raise Refused("being_cancelled", f"session {session_id} is being cancelled; requeue it once it has ended")
    noted = {} if key is None else {"key": key}
    if session.phase in (Phase.PLACED, Phase.STARTING, Phase.RUNNING) and session.stop_for is None:
        _note(tx, session, session._replace(stop_for=StopFor.REQUEUE), "requeue", by, noted)
        settle_locked(tx, [session_id], by)
    elif session.phase is Phase.STOPPING:
        raise Refused("stopping", f"session {session_id} is stopping; requeue it once it has ended")
    elif noted:
        _note(tx, session, session, "requeue", by, noted)
    return tx.sessions([session_id])[session_id]


def update(
    tx: Tx,
    session_id: str,
    by: str,
    *,
    priority: int | None = None,
    group: str | None = None,
    time_limit_s: int | None = None,
    preemptible: bool | None = None,
) -> Session:
    """Change priority or group while pending, the time limit and whether it may be stopped for others until it ends.
    `Refused` says what cannot change now."""
    session = _locked(tx, session_id, by)
    if session.phase is Phase.ENDED:
        raise Refused("already_ended", f"session {session_id} has ended; nothing of it can be changed")
    if (priority is not None or group is not None) and session.phase is not Phase.PENDING:
        raise Refused(
            "not_pending", f"session {session_id} is {session.phase}; priority and group change while pending"
        )
    if group is not None:
        _keep_groups(tx, [group])
    detail = {"priority": priority, "group": group, "time_limit_s": time_limit_s}
    asked = {name: value for name, value in detail.items() if value is not None}
    noted = asked if preemptible is None else asked | {"preemptible": preemptible}
    if not noted:
        return session
    after = session._replace(**asked)
    if group is not None:
        after = forget_room(tx, after)
    if group is not None or preemptible is not None:
        after = after._replace(spec=arrays.updated(session.spec, group, preemptible))
        tx.set_spec(session_id, after.spec)
    if group is not None or time_limit_s is not None:
        quotas.check_update(tx, after.owner, after.spec, after.time_limit_s, moved=group is not None)
    _note(tx, session, after, "update", by, noted)
    if time_limit_s is not None and session.phase in (Phase.STARTING, Phase.RUNNING):
        tx.ask_again([kernel.token for kernel in tx.kernels([session_id]).get(session_id, [])])
    tx.hint(PLACE)
    return tx.sessions([session_id])[session_id]


def confirm_dead(tx: Tx, node: str, by: str) -> list[str]:
    """An operator's word that a node is dead for good: certificate (d) for each of its kernels; the sessions it freed.

    `Refused` while the node answers, or may still start something on permission it has.
    """
    found = tx.nodes([node]).get(node)
    if found is None:
        raise no_such_node(node, tx.nodes())
    ids = tx.sessions_on(node)
    lock_with_nodes(tx, ids, [node])
    found = tx.nodes([node])[node]
    silent_s = tx.now - found.seen_at
    if found.state is not NodeState.UNREACHABLE or silent_s < CONFIRM_AFTER_S:
        raise Refused(
            "node_alive", f"node {node} was heard {span(silent_s)} ago; only a silent node can be confirmed dead"
        )
    kernels = [kernel for group in tx.kernels(ids).values() for kernel in group]
    dead = [kernel.token for kernel in kernels if kernel.node == node and kernel.certificate is None]
    tx.ask_stop(dead)  # should it return after all, it is told to end them before anything else
    tx.certify(dead, Certificate.OPERATOR, by)
    settle_locked(tx, ids, by)
    return ids


def _locked(tx: Tx, session_id: str, by: str) -> Session:
    if (told := arrays.make_member(tx, session_id, by)) is not None:
        return told
    found = lock_with_nodes(tx, [session_id])
    if session_id not in found:
        raise NotFound(
            "no_such_session", f"there is no session {session_id}; `corral ps` lists yours", subject=session_id
        )
    return found[session_id]


def _note(tx: Tx, before: Session, after: Session, what: str, by: str, detail: dict[str, Any] | None = None) -> None:
    entry = Entry(what, before.phase, before.phase, before.attempt, by, detail or {})
    if not tx.write([change_of(before, after, entry)], by):
        raise Refused("moved_meanwhile", f"session {before.id} changed at the same moment; look again and repeat")
