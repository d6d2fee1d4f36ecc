"""What a manager keeps between its passes, so that each reads and looks at only what changed since the one before.

    picture.merge(changed, now)        # what the store says has changed since `picture.mark`
    line, last_read = picture.line(groups, quotas, now)
    plan = cycle(snapshot, fleet=picture.fleet)

It knows all that stand in line, all who hold room, and every node. To merge something twice does no harm. The line
that it gives is whoever may matter to the pass: of a shape that is known to fit nowhere only those who come first, as
room only shrinks while a pass goes on, and of one for which there is little room no more than that can hold. Where the
changes are read: `store.changes`.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import NamedTuple

from corral.model.node import Device, Node, ResourceGroup
from corral.model.quota import NO_QUOTAS, TIME, Quotas
from corral.scheduling.cycle import MAX_PLACEMENTS
from corral.scheduling.demand import Expected
from corral.scheduling.fleet import Fleet
from corral.scheduling.kept.line import Line, ordinal_of
from corral.scheduling.kept.telling import Told
from corral.scheduling.ordering import groups_of, home_of
from corral.scheduling.policies.group_options import group_options, preempts
from corral.scheduling.policies.order import FIFO, WHOSE, Need
from corral.scheduling.policies.registry import ORDERS, looks_ahead, needs_of
from corral.scheduling.snapshot import Running, Shape, Waiting
from corral.scheduling.stopping.preemption import MAX_CLAIMANTS

MOST_OLDEST = 4 * MAX_PLACEMENTS
MANY_PLACED = MAX_PLACEMENTS // 2
MOST_HOPELESS = 1000  # shapes that fit nowhere, of which the first is shown in each pass
QUIET_S = 4.0
_Hopeless = tuple[Shape, Sequence[Waiting]]


class Mark(NamedTuple):
    """How far somebody has read of which database."""

    database: str
    nodes: int
    sessions: int


class Changed(NamedTuple):
    """What is new since a mark, or all there is (`whole`). Who waits comes with the time before which it may not begin;
    `gone` neither wait nor hold room; what is said of those `moving` hangs on the time: they are to be read again."""

    mark: Mark
    whole: bool
    nodes: Sequence[Node] = ()
    devices: Sequence[Device] = ()
    waiting: Sequence[tuple[Waiting, float]] = ()
    running: Sequence[Running] = ()
    gone: Sequence[str] = ()
    moving: frozenset[str] = frozenset()


class Picture:
    """Of one database, for one manager. Empty at first, and whenever the store says that it is another one."""

    def __init__(self) -> None:
        self.mark: Mark | None = None
        self.moving: frozenset[str] = frozenset()
        self.told = Told()
        self._forget()

    def _forget(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._devices: dict[str, tuple[Device, ...]] = {}
        self._in_order: list[Node] = []
        self._place: dict[str, int] = {}  # of each node there
        self._running: dict[str, Running] = {}
        self._running_in_order: list[Running] = []
        self._running_shown: tuple[tuple[str, ...], tuple[Running, ...]] | None = None
        self._lines: dict[Shape, Line] = {}
        self._standing: dict[str, Waiting] = {}
        self._opens: dict[str, tuple[float, Waiting]] = {}  # all that may not begin at once
        self._later: list[tuple[float, str]] = []  # a heap of those of them whose time has not come, some of them old
        self._expected = Expected()
        self._now = 0.0
        self._fleet: Fleet | None = None
        self._stale: set[str] = set()  # nodes that changed since the fleet heard of them
        self._flows = False  # so many were placed since the last pass that there is no end to it yet
        self._version = 0  # raised with each change
        self._asked: tuple[object, ...] = ()  # what the last line hangs on beside
        self._shown: tuple[list[Waiting], list[str]] = ([], [])
        self._settled: tuple[object, ...] | None = None
        self._quiet = (0.0, 0.0)  # from when till when nothing comes of a pass
        self._shown_at: dict[Shape, float] = {}  # when those were last shown that are too many to be shown in each pass

    # what changed

    def lose_track(self) -> None:
        """Something went wrong that should not: everything is to be read anew."""
        self.mark = None

    def merge(self, told: Changed, now: float) -> None:
        if told.whole:
            self._forget()
        self.mark, self.moving = told.mark, told.moving
        changed = self._news(told)
        if changed.nodes or changed.waiting or changed.running or changed.gone:
            self._version += 1
            self._running_shown = None
        self._flows = sum(one.id in self._standing for one in changed.running) >= MANY_PLACED
        self._merge_nodes(changed)
        for one in changed.running:
            self._leave(one.id, is_over=False)
        for id_ in chain(changed.gone, (one.id for one, _ in changed.waiting)):
            self._leave(id_)
        self._hold_room(changed.running)
        for one, not_before in changed.waiting:
            self._wait(one, not_before)
        self._at(now)

    def _news(self, told: Changed) -> Changed:
        """Without what is known already."""
        devices: dict[str, list[Device]] = {node.name: [] for node in told.nodes}
        for one in told.devices:
            devices[one.node].append(one)
        nodes = [node for node in told.nodes if not self._knows(node, devices[node.name])]
        return Changed(
            told.mark,
            told.whole,
            nodes,
            [one for node in nodes for one in devices[node.name]],
            [(one, not_before) for one, not_before in told.waiting if not self._knows_waiting(one, not_before)],
            [one for one in told.running if self._running.get(one.id) != one],
            [id_ for id_ in told.gone if id_ in self._standing or id_ in self._running or id_ in self._opens],
        )

    def _knows_waiting(self, one: Waiting, not_before: float) -> bool:
        opens, later = self._opens.get(one.id, (0.0, None))
        return opens == not_before and one in (self._standing.get(one.id), later)

    def _knows(self, node: Node, devices: Sequence[Device]) -> bool:
        known = self._nodes.get(node.name)
        return known is not None and _seen(known) == _seen(node) and self._devices.get(node.name, ()) == tuple(devices)

    def _merge_nodes(self, changed: Changed) -> None:
        devices: dict[str, list[Device]] = {node.name: [] for node in changed.nodes}
        for one in changed.devices:
            devices[one.node].append(one)
        for node in changed.nodes:
            self._nodes[node.name] = node
            self._devices.pop(node.name, None)
            if devices[node.name]:
                self._devices[node.name] = tuple(devices[node.name])
            self._stale.add(node.name)
        if len(self._place) < len(self._nodes):
            self._place = {name: place for place, name in enumerate(sorted(self._nodes))}
            self._in_order = [self._nodes[name] for name in self._place]
        for node in changed.nodes:
            self._in_order[self._place[node.name]] = node

    def _hold_room(self, running: Sequence[Running]) -> None:
        if len(running) > len(self._running):
            self._running_in_order = sorted((*self._running_in_order, *running), key=ordinal_of)
        else:
            for one in running:
                insort(self._running_in_order, one, key=ordinal_of)
        for one in running:
            self._running[one.id] = one
            self._expected.holds_room(one.shape)

    def _leave(self, id_: str, *, is_over: bool = True) -> None:
        ran = self._running.pop(id_, None)
        if ran is not None:
            del self._running_in_order[bisect_left(self._running_in_order, ran.ordinal, key=ordinal_of)]
            self._expected.gave_room_back(ran.shape, is_over=is_over)
        one = self._standing.pop(id_, None)
        self._opens.pop(id_, None)
        if one is not None:
            line = self._lines[one.shape]
            line.remove(one)
            if not line.members:
                del self._lines[one.shape]

    def _wait(self, one: Waiting, not_before: float) -> None:
        if not_before > 0:
            self._opens[one.id] = (not_before, one)
        if not_before > self._now:
            heapq.heappush(self._later, (not_before, one.id))
        else:
            self._stand(one)

    def _stand(self, one: Waiting) -> None:
        self._standing[one.id] = one
        line = self._lines.get(one.shape)
        if line is None:
            line = self._lines[one.shape] = Line()
        line.add(one)

    def _at(self, now: float) -> None:
        """Let those stand in line whose time has come. A clock that was set back is followed."""
        if now < self._now:
            self._version += 1
            early = [(at, one) for at, one in self._opens.values() if at > now and one.id in self._standing]
            for at, one in early:
                self._leave(one.id)
                self._opens[one.id] = (at, one)
                heapq.heappush(self._later, (at, one.id))
        self._now = now
        while self._later and self._later[0][0] <= now:
            at, id_ = heapq.heappop(self._later)
            opens, one = self._opens.get(id_, (None, None))
            if one is not None and opens == at and id_ not in self._standing:
                self._version += 1
                self._stand(one)

    # what it shows

    @property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(self._in_order)

    @property
    def devices(self) -> Mapping[str, Sequence[Device]]:
        return dict(self._devices)

    @property
    def waiting(self) -> list[Waiting]:
        """All that stand in line, oldest first."""
        return sorted(self._standing.values(), key=ordinal_of)

    def running(self, groups: Sequence[str]) -> tuple[Running, ...]:
        """Those who hold room in these groups, oldest first."""
        if not groups:
            return ()
        if self._running_shown is None or self._running_shown[0] != tuple(groups):
            names = set(groups)
            shown = tuple([one for one in self._running_in_order if one.group in names])
            self._running_shown = (tuple(groups), shown)
        return self._running_shown[1]

    @property
    def fleet(self) -> Fleet:
        """Every node in arrays, as of the last merge."""
        fleet = self._fleet
        if fleet is not None:
            names = sorted(self._stale.union(fleet.touched()))
            if not fleet.update((self._nodes[name] for name in names), self._devices):
                fleet = None
        if fleet is None:
            fleet = self._fleet = Fleet(self.nodes, self._devices, {}, self._now)
        fleet.at(self._now)
        self._stale.clear()
        return fleet

    def expected(self, groups: Iterable[ResourceGroup]) -> Mapping[Shape, float]:
        """What is to be expected, where a policy of these groups looks ahead."""
        if not any(looks_ahead(group) for group in groups):
            return {}
        return self._expected.of({shape: len(line.members) for shape, line in self._lines.items()}, self._now)

    def line(
        self,
        groups: Mapping[str, ResourceGroup],
        also: Iterable[str] = (),
        quotas: Quotas = NO_QUOTAS,
        reserved: Sequence[object] = (),
    ) -> tuple[list[Waiting], list[str]]:
        """Those that a pass needs to see, oldest first; and of each shape of which it may place all that it sees, the
        last one, if more stand behind it. `also` are ids of those to be seen wherever they stand. `reserved`: room may
        be free to some owners and projects alone."""
        if not self._lines:
            return [], []
        fleet = self.fleet
        ids = tuple(also)
        self._asked = (groups, ids, quotas, tuple(reserved))
        if self._settled != (self._version, fleet.stamp, self._asked):
            self._settled = None
            self._shown = self._line(fleet, groups, ids, quotas, len(reserved) > 0)
        return self._shown

    def settle(self, until: float = math.inf) -> None:
        """Nothing came of the pass that saw the last line, and nothing will before then."""
        if self._fleet is not None:
            self._settled = (self._version, self._fleet.stamp, self._asked)
            self._quiet = self._now, min(until, self._now + QUIET_S)

    @property
    def is_settled(self) -> bool:
        """Whether nothing is new since a pass of which nothing came, and that was a moment ago."""
        return self._settled is not None and self._quiet[0] <= self._now < self._quiet[1]

    @property
    def next_begin(self) -> float:
        """No session's time to begin comes before."""
        return self._later[0][0] if self._later else math.inf

    def _line(
        self, fleet: Fleet, groups: Mapping[str, ResourceGroup], also: Iterable[str], quotas: Quotas, reserved: bool
    ) -> tuple[list[Waiting], list[str]]:
        usable = groups_of(groups.values()).usable
        home = home_of(groups)
        timed = any(TIME in quota.limits for quota in quotas.listed)
        views = {name: _View.of(group) for name, group in groups.items()}
        found: list[Iterable[Waiting]] = []
        last_read: list[str] = []
        hopeless: list[_Hopeless] = []
        fitting: list[Sequence[Waiting]] = []
        for shape, line in self._lines.items():
            view = views.get(shape.group or home or "", NO_VIEW)
            if view.needs is None:
                found.append(line.members)
                continue
            most = fleet.most_that_fit(shape, usable, MAX_PLACEMENTS)
            may_differ = reserved and (most > 0 or view.preempts)  # whether one goes there where another may not
            needs = view.needs | WHOSE if quotas.listed or may_differ else view.needs
            count = most + view.depth + line.made_for()  # whoever finds the room taken is told so
            by_limit = timed or may_differ or (most > 0 and view.looks_ahead)
            chosen = line.first(needs, count, by_limit=by_limit)
            if most and len(chosen) < len(line.members) and not quotas.listed:  # which hold back all alike behind it
                last_read.append(line.members[count - 1].id)
            if not view.by_age:
                found.append(chosen)
            elif most:
                fitting.append(chosen)
            else:
                hopeless.append((shape, chosen))
        found += self._in_turn(hopeless, last_read, home)
        found += self._oldest(fitting, last_read)
        found.append([one for id_ in also if (one := self._standing.get(id_)) is not None])
        by_ordinal = {one.ordinal: one for one in chain.from_iterable(found)}
        return [by_ordinal[ordinal] for ordinal in sorted(by_ordinal)], last_read

    def _oldest(self, fitting: list[Sequence[Waiting]], last_read: list[str]) -> list[Sequence[Waiting]]:
        """While pass after pass places some, the oldest are enough for one; the others are in the next."""
        if not self._flows or sum(map(len, fitting)) <= MOST_OLDEST:
            return fitting
        merged = heapq.merge(*fitting, key=ordinal_of)
        oldest = list(islice(merged, MOST_OLDEST))
        last_read.append(next(merged).id)
        return [oldest]

    def _in_turn(self, hopeless: list[_Hopeless], last_read: list[str], home: str | None) -> list[Sequence[Waiting]]:
        """Of so many shapes that fit nowhere, those in each line whose first has waited longest, and the others by
        turns, so that all are told why."""
        if len(hopeless) <= 2 * MOST_HOPELESS:
            self._shown_at.clear()
            return [chosen for _, chosen in hopeless]
        hopeless.sort(key=lambda pair: pair[1][0].ordinal)
        front, rest = _parted(hopeless, home)
        rest.sort(key=lambda pair: self._shown_at.get(pair[0], -1.0))
        turn = rest[:MOST_HOPELESS]
        self._shown_at = {shape: at for shape, _ in rest if (at := self._shown_at.get(shape)) is not None}
        self._shown_at.update((shape, self._now) for shape, _ in turn)
        unseen = [line[0].id for shape, line in rest[MOST_HOPELESS:][:1] if shape not in self._shown_at]
        last_read += unseen  # there is another pass for those who were never shown
        return [chosen for _, chosen in (*front, *turn)]


def _parted(hopeless: Sequence[_Hopeless], home: str | None) -> tuple[list[_Hopeless], list[_Hopeless]]:
    """The first of each line, `MOST_HOPELESS` together, and all behind them."""
    lines: defaultdict[str | None, list[_Hopeless]] = defaultdict(list)
    for one in hopeless:
        lines[one[0].group or home].append(one)
    share = max(MOST_HOPELESS // len(lines), 1)
    front = [one for line in lines.values() for one in line[:share]]
    return front, [one for line in lines.values() for one in line[share:]]


class _View(NamedTuple):
    """What a pass must see of a shape for a group: who comes first by age and by `needs`, at least `depth` of each, and
    of each time limit where it `looks_ahead`; everybody where the order is not Corral's own (None)."""

    needs: frozenset[Need] | None = frozenset()
    depth: int = 1
    looks_ahead: bool = False
    by_age: bool = True
    preempts: bool = False

    @classmethod
    def of(cls, group: ResourceGroup) -> _View:
        order, options = ORDERS.get(group.order), group_options(group)
        backfill = options["backfill"]
        depth = int(options["backfill_depth"]) if backfill == "conservative" else 1
        depth += MAX_CLAIMANTS if preempts(group) else 0
        needs = None if order is None else needs_of(group)
        return cls(needs, depth, backfill != "none", order is FIFO, preempts(group))


NO_VIEW = _View()


def _seen(node: Node) -> tuple[object, ...]:
    """All of a node that a pass looks at."""
    size = (node.cpu_milli, node.memory_mib, node.cpu_used_milli, node.memory_used_mib)
    what = (node.group, node.state, node.schedulable, node.epoch, node.run_id, node.backoff_until)
    return (*size, *what, node.labels, node.runtimes)
