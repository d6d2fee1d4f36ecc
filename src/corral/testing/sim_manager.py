"""A manager process in the simulation: production's loops, its half of the node's exchange, and the users' calls.

It knows how a request is read and an error answered, as the REST face does in production. It decides nothing: intents,
exchange and loops are production's own. Next: `sim_store.py` beneath, `network.py` around.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from corral import wire
from corral.model.array import Array
from corral.model.dependency import dependencies_of
from corral.model.faults import Fault, Invalid, Unavailable
from corral.model.lifecycle import Wanted
from corral.model.node import ResourceGroup
from corral.model.quota import Quota
from corral.model.reservation import AskedReservation
from corral.model.session import Session
from corral.model.spec import SessionSpec
from corral.ports import NewSession, Tx, node_channel
from corral.reconcile import arrays, exchange, groups, intents, quotas, reserving
from corral.reconcile.defragmenting import carry_out
from corral.reconcile.dependencies import let_wait
from corral.reconcile.loop import Loops
from corral.reconcile.loops import manager_loops
from corral.scheduling.cycle import held_by_quota
from corral.scheduling.limits import check_limits
from corral.scheduling.moving import clearing
from corral.scheduling.plan import Plan, check
from corral.scheduling.snapshot import Snapshot
from corral.scheduling.stopping.preemption_check import check_preemptions
from corral.testing.network import SimNetwork
from corral.testing.process import SimProcess
from corral.testing.sim_store import SimDatabase, SimStore

LONGEST_POLL_S = 30.0
RESERVATION_CALLS = ("create reservation", "delete reservation")
QUOTA_CALLS = ("set quota", "delete quota")
GROUP_CALLS = ("create group", "change group", "pause group", "resume group", "delete group")


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """What a user asks of a manager. `new_id` is for `requeue` of an ended session; `values` for `update`."""

    what: str
    session: str = ""
    specs: list[SessionSpec] = []
    keys: list[str] = []
    owner: str = "ada"
    values: dict[str, Any] = {}
    after: int = 0


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """A session as it is answered."""

    id: str
    phase: str
    wanted: str
    attempt: int
    outcome: str | None = None


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """One event as a watcher gets it."""

    id: int
    session: str
    seq: int
    fact: str
    target: str
    attempt: int


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    sessions: list[Shown] = []
    events: list[Told] = []


def request(path: str, body: bytes) -> bytes:
    return path.encode() + b"\n" + body


def answer_of(data: bytes) -> tuple[int, bytes]:
    """The status and the body of an answer."""
    status, _, body = data.partition(b"\n")
    return int(status), body


class SimManager:
    """One incarnation. It runs from its construction until its process is killed."""

    def __init__(self, database: SimDatabase, network: SimNetwork, process: SimProcess) -> None:
        self.process = process
        self.url = f"http://{process.name}"
        self.by = f"manager:{process.title}"
        self.store = SimStore(database, process)
        claiming = process.incarnation % 2 == 1  # half of the managers claim in a second transaction: both are right
        loops = manager_loops(self.store, process.title, self.url, process, claiming=claiming, look_at=self._judge)
        process.spawn(Loops(loops, self.store.wakeups, process, self._report).run(), name="loops")
        network.listen(process, process.name, self.serve)

    def _judge(self, snapshot: Snapshot, plan: Plan) -> None:
        """Every plan is sound before anything of it is committed."""
        for wrong in (*check(snapshot, plan), *check_limits(snapshot, plan), *check_preemptions(snapshot, plan)):
            self.process.loop.violate(f"PLAN: {wrong}")
        if any(held_by_quota(told) for told in plan.refusals.values()):
            self.process.sometimes("manager.holds_to_quotas")
        if plan.planned:
            self.process.sometimes("manager.plans_starts")
        if any(pin.expires_at <= snapshot.now for pin in snapshot.pins):
            self.process.sometimes("manager.pins_are_over")
        owners = {pin.owner for pin in snapshot.pins}
        if any(one.victims for one in plan.preemptions):
            self.process.sometimes("manager.preempts")
        if any(placed.session.id in owners for placed in plan.placements):
            self.process.sometimes("manager.uses_pins")

    def _report(self, loop: str, error: BaseException) -> None:
        """A pass may fail for what the database does, and for nothing else."""
        if isinstance(error, Unavailable):
            self.process.sometimes("manager.pass_failed")
        else:
            self.process.loop.report(f"pass {loop} failed", error, self.process)

    async def serve(self, payload: bytes, caller: str) -> bytes:
        path, _, body = payload.partition(b"\n")
        try:
            return b"200\n" + await self._route(path.decode(), body)
        except Fault as fault:
            problem = {"code": fault.code, "message": fault.message}
            return str(fault.status).encode() + b"\n" + msgspec.json.encode(problem)

    async def _route(self, path: str, body: bytes) -> bytes:
        if path == "/api/v1/agent/register":
            registration = wire.decode(body, wire.Registration)
            return wire.encode(await self.store.tx("register", lambda tx: exchange.register(tx, registration, self.by)))
        if path == "/api/v1/agent/exchange":
            return wire.encode(await self._exchange(wire.decode(body, wire.Exchange)))
        if path == "/call":
            return msgspec.json.encode(await self._call(wire.decode(body, Call)))
        raise Invalid("no_such_path", path)

    async def _exchange(self, message: wire.Exchange) -> wire.Desired:
        """Answer at once what is new; else wait for a hint, at most as long as the agent wants."""
        with self.store.wakeups.watch(node_channel(message.node)) as watch:
            deadline = self.process.mono() + min(message.wait_s, LONGEST_POLL_S)
            while True:
                desired = await self.store.tx("exchange", lambda tx: exchange.exchange(tx, message, self.by, self.url))
                left_s = deadline - self.process.mono()
                quiet = not desired.orders and not desired.streams and desired.version == message.have_version
                if desired.stale or not quiet or message.facts or left_s <= 0:
                    return desired
                await watch.wait(left_s)

    # --- users

    async def _call(self, call: Call) -> Answer:
        if call.what == "events":
            rows = await self.store.read("events", lambda reads: reads.events(call.after, 20))
            told = [
                Told(
                    id=r.id,
                    session=r.session or (f"group {r.group}" if r.group else f"quota {r.quota}"),
                    seq=r.seq,
                    fact=r.entry.fact,
                    target=r.entry.target or "",
                    attempt=r.entry.attempt,
                )
                for r in rows
            ]
            return Answer(events=told)
        if call.what == "confirm_dead":
            await self.store.tx("confirm dead", lambda tx: intents.confirm_dead(tx, call.session, call.owner))
            return Answer()
        if call.what == "defragment":
            done = await carry_out(self.store, clearing.Wanted(**call.values), call.owner)
            if done.begun:
                self.process.sometimes("manager.moves")
            return Answer()
        if call.what in QUOTA_CALLS:
            await self.store.tx(call.what, partial(_set_quota, call=call))
            return Answer()
        if call.what in RESERVATION_CALLS:
            await self.store.tx(call.what, partial(_set_reservation, call=call))
            return Answer()
        if call.what in GROUP_CALLS:
            await self.store.tx(call.what, partial(_set_group, call=call))
            return Answer()
        sessions = await self.store.tx(call.what, self._intent(call))
        return Answer(sessions=[_shown(session) for session in sessions])

    def _intent(self, call: Call) -> Callable[[Tx], list[Session | Array]]:
        id_, by = call.session, f"user:{call.owner}"
        if call.what == "submit":
            ids = [self.process.session_id() for _ in call.specs]
            new = [
                NewSession(id_, spec, call.owner, key, digest=wire.spec_to_json(spec))
                for id_, spec, key in zip(ids, call.specs, call.keys, strict=True)
            ]
            return lambda tx: _submit(tx, new, by)
        new_id = self.process.session_id() if call.what == "requeue" else ""
        return lambda tx: [_asked(tx, arrays if tx.arrays([id_]) else intents, call, new_id, by)]


def _submit(tx: Tx, new: Sequence[NewSession], by: str) -> list[Session | Array]:
    """As the REST face does it: those that are new wait for whom they name."""
    made = intents.submit_all(tx, new, by)
    fresh = {one.id: one for one in made} if made else {}
    needs = {one.id: dependencies_of(one.spec.after) for one in new if one.id in fresh and one.spec.after}
    let_wait(tx, new[0].owner, needs, {id_ for id_, one in fresh.items() if isinstance(one, Array)})
    return made


def _set_group(tx: Tx, call: Call) -> None:
    name, by = call.session, f"user:{call.owner}"
    if call.what == "create group":
        groups.create(tx, ResourceGroup(name, **call.values), by)
    elif call.what == "change group":
        groups.change(tx, name, groups.GroupChange(**call.values), by)
    else:
        {"pause group": groups.pause, "resume group": groups.resume, "delete group": groups.delete}[call.what](
            tx, name, by
        )


def _set_quota(tx: Tx, call: Call) -> None:
    """The operator's one quota. Deleting is idempotent."""
    if call.what == "set quota":
        scope = {kind: call.values[kind] for kind in ("owner", "project") if kind in call.values}
        limits = {name: value for name, value in call.values.items() if name not in scope}
        quotas.put(tx, Quota("q", **scope, limits=limits), call.owner)
    elif quotas.find(tx, "q") is not None:
        quotas.delete(tx, "q", call.owner)


def _set_reservation(tx: Tx, call: Call) -> None:
    """The operator's one reservation, which is made anew. Deleting is idempotent."""
    if any(one.name == "r" for one in tx.reservations()):
        reserving.delete(tx, "r", call.owner)
    if call.what == "create reservation":
        reserving.create(tx, AskedReservation("r", **call.values), call.owner)


def _asked(tx: Tx, whom: Any, call: Call, new_id: str, by: str) -> Session | Array:
    """What is asked of one session, or of all members of an array: the two modules have the same verbs."""
    if call.what == "requeue":
        return whom.requeue(tx, call.session, new_id, by)
    if call.what == "update":
        return whom.update(tx, call.session, by, **call.values)
    return {"cancel": whom.cancel, "hold": whom.hold, "release": whom.release}[call.what](tx, call.session, by)


def _shown(session: Session | Array) -> Shown:
    if isinstance(session, Array):
        live = "stopping" if session.wanted is Wanted.STOP else "pending"
        phase = live if session.ended_at is None else "ended"
        outcome = session.outcome and session.outcome.value
        return Shown(id=session.id, phase=phase, wanted=session.wanted.value, attempt=1, outcome=outcome)
    return Shown(
        id=session.id,
        phase=session.phase.value,
        wanted=session.wanted.value,
        attempt=session.attempt,
        outcome=None if session.outcome is None else session.outcome.value,
    )
