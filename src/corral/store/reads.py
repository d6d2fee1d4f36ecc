"""Questions to the database, each answered in one statement or a fixed few. Implements ports.Reads."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec

from corral import wire
from corral.model.array import has_row
from corral.model.faults import Invalid
from corral.model.node import Device, Holding, Node, ResourceGroup
from corral.model.quota import Claimant, Quotas
from corral.model.reservation import ReservationRow
from corral.model.session import Kernel, Session
from corral.ports import DependencyRow, EventRow, Foreign, LaunchRow, Member, Order, SessionFilter, Unreadable
from corral.scheduling.explaining.estimate import Ended
from corral.scheduling.kept.picture import Picture
from corral.scheduling.policies.registry import takes_turns
from corral.scheduling.snapshot import Pin, Promise, Running, Snapshot, Usage
from corral.store import (
    ahead_reads,
    ahead_sql,
    array_sql,
    changes,
    group_sql,
    ledger,
    listing,
    node_sql,
    pin_sql,
    quota_reads,
    quota_sql,
    rows,
    running,
    sql,
    waiting,
)
from corral.store.array_reads import ArrayReads
from corral.store.connection import Connection

LAST_ID = "\U0010ffff"


class SqlReads(ArrayReads):
    """Reads on one connection. A stored row that cannot be read is left out of the answers and listed by `broken`."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._now: float | None = None

    @property
    def now(self) -> float:
        """One moment for the whole transaction."""
        if self._now is None:
            self._now = self._connection.now()
        return self._now

    def forget_now(self) -> None:
        self._now = None

    def generation(self) -> int:
        found = self._rows(sql.META, name="generation")
        return int(found[0][0]) if found else 1

    # sessions

    def sessions(self, ids: Iterable[str]) -> dict[str, Session]:
        found: dict[str, Session] = {}
        for row in self._rows(sql.SESSIONS, ids=list(ids)):
            try:
                found[row[0]] = rows.session_of(row)
            except (Invalid, ValueError):
                continue
        return found

    def broken(self, ids: Iterable[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        for row in self._rows(sql.SESSIONS, ids=list(ids)):
            try:
                rows.session_of(row)
            except (Invalid, ValueError) as error:
                found[row[0]] = str(error)
        return found

    def find_sessions(self, prefix: str, limit: int = 3, owner: str | None = None) -> list[str]:
        given = {"low": prefix, "high": prefix + LAST_ID, "limit": limit, "owner": owner}
        return [row[0] for row in self._rows(sql.SESSION_PREFIX, **given)]

    def newest_session(self, owner: str) -> str | None:
        found = [(row[1], row[2] or row[0]) for row in self._rows(sql.SESSION_NEWEST, owner=owner)]
        found += [(row[1], row[0]) for row in self._rows(array_sql.ARRAY_NEWEST, owner=owner)]
        return max(found)[1] if found else None

    def list_sessions(self, what: SessionFilter) -> list[Session]:
        each = listing.sessions(self._rows, what)
        return list(islice((one for one in each if isinstance(one, Session)), what.limit))

    def listed(self, what: SessionFilter) -> list[Session | Unreadable]:
        return list(islice(listing.sessions(self._rows, what), what.limit))

    def count_sessions(self) -> dict[str, int]:
        counts = Counter({row[0]: int(row[1]) for row in self._rows(sql.SESSION_COUNTS)})
        pending, ended = self._rows(array_sql.ARRAYS_UNMADE)[0]
        return dict(+(counts + Counter({"pending": int(pending), "ended": int(ended)})))

    def count_live(self) -> dict[str, int]:
        counts = Counter({row[0]: int(row[1]) for row in self._rows(sql.SESSION_COUNTS_LIVE)})
        return dict(+(counts + Counter({"pending": int(self._rows(array_sql.ARRAYS_UNMADE)[0][0])})))

    def position(self, session: Session) -> int | None:
        if not has_row(session):
            return None
        groups = self.groups() if session.phase == "pending" else {}
        if session.phase != "pending" or not waiting.by_age(groups, session):
            return None
        named = waiting.beside(groups, session)
        found = self._rows(sql.SESSION_POSITION, id=session.id, groups=named, now=self.now)
        return int(found[0][0]) if found else None

    def refusals(self, ids: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
        found = self._rows(sql.SESSION_REFUSALS, ids=list(ids), now=self.now)
        return {row[0]: msgspec.json.decode(row[1]) for row in found}

    def attempts(self, session_id: str) -> list[dict[str, Any]]:
        names = (
            "attempt",
            "group",
            "live",
            "placed_at",
            "started_at",
            "ended_at",
            "outcome",
            "exit_class",
            "exit_code",
        )
        listed: list[dict[str, Any]] = []
        for row in self._rows(sql.ATTEMPTS, session=session_id):
            reason, cause = rows.why(row[9], row[10]), rows.why(row[11], row[12])
            fields = dict(zip(names, row, strict=False))
            fields["live"] = bool(fields["live"])
            listed.append(fields | {"reason": reason and reason._asdict(), "cause": cause and cause._asdict()})
        return listed

    def due(self, limit: int) -> list[str]:
        return [row[0] for row in self._rows(sql.SESSIONS_DUE, now=self.now, limit=limit)]

    def in_phase(self, phase: str, limit: int) -> list[str]:
        return [row[0] for row in self._rows(sql.SESSIONS_IN_PHASE, phase=phase, limit=limit)]

    def stale_kernels(self, limit: int) -> list[str]:
        return [row[0] for row in self._rows(sql.SESSIONS_STALE, limit=limit)]

    def history(self, session_id: str, after: int = 0, limit: int = 1000) -> list[EventRow]:
        found = self._rows(sql.HISTORY, session=session_id, after=after, limit=limit)
        return [rows.event_of(row) for row in found]

    def events(self, after: int, limit: int = 1000, owner: str | None = None) -> list[EventRow]:
        return [rows.event_of(row) for row in self._rows(sql.EVENTS, after=after, limit=limit, owner=owner)]

    def last_event(self) -> int:
        return self._rows(sql.LAST_EVENT)[0][0]

    def dependencies(self, ids: Iterable[str]) -> dict[str, list[DependencyRow]]:
        found: defaultdict[str, list[DependencyRow]] = defaultdict(list)
        for session, needs, kind, phase, outcome in self._rows(sql.DEPENDENCIES, ids=list(ids)):
            row = rows.dependency_of(needs, kind, phase, outcome)
            found[session].append(row)
        return dict(found)

    def still_dependent(self, ids: Iterable[str]) -> set[str]:
        return {row[0] for row in self._rows(sql.STILL_DEPENDENT, ids=list(ids))}

    def count_dependents(self, owner: str) -> int:
        return int(self._rows(sql.COUNT_DEPENDENTS, owner=owner)[0][0])

    def decided_dependents(self, limit: int) -> list[str]:
        return [row[0] for row in self._rows(sql.DEPENDENTS_DECIDED, limit=limit)]

    # kernels and room

    def kernels(self, ids: Iterable[str]) -> dict[str, list[Kernel]]:
        found: defaultdict[str, list[Kernel]] = defaultdict(list)
        for row in self._rows(sql.KERNELS, ids=list(ids)):
            found[row[1]].append(rows.kernel_of(row))
        return dict(found)

    def launches(self, session_id: str) -> list[LaunchRow]:
        found = self._rows(sql.LAUNCHES, session=session_id)
        return [LaunchRow(rows.kernel_of(row), *row[-6:]) for row in found]

    def holdings(self, ids: Iterable[str]) -> dict[str, list[Holding]]:
        found: defaultdict[str, list[Holding]] = defaultdict(list)
        for row in self._rows(sql.HOLDINGS, ids=list(ids)):
            found[row[1]].append(rows.holding_of(row))
        return dict(found)

    def tokens_sessions(self, tokens: Iterable[str]) -> dict[str, tuple[str, int]]:
        return {row[0]: (row[1], row[2]) for row in self._rows(sql.TOKENS_SESSIONS, tokens=list(tokens))}

    # nodes

    def nodes(self, names: Iterable[str] | None = None) -> dict[str, Node]:
        found = self._rows(node_sql.ALL_NODES) if names is None else self._rows(node_sql.NODES, names=list(names))
        return {row[0]: rows.node_of(row) for row in found}

    def foreign(self) -> list[Foreign]:
        return [Foreign(*row) for row in self._rows(node_sql.FOREIGN)]

    def devices(self, nodes: Iterable[str] | None = None) -> list[Device]:
        found = self._rows(node_sql.ALL_DEVICES) if nodes is None else self._rows(node_sql.DEVICES, names=list(nodes))
        return [rows.device_of(row) for row in found]

    def groups(self) -> dict[str, ResourceGroup]:
        return {row[0]: rows.group_of(row) for row in self._rows(group_sql.GROUPS)}

    def live_in_group(self, name: str) -> int:
        return int(
            self._rows(group_sql.GROUP_LIVE, name=name)[0][0] + self._rows(array_sql.ARRAYS_IN_GROUP, name=name)[0][0]
        )

    def group_history(self, name: str, after: int = 0, limit: int = 1000) -> list[EventRow]:
        return [rows.event_of(row) for row in self._rows(group_sql.GROUP_HISTORY, name=name, after=after, limit=limit)]

    def quotas(self, *, held: bool = True, owners: Iterable[str] | None = None) -> Quotas:
        return quota_reads.quotas(self._rows, self.now, held=held, owners=owners)

    def all_held(self) -> Quotas:
        return quota_reads.all_held(self._rows, self.now)

    def waiting_of(self, owners: Iterable[str] | None) -> list[tuple[Claimant, int]]:
        return quota_reads.waiting_of(self._rows, owners)

    def quota_version(self, name: str) -> int:
        return int(self._rows(quota_sql.QUOTA_LAST, name=name)[0][0])

    def quota_history(self, name: str, after: int = 0, limit: int = 1000) -> list[EventRow]:
        found = self._rows(quota_sql.QUOTA_HISTORY, name=name, after=after, limit=limit)
        return [rows.event_of(row) for row in found]

    def usage(self, groups: Sequence[ResourceGroup]) -> list[Usage]:
        return waiting.usage(self._rows, groups, self.now)

    def turns(self) -> dict[str, str]:
        return {row[0]: row[1] for row in self._rows(group_sql.TURNS)}

    def running(self, groups: Sequence[str]) -> list[Running]:
        return running.running(self._rows, groups, self.now)

    def snapshot(self, per_shape: int, picture: Picture | None = None) -> Snapshot:
        groups, quotas, pins = self.groups(), self.quotas(), self.pins()
        reservations, planned = ahead_reads.reserved(self.reservations()), self.promises()
        if picture is None:
            nodes, devices = tuple(self.nodes().values()), _by_node(self.devices())
            line, last_read = waiting.line(self._rows, groups, per_shape, self.now, quotas)
        else:
            picture.merge(changes.changed(self._rows, picture, self.now), self.now)
            nodes, devices = picture.nodes, picture.devices
            also = [*planned, *(pin.owner for pin in pins)]
            line, last_read = picture.line(groups, also, quotas, reservations)
        who = running.asked(groups, line, planned)
        return Snapshot(
            now=self.now,
            nodes=nodes,
            devices=devices,
            waiting=line,
            groups=groups,
            last_read=last_read,
            turns=self.turns() if any(map(takes_turns, groups.values())) else {},
            usage=waiting.usage(self._rows, list(groups.values()), self.now) if line else (),
            running=self.running(who.groups) if picture is None else picture.running(who.groups),
            unread=who.unread,
            pins=pins,
            quotas=quotas,
            reservations=reservations,
            planned=planned,
            expected=None if picture is None else picture.expected(groups.values()),
        )

    def reservations(self) -> list[ReservationRow]:
        return ahead_reads.reservations(self._rows, self.now)

    def all_reservations(self, limit: int) -> list[ReservationRow]:
        return ahead_reads.all_reservations(self._rows, limit)

    def reservation_version(self, name: str) -> int:
        return int(self._rows(ahead_sql.RESERVATION_LAST, name=name)[0][0])

    def ended_lately(self, group: str) -> list[Ended]:
        return ahead_reads.ended_lately(self._rows, group)

    def planned(self, ids: Iterable[str]) -> dict[str, float]:
        return ahead_reads.planned(self._rows, ids)

    def promises(self) -> dict[str, Promise]:
        return ahead_reads.promises(self._rows)

    def pins(self, owners: Iterable[str] | None = None) -> list[Pin]:
        found = self._rows(pin_sql.PINS) if owners is None else self._rows(pin_sql.PINS_OF, ids=list(owners))
        return rows.pins_of(found)

    def bound(self, ids: Iterable[str]) -> tuple[set[str], set[str]]:
        found = self._rows(pin_sql.BOUND, ids=list(ids))
        return {row[0] for row in found if row[0] is not None}, {row[1] for row in found if row[1] is not None}

    def making_way(self, id_: str) -> list[str]:
        return [row[0] for row in self._rows(pin_sql.MAKING_WAY, id=id_)]

    def sessions_on(self, node: str) -> list[str]:
        return [row[0] for row in self._rows(sql.SESSIONS_ON, node=node)]

    def orders(self, node: str, have_version: int) -> list[Order]:
        told = self._rows(sql.ORDERS, node=node, have=have_version)
        told += self._rows(sql.TOMBSTONES, node=node, have=have_version)
        kernels = [rows.kernel_of(row) for row in told]
        if not kernels:
            return []
        ids = list({kernel.session for kernel in kernels})
        sessions, siblings, holdings = self.sessions(ids), self.kernels(ids), self.holdings(ids)
        return [
            Order(
                kernel=kernel,
                session=sessions[kernel.session],
                holdings=[held for held in holdings.get(kernel.session, []) if held.token == kernel.token],
                siblings=siblings.get(kernel.session, []),
            )
            for kernel in kernels
            if kernel.session in sessions
        ]

    # the rest

    def streams(self, node: str) -> list[wire.StreamOrder]:
        return [wire.decode(row[0], wire.StreamOrder) for row in self._rows(sql.STREAMS, node=node)]

    def has_blob(self, digest: str) -> bool:
        return bool(self._rows(sql.HAS_BLOB, digest=digest))

    def blob(self, digest: str) -> bytes | None:
        found = self._rows(sql.BLOB, digest=digest)
        return bytes(found[0][0]) if found else None

    def credential(self, digest: str) -> tuple[str, str] | None:
        found = self._rows(sql.CREDENTIAL, digest=digest)
        return (found[0][0], found[0][1]) if found else None

    def has_credentials(self) -> bool:
        return bool(self._rows(sql.ANY_CREDENTIAL))

    def members(self) -> list[Member]:
        return [Member(*row) for row in self._rows(sql.MEMBERS)]

    def ledger(self, *, alike: bool = True) -> Iterator[tuple[str, Mapping[str, Any]]]:
        return ledger.ledger(self._rows, alike=alike)

    def ledger_counts(self) -> dict[str, int]:
        return ledger.counts(self._rows)

    def unreadable_sessions(self) -> dict[str, str]:
        return ledger.unreadable_sessions(self._rows)


def _by_node(devices: Iterable[Device]) -> dict[str, list[Device]]:
    found: defaultdict[str, list[Device]] = defaultdict(list)
    for device in devices:
        found[device.node].append(device)
    return dict(found)
