"""What happens, as it happens: all events in commit order, to be resumed from any number."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated

import msgspec
from fastapi import Header, Query, Response

from corral.api import sse
from corral.api.context import Context, Here
from corral.api.discretion import event_for
from corral.api.openapi import bytes_of, json_of, respond
from corral.api.others import told_to
from corral.api.policy import Asking, Caller, Policy, allow, routes
from corral.api.render import EventView
from corral.api.waiting import hinted
from corral.model.faults import Fault
from corral.ports import EVENTS, EventRow, Reads

router = routes("events")
LOOK_AGAIN_S = 0.5
PAGE = 1000


class EventsView(msgspec.Struct):
    """A page; `last` is the newest event there is, the number to follow from."""

    events: list[EventView]
    last: int


@router.get("/api/v1/events", responses=bytes_of(sse.MEDIA_TYPE))
@allow(Policy.USER)
async def follow_events(
    here: Here,
    asking: Asking,
    after: Annotated[int, Query(ge=0, le=2**62)] = 0,
    follow: bool = True,
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """Every event after the given one, then each as it is committed. `Last-Event-ID` resumes."""
    return sse.respond(_stream(here, asking, sse.resume_point(last_event_id, after), follow))


@router.get("/api/v1/events:page", responses=json_of(EventsView))
@allow(Policy.USER)
async def page_of_events(
    here: Here,
    asking: Asking,
    after: Annotated[int, Query(ge=0, le=2**62)] = 0,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> Response:
    """A page of events, for those who do not stay."""

    def look(reads: Reads) -> EventsView:
        rows = _visible(reads, asking, reads.events(after, limit, asking.owner))
        return EventsView(_told(reads, asking, rows), reads.last_event())

    return respond(await here.store.read("events", look))


async def _stream(here: Context, asking: Caller, after: int, follow: bool) -> AsyncIterator[bytes]:
    watch = here.store.wakeups.watch(EVENTS)
    behind = False  # hinted of what an older transaction still open keeps back; its end brings no hint of its own
    try:
        yield sse.HEARTBEAT
        while not here.stopping.is_set():
            rows, shown, last = await here.store.read("events", partial(_page, asking=asking, after=after))
            for view in shown:
                yield sse.event(view.fact, view, view.id)
            if len(rows) == PAGE:
                after = rows[-1].id
                continue
            moved = bool(rows) or last > after
            after = max(after, last, *(row.id for row in rows[-1:]))
            if not follow:
                return
            told = await hinted(watch, LOOK_AGAIN_S if behind else sse.HEARTBEAT_S, here.stopping)
            behind = told or (behind and not moved)
            if not told:
                yield sse.HEARTBEAT
    except Fault as fault:
        yield sse.unavailable(fault)
    finally:
        watch.close()


def _page(reads: Reads, *, asking: Caller, after: int) -> tuple[list[EventRow], list[EventView], int]:
    """What is new, what of it may be seen, and the number up to which nothing else is."""
    last = reads.last_event()
    rows = reads.events(after, PAGE, asking.owner)
    return rows, _told(reads, asking, _visible(reads, asking, rows)), last


def _told(reads: Reads, asking: Caller, rows: list[EventRow]) -> list[EventView]:
    return told_to(reads, asking, [event_for(asking, row) for row in rows])


def _visible(reads: Reads, asking: Caller, rows: list[EventRow]) -> list[EventRow]:
    if asking.owner is None:
        return rows
    sessions = reads.sessions({row.session for row in rows if row.session is not None})
    arrays = reads.arrays({row.session for row in rows if row.session is not None} - sessions.keys())
    own = {id_ for id_, one in {**sessions, **arrays}.items() if asking.sees(one)}
    return [row for row in rows if row.session in own or row.group is not None]
