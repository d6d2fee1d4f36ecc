"""What administrators ask of reservations: each a synchronous transaction body.

A reservation counts from its acknowledgement: placing locks the nodes that it uses and then reads what is reserved, and
making a reservation locks its nodes first. What holds room there already is told, and left alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from corral.model.faults import NotFound, Refused
from corral.model.reservation import LONGEST_SHOWN, AskedReservation, ReservationRow, checked, span
from corral.model.wording import like, number_of
from corral.ports import PLACE, Reads, Tx
from corral.reconcile.groups import no_such_group
from corral.reconcile.nodes import no_such_node
from corral.scheduling.reserving import is_for, moment
from corral.scheduling.snapshot import Running

MOST_RESERVATIONS = 200  # that are not over: every pass looks at each


def create(tx: Tx, asked: AskedReservation, by: str) -> ReservationRow:
    asked = checked(asked)
    starts_at, ends_at = span(asked, tx.now)
    candidates = _candidates(tx, asked)
    tx.lock(candidates, ())
    others = tx.reservations()
    if any(one.name == asked.name for one in others):
        raise Refused("reservation_exists", f"there is a reservation {asked.name} already; delete it first",
                      subject=asked.name)  # fmt: skip
    if len(others) >= MOST_RESERVATIONS:
        raise Refused("too_many_reservations", f"there are {len(others)} reservations that are not over; at most "
                      f"{MOST_RESERVATIONS}", subject=asked.name)  # fmt: skip
    met = [one for one in others if one.starts_at < ends_at and one.ends_at > starts_at]
    nodes = _chosen(tx, asked, candidates, met, starts_at)
    version = tx.reservation_version(asked.name) + 1
    whose = tuple(sorted(set(asked.owners))), tuple(sorted(set(asked.projects)))
    made = ReservationRow(asked.name, version, starts_at, ends_at, nodes, *whose, asked.reason, tx.now, by)
    _refuse_overlap(made, met)
    if not tx.add_reservation(made):
        raise Refused("reservation_exists", f"a reservation {asked.name} was made at the same moment; look again",
                      subject=asked.name)  # fmt: skip
    tx.hint(PLACE)
    return made


def delete(tx: Tx, name: str, by: str) -> ReservationRow:
    """Its nodes are free again for everybody; that it was there stays known."""
    found = find(tx, name)
    tx.lock(found.nodes, ())
    if not tx.drop_reservation(found.name, found.version, by):
        raise no_such_reservation(name, ())
    tx.hint(PLACE)
    return found


def find(reads: Reads, name: str) -> ReservationRow:
    there = reads.reservations()
    found = next((one for one in there if one.name == name), None)
    if found is None:
        raise no_such_reservation(name, (one.name for one in there))
    return found


def no_such_reservation(name: str, known: Iterable[str]) -> NotFound:
    shown = name[:LONGEST_SHOWN]
    asked = f"{shown!r} that is not over{like(shown, known) or ';'}"
    message = f"there is no reservation {asked} `corral reservation list` lists them"
    return NotFound("no_such_reservation", message, subject=shown)


def conflicts(reads: Reads, found: Iterable[ReservationRow]) -> dict[tuple[str, int], list[Running]]:
    """By name and version, the sessions that hold room on its nodes and may still be there when it begins."""
    all_ = list(found)
    nodes = {name for one in all_ for name in one.nodes}
    groups = sorted({node.group for node in reads.nodes(sorted(nodes)).values()}) if nodes else []
    running = reads.running(groups) if groups else []
    return {(one.name, one.version): [run for run in running if runs_into(run, one, reads.now)] for one in all_}


def runs_into(run: Running, reservation: ReservationRow, now: float) -> bool:
    ends_at = None if run.ends_at is None else max(run.ends_at, now)
    if reservation.ends_at <= now or is_for(reservation, run.owner, run.project):
        return False
    late = ends_at is None or ends_at > reservation.starts_at
    return late and not {rank.node for rank in run.ranks}.isdisjoint(reservation.nodes)


def _candidates(tx: Tx, asked: AskedReservation) -> list[str]:
    """The nodes it is about, or may be."""
    if asked.group is not None:
        if asked.group not in (groups := tx.groups()):
            raise no_such_group(asked.group, groups)
        listed = sorted(node.name for node in tx.nodes().values() if node.group == asked.group)
        wanted = 1 if asked.count is None else asked.count
        if len(listed) < wanted:
            raise Refused("not_enough_nodes", f"group {asked.group} has {number_of(len(listed), 'node')}, not {wanted}",
                          subject=asked.group)  # fmt: skip
        return listed
    names = sorted(set(asked.nodes))
    known = tx.nodes(names)
    if unknown := [name for name in names if name not in known]:
        raise no_such_node(unknown[0], tx.nodes())
    return names


def _chosen(
    tx: Tx, asked: AskedReservation, candidates: Sequence[str], met: Sequence[ReservationRow], starts_at: float
) -> tuple[str, ...]:
    """Of a group, as many as asked for: those that nobody else has reserved, and where fewest will be in the way."""
    if asked.group is None or asked.count is None:
        return tuple(candidates)
    taken = {name for one in met for name in one.nodes}
    free = [name for name in candidates if name not in taken]
    if len(free) < asked.count:
        left = number_of(len(free), "node is", "nodes are")
        raise Refused("reserved", f"of group {asked.group} {left} not reserved then, and {asked.count} were asked for",
                      subject=asked.name)  # fmt: skip
    in_the_way = dict.fromkeys(free, 0)
    for run in tx.running([asked.group]):
        if run.ends_at is None or run.ends_at > starts_at:
            for name in {rank.node for rank in run.ranks} & in_the_way.keys():
                in_the_way[name] += 1
    return tuple(sorted(sorted(free, key=lambda name: (in_the_way[name], name))[: asked.count]))


def _refuse_overlap(made: ReservationRow, met: Collection[ReservationRow]) -> None:
    """Nodes may be reserved twice for one time only by the same people: else one of the two could not be kept."""
    for one in met:
        both = sorted(set(one.nodes) & set(made.nodes))
        if both and (one.owners, one.projects) != (made.owners, made.projects):
            raise Refused("reserved", f"node {both[0]} is reserved already from {moment(one.starts_at)} to "
                          f"{moment(one.ends_at)} ({one.name}), for others", subject=one.name)  # fmt: skip
