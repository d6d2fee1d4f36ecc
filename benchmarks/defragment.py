"""What moving a few sessions gains: the openb workloads once more, with a bounded number of moves, and with departures.

    arrivals     the published protocol (benchmark `openb`), but whoever finds no room may have others moved for it
    departures   the same orders go on, and each pod leaves again once so much more has been asked for, by chance on
                 average 1.3 fleets; measured is the part of all GPUs that is allocated on average while 2 to 3 fleets
                 are asked for

At most one move for each hundred pods that have arrived, at most three for one newcomer, and only every other pod, by
chance, is one that can be moved (that saves its work when it is asked to). The ceiling is the published one of a linear
program, in which nothing is rejected: what this mix of pods can fill at most, and so near enough for the second, too.
"""

from __future__ import annotations

import heapq
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from benchmarks.openb import gpu_milli, gpu_nodes, orders, shapes_of
from corral.model.resources import WHOLE_GPU_MILLI
from corral.scheduling.claiming.contention import Contender, Places
from corral.scheduling.moving.defragment import Goal, defragment
from corral.scheduling.moving.holdings import Holdings
from corral.scheduling.snapshot import Shape
from corral.sim.fleets import Machines
from corral.sim.room import FleetRoom

CEILINGS = {"default": 96.32, "cpu250": 96.26, "gpushare40": 94.86, "gpushare60": 92.41, "multigpu50": 97.96}
WORKLOADS = ("default", "gpushare40", "multigpu50")
PLACEMENT = "least-fragmentation"
MOST_PER_NEWCOMER = 3
ARRIVALS_PER_MOVE = 100
STAY = 1.3  # fleets of GPUs that are asked for while a pod stays, on average
FROM, TO = 2.0, 3.0  # fleets asked for, between which is measured


class Filled(NamedTuple):
    """Per cent of all GPUs; how many moves, of how many arrivals."""

    part: float
    moves: int
    arrivals: int


def run() -> dict[str, float]:
    """Prints the table, of the first order; per cent."""
    machines = Machines(tuple(gpu_nodes()[0]), {name: tuple(ones) for name, ones in gpu_nodes()[1].items()})
    head = f"{'without':>10}{'with moves':>12}{'ceiling':>10}{'moves':>8}{'of pods':>9}"
    print(f"{'workload':<12}   arrivals:{head}   departures:{head}{'took s':>8}")
    found: dict[str, float] = {}
    for workload in WORKLOADS:
        began = time.perf_counter()
        shapes = shapes_of(workload)
        rows = [order for _, order in orders(workload)][:1]
        cells: list[str] = []
        for name, stay in (("arrivals", 0.0), ("departures", STAY)):
            without, moved = ([replay(shapes, one, machines, moving, stay) for one in rows] for moving in (False, True))
            parts = [_mean(one.part for one in ones) for ones in (without, moved)]
            found[f"{workload}_{name}"], found[f"{workload}_{name}_moved"] = parts
            moves, arrivals = sum(one.moves for one in moved), sum(one.arrivals for one in moved)
            cells.append(f"{parts[0]:>23.2f}{parts[1]:>12.2f}{CEILINGS[workload]:>10.2f}{moves:>8}{arrivals:>9}")
        print(f"{workload:<12}{''.join(cells)}{time.perf_counter() - began:>8.0f}", flush=True)
    return found


class _Pods:
    """Who is there, who leaves when, and the room."""

    def __init__(self, shapes: Sequence[Shape], machines: Machines, seed: int) -> None:
        self.room = FleetRoom(machines, PLACEMENT)
        self.room.expect(shapes)
        self.chance = random.Random(seed)
        self.held = Holdings()
        self.leaving: list[tuple[float, str]] = []
        self.allocated = 0
        self.moves = 0

    def arrive(self, id_: str, shape: Shape, moves_left: int) -> bool:
        places = self.room.place(shape)
        if places is None and moves_left > 0 and shape.resources.gpu is not None:
            places = self._make_room(id_, shape, moves_left)
        if places is not None:
            self._put(id_, shape, places, pinned=self.chance.random() < 0.5)
            self.allocated += gpu_milli(shape)
        return places is not None

    def _make_room(self, id_: str, shape: Shape, moves_left: int) -> Places | None:
        found = defragment([Goal(id_, shape)], self.held, self.room, most_moves=moves_left,
                           most_per_goal=MOST_PER_NEWCOMER)  # fmt: skip
        for move in found.moves:
            self.held.put(replace(self.held.of(move.id), pinned=False))  # it may move again another time
        self.moves += len(found.moves)
        return found.won[0][1] if found.won else None

    def _put(self, id_: str, shape: Shape, places: Places, *, pinned: bool) -> None:
        self.held.put(Contender(id_, shape, places, pinned, float(gpu_milli(shape))))

    def leave(self, asked: float) -> None:
        while self.leaving and self.leaving[0][0] <= asked:
            _, id_ = heapq.heappop(self.leaving)
            gone = self.held.drop(id_)
            self.room.give_back(gone.places)
            self.allocated -= gpu_milli(gone.shape)


def replay(shapes: Sequence[Shape], order: Sequence[int], machines: Machines, moving: bool, stay: float) -> Filled:
    """With `stay` pods leave, and the order begins again, shuffled, until enough was asked for."""
    everything = WHOLE_GPU_MILLI * machines.gpus
    pods = _Pods(shapes, machines, seed=len(order))
    asked = measured = weight = arrivals = 0
    in_vain: dict[Shape, bool] = {}  # found no room, and whether others might have moved for it
    for row in _rows(order, shapes, everything, stay, pods.chance):
        shape = shapes[row]
        need = gpu_milli(shape)
        asked += need
        arrivals += 1
        if stay:
            pods.leave(asked / everything)
            in_vain.clear()
        may = arrivals // ARRIVALS_PER_MOVE - pods.moves if moving else 0
        if shape not in in_vain or (may > 0 and not in_vain[shape]):
            if not pods.arrive(str(arrivals), shape, may):
                in_vain[shape] = may > 0
            elif stay:
                leaves = asked / everything + pods.chance.expovariate(1 / stay)
                heapq.heappush(pods.leaving, (leaves, str(arrivals)))
        if asked >= FROM * everything:
            measured, weight = measured + need * pods.allocated, weight + need
    allocated = measured / weight if stay else pods.allocated
    return Filled(100 * allocated / everything, pods.moves, arrivals)


def _rows(order: Sequence[int], shapes: Sequence[Shape], everything: int, stay: float, chance: random.Random):
    yield from order
    asked = sum(gpu_milli(shapes[row]) for row in order)
    again = list(order)
    while stay and asked < TO * everything:
        chance.shuffle(again)
        for row in again:
            asked += gpu_milli(shapes[row])
            yield row


def _mean(values) -> float:
    counted = list(values)
    return sum(counted) / len(counted)
