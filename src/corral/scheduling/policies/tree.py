"""Fair share's tree: the whole, the projects in it, theirs by `/`, and at its leaves owners with their queues.

At every branch the one below it goes next that has used least for its weight, be it a project or an owner who submits
to the project itself. What is used counts for all above. A pick costs the depth times the logarithm of the breadth.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from corral.scheduling.snapshot import Waiting

Used = Mapping[tuple[str, str], float]  # by project and owner
Weights = Mapping[str, float]
WHOLE = ""


class Share(NamedTuple):
    """One claimant's standing. `entitled` and `used` are fractions of the whole; `level` is what is compared: the
    lowest goes next. Without an owner it is a project's with all below it."""

    project: str | None
    owner: str | None
    weight: float
    entitled: float
    used: float
    level: float


class Queue:
    """One claimant's sessions: highest priority first, oldest first."""

    def __init__(self, name: str, waiting: Iterable[Waiting], weight: float = 1.0, used: float = 0.0) -> None:
        self.name = name
        self.weight = weight
        self.used = used
        self._line = sorted(waiting, key=lambda one: (one.priority, -one.ordinal))

    @property
    def empty(self) -> bool:
        return not self._line

    @property
    def ordinal(self) -> int:
        return self._line[-1].ordinal

    def take(self) -> Waiting:
        return self._line.pop()


class _Branch:
    """A project, or the whole. `below` is a heap of those that have somebody waiting."""

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self.used = 0.0
        self.below: list[_Entry] = []

    @property
    def empty(self) -> bool:
        return not self.below

    @property
    def ordinal(self) -> int:
        """Of the session that is next here."""
        return self.below[0][1]


_Entry = tuple[float, int, _Branch | Queue]  # no two sessions have one ordinal, so the last is never compared


def _entry(one: _Branch | Queue) -> _Entry:
    return one.used / one.weight, one.ordinal, one


class Tree:
    """Those who wait, to be taken one after another."""

    def __init__(
        self, waiting: Iterable[Waiting], used: Used, project_weights: Weights, owner_weights: Weights
    ) -> None:
        members: defaultdict[tuple[str, str], list[Waiting]] = defaultdict(list)
        for one in waiting:
            members[one.project, one.owner].append(one)
        names = {name for project, _ in members for name in above(project)}
        branches = {name: _Branch(project_weights.get(name, 1.0)) for name in names | {WHOLE}}
        for (project, _), cost in used.items():
            for name in above(project):
                if name in branches:
                    branches[name].used += cost
        for (project, owner), line in members.items():
            queue = Queue(owner, line, owner_weights.get(owner, 1.0), used.get((project, owner), 0.0))
            branches[project].below.append(_entry(queue))
        for name in sorted(names, key=lambda name: (-name.count("/"), name)):  # from the leaves up
            heapq.heapify(branches[name].below)
            branches[parent_of(name)].below.append(_entry(branches[name]))
        self._root = branches[WHOLE]
        heapq.heapify(self._root.below)
        self._path: list[_Branch] = []

    @property
    def empty(self) -> bool:
        return self._root.empty

    def take(self) -> Waiting:
        """The next one. `count` it before another is taken."""
        self._path, one = [self._root], self._root.below[0][2]
        while isinstance(one, _Branch):
            self._path.append(one)
            one = one.below[0][2]
        return one.take()

    def count(self, cost: float) -> None:
        """What the last one taken is charged; 0: it got no room."""
        for branch in reversed(self._path):
            one = branch.below[0][2]
            one.used += cost
            if one.empty:
                heapq.heappop(branch.below)
            else:
                heapq.heapreplace(branch.below, _entry(one))


def above(project: str) -> Iterator[str]:
    """The project and all it is in: `a/b/c`, `a/b`, `a`."""
    while project:
        yield project
        project = parent_of(project)


def parent_of(project: str) -> str:
    return project.rpartition("/")[0]


def tree_shares(used: Used, project_weights: Weights, owner_weights: Weights) -> list[Share]:
    """Everybody who used something, and every project that others are in: of its parent's entitlement the part that its
    weight is of the weights beside it. Lowest level first."""
    costs: defaultdict[str, float] = defaultdict(float)
    owners: defaultdict[str, list[str]] = defaultdict(list)
    for (project, owner), cost in used.items():
        owners[project].append(owner)
        for name in above(project):
            costs[name] += cost
    inside: defaultdict[str, list[str]] = defaultdict(list)
    for name in costs:
        inside[parent_of(name)].append(name)
    entitled, shares, total = {WHOLE: 1.0}, list[Share](), sum(used.values())
    for name in sorted({WHOLE, *costs}, key=lambda name: (0 if name == WHOLE else 1 + name.count("/"), name)):
        weights = [project_weights.get(one, 1.0) for one in inside[name]]
        beside = sum(weights) + sum(owner_weights.get(owner, 1.0) for owner in owners[name])
        for one, weight in zip(inside[name], weights, strict=True):
            entitled[one] = entitled[name] * weight / beside
            if inside[one]:
                shares.append(_share(one, None, weight, entitled[one], costs[one], total))
        for owner in owners[name]:
            weight = owner_weights.get(owner, 1.0)
            shares.append(_share(name, owner, weight, entitled[name] * weight / beside, used[name, owner], total))
    return sorted(shares, key=lambda share: (share.level, share.project or "", share.owner or ""))


def _share(project: str, owner: str | None, weight: float, entitled: float, cost: float, total: float) -> Share:
    fraction = cost / total if total else 0.0
    return Share(project, owner, weight, entitled, fraction, fraction / entitled)
