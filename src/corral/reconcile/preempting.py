"""Stopping sessions so that another finds room, as a pass planned it; and letting go of room that was kept too long.

One transaction guards the claimant and every victim, or writes nothing (docs/protocol.md 15). What of the claimant's
room is free already is kept for it at once; what a victim gives back is kept by whoever proves it free (`sessions`);
`placement` uses and drops what was kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from corral import wire
from corral.model.faults import Refused
from corral.model.lifecycle import Phase, Wanted
from corral.model.node import Device, Node
from corral.model.pin_invariants import PREEMPTED
from corral.model.session import Change, Entry, Session, StopFor, Token
from corral.ports import PLACE, Store, Tx
from corral.reconcile import quotas
from corral.reconcile.sessions import PIN_S, change_of, lock_with_nodes, settle_locked
from corral.scheduling.ahead.heads import until_s
from corral.scheduling.engine.room import excluded
from corral.scheduling.places import Grant, RankPlace
from corral.scheduling.plan import Placed, Preemption, Refusal
from corral.scheduling.policies.group_options import preempts
from corral.scheduling.reserving import in_the_way
from corral.scheduling.snapshot import Pin, Running, Waiting
from corral.scheduling.stopping.ground import ROOM_MARGIN_S
from corral.scheduling.stopping.preemption import being_made

RANKS_APART = 10_000
CPU, MEMORY = ("", "cpu"), ("", "memory")


async def preempt_all(store: Store, planned: Sequence[Preemption], by: str) -> int:
    """Carry out what still holds of these, each by itself: how many."""
    real = [one for one in planned if one.victims]
    return sum([await store.tx("preempt", lambda tx, one=one: preempt(tx, one, by)) for one in real])


def preempt(tx: Tx, planned: Preemption, by: str) -> bool:
    """Ask every victim to stop for the claimant; False, with nothing written, where one of them is not as planned."""
    ids = [planned.claimant.id, *(victim.id for victim in planned.victims)]
    sessions = lock_with_nodes(tx, ids, {place.node for place in planned.ranks})
    claimant = sessions.get(planned.claimant.id)
    pairs = [(sessions[one.id], one) for one in planned.victims if one.id in sessions]
    victims = [session for session, one in pairs if may_go(session, one)]
    stands = claimant is not None and may_claim(claimant, planned.claimant, tx.now)
    holds = claimant is not None and stands and len(victims) == len(planned.victims)
    room_by = tx.now + max((victim.spec.grace_s for victim in victims), default=0) + ROOM_MARGIN_S
    if claimant is None or not (holds and _is_welcome(tx, planned, room_by)):
        tx.hint(PLACE)
        return False
    changes = [claiming(claimant, victims, room_by, by), *(_going(victim, claimant, by) for victim in victims)]
    if len(tx.write(changes, by)) < len(changes):
        raise Refused("moved_meanwhile", f"session {claimant.id}, or one to be stopped for it, moved while locked")
    coming = [place for one in planned.victims for place in one.ranks]
    keep(tx, claimant, still_to_keep(tx, claimant.id, planned.ranks, coming), room_by + PIN_S)
    tx.note_refusals({claimant.id: told(being_made(len(victims), room_by))})
    settle_locked(tx, [victim.id for victim in victims], by)
    return True


def _is_welcome(tx: Tx, planned: Preemption, starts_by: float) -> bool:
    asked = planned.claimant, planned.group, planned.ranks
    return is_open_to(tx, *asked, starts_by) and preempts(tx.groups()[planned.group]) and let_in(tx, *asked)


def is_open_to(tx: Tx, claimant: Waiting, group: str, ranks: Sequence[RankPlace], starts_by: float) -> bool:
    """Whether it may still start there, and be there as long as it may take if it starts as late as that: the group
    is not paused, every node takes it, and none is reserved for others. Read locked, as when it is placed: else others
    would stop for room that it cannot have."""
    names = sorted({place.node for place in ranks})
    tx.share_groups([group])
    found, nodes = tx.groups().get(group), tx.nodes(names)
    open_ = all(name in nodes and excluded(nodes[name], claimant.shape, tx.now) is None for name in names)
    if found is None or found.paused or not open_:
        return False
    whose, until = (claimant.owner, claimant.project), until_s(claimant, starts_by)
    return in_the_way(tx.reservations(), names, *whose, tx.now, until) is None


def let_in(tx: Tx, claimant: Waiting, group: str, ranks: Sequence[RankPlace]) -> bool:
    """Whether its quotas let it in there, beside what is held and all for whom others stop. Looked at locked: of two
    that would have others stopped at once, under a quota that has room for one, one does."""
    return claimant.id in quotas.allowed(tx, [Placed(claimant, group, tuple(ranks))])


def still_to_keep(tx: Tx, claimant: str, ranks: Iterable[RankPlace], coming: Iterable[RankPlace]) -> list[RankPlace]:
    """Of the room that it is to have, on locked nodes, what is free, and neither comes from those who go nor is kept
    for it already. What others give back who stop anyway is not kept: it may come late."""
    left = list(_less(ranks, [*coming, *(pin.place for pin in tx.pins([claimant]))]))
    names = sorted({place.node for place in left})
    devices = {device.uuid: device for device in tx.devices(names)}
    return [_free(place, tx.nodes([place.node]).get(place.node), devices) for place in left]


def _free(place: RankPlace, node: Node | None, devices: Mapping[str, Device]) -> RankPlace:
    """As much of it as is free now."""
    if node is None or (node.epoch, node.run_id) != (place.epoch, place.run_id):
        return replace(place, cpu_milli=0, memory_mib=0, grants=())
    there = [(grant, devices[grant.uuid]) for grant in place.grants if grant.uuid in devices]
    grants = [
        Grant(one.uuid, min(one.share_milli, device.free_milli), min(one.vram_mib, device.free_mib))
        for one, device in there
        if device.present
    ]
    return replace(
        place, cpu_milli=min(place.cpu_milli, node.cpu_milli - node.cpu_used_milli),
        memory_mib=min(place.memory_mib, node.memory_mib - node.memory_used_mib),
        grants=tuple(one for one in grants if one.share_milli or one.vram_mib),
    )  # fmt: skip


def keep(tx: Tx, claimant: Session, places: Iterable[RankPlace], until: float) -> None:
    """These, which are free, and all that is kept for it already, are its own until then."""
    tx.keep_pins(claimant.id, until)
    # Told apart from what was kept for it at an earlier try by how far its story had come.
    numbered = enumerate(places, claimant.seq * RANKS_APART)
    generation = tx.generation()
    own = {str(Token(generation, claimant.id, claimant.attempt, number)): place for number, place in numbered
           if place.cpu_milli or place.memory_mib or place.grants}  # fmt: skip
    if own:
        tx.pin(claimant.id, own, until)


def _less(ranks: Iterable[RankPlace], given: Iterable[RankPlace]) -> Iterator[RankPlace]:
    """What of these is left when that is given, on each node together."""
    needed = _by_node(ranks)
    there = _by_node(given)
    for name, (place, need) in needed.items():
        have = there[name][1] if name in there else Counter[tuple[str, str]]()
        left = {what: amount - have[what] for what, amount in need.items() if amount > have[what]}
        grants = sorted({device for device, _ in left if device})
        if left:
            yield replace(
                place, cpu_milli=left.get(CPU, 0), memory_mib=left.get(MEMORY, 0),
                grants=tuple(Grant(one, left.get((one, "share"), 0), left.get((one, "vram"), 0)) for one in grants),
            )  # fmt: skip


def _by_node(places: Iterable[RankPlace]) -> dict[str, tuple[RankPlace, Counter[tuple[str, str]]]]:
    found: dict[str, tuple[RankPlace, Counter[tuple[str, str]]]] = {}
    for place in places:
        counted = found.setdefault(place.node, (place, Counter[tuple[str, str]]()))[1]
        counted[CPU] += place.cpu_milli
        counted[MEMORY] += place.memory_mib
        for grant in place.grants:
            counted[grant.uuid, "share"] += grant.share_milli
            counted[grant.uuid, "vram"] += grant.vram_mib
    return found


def may_claim(session: Session, planned: Waiting, now: float) -> bool:
    """Whether it waits as it did, and nobody stops for it already."""
    return (
        session.phase is Phase.PENDING
        and session.wanted is Wanted.RUN
        and (session.attempt, session.seq) == (planned.attempt, planned.seq)
        and (session.room_by is None or session.room_by <= now)
    )


def may_go(session: Session, planned: Running) -> bool:
    """Whether it still holds its room as it did, and nothing stops it yet."""
    return (
        session.phase in (Phase.PLACED, Phase.STARTING, Phase.RUNNING)
        and (session.attempt, session.seq) == (planned.attempt, planned.seq)
        and session.wanted is not Wanted.STOP
        and session.stop_for is None
    )


def claiming(claimant: Session, victims: Sequence[Session], room_by: float, by: str) -> Change:
    """It is told that these stop for it."""
    detail = {"victims": [victim.id for victim in victims], "room_by": room_by}
    entry = Entry("preempting", claimant.phase, claimant.phase, claimant.attempt, by, detail)
    return change_of(claimant, claimant._replace(room_by=room_by), entry)


def _going(victim: Session, claimant: Session, by: str) -> Change:
    entry = Entry(PREEMPTED, victim.phase, victim.phase, victim.attempt, by, {"for": claimant.id})
    after = victim._replace(stop_for=StopFor.PREEMPTED, preempted_for=claimant.id, preemptions=victim.preemptions + 1)
    return change_of(victim, after, entry)


def told(refusal: Refusal) -> str:
    """As it is noted with the session."""
    return wire.encode([{"code": refusal.code, "message": refusal.message, "counts": dict(refusal.counts)}]).decode()


async def drop_old_pins(store: Store, pins: Sequence[Pin], now: float) -> None:
    """Give back room that was kept and is over its time."""
    nodes = sorted({pin.place.node for pin in pins if pin.expires_at <= now})
    if nodes:
        await store.tx("drop pins", lambda tx: _drop(tx, nodes))


def _drop(tx: Tx, nodes: Sequence[str]) -> None:
    tx.lock(nodes, ())
    if tx.drop_old_pins(nodes):
        tx.hint(PLACE)


def forget_room(tx: Tx, session: Session) -> Session:
    """The locked session without a claim to room that others were stopped for; what was kept for it is free."""
    if session.room_by is None:
        return session
    tx.drop_pins([session.id])
    tx.hint(PLACE)
    return session._replace(room_by=None)
