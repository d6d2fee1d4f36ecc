"""Everything that keeps a shape off each node, in arrays: what the pass stops at the first of, asked to the end.

The rules are those of `room.excluded` and `room.NodeRoom.place`, and a property test holds the two together. Nodes of a
group with the same GPUs are one class. Whoever was asked about another node, or group, says only that of the rest.
Next: `explain` puts it into words, `suggest` asks what would be enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from corral.scheduling.engine.pool import CPU, DEVICES, MEMORY, Flags, Ints, Pool
from corral.scheduling.engine.standing import UNBOUNDED, Need, need_of, times
from corral.scheduling.snapshot import Shape, Snapshot


class Sight(NamedTuple):
    """How a class of nodes stands with a shape: how many there are, how many have room, and how many say what."""

    name: str
    group: str
    nodes: int
    fitting: int
    obstacles: Mapping[str, int]


class Survey:
    """All nodes of a snapshot. `held_back` names the groups that take nothing, by the code of the reason."""

    def __init__(self, snapshot: Snapshot, held_back: Mapping[str, str]) -> None:
        by_group: dict[str, list[int]] = {}
        for number, node in enumerate(snapshot.nodes):
            by_group.setdefault(node.group, []).append(number)
        self.parts = [
            Part(name, Pool([snapshot.nodes[n] for n in by_group[name]], snapshot.devices), snapshot.now,
                 held_back.get(name))
            for name in sorted(by_group)
        ]  # fmt: skip

    def fits(self, shape: Shape, *, full: bool = False) -> bool:
        """Whether one group has nodes enough: now, or (`full`) if nobody held anything and all were well."""
        return any(int(part.fitting(shape, full=full).sum()) >= shape.nodes for part in self.parts)

    def sights(self, shape: Shape, *, full: bool = False) -> list[Sight]:
        return [sight for part in self.parts for sight in part.sights(shape, full=full)]


class Part:
    """One group's nodes."""

    def __init__(self, group: str, pool: Pool, now: float, held_back: str | None) -> None:
        self.group = group
        self.pool = pool
        self._now = now
        self._held_back = held_back
        self._names, self._class_of = _classes(group, pool)
        self._whole = pool.full_room()
        self._open: Flags = np.ones(len(pool), bool)

    def fitting(self, shape: Shape, *, full: bool = False) -> Flags:
        """Which nodes have room for the shape's ranks."""
        fits = self._open.copy()
        for _, out in self._obstacles(shape, full=full):
            fits &= ~out
        return fits

    def possible(self, shape: Shape) -> Flags:
        """Which nodes it may go to, whatever their room."""
        may = self._open.copy()
        if shape.group not in (None, self.group):
            return ~may
        for _, out in (*self._not_meant(shape), *self._barred(shape, full=True)):
            may &= ~out
        return may

    def sights(self, shape: Shape, *, full: bool) -> Iterator[Sight]:
        fits, found = self._open.copy(), [Counter[str]() for _ in self._names]
        for code, out in self._obstacles(shape, full=full):
            fits &= ~out
            for number, count in enumerate(self._by_class(out)):
                if count:
                    found[number][code] += count
        nodes, fitting = self._by_class(self._open), self._by_class(fits)
        for number, name in enumerate(self._names):
            yield Sight(name, self.group, nodes[number], fitting[number], dict(found[number]))

    def _by_class(self, rows: Flags) -> list[int]:
        return np.bincount(self._class_of[rows], minlength=len(self._names)).tolist()

    def _obstacles(self, shape: Shape, *, full: bool) -> Iterator[tuple[str, Flags]]:
        if shape.group is not None and shape.group != self.group:
            yield "other_group", self._open
            return
        meant = self._open.copy()
        for code, out in self._not_meant(shape):
            yield code, meant & out
            meant &= ~out
        for code, out in (*self._barred(shape, full=full), *self._without_room(shape, full=full)):
            yield code, meant & out

    def _not_meant(self, shape: Shape) -> Iterator[tuple[str, Flags]]:
        names = [node.name for node in self.pool.nodes] if shape.on_nodes or shape.not_nodes else []
        if shape.on_nodes:
            yield "other_node_asked_for", ~np.isin(names, shape.on_nodes)
        if shape.not_nodes:
            yield "node_excluded", np.isin(names, shape.not_nodes)

    def _barred(self, shape: Shape, *, full: bool) -> Iterator[tuple[str, Flags]]:
        pool = self.pool
        if shape.on_labels:
            there = [pool.labelled(key, value) for key, value in shape.on_labels]
            yield "label_missing", ~np.logical_and.reduce(there)
        yield "no_such_runtime", ~pool.offers(shape.runtime)
        if not full:
            yield "node_unreachable", pool.unreachable
            yield "node_not_schedulable", pool.closed
            yield "node_backing_off", pool.backoff_until > self._now
            if self._held_back is not None:
                yield self._held_back, self._open

    def _without_room(self, shape: Shape, *, full: bool) -> Iterator[tuple[str, Flags]]:
        need, ranks = need_of(shape, self.pool), shape.ranks_per_node
        room = self.room(full=full)
        if shape.exclusive and not full:
            yield "node_in_use", (room[:, :DEVICES] < self._whole[:, :DEVICES]).any(axis=1) | self._shared()
        yield "not_enough_cpus", room[:, CPU] < ranks * need.cpu_milli
        yield "not_enough_memory", room[:, MEMORY] < ranks * need.memory_mib
        if need.gpus < 0:
            return
        short = self.gpu_ranks(need, ranks, full=full) < ranks
        suited = (need.vram_mib[self.pool.kind] < UNBOUNDED).any(axis=1)
        yield "no_gpus", short & (self.pool.count == 0)
        yield "no_such_gpu", short & (self.pool.count > 0) & ~suited
        yield "not_enough_gpus" if need.whole else "not_enough_gpu_share", short & suited

    def room(self, *, full: bool = False) -> Ints:
        return self._whole if full else self.pool.room

    def _shared(self) -> Flags:
        devices = slice(DEVICES, DEVICES + self.pool.width)
        return np.any(self.pool.room[:, devices] < self._whole[:, devices], axis=1)

    def devices(self, *, full: bool = False) -> tuple[Ints, Ints]:
        """Free thousandths and MiB of each device."""
        room, memory = self.room(full=full), DEVICES + self.pool.width
        return room[:, DEVICES:memory], room[:, memory:]

    def gpu_ranks(self, need: Need, most: int, *, full: bool = False) -> Ints:
        """For how many ranks, at most so many, each node has the GPUs."""
        share, vram = self.devices(full=full)
        needed = need.vram_mib[self.pool.kind]
        if need.whole:
            return ((share >= need.share_milli) & (vram >= needed)).sum(axis=1) // need.gpus
        each = np.minimum(times(share, need.share_milli), times(vram, needed))
        return np.minimum(each, most).sum(axis=1)


def _classes(group: str, pool: Pool) -> tuple[list[str], NDArray[np.intp]]:
    names = [f"{group}, {_gpus(device.model for device in devices)}" for devices in pool.devices]
    known = sorted(set(names))
    number = {name: place for place, name in enumerate(known)}
    return known, np.array([number[name] for name in names], np.intp)


def _gpus(models: Iterable[str]) -> str:
    counted = Counter(models)
    return " ".join(f"{count}x{model}" for model, count in sorted(counted.items())) or "no GPU"
