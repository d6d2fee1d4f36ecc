"""Writes to kernels and to the room they hold: placed, claimed, reported, certified, given back.

The sums on node and device rows change in the transaction of the holdings they sum up, and the CHECKs on them have the
last word.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from corral.model.node import Holding
from corral.model.resources import WHOLE_GPU_MILLI
from corral.model.session import Certificate, FactKind, Kernel, KernelFact, parse_token
from corral.ports import NOTHING_KEPT, Keep, Placement, node_channel
from corral.scheduling.places import RankPlace
from corral.store import pin_sql, sql
from corral.store.faults import Conflict
from corral.store.writes import Writes


class KernelWrites(Writes):
    """The half of ports.Tx that is about kernels and room."""

    # room

    def hold(self, placements: Sequence[Placement], by: str) -> None:
        kernels = [kernel for placement in placements for kernel in placement.kernels]
        held = [holding for placement in placements for holding in placement.holdings]
        now = self.now
        attempts = [
            {"session": p.session.id, "attempt": p.session.attempt, "grp": p.group, "now": now} for p in placements
        ]
        self._all(sql.BEGIN_ATTEMPT, attempts)
        self._all(sql.ADD_KERNEL, [_kernel_row(kernel, now, by) for kernel in kernels])
        self._all(sql.ADD_HOLDING, [_holding_row(holding, now) for holding in held])
        epochs = {kernel.node: kernel.node_epoch for kernel in kernels}
        if any(epochs[kernel.node] != kernel.node_epoch for kernel in kernels):
            raise Conflict("kernels of two epochs of one node cannot be placed together")
        parts = ((one.node, one.device, one.cpu_milli, one.memory_mib, one.share_milli, one.vram_mib) for one in held)
        self._use(parts, epochs)
        self._forget(placement.session.id for placement in placements)

    def _use(self, parts: Iterable[Sequence[Any]], epochs: Mapping[str, int]) -> None:
        on_nodes, on_devices = _sums(parts)
        self._all(sql.USE_NODE, [row | {"epoch": epochs[row["node"]]} for row in on_nodes])
        self._all(sql.USE_DEVICE, on_devices)

    def hold_more(self, kernel: Kernel, cpu_milli: int, memory_mib: int) -> None:
        grown = {"cpu_milli": cpu_milli, "memory_mib": memory_mib}
        self._whole(sql.GROW_HOLDING, 1, token=kernel.token, **grown)
        self._all(sql.FREE_NODE, [{"node": kernel.node, "cpu_milli": -cpu_milli, "memory_mib": -memory_mib}])

    def give_room_back(self, attempts: Sequence[tuple[str, int]], kept: Mapping[str, Keep] = NOTHING_KEPT) -> None:
        if not attempts:
            return
        released = self._rows(sql.RELEASE_HOLDINGS, sessions=[session for session, _ in attempts], now=self.now)
        if {(row[0], row[1]) for row in released} != set(attempts):
            raise Conflict(f"not each of {len(attempts)} attempts holds what it is to give back: {attempts[0]} …")
        self._all(pin_sql.ADD_PIN, [_pin_row(row, kept[row[0]]) for row in released if row[0] in kept])
        self._free(row[2:8] for row in released if row[0] not in kept)

    def pin(self, owner: str, places: Mapping[str, RankPlace], until: float) -> None:
        keep, parts = Keep(owner, until), [part for token, place in places.items() for part in _parts(token, place)]
        self._all(pin_sql.ADD_PIN, [_pin_row(part, keep) for part in parts])
        self._use((part[2:8] for part in parts), {place.node: place.epoch for place in places.values()})

    def keep_pins(self, owner: str, until: float) -> None:
        self._run(pin_sql.KEEP_PINS, owner=owner, until=until)

    def drop_pins(self, owners: Sequence[str]) -> None:
        if owners:
            self._free(self._rows(pin_sql.DROP_PINS, ids=list(owners)))

    def drop_old_pins(self, nodes: Sequence[str]) -> int:
        dropped = self._rows(pin_sql.DROP_OLD_PINS, names=list(nodes), now=self.now)
        self._free(dropped)
        return len(dropped)

    def _free(self, parts: Iterable[Sequence[Any]]) -> None:
        on_nodes, on_devices = _sums(parts)
        self._all(sql.FREE_NODE, on_nodes)
        self._all(sql.FREE_DEVICE, on_devices)

    # what nodes are told

    def claim(self, kernels: Sequence[Kernel], by: str) -> None:
        self._change_orders(sql.CLAIM_KERNELS, {kernel.token: kernel.node for kernel in kernels}, by=by)

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
        by_node: defaultdict[str, list[str]] = defaultdict(list)
        for token, node in nodes.items():
            by_node[node].append(token)
        versions = self._raise_desired(by_node)
        for node, tokens in by_node.items():
            parameters = {"tokens": tokens, "version": versions[node], "now": self.now, "by": by}
            if exact:
                self._whole(statement, len(tokens), **parameters)
            else:
                self._run(statement, **parameters)
        self._forget_kernels(nodes)
        self.hint(*(node_channel(node) for node in by_node))

    # facts and certificates

    def record(self, facts: Sequence[KernelFact], by: str = "") -> set[str]:
        """Record each fact by first write, acknowledged by `by`; the tokens for which something was new."""
        found: dict[str, dict[str, Any]] = {}
        for fact in facts:
            row = found.setdefault(fact.token, {"token": fact.token, **_NOTHING_REPORTED})
            _report(row, fact, self.now, by)
        counts = self._each(sql.RECORD, list(found.values()))
        self._forget_kernels(found)
        return {token for token, count in zip(found, counts, strict=True) if count}

    def certify(self, tokens: Sequence[str], certificate: Certificate, by: str = "") -> None:
        proof = {"certificate": certificate.value, "now": self.now, "by": by}
        self._whole(sql.CERTIFY, len(tokens), tokens=list(tokens), **proof)
        self._forget_kernels(tokens)

    def _forget_kernels(self, tokens: Mapping[str, Any] | Sequence[str]) -> None:
        for token in tokens:
            self._held_kernels.pop(parse_token(token).session, None)


_NOTHING_REPORTED: Mapping[str, None] = dict.fromkeys(
    (
        *("accepted_at", "ready_at", "port", "result_at", "exit_code", "signal", "exit_class", "began"),
        *("refused_code", "refused_message", "failed_code", "failed_message"),
        *("certificate", "certified_at", "certified_by", "exit_reason"),
    )
)


def _report(row: dict[str, Any], fact: KernelFact, now: float, by: str) -> None:
    """Add what one fact says to the columns that RECORD writes; of two facts of a kind the first counts."""
    code, message = fact.why or ("unknown", "")
    dead = {"certified_at": now, "certified_by": by}
    match fact.kind:
        case FactKind.ACCEPTED:
            _first(row, accepted_at=now)
        case FactKind.READY:
            _first(row, ready_at=now, port=fact.port)
            _first(row, accepted_at=now)
        case FactKind.RESULT:
            if (result := fact.result) is not None:
                ended = {"exit_code": result.exit_code, "signal": result.signal}
                _first(row, result_at=now, began=int(result.started), exit_class=result.exit_class.value, **ended)
        case FactKind.EXITED:
            reason = fact.why and fact.why.code
            _first(row, certificate=Certificate.EXIT.value, exit_reason=reason, **dead)
        case FactKind.VOID:
            _first(row, certificate=Certificate.VOID.value, **dead)
        case FactKind.REFUSED:
            _first(row, refused_code=code, refused_message=message)
            _first(row, certificate=Certificate.VOID.value, **dead)
        case FactKind.FAILED:
            _first(row, failed_code=code, failed_message=message)
            _first(row, certificate=Certificate.VOID.value, **dead)


def _first(row: dict[str, Any], **columns: Any) -> None:
    if row[next(iter(columns))] is None:
        row.update(columns)


def _sums(held: Iterable[Sequence[Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Room by node and by device, from rows of node, device, cpu_milli, memory_mib, share_milli, vram_mib."""
    on_nodes: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
    on_devices: defaultdict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for node, device, cpu_milli, memory_mib, share_milli, vram_mib in held:
        sums = on_devices[node, device] if device else on_nodes[node]
        sums[0] += vram_mib if device else cpu_milli
        sums[1] += share_milli if device else memory_mib
    nodes = [{"node": node, "cpu_milli": cpu, "memory_mib": memory} for node, (cpu, memory) in on_nodes.items()]
    devices = [
        {"node": node, "device": device, "vram_mib": vram, "share_milli": share}
        for (node, device), (vram, share) in on_devices.items()
    ]
    return nodes, devices


def _pin_row(row: Sequence[Any], keep: Keep) -> dict[str, Any]:
    amounts = dict(zip(("cpu_milli", "memory_mib", "share_milli", "vram_mib"), row[4:8], strict=True))
    named = {"token": row[8], "device": row[3], "node": row[2], "owner": keep.owner, "until": keep.until}
    return amounts | named


def _parts(token: str, place: RankPlace) -> Iterator[Sequence[Any]]:
    """Room that is not held yet, as the rows of a holding would be read."""
    yield ("", 0, place.node, "", place.cpu_milli, place.memory_mib, 0, 0, token)
    for grant in place.grants:
        yield ("", 0, place.node, grant.uuid, 0, 0, grant.share_milli, grant.vram_mib, token)


def _kernel_row(kernel: Kernel, now: float, by: str) -> dict[str, Any]:
    return {
        "token": kernel.token,
        "session": kernel.session,
        "attempt": kernel.attempt,
        "rank": kernel.rank,
        "node": kernel.node,
        "node_epoch": kernel.node_epoch,
        "run_id": kernel.run_id,
        "now": now,
        "by": by,
    }


def _holding_row(holding: Holding, now: float) -> dict[str, Any]:
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
        "exclusive": int(holding.share_milli == WHOLE_GPU_MILLI),
        "now": now,
    }
