"""Arrays: their members get rows as their turn comes, and what is asked of an array is asked of its members.

Any manager gives turns before it places (`unfold_pass`), with the array's row locked, so that each member is made once
and never more live than the array's throttle allows. A member that something is asked of gets its row at once, and
waits with it for its turn. Next: members are placed, started and ended as every session is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from corral.model.array import Array, member, member_of, outcome_of
from corral.model.array_invariants import THROTTLE
from corral.model.dependency import is_met
from corral.model.faults import NotFound, Refused
from corral.model.lifecycle import ExitClass, Outcome, Phase, Wanted
from corral.model.session import Entry, Session, StopFor, Why
from corral.model.spec import SessionSpec
from corral.ports import PLACE, NewSession, Store, Tx
from corral.reconcile import quotas
from corral.reconcile.groups import no_such_group
from corral.reconcile.preempting import forget_room
from corral.reconcile.sessions import change_of, lock_with_nodes, settle_locked, was_asked

WINDOW = 128  # members that wait for room at once, of one array: as many of one shape as a pass reads
ARRAYS_AT_ONCE = 20
CANCELLED = Why("cancelled", "cancelled by the user")
STARTED = (Phase.PLACED, Phase.STARTING, Phase.RUNNING)
Changed = Callable[[Session], Session | None]


async def unfold_pass(store: Store, by: str) -> None:
    """Give members their turn, let arrays go that waited for others, and end those whose members all have."""
    due, decided = await store.read(
        "arrays due", lambda reads: (reads.arrays_due(WINDOW, ARRAYS_AT_ONCE), reads.arrays_decided(ARRAYS_AT_ONCE))
    )
    if due or decided:
        await store.tx("unfold arrays", lambda tx: unfold(tx, due, decided, by))


def unfold(tx: Tx, due: Sequence[str], decided: Sequence[str], by: str) -> None:
    for array in tx.lock_arrays([*due, *decided]).values():
        if array.ended_at is None:
            unfold_one(tx, _after_others(tx, array, by) if array.waits else array, by)
    if len(due) >= ARRAYS_AT_ONCE:
        tx.hint(PLACE)


def unfold_one(tx: Tx, array: Array, by: str) -> Array:
    """All that follows now for one locked array that has not ended."""
    if array.wanted is Wanted.STOP or not array.unmade:
        if not tx.live_members(array.id):
            return _end(tx, array, by)
        if array.wanted is Wanted.STOP:
            return array
    if not array.waits:
        due = tx.members_due(array, WINDOW, WINDOW)
        tx.give_turns(due.waiting)
        tx.make_members(array, due.places, due.reached, by, turn=True)
    return array


def _after_others(tx: Tx, array: Array, by: str) -> Array:
    """The array let go, or stopped, as the ends of those it waits for have it by now."""
    needs = tx.dependencies([array.id]).get(array.id, [])
    met = [(row, is_met(row.kind, row.phase, row.outcome)) for row in needs]
    failed = next((row for row, answer in met if answer is False), None)
    if failed is not None:
        message = f"it was to start after {failed.needs}:{failed.kind}, which ended {failed.outcome}"
        return _stop(tx, array, Why("dependency_failed", message), "dependency_failed", by)
    if not all(answer for _, answer in met):
        return array
    tx.array_waited(array.id)
    return tx.write_array(array, array, _line("dependency_met", by))._replace(waits=False)


def _end(tx: Tx, array: Array, by: str) -> Array:
    """The end of an array is the sum of its members' ends; its exit code is that of the first that is not 0."""
    found = tx.tallies([array])[array.id]
    missed = tx.first_not_good(array)
    tx.hint(PLACE)  # others may wait for this end
    return tx.write_array(
        array,
        array._replace(
            ended_at=tx.now,
            outcome=outcome_of(found),
            exit_class=missed.exit_class if missed else ExitClass.OK,
            exit_code=missed.exit_code if missed else 0,
            succeeded=found.outcomes.get(Outcome.SUCCEEDED, 0),
            failed=found.outcomes.get(Outcome.FAILED, 0),
        ),
        _line("ended", by, dict(found.outcomes)),
    )


def _stop(tx: Tx, array: Array, why: Why, what: str, by: str) -> Array:
    """Members without rows have ended with this; those that live are asked to stop."""
    stopped = tx.write_array(array, array._replace(wanted=Wanted.STOP, reason=why), _line(what, by))
    _ask_members(tx, stopped, what, by, lambda one: None if one.wanted is Wanted.STOP else _stopped(one))
    return stopped


def _stopped(session: Session) -> Session:
    return session._replace(wanted=Wanted.STOP)


def _ask_members(tx: Tx, array: Array, what: str, by: str, changed: Changed, **detail: Any) -> list[str]:
    """Write what is asked with each member that has a row and has not ended, and settle them; whom it concerned."""
    sessions = lock_with_nodes(tx, tx.live_members(array.id))
    changes = [
        change_of(one, after, Entry(what, one.phase, one.phase, one.attempt, by, detail))
        for one in sessions.values()
        if one.phase is not Phase.ENDED and (after := changed(one)) is not None
    ]
    taken = tx.write(changes, by)
    settle_locked(tx, taken, by)
    return sorted(taken)


def _line(what: str, by: str, detail: dict[str, Any] | None = None) -> Entry:
    return Entry(what, None, None, 1, by, detail or {})


# --- members that have no row yet


def make_member(tx: Tx, session_id: str, by: str) -> Session | None:
    """Give the member of this name its row, if it has none. One that ended with its array gets none any more: it is
    answered as it is told of."""
    named = member_of(session_id)
    if named is None or session_id in tx.sessions([session_id]):
        return None
    array = tx.lock_arrays([named[0]]).get(named[0])
    if array is None:
        return None
    place = array.indices.place_of(named[1])
    if place is None:
        raise no_such_member(array, named[1])
    if tx.has_member(array, place):
        return None
    if array.ended_at is not None or array.wanted is Wanted.STOP:
        return member(array, place)
    tx.make_members(array, [place], array.reached, by, turn=False)
    tx.hint(PLACE)
    return None


def no_such_member(array: Array, index: int) -> NotFound:
    shown = str(array.indices._replace(throttle=None))
    listed = shown if len(shown) <= 60 else f"{shown[:60]}…"
    return NotFound("no_such_member", f"array {array.id} has no member {index}; it has {listed}", subject=array.id)


# --- what users ask of a whole array


def submit(tx: Tx, new: Sequence[NewSession], by: str) -> list[Array]:
    """Store new arrays, each as one row; a repeated idempotency key answers the array that it made."""
    arrays = tx.submit_arrays([one._replace(by=by) for one in new]) if new else []
    tx.hint(PLACE)
    return arrays


def cancel(tx: Tx, array_id: str, by: str) -> Array:
    """Ask that every member stop. Idempotent; of an ended array it changes nothing."""
    array = _locked(tx, array_id)
    if array.ended_at is not None or array.wanted is Wanted.STOP:
        return array
    return unfold_one(tx, _stop(tx, array, CANCELLED, "cancel", by), by)


def hold(tx: Tx, array_id: str, by: str) -> Array:
    """Keep the members that wait from being placed."""
    array = _locked(tx, array_id)
    if array.ended_at is not None or array.wanted is Wanted.STOP:
        raise Refused("not_pending", f"array {array_id} is over; only pending members can be held", subject=array_id)
    if array.unmade and array.wanted is Wanted.RUN:
        array = tx.write_array(array, array._replace(wanted=Wanted.HOLD), _line("hold", by))
    held = _ask_members(tx, array, "hold", by, lambda one: _held(tx, one))
    tx.take_turns_back(held)
    if not array.unmade and not held and array.wanted is Wanted.RUN:
        raise Refused("not_pending", f"no member of array {array_id} is pending any more", subject=array_id)
    return array


def _held(tx: Tx, session: Session) -> Session | None:
    waits = session.phase is Phase.PENDING and session.wanted is Wanted.RUN
    return forget_room(tx, session)._replace(wanted=Wanted.HOLD) if waits else None


def release(tx: Tx, array_id: str, by: str) -> Array:
    """Let held members be placed again, those too that were held one by one."""
    array = _locked(tx, array_id)
    if array.ended_at is not None:
        return array
    if array.wanted is Wanted.HOLD:
        array = tx.write_array(array, array._replace(wanted=Wanted.RUN), _line("release", by))
    _ask_members(tx, array, "release", by, _released)
    tx.hint(PLACE)
    return array


def _released(session: Session) -> Session | None:
    return session._replace(wanted=Wanted.RUN) if session.wanted is Wanted.HOLD else None


def requeue(tx: Tx, array_id: str, new_id: str, by: str, key: str | None = None) -> Array:
    """Run it again: members that live are stopped and queued again; of an ended array a new one is made. Asked again
    with the same key it does no more."""
    array = _locked(tx, array_id)
    if key is not None and was_asked(tx, array_id, "requeue", key):
        return array
    if array.ended_at is not None:
        spec = replace(array.spec, hold=False, begin=None, after=())
        again = NewSession(new_id, spec, array.owner, key, f"requeue of {array_id}", requeue_of=array_id)
        return submit(tx, [again], by)[0]
    if array.wanted is Wanted.STOP:
        raise Refused("being_cancelled", f"array {array_id} is being cancelled; requeue it once it has ended",
                      subject=array_id)  # fmt: skip
    if key is not None:
        array = tx.write_array(array, array, _line("requeue", by, {"key": key}))
    _ask_members(tx, array, "requeue", by, _again)
    return array


def _again(session: Session) -> Session | None:
    goes = session.phase in STARTED and session.wanted is not Wanted.STOP and session.stop_for is None
    return session._replace(stop_for=StopFor.REQUEUE) if goes else None


def update(
    tx: Tx,
    array_id: str,
    by: str,
    *,
    priority: int | None = None,
    group: str | None = None,
    time_limit_s: int | None = None,
    preemptible: bool | None = None,
    throttle: int | None = None,
) -> Array:
    """Change priority and group of the members that wait, the time limit of all that have not ended and whether they
    may be stopped for others, and how many may live at once (0: as many as there is room for)."""
    array = _locked(tx, array_id)
    if array.ended_at is not None or array.wanted is Wanted.STOP:
        raise Refused("already_ended", f"array {array_id} is over; nothing of it can be changed", subject=array_id)
    if throttle is not None:
        array = _throttled(tx, array, throttle, by)
    detail = {"priority": priority, "group": group, "time_limit_s": time_limit_s}
    asked = {name: value for name, value in detail.items() if value is not None}
    noted = asked if preemptible is None else asked | {"preemptible": preemptible}
    if not noted:
        return array
    after = array._replace(**asked)._replace(spec=updated(array.spec, group, preemptible))
    if group is not None or time_limit_s is not None:
        quotas.check_update(tx, after.owner, after.spec, after.time_limit_s, moved=group is not None)
    array = tx.write_array(array, after, _line("update", by, noted))
    limit = {name: value for name, value in asked.items() if name == "time_limit_s"}

    def changed(session: Session) -> Session | None:
        pending = session.phase is Phase.PENDING
        fields = asked if pending else limit
        base = forget_room(tx, session) if pending and group is not None else session
        return base._replace(**fields) if fields or preemptible is not None else None

    for session in tx.sessions(_ask_members(tx, array, "update", by, changed, **noted)).values():
        spec = updated(session.spec, group if session.phase is Phase.PENDING else None, preemptible)
        if spec != session.spec:
            tx.set_spec(session.id, spec)
        if limit and session.phase in (Phase.STARTING, Phase.RUNNING):
            tx.ask_again([kernel.token for kernel in tx.kernels([session.id]).get(session.id, [])])
    if group is not None and not tx.share_groups([group]):
        raise no_such_group(group, tx.groups())
    tx.hint(PLACE)
    return array


def updated(spec: SessionSpec, group: str | None, preemptible: bool | None) -> SessionSpec:
    """The spec with those of these that are given."""
    spec = spec if group is None else replace(spec, group=group)
    return spec if preemptible is None else replace(spec, preemptible=preemptible)


def _throttled(tx: Tx, array: Array, throttle: int, by: str) -> Array:
    """Fewer or more may live at once. Whoever has begun goes on; of those that wait so many give their turn back."""
    before, indices = array.indices, array.indices._replace(throttle=throttle or None)
    if before == indices:
        return array
    after = array._replace(spec=replace(array.spec, array=str(indices)))
    array = tx.write_array(array, after, _line(THROTTLE, by, {"from": before.throttle, "to": indices.throttle}))
    if indices.throttle is not None:
        members = lock_with_nodes(tx, tx.live_members(array.id))
        without = tx.still_dependent(members)
        turned = [one for one in members.values() if one.id not in without]
        waiting = [one.id for one in turned if one.phase is Phase.PENDING and one.room_by is None]
        excess = max(0, len(turned) - indices.throttle)
        tx.take_turns_back(waiting[max(0, len(waiting) - excess) :])
    tx.hint(PLACE)
    return array


def _locked(tx: Tx, array_id: str) -> Array:
    found = tx.lock_arrays([array_id]).get(array_id)
    if found is None:
        raise NotFound("no_such_session", f"there is no array {array_id}; `corral ps` lists yours", subject=array_id)
    return found
