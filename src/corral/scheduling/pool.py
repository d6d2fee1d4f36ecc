"""The free room of one resource group's nodes as arrays: row = node in name order, column = CPU, memory, each device.

It knows amounts and what changed, never what is best: `standing` judges a shape against it, policies rank its rows.
`room.NodeRoom` says the same of one node in plain Python, and is what these arrays are held against.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from corral.model.node import Device, Node, NodeState
from corral.scheduling.places import RankPlace

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Rows = NDArray[np.intp]

NO_DEVICE = 0  # the kind of a column that a node has no device for
CPU, MEMORY, DEVICES = 0, 1, 2  # columns of `Pool.room`: then every device's share, then every device's memory


class Kind(NamedTuple):
    """What makes two devices interchangeable to a request."""

    model: str
    arch: str | None
    capacity_mib: int


class Pool:
    """Nodes of one group. `room[row]` is what is free: cpu_milli, memory_mib, `width` shares, `width` device memories.

    Whoever keeps something per row asks `changed_since(stamp)` for the rows that moved since `stamp` was `self.stamp`.
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
        self._changes: list[int] = []
        self._forgotten = 0

    def _free_room(self) -> Ints:
        rows: list[list[int]] = []
        for node, ones in zip(self.nodes, self.devices, strict=True):
            none = [0] * (self.width - len(ones))
            row = [node.cpu_milli - node.cpu_used_milli, node.memory_mib - node.memory_used_mib]
            rows.append(row + [one.free_milli for one in ones] + none + [one.free_mib for one in ones] + none)
        return np.array(rows, np.int64).reshape(len(rows), DEVICES + 2 * self.width)

    def _kinds(self) -> tuple[list[Kind], NDArray[np.intp]]:
        """The kinds there are, NO_DEVICE first, and each column's number among them."""
        numbers: dict[tuple[str, str | None, int], int] = {("", None, 0): NO_DEVICE}
        rows: list[list[int]] = []
        for ones in self.devices:
            kinds = [(one.model.lower(), one.arch, one.capacity_mib) for one in ones]
            row = [numbers.setdefault(kind, len(numbers)) for kind in kinds]
            rows.append(row + [NO_DEVICE] * (self.width - len(ones)))
        return [Kind(*kind) for kind in numbers], np.array(rows, np.intp).reshape(len(rows), self.width)

    def __len__(self) -> int:
        return len(self.nodes)

    def set_node(self, node: Node) -> None:
        """What is not room: state, labels, runtimes, epoch."""
        row = self.row_of[node.name]
        self.nodes[row] = node
        self.unreachable[row] = node.state is NodeState.UNREACHABLE
        self.closed[row] = not node.schedulable
        self.backoff_until[row] = node.backoff_until
        self._runtimes.clear()
        self._labels.clear()

    def offers(self, runtime: str) -> Flags:
        if runtime not in self._runtimes:
            self._runtimes[runtime] = np.array([runtime in node.runtimes for node in self.nodes], bool)
        return self._runtimes[runtime]

    def labelled(self, key: str, value: str) -> Flags:
        if (key, value) not in self._labels:
            self._labels[key, value] = np.array([node.labels.get(key) == value for node in self.nodes], bool)
        return self._labels[key, value]

    def free(self, rows: Rows | slice) -> tuple[Ints, Ints, Ints]:
        """CPU and memory, shares, and device memories of these rows, in one look."""
        room = self.room.take(rows, axis=0) if isinstance(rows, np.ndarray) else self.room[rows]
        memory = DEVICES + self.width
        return room[:, :DEVICES], room[:, DEVICES:memory], room[:, memory:]

    def kinds_of(self, rows: Rows | slice) -> NDArray[np.intp]:
        """Each column's kind of device."""
        return self.kind.take(rows, axis=0) if isinstance(rows, np.ndarray) else self.kind[rows]

    def share_of(self, row: int) -> list[int]:
        """One node's free thousandths, as plain numbers."""
        return self.room[row, DEVICES : DEVICES + self.width].tolist()

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
            self._changes.append(row)
        if len(self._changes) > 4 * len(self.nodes) + 1024:
            self._forgotten += len(self._changes)
            self._changes.clear()

    @property
    def stamp(self) -> int:
        """Raised by every change."""
        return self._forgotten + len(self._changes)

    def changed_since(self, stamp: int) -> Rows | slice:
        """The rows that changed since then, or all of them where that is no more work."""
        if stamp < self._forgotten:
            return slice(None)
        rows = set(self._changes[stamp - self._forgotten :])
        return slice(None) if 2 * len(rows) > len(self.nodes) else np.array(sorted(rows), np.intp)
