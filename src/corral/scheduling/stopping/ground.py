"""One group's nodes as a pass leaves them, with who could be stopped there, at what loss, and what that would free.

Amounts are kept in arrays, so that a claimant costs one look at all nodes and a close one at a few; the close look is
`room.NodeRoom`'s. What an accepted offer takes, frees or keeps is so for the next one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from corral.model.node import ResourceGroup
from corral.model.resources import WHOLE_GPU_MILLI
from corral.scheduling.ahead.ends import TOO_LATE_S
from corral.scheduling.ahead.heads import until_s
from corral.scheduling.claiming.contention import copied
from corral.scheduling.engine.room import NodeRoom, excluded
from corral.scheduling.pins import kept_for, present
from corral.scheduling.places import RankPlace
from corral.scheduling.plan import Plan, PlannedStart
from corral.scheduling.policies.group_options import group_options
from corral.scheduling.reserving import in_the_way
from corral.scheduling.snapshot import Running, Shape, Snapshot, Waiting
from corral.scheduling.stopping.precedence import amounts_held, claims_of

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

MAX_NODES = 128  # looked into closely for one claimant, cheapest first
RESTART_S = 60.0  # what it costs to be stopped at all, beside what was done since the last start
ROOM_MARGIN_S = 30.0  # beside the longest grace: the node has to hear of it, to kill and to tell
OVERDUE_S = 30.0  # who should have given its room back this long ago is not waited for


class Offer(NamedTuple):
    """Who would stop, what that loses, and where the claimant would be."""

    cost: float
    group: str
    victims: tuple[Running, ...]
    ranks: tuple[RankPlace, ...]


class _Found(NamedTuple):
    cost: float
    row: int
    victims: list[int]


class Ground:
    def __init__(self, snapshot: Snapshot, plan: Plan, group: ResourceGroup, claimants: Sequence[Waiting]) -> None:
        self.name = group.name
        self.now = snapshot.now
        self._devices = snapshot.devices
        self._reservations = snapshot.reservations
        self._nodes = [node for node in snapshot.nodes if node.group == group.name]
        self._row = {node.name: row for row, node in enumerate(self._nodes)}
        self._absent = {name for name, ones in snapshot.devices.items() if not all(one.present for one in ones)}
        self._kept = kept_for(snapshot.pins, snapshot.devices, self._row)
        self._rooms: dict[int, NodeRoom] = {}
        self._moves: defaultdict[str, list[tuple[RankPlace, int]]] = defaultdict(list)
        self._free = self._free_room()
        running = [one for one in snapshot.running if one.group == group.name]
        self._ends: defaultdict[str, list[tuple[float, RankPlace, str]]] = defaultdict(list)  # by node
        self._planned = bool(plan.planned)
        self._place_and_free(plan, running)
        self._promises = [(id_, start) for id_, start in plan.planned.items() if start.group == group.name]
        self._turn = {id_: number for number, id_ in enumerate(plan.refusals)}
        self._claims = claims_of(group, snapshot, plan, running, claimants, self._capacity())
        self._victims, self._cost = self._who_may_go(running, group)
        self._on_row: defaultdict[int, list[int]] = defaultdict(list)
        self._victim, self._at, self._amounts = self._what_they_hold()
        self._gone: Flags = np.zeros(len(self._victims), bool)
        self._gone_ids: set[str] = set()
        self._grace_s = max((one.grace_s for one in self._victims), default=0)
        self._number = {one.id: number for number, one in enumerate(self._victims)}
        self._hopeless: set[object] = set()

    # --- what there is

    def _free_room(self) -> Ints:
        rows = [
            (
                node.cpu_milli - node.cpu_used_milli,
                node.memory_mib - node.memory_used_mib,
                sum(one.free_milli for one in self._devices.get(node.name, ()) if one.present),
            )
            for node in self._nodes
        ]
        return np.array(rows, np.int64).reshape(-1, 3)

    def _capacity(self) -> tuple[int, int, int]:
        gpus = sum(one.present for node in self._nodes for one in self._devices.get(node.name, ()))
        cpu, memory = sum(node.cpu_milli for node in self._nodes), sum(node.memory_mib for node in self._nodes)
        return cpu, memory, WHOLE_GPU_MILLI * gpus

    def _place_and_free(self, plan: Plan, running: Sequence[Running]) -> None:
        """What the pass has placed is taken; what stops anyway, and not for somebody, is as good as free."""
        for placed in plan.placements:
            self._move(self._kept.pop(placed.session.id, ()), 1)
            self._move(placed.ranks, -1)
            self._will_end(until_s(placed.session, self.now), placed.ranks, placed.session.id)
        for one in running:
            late = one.ends_at is not None and one.ends_at + OVERDUE_S < self.now
            if one.stopping and one.preempted_for is None and not late:
                self._move(one.ranks, 1)
            elif one.preempted_for is None and one.ends_at is not None and one.ends_at > self.now - TOO_LATE_S:
                self._will_end(one.ends_at, one.ranks, one.id)

    def _move(self, places: Iterable[RankPlace], sign: int) -> None:
        """Free (1) or take (-1) these for good."""
        for place in self._there(places):
            row = self._row[place.node]
            self._free[row] += sign * np.array(amounts_held((place,)), np.int64)
            self._moves[place.node].append((place, sign))
            if row in self._rooms:
                _move(self._rooms[row], place, sign)

    def _will_end(self, at: float, ranks: Iterable[RankPlace], id_: str) -> None:
        for rank in ranks if self._planned else ():
            self._ends[rank.node].append((at, rank, id_))

    def _there(self, places: Iterable[RankPlace]) -> list[RankPlace]:
        """Those on this group's nodes, without what they hold of devices that are gone."""
        found = [one for one in places if one.node in self._row]
        if self._absent:
            found = [present(one, self._devices[one.node]) if one.node in self._absent else one for one in found]
        return found

    def _who_may_go(self, running: Sequence[Running], group: ResourceGroup) -> tuple[list[Running], Floats]:
        """Whoever may be stopped now for anybody, least lost work first."""
        options = group_options(group)
        unsaid, budget = options["preemptible"] == "yes", options["preemption_budget"]
        since = self.now - options["preemption_min_runtime"]
        may = [
            one
            for one in running
            if not one.stopping
            and (unsaid if one.preemptible is None else one.preemptible)
            and one.preemptions < budget
            and (one.started_at or one.placed_at) <= since
            and self._claims.may_lose(one)
        ]
        lost = [(self._lost(one), -one.ordinal, one) for one in may]
        lost.sort(key=lambda entry: entry[:2])
        return [one for _, _, one in lost], np.array([cost for cost, _, _ in lost], np.float64)

    def _lost(self, one: Running) -> float:
        """The share of the group that it has, times how long it worked with it, and what a stop costs anyway."""
        worked_s = 0.0 if one.started_at is None else max(0.0, self.now - one.started_at)
        return self._claims.part(amounts_held(one.ranks)) * (worked_s + RESTART_S)

    def _what_they_hold(self) -> tuple[Ints, Ints, Ints]:
        """A line for each victim and row: which, where, how much."""
        flat: list[tuple[int, ...]] = []
        for number, one in enumerate(self._victims):
            for row in {self._row[place.node]: None for place in one.ranks if place.node in self._row}:
                self._on_row[row].append(number)
                flat.append((number, row, *amounts_held(self._held_on(number, row))))
        lines = np.array(flat, np.int64).reshape(-1, 5)
        return lines[:, 0], lines[:, 1], lines[:, 2:]

    def _held_on(self, number: int, row: int) -> list[RankPlace]:
        """A victim's ranks on that node."""
        node = self._nodes[row].name
        return self._there(place for place in self._victims[number].ranks if place.node == node)

    def _room(self, row: int) -> NodeRoom:
        if row not in self._rooms:
            node = self._nodes[row]
            room = self._rooms[row] = NodeRoom(node, self._devices.get(node.name, ()))
            for place, sign in self._moves[node.name]:
                _move(room, place, sign)
        return self._rooms[row]

    # --- what it would take

    def is_hopeless(self, claimant: Waiting) -> bool:
        """Whether an equal claim to equal room found no victims in this pass."""
        return self._claim(claimant) in self._hopeless and claimant.id not in self._kept

    def _claim(self, claimant: Waiting) -> object:
        """What is equal of equal claims to equal room."""
        whose = (claimant.owner, claimant.project, claimant.time_limit_s) if self._reservations else ()
        before = (claimant.time_limit_s, tuple(id_ for id_, _ in self._in_front(claimant))) if self._promises else ()
        return claimant.shape, self._claims.key(claimant), whose, before

    def offer(self, claimant: Waiting) -> Offer | None:
        """The cheapest way to make room for it; None where there is none."""
        found = self._cheapest(claimant) if self._claims.may(claimant) else None
        if found is None:
            self._hopeless.add(self._claim(claimant))
        return found

    def accept(self, claimant: Waiting, offer: Offer) -> None:
        self._gone[[self._number[victim.id] for victim in offer.victims]] = True
        self._gone_ids.update(victim.id for victim in offer.victims)
        for victim in offer.victims:
            self._move(victim.ranks, 1)
        self._move(self._kept.pop(claimant.id, ()), 1)
        self._move(offer.ranks, -1)
        self._will_end(self._until(claimant), offer.ranks, claimant.id)
        self._claims.accept(claimant, offer.victims)

    def _cheapest(self, claimant: Waiting) -> Offer | None:
        shape, own = claimant.shape, self._kept.get(claimant.id, [])
        weaker = self._claims.weaker(claimant, self._victims) & ~self._gone
        found: list[_Found] = []
        looked = 0
        for row, at_least in self._by_bound(shape, weaker, own):
            enough = sorted(found)[shape.nodes - 1].cost if len(found) >= shape.nodes else np.inf
            if enough <= at_least or looked >= MAX_NODES:
                break
            if not self._is_open(row, claimant):
                continue
            looked += 1
            needed = self._needed(row, shape, weaker, own)
            if needed is not None and self._keeps_promises(claimant, row, set(needed), own):
                found.append(_Found(float(self._cost[needed].sum()), row, needed))
        if len(found) < shape.nodes:
            return None
        rows = [one.row for one in sorted(found)[: shape.nodes]]
        victims = {number for one in found if one.row in rows for number in one.victims}
        return self._offered(claimant, rows, victims, own)

    def _is_open(self, row: int, claimant: Waiting) -> bool:
        """Whether nothing but room keeps it off the node: reservations that it would run into do."""
        node, now = self._nodes[row], self.now
        if excluded(node, claimant.shape, now) is not None:
            return False
        whose = (claimant.owner, claimant.project)
        return in_the_way(self._reservations, [node.name], *whose, now, self._until(claimant)) is None

    # --- what is promised to those in front

    def _in_front(self, claimant: Waiting) -> list[tuple[str, PlannedStart]]:
        """The planned starts of those who had their turn before it, at which it would still be there."""
        until, turn = self._until(claimant), self._turn.get(claimant.id, 0)
        return [(id_, start) for id_, start in self._promises
                if id_ != claimant.id and start.at < until and self._turn.get(id_, turn) < turn]  # fmt: skip

    def _until(self, claimant: Waiting) -> float:
        """When it will have ended, if it starts as late as its room is expected."""
        return until_s(claimant, self.now + self._grace_s + ROOM_MARGIN_S)

    def _keeps_promises(self, claimant: Waiting, row: int, victims: set[int], own: Sequence[RankPlace]) -> bool:
        """Whether those in front find on that node, when their starts are planned, what they are to have there, beside
        the claimant: what ends by then is free again, and what comes free for it is its own."""
        name = self._nodes[row].name
        starts = [start for _, start in self._in_front(claimant) if any(rank.node == name for rank in start.ranks)]
        for start in starts:
            then = self._after(row, victims, own)
            if isinstance(then.place(claimant.shape), str):
                return False
            gone = {self._victims[number].id for number in victims} | self._gone_ids
            for at, rank, id_ in self._ends[name]:
                if at <= start.at and id_ not in gone:
                    then.give_back(self._there((rank,)))
            if not then.fits([rank for rank in start.ranks if rank.node == name]):
                return False
        return True

    def _by_bound(self, shape: Shape, weaker: Flags, own: Sequence[RankPlace]) -> Iterable[tuple[int, float]]:
        """The rows whose amounts may do, by the least that making room there can cost."""
        free = self._free.copy()
        for place in own:
            free[self._row[place.node]] += np.array(amounts_held((place,)), np.int64)
        lines = weaker[self._victim]
        could = free.copy()
        np.add.at(could, self._at[lines], self._amounts[lines])
        least = np.full(len(free), np.inf)
        np.minimum.at(least, self._at[lines], self._cost[self._victim[lines]])
        need = self._need(shape)
        bound = np.where((free >= need).all(axis=1), 0.0, least)
        rows = np.flatnonzero((could >= need).all(axis=1) & np.isfinite(bound))
        order = rows[np.lexsort((rows, bound[rows]))]
        return zip(order.tolist(), bound[order].tolist(), strict=True)

    def _need(self, shape: Shape) -> Ints:
        asked, gpu = shape.resources, shape.resources.gpu
        milli = 0 if gpu is None else gpu.count * (WHOLE_GPU_MILLI if gpu.whole else gpu.share_milli)
        need = np.array((asked.cpu_milli, asked.memory_mib, milli), np.int64) * shape.ranks_per_node
        if not shape.exclusive:
            return need
        size = np.array([(node.cpu_milli, node.memory_mib, 0) for node in self._nodes], np.int64)
        return np.maximum(size.reshape(-1, 3), need)

    def _needed(self, row: int, shape: Shape, weaker: Flags, own: Sequence[RankPlace]) -> list[int] | None:
        """Who must stop on this node: the cheapest until it fits, then back whoever is not in the way, dearest first;
        or one alone, if that costs less."""
        trial = self._trial(row, own)
        if trial.has_room_for(shape):
            return []
        willing = [number for number in self._on_row[row] if weaker[number]]
        going = self._claims.going([self._victims[number] for number in willing])
        stopped: list[int] = []
        for number, may_go in zip(willing, going, strict=True):
            if not may_go:
                continue
            stopped.append(number)
            trial.give_back(self._held_on(number, row))
            if trial.has_room_for(shape):
                break
        else:
            return None
        for number in reversed(stopped[:-1]):
            self._let_back(trial, row, shape, number, stopped)
        return self._alone(row, shape, willing, own, float(self._cost[stopped].sum())) or stopped

    def _let_back(self, trial: NodeRoom, row: int, shape: Shape, number: int, stopped: list[int]) -> None:
        for place in self._held_on(number, row):
            trial.take(place)
        if trial.has_room_for(shape):
            stopped.remove(number)
        else:
            trial.give_back(self._held_on(number, row))

    def _alone(
        self, row: int, shape: Shape, willing: Sequence[int], own: Sequence[RankPlace], below: float
    ) -> list[int] | None:
        for number in willing:
            if self._cost[number] >= below:
                return None
            trial = self._trial(row, own)
            trial.give_back(self._held_on(number, row))
            if trial.has_room_for(shape):
                return [number]
        return None

    def _offered(
        self, claimant: Waiting, rows: Sequence[int], victims: set[int], own: Sequence[RankPlace]
    ) -> Offer | None:
        """These nodes together: a gang that makes way on one of them may do so on another as well."""
        shape = claimant.shape
        for number in sorted(victims, reverse=True):
            if len(rows) > 1 and self._all_fit(rows, shape, victims - {number}, own):
                victims = victims - {number}
        stopped = [self._victims[number] for number in sorted(victims)]
        if not all(self._claims.going(stopped)):
            return None
        if not all(self._keeps_promises(claimant, row, victims, own) for row in rows):
            return None
        ranks: list[RankPlace] = []
        for row in sorted(rows):
            places = self._after(row, victims, own).place(shape)
            if isinstance(places, str):
                return None
            ranks += places
        return Offer(float(self._cost[sorted(victims)].sum()), self.name, tuple(stopped), tuple(ranks))

    def _all_fit(self, rows: Sequence[int], shape: Shape, victims: set[int], own: Sequence[RankPlace]) -> bool:
        return all(self._after(row, victims, own).has_room_for(shape) for row in rows)

    def _after(self, row: int, victims: set[int], own: Sequence[RankPlace]) -> NodeRoom:
        trial = self._trial(row, own)
        for number in victims:
            trial.give_back(self._held_on(number, row))
        return trial

    def _trial(self, row: int, own: Sequence[RankPlace]) -> NodeRoom:
        trial = copied(self._room(row))
        trial.give_back(place for place in own if place.node == self._nodes[row].name)
        return trial


def _move(room: NodeRoom, place: RankPlace, sign: int) -> None:
    if sign > 0:
        room.give_back((place,))
    else:
        room.take(place)
