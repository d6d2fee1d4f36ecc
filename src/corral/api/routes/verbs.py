"""What users do to a session: cancel, hold, release, requeue, update. Each writes an intent and answers the session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Body, Response

from corral.api.arrays import array_view
from corral.api.context import Context, Here
from corral.api.inputs import UpdateIn
from corral.api.keys import Key, checked_key
from corral.api.lookup import find_any, find_id
from corral.api.openapi import json_of, respond
from corral.api.others import told_to
from corral.api.policy import Asking, Caller, Policy, allow, routes
from corral.api.render import SessionView, rows_of, session_view
from corral.api.specs import time_limit_of
from corral.model.array import Array
from corral.model.faults import Invalid
from corral.model.session import Session
from corral.model.spec import NAME, PRIORITY_LIMIT
from corral.ports import Reads, Tx
from corral.reconcile import arrays, intents

router = routes("sessions")
Answers = json_of(SessionView)


Act = Callable[[Tx, str], Session]
ActOnAll = Callable[[Tx, str], Array]
Look = Callable[[Reads, Caller, str], Array | str]


def _readable(reads: Reads, caller: Caller, text: str) -> Array | str:
    found = find_any(reads, caller, text)
    return found if isinstance(found, Array) else found.id


async def _do(
    here: Context, asking: Caller, session_id: str, act: Act, on_all: ActOnAll, look: Look = _readable
) -> Response:
    """Do it to the session, or to all members of the array."""

    def write(tx: Tx) -> SessionView:
        found = look(tx, asking, session_id)
        if isinstance(found, Array):
            view = array_view(tx, on_all(tx, found.id))
        else:
            session = act(tx, found)
            view = session_view(session, rows_of(tx, [session]), tx.position(session))
        return told_to(tx, asking, [view])[0]

    return respond(await here.store.tx("intent", write))


@router.post("/api/v1/sessions/{session_id}/cancel", responses=Answers)
@allow(Policy.USER)
async def cancel(here: Here, asking: Asking, session_id: str) -> Response:
    """Ask that it stop. May be repeated; an ended session stays as it is. An administrator so ends one whose record
    cannot be read, too."""
    return await _do(here, asking, session_id, lambda tx, id_: intents.cancel(tx, id_, asking.by),
                     lambda tx, id_: arrays.cancel(tx, id_, asking.by), find_id)  # fmt: skip


@router.post("/api/v1/sessions/{session_id}/hold", responses=Answers)
@allow(Policy.USER)
async def hold(here: Here, asking: Asking, session_id: str) -> Response:
    """Keep a pending session from starting."""
    return await _do(here, asking, session_id, lambda tx, id_: intents.hold(tx, id_, asking.by),
                     lambda tx, id_: arrays.hold(tx, id_, asking.by))  # fmt: skip


@router.post("/api/v1/sessions/{session_id}/release", responses=Answers)
@allow(Policy.USER)
async def release(here: Here, asking: Asking, session_id: str) -> Response:
    """Let a held session start."""
    return await _do(here, asking, session_id, lambda tx, id_: intents.release(tx, id_, asking.by),
                     lambda tx, id_: arrays.release(tx, id_, asking.by))  # fmt: skip


@router.post("/api/v1/sessions/{session_id}/requeue", responses=Answers)
@allow(Policy.USER)
async def requeue(here: Here, asking: Asking, session_id: str, key: Key = None) -> Response:
    """Run it again: a live one is stopped and queued again, an ended one gets a new session linked to it. With an
    idempotency key, repeating the request does no more, and answers what it was about as it is then."""
    new_id, kept = here.ids.session_id(), checked_key(key)
    return await _do(here, asking, session_id, lambda tx, id_: intents.requeue(tx, id_, new_id, asking.by, kept),
                     lambda tx, id_: arrays.requeue(tx, id_, new_id, asking.by, kept))  # fmt: skip


@router.patch("/api/v1/sessions/{session_id}", responses=Answers)
@allow(Policy.USER)
async def update(here: Here, asking: Asking, session_id: str, asked: Annotated[UpdateIn, Body()]) -> Response:
    """Change priority and group while it is pending, and until it ends the time limit, whether it may be stopped for
    others, and how many members of an array may live at once."""
    if asked.priority is not None and abs(asked.priority) > PRIORITY_LIMIT:
        raise Invalid("out_of_range", f"priority is {asked.priority}; it must be within ±{PRIORITY_LIMIT}")
    if asked.group is not None and not NAME.match(asked.group):
        raise Invalid("bad_group", f"group {asked.group[:80]!r} is not a name")
    limit_s = time_limit_of(asked.time)
    changes: dict[str, Any] = {"priority": asked.priority, "group": asked.group, "time_limit_s": limit_s,
                               "preemptible": asked.preemptible}  # fmt: skip
    if {*changes.values(), asked.throttle} == {None}:
        raise Invalid("nothing_asked", "name what to change: priority, group, time, preemptible or throttle")

    def one(tx: Tx, id_: str) -> Session:
        if asked.throttle is not None:
            raise Invalid("not_an_array", f"{id_} is no array; only of an array a number of members may live at once")
        return intents.update(tx, id_, asking.by, **changes)

    return await _do(here, asking, session_id, one,
                     lambda tx, id_: arrays.update(tx, id_, asking.by, throttle=asked.throttle, **changes))  # fmt: skip
