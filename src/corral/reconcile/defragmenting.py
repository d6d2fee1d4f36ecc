"""Carrying out a plan to defragment: who is in the way is asked to stop, and its next room is kept for it at once.

One transaction for each goal, and all of its moves or none: every mover and the goal are as they were planned, and the
room that each goes to is free now. That room becomes a pin of the mover's before it leaves its own, so that it goes on
there; what it gives back is kept for the goal, where that is a session (docs/protocol.md 15). What is planned is
`scheduling.moving.clearing`'s; next: `sessions` gives the room back, `placement` uses what was kept.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from corral.model.faults import Fault, Refused
from corral.model.lifecycle import Phase
from corral.model.node import Device
from corral.model.pin_invariants import MOVING
from corral.model.session import Change, Entry, Session, StopFor, Token
from corral.ports import PLACE, Reads, Store, Tx
from corral.reconcile.groups import no_such_group
from corral.reconcile.preempting import claiming, is_open_to, keep, let_in, may_claim, may_go, still_to_keep, told
from corral.reconcile.sessions import PIN_S, change_of, lock_with_nodes, settle_locked
from corral.scheduling.claiming.contention import Places
from corral.scheduling.engine.room import NodeRoom, excluded
from corral.scheduling.moving.clearing import Wanted, plan_moves
from corral.scheduling.moving.defragment import Defragmentation, Move
from corral.scheduling.places import RankPlace
from corral.scheduling.reserving import in_the_way
from corral.scheduling.snapshot import Running, Snapshot, Waiting
from corral.scheduling.stopping.ground import ROOM_MARGIN_S
from corral.scheduling.stopping.preemption import being_made

PER_SHAPE = 128  # waiting sessions of one shape that are looked at as goals


@dataclass(frozen=True, slots=True)
class CarriedOut:
    """What was planned, which of its moves have begun, and why those for other goals have not."""

    found: Defragmentation
    begun: Sequence[Move] = ()
    refused: Mapping[str, Fault] = field(default_factory=dict[str, Fault])


@dataclass(frozen=True, slots=True)
class Clearance:
    """The moves for one goal, and where that has its room then; `goal` is None where nobody waits for it."""

    name: str
    goal: Waiting | None
    moves: Sequence[tuple[Running, Places]]
    places: Places
    group: str


def look(reads: Reads, wanted: Wanted) -> tuple[Snapshot, Defragmentation]:
    """The cluster as it is, and the moves that would give the most urgent goals room."""
    snapshot = reads.snapshot(PER_SHAPE)
    if wanted.group is not None and wanted.group not in snapshot.groups:
        raise no_such_group(wanted.group, snapshot.groups)
    snapshot = replace(snapshot, running=reads.running(sorted(snapshot.groups)))
    return snapshot, plan_moves(snapshot, wanted)


async def carry_out(store: Store, wanted: Wanted, by: str) -> CarriedOut:
    """Plan, and begin what of it can begin now. A move into room that others leave first waits for another run."""
    snapshot, found = await store.read("defragmentation", lambda reads: look(reads, wanted))
    begun: list[Move] = []
    refused: dict[str, Fault] = {}
    for planned in clearances(snapshot, found):
        try:
            await store.tx("defragment", lambda tx, planned=planned: clear(tx, planned, by))
        except Refused as fault:
            refused[planned.name] = fault
        else:
            begun += [move for move in found.moves if move.goal == planned.name]
    return CarriedOut(found, begun, refused)


def clearances(snapshot: Snapshot, found: Defragmentation) -> list[Clearance]:
    running = {one.id: one for one in snapshot.running}
    waiting = {one.id: one for one in snapshot.waiting}
    by_goal: defaultdict[str, list[tuple[Running, Places]]] = defaultdict(list)
    for move in found.moves:
        by_goal[move.goal].append((running[move.id], move.there))
    places, groups = {goal.id: won for goal, won in found.won}, {node.name: node.group for node in snapshot.nodes}
    return [
        Clearance(name, waiting.get(name), moves, places[name], groups[places[name][0].node])
        for name, moves in by_goal.items()
    ]


def clear(tx: Tx, planned: Clearance, by: str) -> None:
    """Ask all movers to stop, and keep for each the room it goes to. `Refused`, with nothing written, where anything is
    not as planned."""
    targets = {place.node for _, there in planned.moves for place in there}.union(one.node for one in planned.places)
    ids = [one.id for one, _ in planned.moves]
    sessions = lock_with_nodes(tx, [*ids, *([planned.goal.id] if planned.goal is not None else [])], targets)
    goal = _goal(tx, sessions, planned)
    movers = [_mover(sessions, one) for one, _ in planned.moves]
    room_by = tx.now + max(one.spec.grace_s for one in movers) + ROOM_MARGIN_S
    _look_for_room(tx, movers, planned.moves, room_by)
    _look_for_goal(tx, planned, room_by)
    changes = [
        _moving(one, there, goal, room_by, by) for one, (_, there) in zip(movers, planned.moves, strict=True)
    ]  # fmt: skip
    changes += [] if goal is None else [claiming(goal, movers, room_by, by)]
    if len(tx.write(changes, by)) < len(changes):
        raise _moved(planned.name)
    generation = tx.generation()
    for one, (_, there) in zip(movers, planned.moves, strict=True):
        places = {str(Token(generation, one.id, one.attempt + 1, rank)): place for rank, place in enumerate(there)}
        tx.pin(one.id, places, room_by + PIN_S)
    if goal is not None:
        coming = [place for one, _ in planned.moves for place in one.ranks]
        keep(tx, goal, still_to_keep(tx, goal.id, planned.places, coming), room_by + PIN_S)
        tx.note_refusals({goal.id: told(being_made(len(movers), room_by))})
    settle_locked(tx, ids, by)
    tx.hint(PLACE)


def _goal(tx: Tx, sessions: Mapping[str, Session], planned: Clearance) -> Session | None:
    if planned.goal is None:
        return None
    goal = sessions.get(planned.goal.id)
    if goal is None or not may_claim(goal, planned.goal, tx.now):
        raise _moved(planned.goal.id)
    return goal


def _look_for_goal(tx: Tx, planned: Clearance, starts_by: float) -> None:
    """The goal may go where the others make room."""
    if planned.goal is None:
        return
    id_, asked = planned.goal.id, (planned.goal, planned.group, planned.places)
    if not is_open_to(tx, *asked, starts_by):
        raise Refused("no_room", f"session {id_} could not start where room was to be made for it: "
                      f"{', '.join(_names(planned.places))} takes no sessions like it now, or is reserved for others; "
                      "look again", subject=id_)  # fmt: skip
    if not let_in(tx, *asked):
        raise Refused("quota_reached", f"session {id_} would not be let in by its quotas now; look again",
                      subject=id_)  # fmt: skip


def _mover(sessions: Mapping[str, Session], planned: Running) -> Session:
    session = sessions.get(planned.id)
    if session is None or session.phase is not Phase.RUNNING or not may_go(session, planned):
        raise _moved(planned.id)
    return session


def _look_for_room(
    tx: Tx, movers: Sequence[Session], moves: Sequence[tuple[Running, Places]], starts_by: float
) -> None:
    """The room that they go to is there now, all of it, and they may go there, and be there as long as they may take
    if they start again as late as that."""
    names = sorted({place.node for _, there in moves for place in there})
    nodes, devices = tx.nodes(names), defaultdict[str, list[Device]](list)
    for device in tx.devices(names):
        devices[device.node].append(device)
    tx.share_groups(sorted({node.group for node in nodes.values()}))
    paused = {group.name for group in tx.groups().values() if group.paused}
    rooms = {name: NodeRoom(node, devices[name]) for name, node in nodes.items() if node.group not in paused}
    reservations = tx.reservations()
    for session, (one, there) in zip(movers, moves, strict=True):
        on = list(dict.fromkeys(place.node for place in there))
        if not all(name in rooms and excluded(rooms[name].node, one.shape, tx.now) is None for name in on):
            raise _no_room(session, on, "it takes no sessions like this one now")
        until = math.inf if session.time_limit_s is None else starts_by + session.time_limit_s + session.spec.grace_s
        if in_the_way(reservations, on, session.owner, session.spec.project, tx.now, until) is not None:
            raise _no_room(session, on, "it is reserved for others before this one would have ended")
        if not all(_takes(rooms[name], [place for place in there if place.node == name]) for name in on):
            raise _no_room(session, on, "the room there is not free; look again once those that move have gone")


def _takes(room: NodeRoom, places: Sequence[RankPlace]) -> bool:
    if not room.fits(places):
        return False
    for place in places:
        room.take(place)
    return True


def _moving(session: Session, there: Places, goal: Session | None, room_by: float, by: str) -> Change:
    detail: dict[str, object] = {"to": _names(there), "room_by": room_by}
    detail |= {} if goal is None else {"for": goal.id}
    entry = Entry(MOVING, session.phase, session.phase, session.attempt, by, detail)
    after = session._replace(
        stop_for=StopFor.PREEMPTED,
        preempted_for=None if goal is None else goal.id,
        preemptions=session.preemptions + 1,
        room_by=room_by,
    )
    return change_of(session, after, entry)


def _names(places: Iterable[RankPlace]) -> list[str]:
    return list(dict.fromkeys(place.node for place in places))


def _moved(id_: str) -> Refused:
    return Refused("moved_meanwhile", f"session {id_} is not as it was when the moves were planned; look again",
                   subject=id_)  # fmt: skip


def _no_room(session: Session, on: Sequence[str], why: str) -> Refused:
    return Refused("no_room", f"session {session.id} cannot move to {', '.join(on)}: {why}", subject=session.id)
