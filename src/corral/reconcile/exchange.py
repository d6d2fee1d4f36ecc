"""The manager's half of the conversation with a node (docs/protocol.md 4 to 10): registration, and the one exchange.

Facts that arrive are judged, recorded by first write, and settled in the same transaction; the desired version about
to be answered is recorded as served before it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from corral import wire
from corral.model.faults import Invalid, Refused
from corral.model.node import Node, ResourceGroup
from corral.model.session import Certificate, FactKind, KernelFact
from corral.model.spec import NAME
from corral.model.wording import span
from corral.ports import PLACE, Tx
from corral.reconcile import groups
from corral.reconcile.decide import judge
from corral.reconcile.launches import order_for
from corral.reconcile.sessions import lock_with_nodes, settle_locked

NODE_TIMEOUT_S = 30.0
REFUSED_BACKOFF_S = 15.0


def register(tx: Tx, registration: wire.Registration, by: str) -> wire.Registered:
    """Accept a node, or the node again. Only this raises an epoch, and only for a changed boot id: results that the
    node still holds are applied first, then every kernel from before the reboot is certified dead, in one transaction.

    Who has not the node's nonces, though the node was silent, is asked to show that it asks now (`challenge`).
    Raises `Refused`: `identity_in_use` when another agent holds the name, `hardware_changed` for another machine.
    """
    _validate(registration)
    ids = [id_ for id_, _ in tx.tokens_sessions([fact.token for fact in registration.facts]).values()]
    before = tx.nodes([registration.name]).get(registration.name)
    on_node = tx.sessions_on(registration.name) if before is not None else []
    lock_with_nodes(tx, {*ids, *on_node}, [registration.name])
    before = tx.nodes([registration.name]).get(registration.name)
    epoch = _next_epoch(tx, registration, before)
    if before is not None and before.nonce not in registration.nonces:
        return _registered(tx, before.epoch, challenge=before.nonce)
    apply_facts(tx, registration.name, registration.facts, by)
    groups.join(tx, ResourceGroup(registration.group), f"node:{registration.name}")
    if not tx.register(registration, before, epoch):
        raise Refused("identity_in_use", f"node {registration.name} was registered by another agent at the same moment")
    if before is not None and epoch > before.epoch:
        sweep_epoch(tx, registration.name, epoch, by)
    _leave_alone(tx, registration.name, on_node)
    tx.hint(PLACE)
    return _registered(tx, epoch)


def _leave_alone(tx: Tx, name: str, ids: Sequence[str]) -> None:
    """A node that came back larger is still the session's alone that has it alone."""
    alone = [one.id for one in tx.sessions(ids).values() if one.spec.exclusive and one.phase.holds_room]
    kernels = [one for group in tx.kernels(alone).values() for one in group] if alone else []
    mine = next((one for one in kernels if one.node == name), None)
    node = tx.nodes([name])[name]
    more = (node.cpu_milli - node.cpu_used_milli, node.memory_mib - node.memory_used_mib)
    if mine is not None and any(more):
        tx.hold_more(mine, *more)


def _registered(tx: Tx, epoch: int, challenge: str = "") -> wire.Registered:
    return wire.Registered(epoch=epoch, generation=tx.generation(), node_timeout_s=NODE_TIMEOUT_S, challenge=challenge)


def _validate(registration: wire.Registration) -> None:
    for what, name in (("node", registration.name), ("group", registration.group)):
        if not NAME.match(name):
            raise Invalid("bad_name", f"{what} {name[:80]!r}: letters, digits, '.', '_' and '-', at most 128 of them")
    inventory = registration.inventory
    amounts = [inventory.cpu_milli, inventory.memory_mib, *(device.capacity_mib for device in inventory.devices)]
    if any(not 0 <= amount < 2**50 for amount in amounts):
        raise Invalid("bad_inventory", f"node {registration.name} reports a negative or absurd amount")
    uuids = [device.uuid for device in inventory.devices]
    if len(set(uuids)) != len(uuids):
        raise Invalid("bad_inventory", f"node {registration.name} reports the same device twice")


def _next_epoch(tx: Tx, registration: wire.Registration, before: Node | None) -> int:
    if before is None:
        return 1
    if before.hardware_id != registration.hardware_id:
        raise Refused(
            "hardware_changed",
            f"the name {before.name} belongs to another machine; give this one another --name",
            subject=before.name,
        )
    same = before.nonce in registration.nonces and before.boot_id == registration.boot_id
    if not same and tx.now - before.seen_at < NODE_TIMEOUT_S:  # a copy of a machine that answers is not that machine
        raise Refused(
            "identity_in_use",
            f"another agent holds the name {before.name} (heard {span(tx.now - before.seen_at)} ago); "
            "stop it, or give this one another --name",
            subject=before.name,
        )
    return before.epoch + int(before.boot_id != registration.boot_id)


def sweep_epoch(tx: Tx, node: str, epoch: int, by: str) -> None:
    """Certify every kernel of an older epoch of this node as ended by its reboot (certificate c)."""
    ids = tx.sessions_on(node)
    lock_with_nodes(tx, ids, [node])
    kernels = [kernel for group in tx.kernels(ids).values() for kernel in group]
    old = [k.token for k in kernels if k.node == node and k.node_epoch < epoch and k.certificate is None]
    tx.certify(old, Certificate.NODE_REBOOTED, by)
    settle_locked(tx, ids, by)


def exchange(tx: Tx, message: wire.Exchange, by: str, url: str) -> wire.Desired:
    """Take in what a node observed; answer what is desired of it. A `stale` answer changed nothing."""
    ids = {id_ for id_, _ in tx.tokens_sessions([fact.token for fact in message.facts]).values()}
    lock_with_nodes(tx, ids, [message.node])
    node = tx.nodes([message.node]).get(message.node)
    if node is None or not _current(node, message):
        return wire.Desired(version=0, stale=True)
    if not tx.touch_node(message.node, message.incarnation, message.nonces):
        return wire.Desired(version=0, stale=True)
    if node.state != "up":
        tx.hint(PLACE)
    apply_facts(tx, message.node, message.facts, by)
    tx.note_foreign(message.node, message.foreign)
    return _desired(tx, message, url)


def _current(node: Node, message: wire.Exchange) -> bool:
    mine = (node.epoch, node.boot_id, node.run_id, node.incarnation)
    return mine == (message.epoch, message.boot_id, message.run_id, message.incarnation)


def apply_facts(tx: Tx, node: str, facts: Sequence[KernelFact], by: str) -> None:
    """Record what is new, keep what cannot be as disputed, and settle the sessions concerned. Facts of kernels that
    are another node's, of older attempts, or unknown, change nothing; every fact is acknowledged all the same."""
    owners = tx.tokens_sessions([fact.token for fact in facts])
    ids = sorted({id_ for id_, _ in owners.values()})
    if not ids:
        return
    sessions = tx.sessions(ids)
    kernels = {kernel.token: kernel for group in tx.kernels(ids).values() for kernel in group}
    new: list[KernelFact] = []
    seen: set[tuple[str, FactKind]] = set()
    for fact in facts:
        kernel = kernels.get(fact.token)
        if kernel is None or kernel.node != node or (fact.token, fact.kind) in seen:
            continue
        seen.add((fact.token, fact.kind))
        verdict = judge(kernel, fact)
        if verdict == "new":
            new.append(fact)
        elif verdict == "disputed":
            sessions[kernel.session] = tx.dispute(sessions[kernel.session], fact, by)
    _back_off(tx, node, new)
    tx.record(sorted(new, key=lambda fact: _ORDER[fact.kind]), by)
    settle_locked(tx, ids, by)


_ORDER = {kind: place for place, kind in enumerate(FactKind)}


def _back_off(tx: Tx, node: str, facts: Sequence[KernelFact]) -> None:
    if any(fact.kind in (FactKind.REFUSED, FactKind.FAILED) for fact in facts):
        tx.back_off(node, tx.now + REFUSED_BACKOFF_S)


def _desired(tx: Tx, message: wire.Exchange, url: str) -> wire.Desired:
    node = tx.nodes([message.node])[message.node]
    orders = tx.orders(message.node, message.have_version)
    names = {sibling.node for order in orders for sibling in order.siblings}
    nodes = tx.nodes(names) if names else {}
    tx.served(message.node, node.desired_version, message.have_version)
    return wire.Desired(
        version=node.desired_version,
        orders=[order_for(order, nodes, url, tx.now) for order in orders],
        streams=tx.streams(message.node),
    )
