"""What can be known of sessions: lists, one, its history, its attempts and launches, why it does not start, its end."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from operator import itemgetter
from typing import Annotated

import msgspec
from fastapi import Query, Response

from corral.api.arrays import array_view, explain_array, listed_views
from corral.api.context import Here
from corral.api.explaining import ExplainView, explain_view
from corral.api.lookup import find, find_any
from corral.api.openapi import json_of, respond
from corral.api.others import told_to
from corral.api.policy import Asking, Caller, Policy, allow, routes
from corral.api.render import (
    EventView,
    LaunchView,
    ReasonView,
    SessionView,
    event_view,
    launch_view,
    rows_of,
    session_view,
    time_or_none,
)
from corral.api.routes.sessions import SessionsView
from corral.api.unreadable import unreadable_views
from corral.api.waiting import hinted
from corral.model.array import Array, has_row
from corral.model.faults import Invalid, NotFound
from corral.model.lifecycle import Phase
from corral.model.session import Session
from corral.ports import Reads, SessionFilter, Unreadable, session_channel

router = routes("sessions")
LONGEST_WAIT_S = 60.0
Text = Annotated[str | None, Query(max_length=256, pattern=r"^[^\x00]*$")]
Phases = Annotated[list[Phase] | None, Query()]


class AttemptView(msgspec.Struct):
    attempt: int
    group: str | None
    live: bool
    placed_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    outcome: str | None
    exit_class: str | None
    exit_code: int | None
    reason: ReasonView | None
    cause: ReasonView | None


class LaunchesView(msgspec.Struct):
    """Every launch of every attempt. `double_starts` names tokens that began more than once: there are none."""

    session: str
    launches: list[LaunchView]
    double_starts: list[str]


@router.get("/api/v1/sessions", responses=json_of(SessionsView))
@allow(Policy.USER)
async def list_sessions(
    here: Here,
    asking: Asking,
    phase: Phases = None,
    owner: Text = None,
    project: Text = None,
    group: Text = None,
    name: Text = None,
    label: Annotated[list[str] | None, Query(max_length=16)] = None,
    members: bool = False,
    array: Text = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Text = None,
) -> Response:
    """Sessions, newest first. `next` is the cursor of the following page. An array is listed as one, unless its members
    are asked for: with `members` everyone's, with `array` those of one. One whose record cannot be read says so in
    `error`, and only what is known of it."""
    what = SessionFilter(
        phases=[str(one) for one in phase or ()],
        owner=owner if asking.owner is None else asking.owner,
        project=project,
        group=group,
        name=name,
        labels=_labels(label or []),
        limit=limit + 1,
        after=_cursor(cursor),
        members=members or array is not None,
    )
    return respond(await here.store.read("list", lambda reads: _listed(reads, asking, what, array)))


def _listed(reads: Reads, asking: Caller, what: SessionFilter, array: str | None) -> SessionsView:
    if array is not None:
        found = find_any(reads, asking, array)
        if isinstance(found, Session):
            raise NotFound("no_such_member", f"session {found.id} is no array and has no members", subject=found.id)
        what = what._replace(in_array=found.id)
    found = reads.listed(what)
    sessions = [one for one in found if isinstance(one, Session)]
    broken = [one for one in found if isinstance(one, Unreadable)]
    sessions += reads.unmade(what) if what.members else []
    wholes = [] if what.members else reads.listed_arrays(what)
    arrays = [one for one in wholes if not isinstance(one, Unreadable)]
    broken += [one for one in wholes if isinstance(one, Unreadable)]
    last = _last_place([*sessions, *broken, *(one for one, _ in arrays)], what.limit - 1)
    shown = [one for one in sessions if one.ordinal >= last]
    rows = rows_of(reads, shown)
    views = [(one.ordinal, session_view(one, rows)) for one in shown]
    counted = [one for one in arrays if one[0].ordinal >= last]
    views += [(one[0].ordinal, view) for one, view in zip(counted, listed_views(reads, counted), strict=True)]
    told = [one for one in broken if one.ordinal >= last]
    views += [(one.ordinal, view) for one, view in zip(told, unreadable_views(reads, told), strict=True)]
    ordered = [view for _, view in sorted(views, key=itemgetter(0), reverse=True)]
    return SessionsView(told_to(reads, asking, ordered), str(last) if last else None)


def _last_place(found: Sequence[Session | Array | Unreadable], limit: int) -> int:
    """The place of the last that is shown; 0 when that is all."""
    places = sorted((one.ordinal for one in found), reverse=True)
    return places[limit - 1] if len(places) > limit else 0


@router.get("/api/v1/sessions/{session_id}", responses=json_of(SessionView))
@allow(Policy.USER)
async def show(here: Here, asking: Asking, session_id: str) -> Response:
    """One session, as it is now."""
    return respond(await here.store.read("show", lambda reads: _view(reads, asking, session_id)))


@router.get("/api/v1/sessions/{session_id}/spec", responses=json_of(dict))
@allow(Policy.USER)
async def spec(here: Here, asking: Asking, session_id: str) -> Response:
    """What was asked for, in full and as it is stored."""
    return respond(await here.store.read("spec", lambda reads: find_any(reads, asking, session_id).spec))


@router.get("/api/v1/sessions/{session_id}/wait", responses=json_of(SessionView))
@allow(Policy.USER)
async def wait(
    here: Here,
    asking: Asking,
    session_id: str,
    timeout_s: Annotated[float, Query(ge=0, le=LONGEST_WAIT_S, allow_inf_nan=False)] = 30.0,
) -> Response:
    """The session once it has ended, or as it is when the time is out."""
    session = await here.store.read("find", lambda reads: find_any(reads, asking, session_id))
    deadline = here.clock.mono() + timeout_s
    watch = here.store.wakeups.watch(session_channel(session.id))
    try:
        while True:
            view = await here.store.read("show", lambda reads: _view(reads, asking, session.id))
            left_s = deadline - here.clock.mono()
            if view.phase == Phase.ENDED or left_s <= 0 or here.stopping.is_set():
                return respond(view)
            await hinted(watch, min(left_s, 5.0), here.stopping)
    finally:
        watch.close()


def _view(reads: Reads, asking: Caller, session_id: str) -> SessionView:
    found = find_any(reads, asking, session_id)
    if isinstance(found, Array):
        view = array_view(reads, found)
    else:
        view = session_view(found, rows_of(reads, [found]), reads.position(found))
    return told_to(reads, asking, [view])[0]


@router.get("/api/v1/sessions/{session_id}/history", responses=json_of(list[EventView]))
@allow(Policy.USER)
async def history(
    here: Here,
    asking: Asking,
    session_id: str,
    after: Annotated[int, Query(ge=0, le=2**62)] = 0,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
) -> Response:
    """Everything that happened to it, in order and without gaps; to a member that has no row yet what did to its
    array."""

    def look(reads: Reads) -> list[EventView]:
        found = find_any(reads, asking, session_id)
        whole = isinstance(found, Array) or has_row(found)
        rows = reads.history(found.id if whole else found.id.partition("[")[0], after, limit)
        return told_to(reads, asking, [event_view(row) for row in rows])

    return respond(await here.store.read("history", look))


@router.get("/api/v1/sessions/{session_id}/attempts", responses=json_of(list[AttemptView]))
@allow(Policy.USER)
async def attempts(here: Here, asking: Asking, session_id: str) -> Response:
    """Every try that got room, oldest first."""
    times = ("placed_at", "started_at", "ended_at")

    def look(reads: Reads) -> list[AttemptView]:
        rows = reads.attempts(find(reads, asking, session_id).id)
        shown = [row | {name: time_or_none(row[name]) for name in times} for row in rows]
        return told_to(reads, asking, msgspec.convert(shown, list[AttemptView]))

    return respond(await here.store.read("attempts", look))


@router.get("/api/v1/sessions/{session_id}/launches", responses=json_of(LaunchesView))
@allow(Policy.USER)
async def launches(here: Here, asking: Asking, session_id: str) -> Response:
    """The chain of records that shows each launch began at most once (`corral audit-launch`)."""

    def look(reads: Reads) -> LaunchesView:
        session = find(reads, asking, session_id)
        shown = [launch_view(row) for row in reads.launches(session.id)]
        tokens = [one.token for one in shown]
        return LaunchesView(session.id, shown, sorted({token for token in tokens if tokens.count(token) > 1}))

    return respond(await here.store.read("launches", look))


@router.get("/api/v1/sessions/{session_id}/explain", responses=json_of(ExplainView))
@allow(Policy.USER)
async def explain(here: Here, asking: Asking, session_id: str) -> Response:
    """Why it does not start, or what is still missing until it runs."""

    def look(reads: Reads) -> ExplainView:
        found = find_any(reads, asking, session_id)
        whole = isinstance(found, Array)
        view = explain_array(reads, asking, found) if whole else explain_view(reads, asking, found)
        return told_to(reads, asking, [view])[0]

    return respond(await here.store.read("explain", look))


def _labels(pairs: list[str]) -> dict[str, str]:
    wrong = next((pair for pair in pairs if "=" not in pair), None)
    if wrong is not None:
        raise Invalid("bad_pair", f"label {wrong[:80]!r} is not KEY=VALUE")
    return {key: value for key, _, value in (pair.partition("=") for pair in pairs)}


def _cursor(cursor: str | None) -> int | None:
    if cursor is None:
        return None
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 19):
        raise Invalid("bad_cursor", f"cursor {cursor[:80]!r} is not one that a list answered")
    return int(cursor)
