"""Writes inside one transaction. Implements ports.Tx on top of the reads.

Every write is guarded by the state it expects and its row count is looked at. A count that should be impossible after
the locks were taken raises `Conflict`, which rolls the whole transaction back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from corral import wire
from corral.model.faults import Refused
from corral.model.lifecycle import Phase
from corral.model.node import Holding, Node, NodeState, ResourceGroup
from corral.model.session import Certificate, Change, Entry, FactKind, Kernel, KernelFact, Session, parse_token
from corral.model.spec import SessionSpec
from corral.ports import EVENTS, NewSession, Placement, node_channel, session_channel
from corral.store import rows, sql
from corral.store.faults import Conflict
from corral.store.reads import SqlReads

PENDING_CHECK_S = 300.0


class SqlTx(SqlReads):
    """Writes on one connection, inside a transaction that somebody else begins and commits."""

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self.hints: dict[str, None] = {}
        self._raised: dict[str, int] = {}

    def hint(self, *channels: str) -> None:
        self.hints.update(dict.fromkeys(channels))

    def lock(self, nodes: Iterable[str], sessions: Iterable[str]) -> None:
        """Lock node rows by name, then session rows by id: the one order everywhere."""
        if names := sorted(set(nodes)):
            self._rows(sql.LOCK_NODES, names=names)
        if ids := sorted(set(sessions)):
            self._rows(sql.LOCK_SESSIONS, ids=ids)
        self.forget_now()  # time may have passed while others held these

    def _run(self, statement: str, **parameters: Any) -> int:
        return self._connection.run(statement, **parameters)

    def _each(
        self, statement: str, parameters: Sequence[Mapping[str, Any]], *, all_or_nothing: bool = False
    ) -> list[int]:
        counts = self._connection.each(statement, parameters)
        if all_or_nothing and any(count != 1 for count in counts):
            raise Conflict(f"{counts.count(1)} of {len(counts)} rows as expected: {statement.split('WHERE')[0][:60]}")
        return counts

    # --- sessions

    def submit(self, new: Sequence[NewSession]) -> list[Session]:
        counts = self._each(sql.SUBMIT, [self._submit_row(one) for one in new])
        ids = [one.id if count else self._already_submitted(one) for one, count in zip(new, counts, strict=True)]
        created = {one.id: one for one, count in zip(new, counts, strict=True) if count}
        found = self.sessions(ids)
        entries = [
            (found[id_], 1, Entry("submitted", None, Phase.PENDING, 1, one.owner)) for id_, one in created.items()
        ]
        self._add_events(entries)
        return [found[id_] for id_ in ids]

    def _submit_row(self, new: NewSession) -> dict[str, Any]:
        spec = new.spec
        return {
            "id": new.id,
            "spec": wire.spec_to_json(spec),
            "owner": new.owner,
            "now": self.now,
            "wanted": "hold" if spec.hold else "run",
            "grp": spec.group,
            "priority": spec.priority,
            "time_limit_s": spec.time_limit_s,
            "next_check_at": self.now + PENDING_CHECK_S,
            "requeue_of": new.requeue_of,
            "project": spec.project,
            "name": spec.name,
            "labels": rows.dumps(spec.labels),
            "shape": rows.session_shape(spec),
            "key": new.idempotency_key,
            "digest": new.digest,
        }

    def _already_submitted(self, new: NewSession) -> str:
        found = self._rows(sql.SESSION_KEY, project=new.spec.project, key=new.idempotency_key)
        if not found:
            raise Conflict(f"session id {new.id} is taken")
        if found[0][1] != new.digest:
            raise Refused(
                "idempotency_conflict",
                f"idempotency key {new.idempotency_key!r} was used for another request, session {found[0][0]}; "
                "use a new key for a new request",
                subject=found[0][0],
            )
        return found[0][0]

    def write(self, changes: Sequence[Change], by: str) -> set[str]:
        counts = self._each(sql.WRITE_SESSION, [self._write_row(change) for change in changes])
        taken = [change for change, count in zip(changes, counts, strict=True) if count]
        events: list[tuple[Session, int, Entry]] = []
        for change in taken:
            first = change.before.seq + 1
            events += [(change.after, first + offset, entry) for offset, entry in enumerate(change.history)]
        self._add_events(events)
        self._write_attempts(taken)
        return {change.before.id for change in taken}

    def _write_row(self, change: Change) -> dict[str, Any]:
        before = change.before
        guard = {"old_phase": before.phase.value, "old_attempt": before.attempt, "old_seq": before.seq}
        return rows.session_columns(change.after) | guard

    def _write_attempts(self, taken: Sequence[Change]) -> None:
        started = [
            {"session": change.after.id, "attempt": change.after.attempt, "now": change.after.started_at}
            for change in taken
            if change.verdict is None and change.after.started_at and change.before.started_at is None
        ]
        ended = [self._end_row(change) for change in taken if change.verdict and change.before.phase.holds_room]
        self._each(sql.START_ATTEMPT, started, all_or_nothing=True)
        self._each(sql.END_ATTEMPT, ended, all_or_nothing=True)

    def _end_row(self, change: Change) -> dict[str, Any]:
        verdict = change.verdict
        assert verdict is not None
        reason, cause = verdict.reason, verdict.cause
        return {
            "session": change.before.id,
            "attempt": change.before.attempt,
            "now": self.now,
            "started_at": change.started_at,
            "outcome": verdict.outcome.value,
            "exit_class": verdict.exit_class.value,
            "exit_code": verdict.exit_code,
            "reason_code": reason and reason.code,
            "reason_message": reason and reason.message,
            "cause_code": cause and cause.code,
            "cause_message": cause and cause.message,
        }

    def _add_events(self, events: Sequence[tuple[Session, int, Entry]]) -> None:
        self._each(
            sql.ADD_EVENT,
            [
                {
                    "n": self._connection.next_event(),
                    "now": self.now,
                    "session": session.id,
                    "seq": seq,
                    "fact": entry.fact,
                    "source": entry.source and entry.source.value,
                    "target": entry.target.value,
                    "attempt": entry.attempt,
                    "by": entry.by,
                    "detail": rows.dumps(entry.detail),
                }
                for session, seq, entry in events
            ],
        )
        self.hint(*(session_channel(session.id) for session, _, _ in events))
        if events:
            self.hint(EVENTS)

    def set_spec(self, session_id: str, spec: SessionSpec) -> None:
        self._each(sql.SET_SPEC, [{"id": session_id, "spec": wire.spec_to_json(spec)}], all_or_nothing=True)

    def note_refusals(self, refusals: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        self._each(sql.NOTE_REFUSALS, [{"id": id_, "refused": rows.dumps(why)} for id_, why in refusals.items()])

    def mark_broken(self, session_id: str, error: str, check_at: float) -> None:
        self._run(sql.MARK_BROKEN, id=session_id, error=error, check_at=check_at)

    def postpone(self, ids: Iterable[str], check_at: float) -> None:
        if listed := list(ids):
            self._run(sql.POSTPONE, ids=listed, check_at=check_at)

    # --- room and kernels

    def hold(self, placements: Sequence[Placement], by: str) -> None:
        kernels = [kernel for placement in placements for kernel in placement.kernels]
        held = [holding for placement in placements for holding in placement.holdings]
        self._each(
            sql.BEGIN_ATTEMPT,
            [
                {"session": p.session.id, "attempt": p.session.attempt, "grp": p.group, "now": self.now}
                for p in placements
            ],
        )
        self._each(sql.ADD_KERNEL, [self._kernel_row(kernel, by) for kernel in kernels])
        self._each(sql.ADD_HOLDING, [self._holding_row(holding) for holding in held])
        epochs = {kernel.token: kernel.node_epoch for kernel in kernels}
        self._use(held, epochs)

    def _use(self, held: Sequence[Holding], epochs: Mapping[str, int]) -> None:
        on_nodes: defaultdict[tuple[str, int], list[int]] = defaultdict(lambda: [0, 0])
        on_devices: defaultdict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
        for holding in held:
            if holding.device is None:
                sums = on_nodes[holding.node, epochs[holding.token]]
                sums[0] += holding.cpu_milli
                sums[1] += holding.memory_mib
            else:
                sums = on_devices[holding.node, holding.device]
                sums[0] += holding.vram_mib
                sums[1] += holding.share_milli
        nodes = [
            {"node": node, "epoch": epoch, "cpu_milli": cpu, "memory_mib": memory}
            for (node, epoch), (cpu, memory) in on_nodes.items()
        ]
        self._each(sql.USE_NODE, nodes, all_or_nothing=True)
        self._each(sql.USE_DEVICE, _device_rows(on_devices), all_or_nothing=True)

    def _kernel_row(self, kernel: Kernel, by: str) -> dict[str, Any]:
        return {
            "token": kernel.token,
            "session": kernel.session,
            "attempt": kernel.attempt,
            "rank": kernel.rank,
            "node": kernel.node,
            "node_epoch": kernel.node_epoch,
            "run_id": kernel.run_id,
            "now": self.now,
            "by": by,
        }

    def _holding_row(self, holding: Holding) -> dict[str, Any]:
        return {
            "token": holding.token,
            "device": holding.device or "",
            "session": holding.session,
            "attempt": holding.attempt,
            "node": holding.node,
            "cpu_milli": holding.cpu_milli,
            "memory_mib": holding.memory_mib,
            "share_milli": holding.share_milli,
            "vram_mib": holding.vram_mib,
            "exclusive": int(holding.share_milli == 1000),
            "now": self.now,
        }

    def give_room_back(self, attempts: Sequence[tuple[str, int]]) -> None:
        on_nodes: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
        on_devices: defaultdict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
        for session, attempt in attempts:
            released = self._rows(sql.RELEASE_HOLDINGS, session=session, attempt=attempt, now=self.now)
            if not released:
                raise Conflict(f"session {session} attempt {attempt} holds nothing to give back")
            for node, device, cpu, memory, share, vram in released:
                sums = on_devices[node, device] if device else on_nodes[node]
                sums[0] += vram if device else cpu
                sums[1] += share if device else memory
        nodes = [{"node": node, "cpu_milli": cpu, "memory_mib": memory} for node, (cpu, memory) in on_nodes.items()]
        self._each(sql.FREE_NODE, nodes, all_or_nothing=True)
        self._each(sql.FREE_DEVICE, _device_rows(on_devices), all_or_nothing=True)

    def claim(self, kernels: Sequence[Kernel], by: str) -> None:
        self._change_orders(sql.CLAIM_KERNEL, {kernel.token: kernel.node for kernel in kernels}, by=by)

    def certify(self, tokens: Sequence[str], certificate: Certificate) -> None:
        changed = [{"token": token, "certificate": certificate.value, "now": self.now} for token in tokens]
        self._each(sql.CERTIFY, changed, all_or_nothing=True)

    def ask_stop(self, tokens: Sequence[str]) -> None:
        self._change_orders(sql.ASK_STOP, self._nodes_of(tokens))

    def release_barrier(self, tokens: Sequence[str]) -> None:
        self._change_orders(sql.RELEASE_BARRIER, self._nodes_of(tokens))

    def ask_again(self, tokens: Sequence[str]) -> None:
        self._change_orders(sql.ASK_AGAIN, self._nodes_of(tokens), exact=False)

    def _nodes_of(self, tokens: Sequence[str]) -> dict[str, str]:
        return {row[0]: row[1] for row in self._rows(sql.KERNEL_NODES, tokens=list(tokens))} if tokens else {}

    def _change_orders(self, statement: str, nodes: Mapping[str, str], *, exact: bool = True, by: str = "") -> None:
        """Change what nodes are told of these kernels, under a desired version raised in this same transaction."""
        changed = [
            {"token": token, "version": self._raise_desired(node), "now": self.now, "by": by}
            for token, node in nodes.items()
        ]
        self._each(statement, changed, all_or_nothing=exact)
        self.hint(*(node_channel(node) for node in nodes.values()))

    def _raise_desired(self, node: str) -> int:
        if node not in self._raised:
            self._raised[node] = self._rows(sql.RAISE_DESIRED, name=node)[0][0]
        return self._raised[node]

    # --- facts

    def record(self, facts: Sequence[KernelFact]) -> set[str]:
        """Record each fact by first write; the tokens of those that were new."""
        counts: list[int] = [0] * len(facts)
        by_kind: defaultdict[FactKind, list[int]] = defaultdict(list)
        for index, fact in enumerate(facts):
            by_kind[fact.kind].append(index)
        for kind, indices in by_kind.items():
            statements = _FACT_STATEMENTS[kind]
            for statement in statements:
                changed = self._each(statement, [self._fact_row(facts[index]) for index in indices])
                for index, count in zip(indices, changed, strict=True):
                    counts[index] |= count
        return {fact.token for fact, count in zip(facts, counts, strict=True) if count}

    def _fact_row(self, fact: KernelFact) -> dict[str, Any]:
        result = fact.result
        return {
            "token": fact.token,
            "at": self.now,
            "now": self.now,
            "port": fact.port,
            "exit_code": result and result.exit_code,
            "signal": result and result.signal,
            "exit_class": result and result.exit_class.value,
            "began": int(result.started) if result else 0,
            "certificate": (Certificate.EXIT if fact.kind is FactKind.EXITED else Certificate.VOID).value,
            "exit_reason": fact.why.code if fact.why and fact.kind is FactKind.EXITED else None,
            "code": fact.why.code if fact.why else "unknown",
            "message": fact.why.message if fact.why else "",
        }

    def dispute(self, session: Session, fact: KernelFact, by: str) -> Session:
        """Keep a fact that cannot be with the session's story; answers the session with its new `seq`."""
        detail = {"token": fact.token, "kind": fact.kind.value, "why": fact.why and fact.why.code}
        entry = Entry("disputed", session.phase, session.phase, parse_token(fact.token).attempt, by, detail)
        after = replace(session, seq=session.seq + 1)
        if not self.write([Change(session, after, (entry,))], by):
            raise Conflict(f"session {session.id} moved while it was locked")
        return after

    # --- nodes

    def add_group(self, group: ResourceGroup) -> None:
        self._run(sql.ADD_GROUP, name=group.name, order=group.order, placement=group.placement, backend=group.backend)

    def register(self, registration: wire.Registration, before: Node | None, epoch: int) -> bool:
        row = _registration_row(registration) | {"epoch": epoch, "now": self.now}
        if before is None:
            taken = self._run(sql.ADD_NODE, **row)
        else:
            old = {"old_epoch": before.epoch, "old_boot_id": before.boot_id, "old_incarnation": before.incarnation}
            taken = self._run(sql.RENEW_NODE, **row, **old, held=registration.held_version)
        if taken:
            self._write_devices(registration)
        return bool(taken)

    def _write_devices(self, registration: wire.Registration) -> None:
        self._run(sql.DEVICES_ABSENT, node=registration.name)
        self._each(
            sql.ADD_DEVICE,
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
            self._run(sql.TOUCH_NODE, name=name, incarnation=incarnation, last=last, next=following, now=self.now)
        )

    def served(self, name: str, version: int, have_version: int) -> None:
        """Record, before it is answered, that this version of the desired set is about to be served."""
        if self._run(sql.SERVED, name=name, version=version):
            self._run(sql.MARK_SERVED, node=name, version=version, have=have_version, now=self.now)

    def set_node_state(self, names: Sequence[str], state: NodeState, before: float) -> set[str]:
        changed = [{"name": name, "state": state.value, "before": before} for name in names]
        counts = self._each(sql.SET_NODE_STATE, changed)
        return {name for name, count in zip(names, counts, strict=True) if count}

    def back_off(self, node: str, until: float) -> None:
        self._run(sql.BACK_OFF, node=node, until=until)

    def note_foreign(self, node: str, tokens: Sequence[str]) -> None:
        self._each(sql.NOTE_FOREIGN, [{"node": node, "token": token, "now": self.now} for token in tokens])

    # --- the rest

    def add_stream(self, node: str, order: wire.StreamOrder) -> None:
        self._run(sql.ADD_STREAM, id=order.id, node=node, body=rows.dumps(order), now=self.now)
        self._raise_desired(node)
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


_FACT_STATEMENTS: Mapping[FactKind, tuple[str, ...]] = {
    FactKind.ACCEPTED: (sql.FACT_ACCEPTED,),
    FactKind.READY: (sql.FACT_READY,),
    FactKind.RESULT: (sql.FACT_RESULT,),
    FactKind.EXITED: (sql.FACT_DEAD,),
    FactKind.VOID: (sql.FACT_DEAD,),
    FactKind.REFUSED: (sql.FACT_REFUSED, sql.FACT_DEAD),
    FactKind.FAILED: (sql.FACT_FAILED, sql.FACT_DEAD),
}


def _device_rows(sums: Mapping[tuple[str, str], Sequence[int]]) -> list[dict[str, Any]]:
    return [
        {"node": node, "device": device, "vram_mib": vram, "share_milli": share}
        for (node, device), (vram, share) in sums.items()
    ]


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
