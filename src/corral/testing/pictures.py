"""Whether a manager's picture is what is there: one thing after another happens to a control plane, and now and then
what the picture knows, and the plan made of it, is held against a reading of everything and a plan made of that.

`Doings` does what users, nodes, time and other managers may do, chosen by whoever asks; every move is production's own.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from corral.model.dependency import Dependency, DependencyKind
from corral.model.faults import Fault
from corral.model.lifecycle import Phase
from corral.model.node import Node, NodeState, ResourceGroup
from corral.model.quota import Quota
from corral.model.reservation import AskedReservation
from corral.model.resources import GpuRequest
from corral.model.session import FactKind, KernelFact, Why
from corral.model.spec import SessionSpec
from corral.ports import Reads, Store
from corral.reconcile import groups, intents, quotas, reserving
from corral.reconcile.dependencies import let_wait
from corral.reconcile.groups import GroupChange
from corral.reconcile.placement import new_refusals, place_pass
from corral.reconcile.sessions import sweep_due
from corral.scheduling.cycle import cycle
from corral.scheduling.kept.picture import Picture
from corral.scheduling.snapshot import Snapshot
from corral.store.faults import Conflict
from corral.testing.builders import BY, Play, new_session, spec, whole_run

T = TypeVar("T")
EVERYBODY = 10**6
NODES = ("n1", "n2", "n3", "n4")
ORDERS = ("fifo", "lifo", "priority", "fair-share", "drf", "shortest-first", "least-attained-service")
PLACEMENTS = ("pack", "spread", "round-robin", "topology", "least-fragmentation")
ADMIN = "user:ann"
Choose = Callable[[int], int]  # of so many, which; counted from 0


class Seen(NamedTuple):
    fresh: Snapshot
    kept: Snapshot
    wrong: tuple[str, ...]


def look(reads: Reads, picture: Picture) -> Seen:
    """Both in one transaction, so that they see one state, and what the picture has wrong."""
    kept, fresh = reads.snapshot(0, picture), reads.snapshot(EVERYBODY)
    fresh = replace(fresh, expected=kept.expected)
    names = sorted(fresh.groups)
    pairs = {
        "who waits": (picture.waiting, list(fresh.waiting)),
        "who holds room": (list(picture.running(names)), reads.running(names)),
        "nodes": ([_plain(one) for one in kept.nodes], sorted((_plain(one) for one in fresh.nodes), key=_name)),
        "devices": (_listed(kept), _listed(fresh)),
        "what is known of who runs": ((kept.running, kept.unread), (tuple(fresh.running), fresh.unread)),
    }
    return Seen(
        fresh, kept, tuple(f"{what}: {mine} is not {all_}" for what, (mine, all_) in pairs.items() if mine != all_)
    )


def differences(seen: Seen, picture: Picture) -> list[str]:
    """What the plan of a pass has of the picture that it should not, or the other way round."""
    left_out = len(seen.kept.waiting) < len(seen.fresh.waiting)
    if left_out and _take_turns(seen.fresh):
        return []
    mine, full = cycle(seen.kept, fleet=picture.fleet), cycle(seen.fresh)
    told = {waiting.id: full.refusals.get(waiting.id) for waiting in seen.kept.waiting}
    pairs: dict[str, tuple[object, object]] = {
        "placements": (mine.placements, full.placements),
        "planned starts": (mine.planned, full.planned),
        "preemptions": (mine.preemptions, full.preemptions),
        "refusals": ({id_: mine.refusals.get(id_) for id_ in told}, told),
        "what is noted": (new_refusals(seen.kept, mine), new_refusals(seen.fresh, full)),
    }
    if not left_out:  # who was left out needs no other pass
        pairs["whether there is more"] = (mine.more, full.more)
    return [f"{what}: {one} is not {other}" for what, (one, other) in pairs.items() if one != other]


def _take_turns(snapshot: Snapshot) -> bool:
    """Whether several groups may want the same room, and one of them lets the older wait behind the younger: then who
    is first among the groups' heads hangs on those, too, who find no room."""
    anywhere = any(one.shape.group is None for one in snapshot.waiting)
    return anywhere and len(snapshot.groups) > 1 and any(one.order != "fifo" for one in snapshot.groups.values())


def _plain(node: Node) -> Node:
    """Without what no pass looks at, and no mark is set for."""
    return replace(node, nonce="", seen_at=0.0, desired_version=0, served_version=0)


def _name(node: Node) -> str:
    return node.name


def _listed(snapshot: Snapshot) -> dict[str, list[object]]:
    return {name: list(ones) for name, ones in snapshot.devices.items()}


class Doings:
    """`sleep` lets so many seconds of the database's time pass, where that is possible."""

    def __init__(self, store: Store, choose: Choose, sleep: Callable[[float], None] | None = None) -> None:
        self.store = store
        self.play = Play(store)
        self.picture = Picture()
        self.ids: list[str] = []
        self._choose = choose
        self._sleep = sleep
        self._boots = itertools.count(1)
        self._moves = (
            self._submit,
            self._submit,
            self._pass,
            self._pass,
            self._pass_of_another,
            self._facts,
            self._facts,
        )
        self._moves += (self._cancel, self._hold, self._release, self._requeue, self._update, self._break, self._node)
        self._moves += (self._quota, self._unlimited, self._reserve)
        self._moves += (self._silence, self._pass_time, self._group, self._pause, self._sweep, self._follow)

    async def begin(self) -> None:
        for name in ("default", "other"):
            await self.store.tx("group", lambda tx, name=name: groups.create(tx, ResourceGroup(name), ADMIN))
        await self._node()

    async def step(self) -> None:
        """Something happens. What is refused, or meets somebody else's change, has not happened."""
        move: Callable[[], Awaitable[object]] = self._pick(self._moves)
        with suppress(Fault, Conflict):
            await move()

    async def check(self) -> list[str]:
        seen = await self.store.read("look", lambda reads: look(reads, self.picture))
        return [*seen.wrong, *differences(seen, self.picture)]

    def _pick(self, ones: Sequence[T]) -> T:
        return ones[self._choose(len(ones))]

    def _some(self) -> str:
        return self._pick(self.ids) if self.ids else "nobody"

    # users

    async def _submit(self) -> None:
        new = [new_session(self._spec(), owner=self._pick(("ann", "bob"))) for _ in range(1 + self._choose(3))]
        await self.store.tx("submit", lambda tx: intents.submit(tx, new, ADMIN))
        self.ids += [one.id for one in new]

    def _spec(self) -> SessionSpec:
        gpu = self._pick((None, None, GpuRequest(share_milli=400), GpuRequest()))
        return spec(
            cpus=self._pick((1, 2, 5)),
            gpu=gpu,
            nodes=self._pick((1, 1, 1, 2)),
            group=self._pick((None, "default", "other")),
            priority=self._choose(3),
            time_limit_s=self._pick((None, 60, 3600)),
            begin=self._pick((None, None, None, "+40s")),
            hold=self._choose(6) == 0,
            retries=2,
            on_labels=self._pick(({}, {}, {"rack": "a"})),
            prefer=self._pick(((), (), (("rack", "b"), ("rack", "a")))),
        )

    async def _follow(self) -> None:
        """One that is to start after another's end."""
        new, needs = new_session(), [Dependency(self._some(), DependencyKind.ANY)]
        await self.store.tx(
            "submit", lambda tx: (intents.submit(tx, [new], ADMIN), let_wait(tx, "ann", {new.id: needs}))
        )
        self.ids.append(new.id)

    async def _cancel(self) -> None:
        await self.play.cancel(self._some())

    async def _hold(self) -> None:
        id_ = self._some()
        await self.store.tx("hold", lambda tx: intents.hold(tx, id_, ADMIN))

    async def _release(self) -> None:
        id_ = self._some()
        await self.store.tx("release", lambda tx: intents.release(tx, id_, ADMIN))

    async def _requeue(self) -> None:
        id_, new = self._some(), new_session().id
        await self.store.tx("requeue", lambda tx: intents.requeue(tx, id_, new, ADMIN))

    async def _update(self) -> None:
        id_, group = self._some(), self._pick((None, "default", "other"))
        change: dict[str, Any] = {"priority": self._choose(3), "time_limit_s": self._pick((None, 60, 3600))}
        await self.store.tx("update", lambda tx: intents.update(tx, id_, ADMIN, group=group, **change))

    async def _break(self) -> None:
        id_ = self._some()
        await self.store.tx("broken", lambda tx: tx.mark_broken(id_, "odd", tx.now))

    async def _group(self) -> None:
        name, backfill = self._pick(("default", "other")), self._pick(("none", "easy", "conservative"))
        options = {"backfill": backfill, "preemption": self._pick(("none", "none", "priority", "fair-share"))}
        options["preemption_min_runtime"] = "1s"
        asked = GroupChange(self._pick(ORDERS), placement=self._pick(PLACEMENTS), options=options)
        await self.store.tx("set group", lambda tx: groups.change(tx, name, asked, ADMIN))

    async def _pause(self) -> None:
        name, do = self._pick(("default", "other")), self._pick((groups.pause, groups.resume, groups.resume))
        await self.store.tx("pause", lambda tx: do(tx, name, ADMIN))

    async def _quota(self) -> None:
        limits = self._pick(({"sessions": 2}, {"cpu_milli": 4000}, {"time_limit_s": 600}))
        owner, group = self._pick((("*", None), ("ann", None), (None, "default")))
        quota = Quota(self._pick(("q1", "q2")), owner=owner, group=group, limits=limits)
        await self.store.tx("set quota", lambda tx: quotas.put(tx, quota, ADMIN))

    async def _unlimited(self) -> None:
        name = self._pick(("q1", "q2"))
        await self.store.tx("delete quota", lambda tx: quotas.delete(tx, name, ADMIN))

    async def _reserve(self) -> None:
        begin, owners = self._pick(("+0s", "+60s", "+1h")), self._pick(((), ("ann",)))
        asked = AskedReservation(f"r{next(self._boots)}", begin, None, "200s", (self._pick(NODES),), owners=owners)
        await self.store.tx("reserve", lambda tx: reserving.create(tx, asked, ADMIN))

    # managers, time and nodes

    async def _pass(self) -> None:
        await place_pass(self.store, BY, claiming=True, picture=self.picture)

    async def _pass_of_another(self) -> None:
        await place_pass(self.store, "manager:other", claiming=True)

    async def _sweep(self) -> None:
        await sweep_due(self.store, BY)

    async def _pass_time(self) -> None:
        if self._sleep is not None:
            self._sleep(self._pick((1.0, 20.0, 300.0)))

    async def _node(self) -> None:
        """It joins, or comes back as another: rebooted, with other devices, labels or group."""
        name = self._pick(NODES)
        await self.play.join(
            name,
            gpus=self._choose(3),
            group=self._pick(("default", "default", "other")),
            labels=self._pick(({}, {"rack": "a"})),
            boot_id=f"boot-{next(self._boots)}",
        )

    async def _silence(self) -> None:
        name = self._pick(NODES)
        await self.store.tx("silent", lambda tx: tx.set_node_state([name], NodeState.UNREACHABLE, tx.now + EVERYBODY))

    async def _facts(self) -> None:
        """A node says what became of one launch, if only that it is there."""
        live = await self.store.read(
            "live", lambda reads: {one.id: one for one in reads.sessions(self.ids).values() if one.phase.holds_room}
        )
        kernels = await self.store.read("kernels", lambda reads: reads.kernels(live))
        found = [kernel for ranks in kernels.values() for kernel in ranks]
        if not found:
            return
        kernel = self._pick(found)
        facts = [*whole_run(kernel.token, self._pick((0, 1)))][: self._pick((2, 4, 4))]
        if live[kernel.session].phase is Phase.STARTING and self._choose(4) == 0:
            facts = [KernelFact(kernel.token, FactKind.REFUSED, 0.0, why=Why("device_busy", "not now"))]
        await self.play.exchange(kernel.node, *facts)
