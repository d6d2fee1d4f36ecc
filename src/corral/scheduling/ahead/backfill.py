"""Planned starts: when and where a session that waits can start for sure, from known time limits, and who may start
before it without delaying it.

`Ahead` is the room to come: of every node, what will be free from when on, as far as the ends of those who run are
known, less what is held for planned starts. One planned start for the head of the line, and then whoever `fits_from`
now, is EASY backfill; a planned start for everybody is conservative backfill. It says what is possible and holds what
it is told to; who is asked first, and how many starts are planned, is the caller's. Ends that nobody knows never come.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from corral.model.node import Node
from corral.scheduling.claiming.contention import Places, Room, by_group, copied
from corral.scheduling.engine.room import NodeRoom
from corral.scheduling.places import RankPlace
from corral.scheduling.snapshot import Shape

Ints = NDArray[np.int64]


class Planned(NamedTuple):
    at_s: float
    places: Places


class Ahead:
    """The room to come: what `room` has free now, and what those who run give back when they end. Only reads `room`."""

    def __init__(self, room: Room, now_s: float, running: Iterable[tuple[Places, float]] = ()) -> None:
        self._room = room
        self._now_s = now_s
        self._nodes = {node.name: _NodeAhead(room.trial(node.name), now_s) for node in room.nodes}
        for places, ends_s in running:
            self.free(places, ends_s, math.inf)

    def at(self, now_s: float) -> None:
        """Time went on."""
        self._now_s = now_s

    def hold(self, places: Iterable[RankPlace], from_s: float, to_s: float) -> None:
        """These places are taken from then till then: a session that starts, or will."""
        for place in places:
            self._ahead(place.node).change(place, from_s, to_s, -1)

    def free(self, places: Iterable[RankPlace], from_s: float, to_s: float) -> None:
        """What was held from then till then is not: a session ended early, or its planned start is given up."""
        for place in places:
            self._ahead(place.node).change(place, from_s, to_s, 1)

    def holds(self, places: Places, to_s: float) -> bool:
        """Whether these places, free now, stay free until then."""
        by_node: dict[str, list[RankPlace]] = {}
        for place in places:
            by_node.setdefault(place.node, []).append(place)
        return all(self._ahead(node).within(self._now_s, to_s).fits(ones) for node, ones in by_node.items())

    def fits_from(self, shape: Shape, at_s: float, length_s: float) -> Places | None:
        """Places, all in one group, that are free for the shape from then on for so long."""
        found = (self._on(nodes, shape, at_s, length_s) for nodes in self._open_groups(shape))
        return next((places for places in found if places is not None), None)

    def plan(self, shape: Shape, length_s: float) -> Planned | None:
        """The earliest start that is sure, and where; None if no end that is known makes the room."""
        plans = [self._plan_on(nodes, shape, length_s) for nodes in self._open_groups(shape)]
        return min((one for one in plans if one is not None), key=lambda one: one.at_s, default=None)

    def _open_groups(self, shape: Shape) -> list[list[Node]]:
        return by_group(node for node in self._room.nodes if self._room.open_to(node, shape))

    def _on(self, nodes: Iterable[Node], shape: Shape, at_s: float, length_s: float) -> Places | None:
        found: list[RankPlace] = []
        count = 0
        for node in nodes:
            places = self._ahead(node.name).places(shape, at_s, at_s + length_s)
            if places is not None:
                found += places
                count += 1
                if count == shape.nodes:
                    return tuple(found)
        return None

    def _plan_on(self, nodes: Sequence[Node], shape: Shape, length_s: float) -> Planned | None:
        firsts = sorted(self._ahead(node.name).first(shape, self._now_s, length_s) for node in nodes)
        if len(firsts) < shape.nodes or math.isinf(firsts[shape.nodes - 1]):
            return None
        at_s = firsts[shape.nodes - 1]
        places = self._on(nodes, shape, at_s, length_s)
        if places is not None:
            return Planned(at_s, places)
        for later_s in sorted({time for node in nodes for time in self._ahead(node.name).times if time > at_s}):
            places = self._on(nodes, shape, later_s, length_s)
            if places is not None:
                return Planned(later_s, places)
        return None

    def _ahead(self, node: str) -> _NodeAhead:
        found = self._nodes[node]
        found.forget(self._now_s)
        return found


class _NodeAhead:
    """One node: `rows[i]` is what is free from `times[i]` on: CPU, memory, every device's share, then its memory."""

    def __init__(self, room: NodeRoom, now_s: float) -> None:
        self.node: Node = room.node
        self.times: list[float] = [now_s]
        self._column = {one.device.uuid: 2 + number for number, one in enumerate(room.devices)}
        self._room = room
        self.rows: Ints = np.array([amounts_of(room)], np.int64)

    def forget(self, now_s: float) -> None:
        past = bisect_right(self.times, now_s) - 1
        if past > 0:
            del self.times[:past]
            self.rows = self.rows[past:]

    def change(self, place: RankPlace, from_s: float, to_s: float, sign: int) -> None:
        begin, end = self._cut(from_s), self._cut(to_s)
        rows = self.rows[begin:end]
        rows[:, 0] += sign * place.cpu_milli
        rows[:, 1] += sign * place.memory_mib
        devices = len(self._column)
        for grant in place.grants:
            column = self._column[grant.uuid]
            rows[:, column] += sign * grant.share_milli
            rows[:, column + devices] += sign * grant.vram_mib
        self._join(end)
        self._join(begin)

    def _join(self, index: int) -> None:
        """Two rows that have become alike are one: plans given up leave no trace, or every look would take longer."""
        if 0 < index < len(self.times) and (self.rows[index] == self.rows[index - 1]).all():
            del self.times[index]
            self.rows = np.delete(self.rows, index, axis=0)

    def _cut(self, at_s: float) -> int:
        """The row that begins then, made if there is none."""
        if math.isinf(at_s):
            return len(self.times)
        index = bisect_left(self.times, at_s)
        if index == 0:
            return 0
        if index == len(self.times) or self.times[index] != at_s:
            self.times.insert(index, at_s)
            self.rows = np.insert(self.rows, index, self.rows[index - 1], axis=0)
        return index

    def within(self, from_s: float, to_s: float) -> NodeRoom:
        """What is free all the time from then till then."""
        begin = max(0, bisect_right(self.times, from_s) - 1)
        end = max(begin + 1, bisect_left(self.times, to_s))
        return self._as_room(self.rows[begin:end].min(axis=0))

    def places(self, shape: Shape, from_s: float, to_s: float) -> list[RankPlace] | None:
        found = self.within(from_s, to_s).place(shape)
        return None if isinstance(found, str) else found

    def first(self, shape: Shape, now_s: float, length_s: float) -> float:
        """The earliest time from which on the shape's ranks for one node fit for so long; infinity if there is none.
        No time before the last row that is too small is looked at."""
        enough = self._enough(shape)
        index = 0
        while index < len(self.times):
            at_s = max(self.times[index], now_s)
            end = max(index + 1, bisect_left(self.times, at_s + length_s))
            short = np.flatnonzero(~enough[index:end])
            if len(short):
                index += int(short[-1]) + 1
            elif self.places(shape, at_s, at_s + length_s) is not None:
                return at_s
            else:
                index += 1
        return math.inf

    def _enough(self, shape: Shape) -> NDArray[np.bool_]:
        """The rows that hold the shape's amounts, wherever on the node; one that does not has no place for it."""
        asked, ranks, devices = shape.resources, shape.ranks_per_node, len(self._column)
        enough = (self.rows[:, 0] >= ranks * asked.cpu_milli) & (self.rows[:, 1] >= ranks * asked.memory_mib)
        if asked.gpu is not None:
            free = self.rows[:, 2 : 2 + devices]
            free = np.where(free >= asked.gpu.share_milli, free, 0)
            enough &= free.sum(axis=1) >= ranks * asked.gpu.count * asked.gpu.share_milli
        return enough

    def _as_room(self, amounts: Ints) -> NodeRoom:
        room = copied(self._room)
        values: list[int] = amounts.tolist()
        room.cpu_free_milli, room.memory_free_mib = values[0], values[1]
        for number, one in enumerate(room.devices):
            one.free_milli = values[2 + number]
            one.free_mib = values[2 + len(room.devices) + number]
        return room


def amounts_of(room: NodeRoom) -> list[int]:
    return [
        room.cpu_free_milli,
        room.memory_free_mib,
        *(one.free_milli for one in room.devices),
        *(one.free_mib for one in room.devices),
    ]
