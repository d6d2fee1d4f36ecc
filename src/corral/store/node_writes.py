"""Writes to nodes and what they have, and to the small tables: groups, streams, blobs, credentials, members."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from corral import wire
from corral.model.node import Node, NodeState, ResourceGroup
from corral.ports import EVENTS, PLACE, node_channel
from corral.store import group_sql, node_sql, rows, sql, waiting
from corral.store.faults import Conflict
from corral.store.writes import Writes

ADD_TRIES = 5


class NodeWrites(Writes):
    """The half of ports.Tx that is about nodes, and the rest."""

    def add_group(self, group: ResourceGroup) -> bool:
        for _ in range(ADD_TRIES):
            added = self._run(group_sql.ADD_GROUP, **rows.group_columns(group), backend=group.backend)
            if self._rows(group_sql.LOCK_GROUP, name=group.name):
                if added:
                    self._run(group_sql.GO_ON_COUNTING, name=group.name)
                return bool(added)
        raise Conflict(f"group {group.name} was dropped as often as it was added")

    def lock_group(self, name: str) -> None:
        self._rows(group_sql.LOCK_GROUP, name=name)

    def share_groups(self, names: Iterable[str]) -> set[str]:
        wanted = sorted(set(names))
        return {row[0] for row in self._rows(group_sql.SHARE_GROUPS, names=wanted)} if wanted else set()

    def set_group(self, group: ResourceGroup, old_version: int) -> bool:
        changed = self._run(group_sql.SET_GROUP, **rows.group_columns(group), old_version=old_version)
        if changed:
            self.hint(PLACE)
        return bool(changed)

    def had_turns(self, last: Mapping[str, str]) -> None:
        self._each(group_sql.HAD_TURN, [{"whose": group, "node": node} for group, node in sorted(last.items())])

    def drop_group(self, name: str) -> None:
        self._run(group_sql.DROP_GROUP, name=name)

    def note_group(self, name: str, version: int, fact: str, by: str, detail: Mapping[str, object]) -> None:
        line = {"name": name, "seq": version, "fact": fact, "by": by, "detail": rows.dumps(detail), "now": self.now}
        self._all(group_sql.ADD_GROUP_EVENT, [line | {"n": self._connection.next_event()}])
        self.hint(EVENTS)

    def count_usage(self, limit: int) -> int:
        tokens = [row[0] for row in self._rows(sql.UNCOUNTED, limit=limit)]
        if not tokens:
            return 0
        counted = self._rows(sql.COUNT_HOLDINGS, tokens=tokens)
        claimants = self._rows(sql.CLAIMANTS, ids=list({row[0] for row in counted}))
        capacity = {(one.node, one.uuid): one.capacity_mib for one in self.devices({row[2] for row in counted})}
        self._each(sql.ADD_USAGE, waiting.ended_usage(counted, claimants, capacity, self.groups(), self.now))
        return len(counted)

    def register(self, registration: wire.Registration, before: Node | None, epoch: int) -> bool:
        row = _registration_row(registration) | {"epoch": epoch, "now": self.now}
        if before is None:
            taken = self._run(node_sql.ADD_NODE, **row)
        else:
            old = {"old_epoch": before.epoch, "old_boot_id": before.boot_id, "old_incarnation": before.incarnation}
            taken = self._run(node_sql.RENEW_NODE, **row, **old, held=registration.held_version)
        if taken:
            self._write_devices(registration)
        return bool(taken)

    def _write_devices(self, registration: wire.Registration) -> None:
        self._run(node_sql.DEVICES_ABSENT, node=registration.name)
        self._each(
            node_sql.ADD_DEVICE,
            [
                {
                    "node": registration.name,
                    "uuid": device.uuid,
                    "idx": device.index,
                    "model": device.model,
                    "arch": device.arch,
                    "capacity_mib": device.capacity_mib,
                }
                for device in registration.inventory.devices
            ],
        )

    def touch_node(self, name: str, incarnation: str, nonces: tuple[str, str]) -> bool:
        last, following = nonces
        return bool(
            self._run(node_sql.TOUCH_NODE, name=name, incarnation=incarnation, last=last, next=following, now=self.now)
        )

    def served(self, name: str, version: int, have_version: int) -> None:
        """Record, before it is answered, that this version of the desired set is about to be served."""
        if self._run(node_sql.SERVED, name=name, version=version):
            self._run(sql.MARK_SERVED, node=name, version=version, have=have_version, now=self.now)

    def set_node_state(self, names: Sequence[str], state: NodeState, before: float) -> set[str]:
        changed = [{"name": name, "state": state.value, "before": before} for name in names]
        counts = self._each(node_sql.SET_NODE_STATE, changed)
        return {name for name, count in zip(names, counts, strict=True) if count}

    def back_off(self, node: str, until: float) -> None:
        self._run(node_sql.BACK_OFF, node=node, until=until)

    def note_foreign(self, node: str, tokens: Sequence[str]) -> None:
        self._each(node_sql.NOTE_FOREIGN, [{"node": node, "token": token, "now": self.now} for token in tokens])

    # the rest

    def add_stream(self, node: str, order: wire.StreamOrder) -> None:
        self._run(sql.ADD_STREAM, id=order.id, node=node, body=rows.dumps(order), now=self.now)
        self._raise_desired([node])
        self.hint(node_channel(node))

    def drop_stream(self, stream_id: str) -> None:
        self._run(sql.DROP_STREAM, id=stream_id)

    def put_blob(self, digest: str, data: bytes) -> None:
        self._run(sql.PUT_BLOB, digest=digest, data=data, now=self.now)

    def add_credential(self, name: str, kind: str, digest: str) -> None:
        self._run(sql.ADD_CREDENTIAL, name=name, kind=kind, digest=digest, now=self.now)

    def seen_member(self, member_id: str, url: str) -> None:
        self._run(sql.SEEN_MEMBER, id=member_id, url=url, now=self.now)

    def prune(self, before: float) -> int:
        """Forget operation ids, log streams and managers not heard of since `before`; how many rows went."""
        statements = (sql.DROP_OLD_OPERATIONS, sql.DROP_OLD_STREAMS, sql.DROP_OLD_MEMBERS)
        return sum(self._run(statement, before=before) for statement in statements)


def _registration_row(registration: wire.Registration) -> dict[str, Any]:
    inventory = registration.inventory
    return {
        "name": registration.name,
        "grp": registration.group,
        "boot_id": registration.boot_id,
        "run_id": registration.run_id,
        "incarnation": registration.incarnation,
        "hardware_id": registration.hardware_id,
        "nonce": registration.nonces[1],
        "address": registration.address,
        "cpu_milli": inventory.cpu_milli,
        "memory_mib": inventory.memory_mib,
        "labels": rows.dumps(registration.labels),
        "runtimes": rows.dumps(inventory.runtimes),
        "containment": inventory.containment,
        "agent_version": inventory.agent_version,
    }
