"""Who waits in front, and what is left to others: planned starts, nodes kept, and reservations, during one pass.

    easy           the first of each group's line that finds no room gets a planned start; whoever fits and does not
                   delay it may start before it
    conservative   so do those behind it, up to `backfill_depth`, in the line's order; nobody delays any of them
    none           nobody does: whoever fits starts

What is planned is kept by the passes that follow (`promises`): moved only to start earlier, as long as that can be.
A planned start rests on ends that are known. Where those are not enough, whoever has waited for `backfill_patience`
has as many nodes as it needs kept for it, the nearest to being free, until it starts: so the first of a line never
starves. What could not start on empty nodes is nobody's head. A pass in which everybody finds room pays nothing here.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from corral.scheduling.ahead.ends import Ends, gives_back_at
from corral.scheduling.ahead.outlook import Outlook, Start, Window
from corral.scheduling.ahead.promises import SAME_START_PART, SAME_START_S, Kept, is_another
from corral.scheduling.engine.pool import Ints, Rows
from corral.scheduling.engine.room import MESSAGES
from corral.scheduling.engine.standing import CODES, Codes
from corral.scheduling.fleet import Fleet
from corral.scheduling.ordering import line_of
from corral.scheduling.plan import Placed, PlannedStart, Refusal, refusal
from corral.scheduling.policies.group_options import group_options
from corral.scheduling.reserving import reserved, usable_by
from corral.scheduling.snapshot import Promise, Running, Shape, Snapshot, Waiting

Concern = tuple[tuple[int, ...], frozenset[str]]  # of sessions to which the same windows matter


def until_s(waiting: Waiting, now_s: float) -> float:
    """When it will surely have ended if it starts now."""
    return now_s + length_s(waiting)


def length_s(waiting: Waiting) -> float:
    return math.inf if waiting.time_limit_s is None else waiting.time_limit_s + waiting.grace_s


class Heads:
    """The state of one pass. `before` a session is tried and `refused` after it found no room, `placed` if it did;
    `end` when the pass is over, so that the fleet is left as it is."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.planned: dict[str, PlannedStart] = {}
        self._snapshot = snapshot
        self._fleet: Fleet | None = None
        self._placed: list[Placed] = []
        self._outlooks: dict[str, Outlook] = {}
        self._fronts: dict[str | None, _Front] = {}
        self._shifts: list[tuple[str, Rows, Ints]] = []
        self._concern: Concern | None = None
        self._told: dict[tuple[Shape, Concern], tuple[Refusal, ...]] = {}
        self._never: set[Shape] = set()  # could not start on empty nodes
        self._freed_for: set[str] = set()
        self._kept = Kept(snapshot)
        self.put_off: dict[str, str] = {}  # why a promise is not kept

    def stopped(self, waiting: Waiting) -> bool:
        """Whether its line goes no further in this pass: who runs must be known first."""
        front = self._fronts.get(line_of(waiting.shape.group, self._snapshot.groups))
        return front is not None and front.stopped

    def before(self, waiting: Waiting, fleet: Fleet) -> tuple[Refusal, ...] | None:
        """Let the fleet show what this session may use; or what one like it was told already."""
        if self._fleet is None:
            self._fleet = fleet
            if self._snapshot.reservations or self._kept:
                self._look(fleet)
        if not any(one.windows for one in self._outlooks.values()):
            return None
        concern = self._concern_of(waiting)
        told = self._told.get((waiting.shape, concern))
        if told is None and concern != self._concern:
            self._show_all()
            self._show_left(waiting, concern)
        return told

    def placed(self, placed: Placed) -> None:
        self._placed.append(placed)
        if self._kept.looked_at(placed.session) is not None:
            self._forget(placed.session.id)
        outlook = self._outlooks.get(placed.group)
        if outlook is not None:
            outlook.started(placed.ranks, until_s(placed.session, self._snapshot.now))

    def refused(self, waiting: Waiting) -> tuple[tuple[Refusal, ...], bool]:
        """Why a session that the fleet had no room for has none, and whether nobody has that asks for the same. Nodes
        that have room, but not for this session, are told apart from those that have none."""
        assert self._fleet is not None
        shape, plain = waiting.shape, self._fleet.refusals(waiting.shape)
        if self._concern is None or not self._shifts:
            return plain, True
        told = Counter({one.code: one.counts.get("nodes", 0) for one in plain})
        withheld = Counter[tuple[str, str]]()
        for name, rows, by in self._shifts:
            if shape.group in (None, name):
                shown, real = self._outlooks[name].judged(self._fleet.standing(name, shape), rows, by)
                told.subtract(_words(shown))
                told.update(_words(real))
                withheld.update(self._withheld(waiting, name, rows[(real == 0) & (shown != 0)]))
        told["not_enough_nodes"] -= withheld.total()
        answer = (
            *(refusal(code, {"nodes": count}) for code, count in sorted(told.items()) if count > 0),
            *(_counted(*why, count) for why, count in withheld.items()),
        )
        if not withheld:
            return answer, True
        self._told[shape, self._concern] = answer
        return answer, False

    def _withheld(self, waiting: Waiting, name: str, rows: Rows) -> Counter[tuple[str, str]]:
        """By why, how many of these nodes of the group are kept from it."""
        found = Counter[tuple[str, str]]()
        until, mine = until_s(waiting, self._snapshot.now), self._mine(waiting)
        for window in self._outlooks[name].blockers(rows, until, mine):
            here = np.isin(rows, window.rows)
            if here.any():
                found[self._why(window)] += int(here.sum())
            rows = rows[~here]
        return found

    def waits(self, waiting: Waiting) -> None:
        """It found no room: the first in its line, or one of the first, has its start planned."""
        line = line_of(waiting.shape.group, self._snapshot.groups)
        front = self._fronts.get(line)
        if front is None:
            front = self._fronts[line] = _Front(self._snapshot, line)
        if front.full or waiting.shape in self._never or self._fleet is None:
            self.goes_without(waiting, "others are before it now")
            return
        if line in self._snapshot.unread:
            front.stopped = True
            if (promise := self._kept.of(waiting)) is not None:
                self.planned[waiting.id] = PlannedStart(promise.at, promise.group, promise.ranks)
            return
        self._show_all()
        self._look(self._fleet)
        if not self._could_ever(waiting):
            self._never.add(waiting.shape)
            self.goes_without(waiting, "it would find no room if nobody else were there")
            return
        front.looked_at += 1
        start = self._start_of(waiting)
        if start is not None:
            self.planned[waiting.id] = start
        elif front.looked_at == 1 and self._snapshot.now - waiting.submitted_at >= front.patience_s:
            self._keep(waiting)

    def goes_without(self, waiting: Waiting, why: str) -> None:
        """Nothing is planned for it in this pass: what was is let go."""
        if self._kept.looked_at(waiting) is not None:
            self._forget(waiting.id)
            self.put_off[waiting.id] = why

    def _forget(self, id_: str) -> None:
        self._show_all()
        for outlook in self._outlooks.values():
            outlook.forget(id_)
        self._told.clear()  # what was told rests on other windows

    # what is planned, and kept

    def _start_of(self, waiting: Waiting) -> PlannedStart | None:
        """When it starts: as it was promised, or earlier; or as early as those before it leave it."""
        mine, promise = self._mine(waiting), self._kept.looked_at(waiting)
        start = self._earliest(waiting, mine, math.inf if promise is None else self._latest(promise))
        if promise is not None:
            if self._still_holds(waiting, promise, mine) and not self._is_sooner(start, promise):
                return PlannedStart(promise.at, promise.group, promise.ranks)
            if start is None or is_another(promise.told, max(start.at, promise.told), self._snapshot.now):
                self.put_off[waiting.id] = self._why_not(waiting, promise, mine)
                start = self._earliest(waiting, mine | self._kept.behind(waiting))
        if promise is not None or (start is not None and waiting.id in self._freed_for):
            self._forget(waiting.id)
        if start is not None:
            self._outlooks[start.group].promise(waiting.id, Start(start.at, start.ranks), length_s(waiting))
            self._told.clear()
        return start

    def _latest(self, promise: Promise) -> float:
        """No start after that is as good as what was promised."""
        at = max(promise.told, promise.at, self._snapshot.now)
        return at + max(SAME_START_S, 2 * SAME_START_PART * (at - self._snapshot.now))

    def _is_sooner(self, start: PlannedStart | None, promise: Promise) -> bool:
        return start is not None and start.at < promise.at and is_another(promise.at, start.at, self._snapshot.now)

    def _still_holds(self, waiting: Waiting, promise: Promise, mine: frozenset[str]) -> bool:
        assert self._fleet is not None
        start = Start(max(promise.at, self._snapshot.now), promise.ranks)
        standing = self._fleet.standing(promise.group, waiting.shape)
        return self._outlooks[promise.group].holds(standing, start, length_s(waiting), mine)

    def _why_not(self, waiting: Waiting, promise: Promise, mine: frozenset[str]) -> str:
        """Why what was promised cannot be kept."""
        assert self._fleet is not None
        outlook, at = self._outlooks[promise.group], max(promise.at, self._snapshot.now)
        nodes = sorted({rank.node for rank in promise.ranks})
        if gone := [name for name in nodes if name not in outlook.pool.row_of]:
            return f"node {gone[0]} is gone"
        rows = np.array([outlook.pool.row_of[name] for name in nodes], np.intp)
        codes = self._fleet.standing(promise.group, waiting.shape).bars.codes[rows]
        if codes.any():
            first = int(np.flatnonzero(codes)[0])
            return f"node {nodes[first]}: {MESSAGES[CODES[int(codes[first])]]}"
        promised = dict(self._kept.all())
        windows = outlook.blockers(rows, at + length_s(waiting), mine)
        before = [one for one in windows if one.ends_s > at and one.owner not in promised]
        if before:
            code, why = self._why(before[0])
            return why if code == "reserved" else f"session {before[0].owner} is before it"
        there = [one.session.id for one in self._placed if not {rank.node for rank in one.ranks}.isdisjoint(nodes)]
        if there:
            return f"session {there[0]} started there"
        return "those who run there go on for longer than was known, or it asks for more time itself"

    def end(self) -> None:
        self._show_all()

    # what the fleet shows

    def _concern_of(self, waiting: Waiting) -> Concern:
        until, mine = until_s(waiting, self._snapshot.now), self._mine(waiting)
        met = (sum(window.starts_s < until for window in one.windows) for one in self._outlooks.values())
        return tuple(met), mine

    def _show_left(self, waiting: Waiting, concern: Concern) -> None:
        assert self._fleet is not None
        for name, outlook in self._outlooks.items():
            rows, by = outlook.left_until(until_s(waiting, self._snapshot.now), concern[1])
            if len(rows):
                outlook.pool.shift(rows, by)
                self._shifts.append((name, rows, by))
        self._concern = concern

    def _show_all(self) -> None:
        for name, rows, by in self._shifts:
            self._outlooks[name].pool.shift(rows, -by)
        self._shifts = []
        self._concern = None

    def _look(self, fleet: Fleet) -> None:
        """The room to come of every group that takes sessions."""
        now = self._snapshot.now
        if self._outlooks:
            return
        running: defaultdict[str, list[Running]] = defaultdict(list)
        known = [one for one in self._snapshot.running if one.ends_at is not None]
        for one in known:
            running[one.group].append(one)
        for name, pool in fleet.pools().items():
            windows = _reserved(self._snapshot, pool.row_of)
            self._outlooks[name] = Outlook(pool, now, Ends(pool, running[name], now), windows)
        for placed in self._placed:
            if not math.isinf(until := until_s(placed.session, now)):
                self._outlooks[placed.group].ends.add(until, placed.ranks)
        self._promise_what_is_freed([one for one in known if one.preempted_for is not None])
        self._promise_what_was_told()

    def _promise_what_was_told(self) -> None:
        """What an earlier pass planned is held for those sessions, until each has its turn."""
        lengths = {one.id: length_s(one) for one in self._snapshot.waiting if one.id in self._snapshot.planned}
        for id_, one in self._kept.all():
            outlook = self._outlooks.get(one.group)
            if outlook is None or id_ in self._freed_for:
                self._kept.drop(id_)
            else:
                outlook.promise(id_, Start(max(one.at, self._snapshot.now), one.ranks), lengths[id_])

    def _promise_what_is_freed(self, going: Sequence[Running]) -> None:
        """The room of those that stop for somebody goes to that one, and back when it has ended."""
        lengths = {one.id: length_s(one) for one in self._snapshot.waiting} if going else {}
        for one in going:
            outlook, claimant = self._outlooks.get(one.group), one.preempted_for
            at = gives_back_at(one, self._snapshot.now)
            if outlook is not None and claimant is not None and at is not None:
                outlook.promise(claimant, Start(at, one.ranks), lengths.get(claimant, math.inf))
                self._freed_for.add(claimant)

    def _mine(self, waiting: Waiting) -> frozenset[str]:
        """The windows that are for it: of its reservations, and of what is freed for it."""
        mine = usable_by(self._snapshot.reservations, waiting) | self._kept.not_for(waiting)
        return mine | {waiting.id} if waiting.id in self._freed_for else mine

    # who is in front

    def _open(self, waiting: Waiting) -> Iterable[tuple[str, Outlook]]:
        return [(name, one) for name, one in self._outlooks.items() if waiting.shape.group in (None, name)]

    def _earliest(self, waiting: Waiting, mine: frozenset[str], by_s: float = math.inf) -> PlannedStart | None:
        assert self._fleet is not None
        found: list[PlannedStart] = []
        for name, outlook in self._open(waiting):
            start = outlook.earliest(self._fleet.standing(name, waiting.shape), length_s(waiting), mine, by_s)
            if start is not None:
                found.append(PlannedStart(start.at_s, name, start.ranks))
        return min(found, key=lambda one: one.at, default=None)

    def _could_ever(self, waiting: Waiting) -> bool:
        assert self._fleet is not None
        standings = ((one, self._fleet.standing(name, waiting.shape)) for name, one in self._open(waiting))
        return any(one.could_ever(standing) for one, standing in standings)

    def _keep(self, waiting: Waiting) -> None:
        assert self._fleet is not None
        mine = self._mine(waiting)
        for name, outlook in self._open(waiting):
            rows = outlook.best_kept(self._fleet.standing(name, waiting.shape), mine)
            if rows is not None:
                outlook.keep(waiting.id, rows)
                self._told.clear()
                return

    # why not

    def _why(self, window: Window) -> tuple[str, str]:
        if window.whole and not math.isinf(window.starts_s):
            return "reserved", reserved(self._snapshot.reservations, window.owner)
        open_ = window.owner in dict(self._kept.all())
        why = "whose start is promised" if open_ else "which is before it"
        return "would_delay", f"it would delay session {window.owner}, {why}"


def _words(codes: Codes) -> Counter[str]:
    """How often each answer is given; on nodes that fit, that there are not enough of them."""
    counts: list[int] = np.bincount(codes).tolist()
    return Counter({CODES[code] or "not_enough_nodes": count for code, count in enumerate(counts) if count})


def _counted(code: str, message: str, nodes: int) -> Refusal:
    return Refusal(code, f"{nodes} {'node' if nodes == 1 else 'nodes'}: {message}", {"nodes": nodes})


def _reserved(snapshot: Snapshot, row_of: Mapping[str, int]) -> list[Window]:
    windows: list[Window] = []
    for one in snapshot.reservations:
        rows = np.array(sorted(row_of[name] for name in one.nodes if name in row_of), np.intp)
        if len(rows) and one.ends_at > snapshot.now:
            windows.append(Window(one.id, one.starts_at, one.ends_at, rows))
    return windows


class _Front:
    """One line's front, as its group has it. A session that names no group stands in the home group's line."""

    def __init__(self, snapshot: Snapshot, line: str | None) -> None:
        group = snapshot.groups.get(line or "")
        options: Mapping[str, Any] = {"backfill": "none"} if group is None else group_options(group)
        self.patience_s: float = options.get("backfill_patience", math.inf)
        self.stopped = False
        self.looked_at = 0
        depths = {"none": 0.0, "easy": 1.0}
        self._most = depths.get(options["backfill"], float(options.get("backfill_depth", 0)))

    @property
    def full(self) -> bool:
        """Whether nobody further back is looked at."""
        return self.looked_at >= self._most
