"""What is true of those who make way, and of the room that is kept, in any state of the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from corral.model.lifecycle import Phase

Row = Mapping[str, Any]
Found = Iterator[tuple[str, str, str]]
PREEMPTED: Final = "preempted"  # the line in the history of one that makes way
MOVING: Final = "moving"  # … and goes on elsewhere, in room that is kept for it


def check_pins(pins: Iterable[Row], sessions: Mapping[str, Row]) -> Found:
    """AL8: room is kept for one that waits for it, or that stops to go on there; and is made for nobody else."""
    for pin in pins:
        session = sessions.get(pin["owner"])
        waits = session is not None and (session["phase"], session["wanted"]) == (Phase.PENDING, "run")
        if session is None or session["room_by"] is None or not (waits or _moves(session)):
            yield "AL8", f"{pin['token']}/{pin['device']}", f"kept for {pin['owner']}, which does not wait for it"
    for id_, session in sessions.items():
        if session["room_by"] is not None and session["phase"] != Phase.PENDING and not _moves(session):
            yield "AL8", id_, f"{session['phase']}, and room is still being made for it"


def _moves(session: Row) -> bool:
    return session["phase"] == Phase.STOPPING and session["stop_for"] == PREEMPTED


def check_stops(events: Mapping[str, Sequence[Row]]) -> Found:
    """AL8: an attempt makes way once, and only while it has its room."""
    for id_, story in events.items():
        stops = [event for event in story if event["fact"] in (PREEMPTED, MOVING)]
        if len({event["attempt"] for event in stops}) < len(stops):
            yield "AL8", id_, "one attempt of it was preempted twice"
        for event in stops:
            if event["source"] not in (Phase.PLACED, Phase.STARTING, Phase.RUNNING):
                yield "AL8", id_, f"it was preempted when it was {event['source']}"
