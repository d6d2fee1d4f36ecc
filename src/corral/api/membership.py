"""What is shown of arrays beside what every session shows: how many members are how, and which member one is."""

from __future__ import annotations

from typing import Any

import msgspec

from corral.model.array import Array, Tally, has_row, member_of
from corral.model.indices import indices_of
from corral.model.lifecycle import Phase
from corral.model.session import Session
from corral.ports import Reads


class ArrayPart(msgspec.Struct):
    """`phases` and `outcomes` count members, those too that have no row of their own yet. `throttle`: how many may live
    at once; null: as many as there is room for."""

    indices: str
    size: int
    throttle: int | None
    phases: dict[str, int]
    outcomes: dict[str, int]


class MemberPart(msgspec.Struct):
    array: str
    index: int


def array_part(array: Array, found: Tally) -> ArrayPart:
    indices = array.indices
    shown = str(indices._replace(throttle=None))
    return ArrayPart(shown, indices.size, indices.throttle, dict(found.phases), dict(found.outcomes))


def member_part(session: Session) -> MemberPart | None:
    named = member_of(session.id)
    return None if named is None else MemberPart(*named)


def turn_refusals(reads: Reads, sessions: list[Session]) -> dict[str, list[dict[str, Any]]]:
    """Of members whose turn in their array has not come, why."""
    members = [one for one in sessions if one.phase is Phase.PENDING and member_of(one.id) is not None]
    if not members:
        return {}
    waiting = reads.still_dependent([one.id for one in members if has_row(one)])
    told = [one for one in members if one.id in waiting or not has_row(one)]
    arrays = reads.arrays({named[0] for one in told if (named := member_of(one.id)) is not None})
    return {one.id: _turn(arrays.get(one.id.partition("[")[0]), one) for one in told}


def _turn(array: Array | None, session: Session) -> list[dict[str, Any]]:
    indices = indices_of(session.spec.array or "0") if array is None else array.indices
    if array is not None and array.waits:
        return [{"code": "dependency", "message": "its array waits for the end of others", "counts": {}}]
    if indices.throttle is not None:
        message = f"its turn has not come: of its array {indices.throttle} may live at once"
        return [{"code": "array_throttle", "message": message, "counts": {"members": indices.throttle}}]
    return [{"code": "array_turn", "message": "its turn has not come: others of its array are before it", "counts": {}}]
