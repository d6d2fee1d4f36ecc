"""Defragmenting, for administrators: who would have to move where so that those that wait find room, as a plan to look
at (GET: nobody is stopped by asking), and carried out (POST)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from fastapi import Body, Query, Response

from corral.api.context import Here
from corral.api.inputs import DefragmentIn
from corral.api.openapi import json_of, respond
from corral.api.policy import Asking, Policy, allow, routes
from corral.reconcile.defragmenting import carry_out, look
from corral.scheduling.moving.clearing import ROOM, Wanted
from corral.scheduling.moving.defragment import Defragmentation
from corral.scheduling.places import RankPlace

router = routes("defragmentation")
MOST_GOALS_SHOWN = 1000


class PlaceView(msgspec.Struct):
    node: str
    gpus: list[str]


class MoveView(msgspec.Struct):
    """The session would stop where it is and go on there; `goal` is for whom: a session, or room that was asked for."""

    session: str
    here: list[PlaceView]
    there: list[PlaceView]
    goal: str


class WonView(msgspec.Struct):
    """Who would have room then, and where; `moves` for it, none where it fits as things are."""

    goal: str
    places: list[PlaceView]
    moves: int


class DefragmentationView(msgspec.Struct):
    """`moves` in the order in which they would be made; `given_up` are goals that so many moves make no room for."""

    moves: list[MoveView]
    won: list[WonView]
    given_up: list[str]


class RefusedView(msgspec.Struct):
    """Why no move for this goal has begun."""

    goal: str
    code: str
    message: str


class CarriedOutView(msgspec.Struct):
    """`plan` as it was when it was carried out; `begun` are the sessions that were asked to stop."""

    plan: DefragmentationView
    begun: list[str]
    refused: list[RefusedView]


@router.get("/api/v1/defragmentation", responses=json_of(DefragmentationView))
@allow(Policy.ADMIN)
async def defragmentation(
    here: Here,
    asking: Asking,
    moves: Annotated[int, Query(ge=1, le=1000, description="at most, in all")] = 10,
    moves_per_goal: Annotated[int, Query(ge=1, le=100, description="at most, for one goal")] = 3,
    gpus: Annotated[int, Query(ge=0, le=1024, description="also make so many whole GPUs of one node free")] = 0,
    count: Annotated[int, Query(ge=1, le=1000, description="so many times")] = 1,
    group: Annotated[str | None, Query(description="for this resource group's sessions alone, on its nodes")] = None,
) -> Response:
    """Who would have to move, few and in order, each into room that is free before it goes."""
    del asking
    wanted = Wanted(moves, moves_per_goal, gpus, count, group)
    _, found = await here.store.read("defragmentation", lambda reads: look(reads, wanted))
    return respond(_view(found))


@router.post("/api/v1/defragmentation", responses=json_of(CarriedOutView))
@allow(Policy.ADMIN)
async def defragment(here: Here, asking: Asking, asked: Annotated[DefragmentIn, Body()]) -> Response:
    """Plan anew, and ask those to stop that have to move: each goes on in room that is kept for it. Of each goal's
    moves all begin or none."""
    wanted = Wanted(asked.moves, asked.moves_per_goal, asked.gpus, asked.count, asked.group)
    done = await carry_out(here.store, wanted, asking.by)
    refused = [RefusedView(goal, fault.code, fault.message) for goal, fault in done.refused.items()]
    return respond(CarriedOutView(_view(done.found), [move.id for move in done.begun], refused))


def _view(found: Defragmentation) -> DefragmentationView:
    return DefragmentationView(
        [MoveView(move.id, _places(move.here), _places(move.there), move.goal) for move in found.moves],
        [
            WonView(goal.id, _places(places), sum(move.goal == goal.id for move in found.moves))
            for goal, places in found.won
            if goal.id.startswith(ROOM) or any(move.goal == goal.id for move in found.moves)
        ],
        [goal.id for goal in found.given_up][:MOST_GOALS_SHOWN],
    )


def _places(places: Sequence[RankPlace]) -> list[PlaceView]:
    return [PlaceView(place.node, [grant.uuid for grant in place.grants]) for place in places]
