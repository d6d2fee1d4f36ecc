"""The free room of one resource group's nodes as arrays: row = node in name order, column = CPU, memory, each device.

It knows amounts and what changed, never what is best: `standing` judges a shape against it, policies rank its rows.
`room.NodeRoom` says the same of one node in plain Python, and is what these arrays are held against.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from corral.model.node import Device, Node, NodeState
from corral.model.resources import WHOLE_GPU_MILLI
from corral.scheduling.engine.cells import Cells
from corral.scheduling.places import RankPlace

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Rows = NDArray[np.intp]

NO_DEVICE = 0  # the kind of a column that a node has no device for
MOST_RECENT = 2048  # changes that are kept one by one
FEW = 3  # rows up to which plain Python is faster
AT_ONCE = 32  # rows that are looked at as one array in the time that it takes to look at one change
CPU, MEMORY, DEVICES = 0, 1, 2  # columns of `Pool.room`: then every device's share, then every device's memory


def number(value: int) -> Ints:
    """An array without axes: arrays reckon with it in half the time that they take with a plain number."""
    return np.array(value, np.int64)


class DeviceKind(NamedTuple):
    """What makes two devices interchangeable to a request."""

    model: str
    arch: str | None
    capacity_mib: int


class Log:
    """Which rows changed, in order. Whoever keeps something per row asks for those since a `stamp` it took earlier."""

    def __init__(self, rows: int) -> None:
        self.stamp = 0  # raised by every change
        self._count = rows
        self._recent: list[int] = []  # the last changes, from the number `_begin` on
        self._begin = 0
        self._at: Ints = np.full(rows, -1, np.int64)  # each row's last change
        self._last: tuple[int, int, Rows | slice] = (-1, -1, slice(None))
        self._last_few: tuple[int, int, list[int] | None] = (-1, -1, None)

    def note(self, row: int) -> None:
        self._at[row] = self.stamp
        self.stamp += 1
        self._recent.append(row)
        self._trim()

    def note_all(self, rows: Rows) -> None:
        self._at[rows] = np.arange(self.stamp, self.stamp + len(rows))
        self.stamp += len(rows)
        self._recent += rows.tolist()
        self._trim()

    def _trim(self) -> None:
        if len(self._recent) >= MOST_RECENT:
            self._begin = self.stamp
            self._recent.clear()

    def since(self, stamp: int) -> Rows | slice:
        """The rows that changed since then, or all of them where that is no more work; all since before the first."""
        now = self.stamp
        if self._last[:2] != (stamp, now):
            self._last = (stamp, now, self._since(stamp))
        return self._last[2]

    def _since(self, stamp: int) -> Rows | slice:
        if stamp < 0:
            return slice(None)
        if stamp >= self._begin and AT_ONCE * (self.stamp - stamp) <= self._count:
            few = set(self._recent[stamp - self._begin :])
            return np.fromiter(few, np.intp, len(few))
        rows = np.flatnonzero(self._at >= stamp)
        return slice(None) if 2 * len(rows) > self._count else rows

    def each_since(self, stamp: int) -> Iterable[int]:
        """The same as plain numbers."""
        if stamp >= self._begin:
            return set(self._recent[stamp - self._begin :])
        rows = self.since(stamp)
        return range(self._count) if isinstance(rows, slice) else rows.tolist()

    def few_since(self, stamp: int) -> list[int] | None:
        """The same where they are so few that plain Python is faster; None where they are more."""
        now = self.stamp
        if self._last_few[:2] != (stamp, now):
            few = stamp >= self._begin and now - stamp <= 4 * FEW
            rows = sorted(set(self._recent[stamp - self._begin :])) if few else None
            self._last_few = (stamp, now, rows if rows is not None and len(rows) <= FEW else None)
        return self._last_few[2]


class Pool:
    """Nodes of one group. `room[row]` is what is free: cpu_milli, memory_mib, `width` shares, `width` device memories.

    `changes` knows the rows of which anything changed, `bar_changes` those of which what is not room did.
    """

    def __init__(self, nodes: Sequence[Node], devices: Mapping[str, Sequence[Device]], turn: int = 0) -> None:
        self.turn = turn
        self.nodes = sorted(nodes, key=lambda node: node.name)
        self.row_of = {node.name: row for row, node in enumerate(self.nodes)}
        self.devices = [[one for one in devices.get(node.name, ()) if one.present] for node in self.nodes]
        self.width = max((len(ones) for ones in self.devices), default=0)
        self.room = self._free_room()
        self.size: Ints = np.array([(node.cpu_milli, node.memory_mib) for node in self.nodes], np.int64).reshape(-1, 2)
        self.kinds, self.kind = self._kinds()
        self.count: Ints = np.array([len(ones) for ones in self.devices], np.int64)
        self.unreachable: Flags = np.array([node.state is NodeState.UNREACHABLE for node in self.nodes], bool)
        self.closed: Flags = np.array([not node.schedulable for node in self.nodes], bool)
        self.backoff_until: Floats = np.array([node.backoff_until for node in self.nodes], np.float64)
        self._runtimes: dict[str, Flags] = {}
        self._labels: dict[tuple[str, str], Flags] = {}
        self._columns = [{one.uuid: column for column, one in enumerate(ones)} for ones in self.devices]
        self._lists: dict[int, list[int]] = {}
        self._kind_lists: dict[int, list[int]] = {}
        self._kinds_looked: tuple[Rows, NDArray[np.intp]] | None = None
        self._looked: tuple[Rows, int, tuple[Ints, Ints, Ints]] | None = None
        self.held = Cells(self.cells)
        self.changes = Log(len(self.nodes))
        self.bar_changes = Log(len(self.nodes))

    def _free_room(self) -> Ints:
        rows = [self._free_of(node, ones) for node, ones in zip(self.nodes, self.devices, strict=True)]
        return np.array(rows, np.int64).reshape(len(rows), DEVICES + 2 * self.width)

    def _free_of(self, node: Node, ones: Sequence[Device]) -> list[int]:
        none = [0] * (self.width - len(ones))
        row = [node.cpu_milli - node.cpu_used_milli, node.memory_mib - node.memory_used_mib]
        return row + [one.free_milli for one in ones] + none + [one.free_mib for one in ones] + none

    def _kinds(self) -> tuple[list[DeviceKind], NDArray[np.intp]]:
        """The kinds there are, NO_DEVICE first, and each column's number among them."""
        numbers: dict[tuple[str, str | None, int], int] = {("", None, 0): NO_DEVICE}
        rows: list[list[int]] = []
        for ones in self.devices:
            kinds = [(one.model.lower(), one.arch, one.capacity_mib) for one in ones]
            row = [numbers.setdefault(kind, len(numbers)) for kind in kinds]
            rows.append(row + [NO_DEVICE] * (self.width - len(ones)))
        return [DeviceKind(*kind) for kind in numbers], np.array(rows, np.intp).reshape(len(rows), self.width)

    def __len__(self) -> int:
        return len(self.nodes)

    def had_turn(self, name: str) -> None:
        """The turn is the next node's by name, whether this one is still there or not."""
        self.turn = bisect_right(self.nodes, name, key=lambda node: node.name)

    def set_node(self, node: Node) -> None:
        """What is not room: state, labels, runtimes, epoch."""
        row = self.row_of[node.name]
        before, self.nodes[row] = self.nodes[row], node
        if _bars(before) != _bars(node):
            self.unreachable[row] = node.state is NodeState.UNREACHABLE
            self.closed[row] = not node.schedulable
            self.backoff_until[row] = node.backoff_until
            self._runtimes.clear()
            self._labels.clear()
            self.note_bars((row,))

    def note_bars(self, rows: Iterable[int]) -> None:
        for row in rows:
            self.bar_changes.note(row)
            self.changes.note(row)

    def update(self, node: Node, devices: Sequence[Device]) -> bool:
        """All of a node as it is now. False, and nothing done: it has other devices, which these arrays cannot hold."""
        row, ones = self.row_of[node.name], [one for one in devices if one.present]
        if [_kept(one) for one in ones] != [_kept(one) for one in self.devices[row]]:
            return False
        free, size = self._free_of(node, ones), (node.cpu_milli, node.memory_mib)
        if free != self.room_of(row) or size != tuple(self.size[row].tolist()):
            self.room[row], self.size[row] = free, size
            self._note(row)
        self.set_node(node)
        return True

    def _note(self, row: int) -> None:
        self._lists.pop(row, None)
        self.changes.note(row)

    def room_of(self, row: int) -> list[int]:
        """One row of `room`, as plain numbers."""
        found = self._lists.get(row)
        if found is None:
            found = self._lists[row] = self.room[row].tolist()
        return found

    def offers(self, runtime: str) -> Flags:
        if runtime not in self._runtimes:
            self._runtimes[runtime] = np.array([runtime in node.runtimes for node in self.nodes], bool)
        return self._runtimes[runtime]

    def labelled(self, key: str, value: str) -> Flags:
        if (key, value) not in self._labels:
            self._labels[key, value] = np.array([node.labels.get(key) == value for node in self.nodes], bool)
        return self._labels[key, value]

    def free(self, rows: Rows | slice) -> tuple[Ints, Ints, Ints]:
        """CPU and memory, shares, and device memories of these rows, in one look; to be read only."""
        room, share, vram = self.columns(rows)
        return room.T, share.T, vram.T

    def columns(self, rows: Rows | slice) -> tuple[Ints, Ints, Ints]:
        """`free` column by column: numpy takes fewer steps with the first devices of all rows, then their second ones,
        than with all devices of one row after another."""
        if isinstance(rows, slice):
            return self._parts(self.room[rows].T)
        looked, stamp = self._looked, self.changes.stamp
        if looked is None or looked[0] is not rows or looked[1] != stamp:
            looked = self._looked = (rows, stamp, self._parts(self.room.take(rows, axis=0).T.copy()))
        return looked[2]

    def _parts(self, columns: Ints) -> tuple[Ints, Ints, Ints]:
        memory = DEVICES + self.width
        return columns[:DEVICES], columns[DEVICES:memory], columns[memory:]

    def kinds_of(self, rows: Rows | slice) -> NDArray[np.intp]:
        """The kinds of device, as in `columns`."""
        if not isinstance(rows, np.ndarray):
            return self.kind[rows].T
        if self._kinds_looked is None or self._kinds_looked[0] is not rows:
            self._kinds_looked = (rows, self.kind.take(rows, axis=0).T.copy())
        return self._kinds_looked[1]

    def kinds_on(self, row: int) -> list[int]:
        """The kinds of one node's columns, as plain numbers."""
        found = self._kind_lists.get(row)
        if found is None:
            found = self._kind_lists[row] = self.kind[row].tolist()
        return found

    def share_of(self, row: int) -> list[int]:
        """One node's free thousandths, as plain numbers."""
        return self.room_of(row)[DEVICES : DEVICES + self.width]

    def share(self, rows: Rows | slice) -> Ints:
        """Free thousandths of each device; 0 where there is none."""
        return self.room[rows, DEVICES : DEVICES + self.width]

    def vram(self, rows: Rows | slice) -> Ints:
        """Free MiB of each device; 0 where there is none."""
        return self.room[rows, DEVICES + self.width :]

    def move(self, places: Iterable[RankPlace], sign: int) -> None:
        """Take (1) or give back (-1) what each place holds."""
        room, memory = self.room, DEVICES + self.width
        for place in places:
            row = self.row_of[place.node]
            room[row, CPU] -= sign * place.cpu_milli
            room[row, MEMORY] -= sign * place.memory_mib
            for grant in place.grants:
                column = self._columns[row][grant.uuid]
                room[row, DEVICES + column] -= sign * grant.share_milli
                room[row, memory + column] -= sign * grant.vram_mib
            self._note(row)

    def cells(self, places: Iterable[RankPlace]) -> Iterator[tuple[int, int]]:
        """What these places hold: positions in the flattened `room`, each with its amount. Of nodes of another pool,
        and of devices that are no more, nothing."""
        columns = DEVICES + 2 * self.width
        for place in places:
            row = self.row_of.get(place.node)
            if row is None:
                continue
            begin = row * columns
            yield begin + CPU, place.cpu_milli
            yield begin + MEMORY, place.memory_mib
            for grant in place.grants:
                column = self._columns[row].get(grant.uuid)
                if column is not None:
                    yield begin + DEVICES + column, grant.share_milli
                    yield begin + DEVICES + self.width + column, grant.vram_mib

    def shift(self, rows: Rows, by: Ints) -> None:
        """Let these rows have so much more free, or less, until it is taken back."""
        self.room[rows] += by
        for row in rows.tolist():
            self._lists.pop(row, None)
        self.changes.note_all(rows)

    def full_room(self) -> Ints:
        """What would be free if nobody held anything."""
        shares = np.where(self.kind == NO_DEVICE, 0, WHOLE_GPU_MILLI)
        memories = np.array([kind.capacity_mib for kind in self.kinds], np.int64)[self.kind]
        return np.concatenate((self.size, shares, memories), axis=1)

    def with_room(self, room: Ints) -> Pool:
        """The same nodes with other room, to think on."""
        other = Pool.__new__(Pool)
        vars(other).update(vars(self))
        other.room = room
        other._lists, other._looked = {}, None
        other.changes = Log(len(self.nodes))
        return other

    @property
    def stamp(self) -> int:
        """Raised by every change."""
        return self.changes.stamp

    def changed_since(self, stamp: int) -> Rows | slice:
        """The rows that changed since then, or all of them where that is no more work."""
        return self.changes.since(stamp)


def _bars(node: Node) -> tuple[object, ...]:
    """What keeps sessions out, whatever its room."""
    return node.state, node.schedulable, node.backoff_until, node.labels, node.runtimes


def _kept(device: Device) -> tuple[object, ...]:
    """What stays as it is while a device is what it is."""
    return device.uuid, device.index, device.model, device.arch, device.capacity_mib
