"""The shapes of a plan to defragment, as they come from the control plane."""

from __future__ import annotations

from typing import TypedDict


class Place(TypedDict):
    node: str
    gpus: list[str]


class Move(TypedDict):
    """The session would stop where it is and go on there; `goal` is for whom."""

    session: str
    here: list[Place]
    there: list[Place]
    goal: str


class Won(TypedDict):
    """Who would have room then, where, and after how many moves for it."""

    goal: str
    places: list[Place]
    moves: int


class RefusedMoves(TypedDict):
    """Why no move for this goal has begun."""

    goal: str
    code: str
    message: str


class Defragmentation(TypedDict):
    """`moves` in the order in which they would be made; `given_up` are goals that so many moves make no room for."""

    moves: list[Move]
    won: list[Won]
    given_up: list[str]


class CarriedOut(TypedDict):
    """`plan` as it was when it was carried out; `begun` are the sessions that were asked to stop."""

    plan: Defragmentation
    begun: list[str]
    refused: list[RefusedMoves]
