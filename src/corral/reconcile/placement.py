"""Two passes that any manager may run at any time: place what fits, and claim what was placed.

Placing commits what still fits of a plan made on a snapshot; what no longer does is dropped and tried again. Claiming
writes the session and all its kernels, and what their nodes are told, in one transaction, or nothing (B1, B3): that of
the placing where it may, or one of its own.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from corral import wire
from corral.model.lifecycle import Fact, Phase, Wanted, step
from corral.model.node import Device, Holding
from corral.model.reservation import ReservationRow
from corral.model.session import Change, Entry, Kernel, Session, Token
from corral.ports import CLAIM, PLACE, Placement, Reads, Store, Tx
from corral.reconcile import quotas
from corral.reconcile.agenda import Agenda
from corral.reconcile.arrays import unfold_pass
from corral.reconcile.decide import CHECK_AFTER_S
from corral.reconcile.dependencies import DECIDED_LIMIT, Pace, settle_dependents
from corral.reconcile.preempting import drop_old_pins, preempt_all
from corral.reconcile.promising import NOTHING_AHEAD, Ahead, ahead_of, as_planned, note
from corral.reconcile.sessions import lock_with_nodes
from corral.scheduling.ahead.due import next_due
from corral.scheduling.cycle import cycle, held_by_quota
from corral.scheduling.engine.room import NodeRoom, excluded
from corral.scheduling.kept.picture import Picture
from corral.scheduling.kept.telling import Told
from corral.scheduling.pins import kept_for
from corral.scheduling.places import RankPlace
from corral.scheduling.plan import Placed, Plan, Refusal
from corral.scheduling.policies.registry import takes_turns
from corral.scheduling.reserving import in_the_way
from corral.scheduling.snapshot import Snapshot

PER_SHAPE = 128  # waiting sessions of one shape that a pass reads; the next pass reads the next ones
CLAIM_LIMIT = 500
Look = Callable[[Snapshot, Plan], object]


def no_look(_snapshot: Snapshot, _plan: Plan) -> None:
    """Of a manager whose plans nobody looks at."""


async def place_pass(
    store: Store,
    by: str,
    *,
    claiming: bool = False,
    look_at: Look = no_look,
    picture: Picture | None = None,
    pace: Pace | None = None,
    agenda: Agenda | None = None,
) -> int:
    """One pass: how many sessions were placed. Hints itself when there is more to do. `claiming`: what is placed is
    claimed in the same transaction, which spares a second one. `look_at` is shown each plan and what it was made of.
    `picture` is what the passes before this one have seen; without it everything is read anew. `pace` says when to look
    at those who wait for others; without it in each pass. `agenda` is told when there is to be another one."""
    await unfold_pass(store, by)
    snapshot, decided = await store.read("scheduling snapshot", lambda reads: _look(reads, picture, pace))
    agenda = agenda or Agenda()
    agenda.saw(snapshot.now, math.inf if picture is None else picture.next_begin)
    if decided:
        await store.tx("settle dependents", lambda tx: settle_dependents(tx, decided, by))
    await drop_old_pins(store, snapshot.pins, snapshot.now)
    if not snapshot.waiting:
        agenda.comes_due(math.inf)
        return 0
    if picture is not None and picture.is_settled:
        return 0
    plan = cycle(snapshot, fleet=None if picture is None else picture.fleet)
    look_at(snapshot, plan)
    due = agenda.comes_due(next_due(snapshot, plan))
    told = new_refusals(snapshot, plan, None if picture is None else picture.told)
    ahead = ahead_of(snapshot, plan)
    placed = 0
    writes = bool(plan.placements or told or ahead.writes)
    if picture is not None and not (writes or plan.preemptions or plan.more):
        picture.settle(due)
    if writes:
        placed = await store.tx("place", lambda tx: commit(tx, plan, told, by, claiming=claiming, ahead=ahead))
    await preempt_all(store, plan.preemptions, by)
    return placed


def _look(reads: Reads, picture: Picture | None, pace: Pace | None) -> tuple[Snapshot, list[str]]:
    decided = reads.decided_dependents(DECIDED_LIMIT) if pace is None else pace.look(reads)
    return reads.snapshot(PER_SHAPE, picture), decided


def new_refusals(snapshot: Snapshot, plan: Plan, lately: Told | None = None) -> dict[str, str]:
    """Of the refusals, those to be noted, as JSON texts: with the first of each shape, which speaks for all behind it,
    and with whoever was told something else before. Who was told the same `lately` but for how many nodes say so has
    time: where much goes on, that would be written all the time."""
    texts: dict[int, str] = {}  # sessions of one shape share one answer
    told: dict[str, str] = {}
    for waiting in snapshot.waiting:
        refusals = plan.refusals.get(waiting.id)
        if refusals is None or held_by_quota(refusals):  # which is told, as it is then, when it is shown
            continue
        first = id(refusals) not in texts
        if first:
            texts[id(refusals)] = wire.encode([_plain(refusal) for refusal in refusals]).decode()
        text = texts[id(refusals)]
        is_other = text != waiting.refused and (first or waiting.refused is not None)
        if is_other and (lately is None or lately.is_news(waiting, [one.code for one in refusals], snapshot.now)):
            told[waiting.id] = text
    return told


def commit(
    tx: Tx, plan: Plan, told: Mapping[str, str], by: str, *, claiming: bool = False, ahead: Ahead = NOTHING_AHEAD
) -> int:
    """Place what still fits, note why the rest does not; how many were placed."""
    names = {rank.node for placed in plan.placements for rank in placed.ranks}
    ids = [placed.session.id for placed in plan.placements]
    claimants = [placed.session.id for placed in plan.placements if placed.session.room_by is not None]
    written = {*ids, *told, *ahead.sessions}  # also those of which something is only noted
    tx.lock(names.union(pin.place.node for pin in tx.pins(claimants)) if claimants else names, written)
    kept = as_planned(tx, plan.placements, ahead)
    fitting = _within_quotas(tx, _still_fitting(tx, kept.placements, names))
    changes = [_placing(session, placed, tx.now, by) for session, placed in fitting]
    if claiming:
        changes = [_then(change, _claiming(change.after, tx.now, by)) for change in changes]
    taken = tx.write(changes, by)
    tx.drop_pins([session.id for session, _ in fitting if session.id in taken and session.room_by is not None])
    generation = tx.generation()
    placements = [_placement(session, placed, generation) for session, placed in fitting if session.id in taken]
    tx.hold(placements, by)
    tx.note_refusals(told)
    _note_turns(tx, [placed for session, placed in fitting if session.id in taken])
    if kept.notes:
        note(tx, ahead, by)
    if claiming:
        tx.claim([kernel for placement in placements for kernel in placement.kernels], by)
    elif placements:
        tx.hint(CLAIM)
    if plan.more or not kept.notes or len(placements) < len(plan.placements):
        tx.hint(PLACE)
    return len(placements)


def _still_fitting(tx: Tx, plan: Sequence[Placed], names: set[str]) -> list[tuple[Session, Placed]]:
    sessions, devices = tx.sessions([placed.session.id for placed in plan]), _devices(tx, names)
    rooms = {name: NodeRoom(node, devices[name]) for name, node in tx.nodes(names).items()}
    tx.share_groups(placed.group for placed in plan)
    paused = {group.name for group in tx.groups().values() if group.paused}
    claimants = [session.id for session in sessions.values() if session.room_by is not None]
    kept = kept_for(tx.pins(claimants) if claimants else (), devices)
    reservations = tx.reservations() if plan else []
    fitting: list[tuple[Session, Placed]] = []
    for placed in plan:
        session = sessions.get(placed.session.id)
        if session is None or placed.group in paused or not _placeable(session, placed, tx.now):
            continue
        if any(excluded(rooms[rank.node].node, placed.session.shape, tx.now) for rank in placed.ranks):
            continue
        if reservations and _runs_into(session, placed, reservations, tx.now):
            continue
        if _taken(rooms, placed.ranks, [place for place in kept.get(session.id, ()) if place.node in rooms]):
            fitting.append((session, placed))
    return fitting


def _devices(tx: Tx, names: set[str]) -> defaultdict[str, list[Device]]:
    by_node: defaultdict[str, list[Device]] = defaultdict(list)
    for device in tx.devices(names):
        by_node[device.node].append(device)
    return by_node


def _taken(rooms: Mapping[str, NodeRoom], ranks: Sequence[RankPlace], own: Sequence[RankPlace]) -> bool:
    """Whether there is room for the ranks, what is kept for them (`own`) included: it is taken then."""
    by_node: defaultdict[str, list[RankPlace]] = defaultdict(list)
    for rank in ranks:
        by_node[rank.node].append(rank)
    for place in own:
        rooms[place.node].give_back([place])
    fits = all(rooms[name].fits(there) for name, there in by_node.items())
    for place in ranks if fits else own:
        rooms[place.node].take(place)
    return fits


def _runs_into(session: Session, placed: Placed, reservations: Sequence[ReservationRow], now: float) -> bool:
    """Whether it would still be there when a reservation begins that is not for it: by its time limit as it is now."""
    limit_s = session.time_limit_s
    until = math.inf if limit_s is None else now + limit_s + session.spec.grace_s
    nodes = [rank.node for rank in placed.ranks]
    return in_the_way(reservations, nodes, session.owner, session.spec.project, now, until) is not None


def _within_quotas(tx: Tx, fitting: list[tuple[Session, Placed]]) -> list[tuple[Session, Placed]]:
    allowed = quotas.allowed(tx, [placed for _, placed in fitting])
    return [one for one in fitting if one[0].id in allowed]


def _note_turns(tx: Tx, placements: Sequence[Placed]) -> None:
    last = {placed.group: placed.ranks[-1].node for placed in placements}
    groups = tx.groups() if last else {}
    tx.had_turns({name: node for name, node in last.items() if name in groups and takes_turns(groups[name])})


def _placeable(session: Session, placed: Placed, now: float) -> bool:
    return (
        session.phase is Phase.PENDING
        and session.wanted is Wanted.RUN
        and session.attempt == placed.session.attempt
        and session.seq == placed.session.seq
        and session.not_before <= now
    )


def _placing(session: Session, placed: Placed, now: float, by: str) -> Change:
    nodes = list(dict.fromkeys(rank.node for rank in placed.ranks))
    return _stepped(session, Fact.PLACED, now, by, {"nodes": nodes, "group": placed.group}, group=placed.group)


def _claiming(session: Session, now: float, by: str) -> Change:
    return _stepped(session, Fact.CLAIMED, now, by, {})


def _then(first: Change, second: Change) -> Change:
    return Change(first.before, second.after, first.history + second.history)


def _stepped(
    session: Session, fact: Fact, now: float, by: str, detail: Mapping[str, object], *, group: str | None = None
) -> Change:
    edge = step(session.phase, fact)
    assert edge is not None
    after = session._replace(
        phase=edge.target,
        phase_at=now,
        seq=session.seq + 1,
        group=group or session.group,
        room_by=None,
        next_check_at=now + CHECK_AFTER_S[edge.target],
    )
    entry = Entry(fact.value, session.phase, edge.target, session.attempt, by, detail)
    return Change(session, after, (entry,))


def _placement(session: Session, placed: Placed, generation: int) -> Placement:
    kernels: list[Kernel] = []
    holdings: list[Holding] = []
    for rank, place in enumerate(placed.ranks):
        token = str(Token(generation, session.id, session.attempt, rank))
        kernels.append(Kernel(token, session.id, session.attempt, rank, place.node, place.epoch, place.run_id))
        held = (token, session.id, session.attempt, place.node)
        holdings.append(Holding(*held, cpu_milli=place.cpu_milli, memory_mib=place.memory_mib))
        for grant in place.grants:
            part = Holding(*held, device=grant.uuid, share_milli=grant.share_milli, vram_mib=grant.vram_mib)
            holdings.append(part)
    return Placement(session, placed.group, kernels, holdings)


def _plain(refusal: Refusal) -> dict[str, object]:
    return {"code": refusal.code, "message": refusal.message, "counts": dict(refusal.counts)}


async def claim_pass(store: Store, by: str) -> int:
    """Claim every placed session: how many."""
    ids = await store.read("placed sessions", lambda reads: reads.in_phase(Phase.PLACED, CLAIM_LIMIT))
    return await store.tx("claim", lambda tx: claim(tx, ids, by)) if ids else 0


def claim(tx: Tx, ids: Sequence[str], by: str) -> int:
    """One conditional update per session, with all its kernels. A session that moved on meanwhile keeps its state, and
    one on a node that rebooted since it was placed is left to the sweep that certifies its kernels."""
    sessions = lock_with_nodes(tx, ids)
    kernels = tx.kernels(ids)
    nodes = tx.nodes({kernel.node for group in kernels.values() for kernel in group})
    ready = [
        session
        for session in sessions.values()
        if session.phase is Phase.PLACED
        and session.wanted is Wanted.RUN
        and session.stop_for is None
        and all(nodes[kernel.node].epoch == kernel.node_epoch for kernel in kernels[session.id])
    ]
    taken = tx.write([_claiming(session, tx.now, by) for session in ready], by)
    tx.claim([kernel for session in ready if session.id in taken for kernel in kernels[session.id]], by)
    if len(ids) >= CLAIM_LIMIT:
        tx.hint(CLAIM)
    return len(taken)
