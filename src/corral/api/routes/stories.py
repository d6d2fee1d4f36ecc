"""What can be known of sessions: lists, one, its history, its attempts and launches, why it does not start, its end."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec
from fastapi import Query, Response

from corral.api.context import Here
from corral.api.explaining import ExplainView, explain_view
from corral.api.lookup import find
from corral.api.openapi import json_of, respond
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
from corral.api.waiting import hinted
from corral.model.faults import Invalid
from corral.model.lifecycle import Phase
from corral.ports import Reads, SessionFilter, session_channel

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
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Text = None,
) -> Response:
    """Sessions, newest first. `next` is the cursor of the following page."""
    what = SessionFilter(
        phases=[str(one) for one in phase or ()],
        owner=owner if asking.owner is None else asking.owner,
        project=project,
        group=group,
        name=name,
        labels=_labels(label or []),
        limit=limit + 1,
        after=_cursor(cursor),
    )

    def look(reads: Reads) -> SessionsView:
        found = reads.list_sessions(what)
        shown, rest = found[:limit], found[limit:]
        rows = rows_of(reads, shown)
        return SessionsView([session_view(one, rows) for one in shown], str(shown[-1].ordinal) if rest else None)

    return respond(await here.store.read("list", look))


@router.get("/api/v1/sessions/{session_id}", responses=json_of(SessionView))
@allow(Policy.USER)
async def show(here: Here, asking: Asking, session_id: str) -> Response:
    """One session, as it is now."""
    return respond(await here.store.read("show", lambda reads: _view(reads, asking, session_id)))


@router.get("/api/v1/sessions/{session_id}/spec", responses=json_of(dict))
@allow(Policy.USER)
async def spec(here: Here, asking: Asking, session_id: str) -> Response:
    """What was asked for, in full and as it is stored."""
    return respond(await here.store.read("spec", lambda reads: find(reads, asking, session_id).spec))


@router.get("/api/v1/sessions/{session_id}/wait", responses=json_of(SessionView))
@allow(Policy.USER)
async def wait(
    here: Here,
    asking: Asking,
    session_id: str,
    timeout_s: Annotated[float, Query(ge=0, le=LONGEST_WAIT_S, allow_inf_nan=False)] = 30.0,
) -> Response:
    """The session once it has ended, or as it is when the time is out."""
    session = await here.store.read("find", lambda reads: find(reads, asking, session_id))
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
    session = find(reads, asking, session_id)
    return session_view(session, rows_of(reads, [session]), reads.position(session))


@router.get("/api/v1/sessions/{session_id}/history", responses=json_of(list[EventView]))
@allow(Policy.USER)
async def history(
    here: Here,
    asking: Asking,
    session_id: str,
    after: Annotated[int, Query(ge=0, le=2**62)] = 0,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
) -> Response:
    """Everything that happened to it, in order and without gaps."""
    rows = await here.store.read(
        "history", lambda reads: reads.history(find(reads, asking, session_id).id, after, limit)
    )
    return respond([event_view(row) for row in rows])


@router.get("/api/v1/sessions/{session_id}/attempts", responses=json_of(list[AttemptView]))
@allow(Policy.USER)
async def attempts(here: Here, asking: Asking, session_id: str) -> Response:
    """Every try that got room, oldest first."""
    rows = await here.store.read("attempts", lambda reads: reads.attempts(find(reads, asking, session_id).id))
    times = ("placed_at", "started_at", "ended_at")
    shown = [row | {name: time_or_none(row[name]) for name in times} for row in rows]
    return respond(msgspec.convert(shown, list[AttemptView]))


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
    return respond(await here.store.read("explain", lambda reads: explain_view(reads, find(reads, asking, session_id))))


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
