"""What a scheduling pass reads of those who hold room: each attempt from its placing until its room is given back.

Two statements, whatever runs. A shape is made from a stored spec once, and then known by its name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from corral.model.faults import Invalid
from corral.model.lifecycle import Phase, Wanted
from corral.model.node import ResourceGroup
from corral.scheduling.ordering import line_of
from corral.scheduling.places import Grant, RankPlace
from corral.scheduling.policies.group_options import asks_who_runs
from corral.scheduling.snapshot import Running, Shape, Waiting
from corral.store import rows, sql

Ask = Callable[..., list[Any]]
MOST_SHAPES = 4096
_shapes: dict[str, Shape] = {}


class Asked(NamedTuple):
    """The groups of which a pass reads who runs, and those of which it would if anybody had been refused there."""

    groups: tuple[str, ...] = ()
    unread: frozenset[str] = frozenset()


def asked(
    groups: Mapping[str, ResourceGroup], waiting: Iterable[Waiting], planned: Container[str] = frozenset()
) -> Asked:
    """A session that names no group stands in the home group's line, and may go to any group. Whose start is planned
    was refused before."""
    lines: defaultdict[str, list[Waiting]] = defaultdict(list)
    for one in waiting:
        lines[line_of(one.shape.group, groups) or ""].append(one)
    asking = {name: line for name, line in lines.items() if name in groups and asks_who_runs(groups[name])}
    refused = {
        name for name, line in asking.items() if any(one.refused is not None or one.id in planned for one in line)
    }
    anywhere = any(one.shape.group is None for name in refused for one in asking[name])
    return Asked(tuple(sorted(groups if anywhere else refused)), frozenset(asking.keys() - refused))


class _Said(msgspec.Struct):
    """The little of a spec that is asked for here."""

    grace_s: int = 30
    requeue: bool = True
    preemptible: bool | None = None

    @property
    def may_go(self) -> bool | None:
        """What it says of being stopped for others; who may not be queued again must say so."""
        return self.preemptible if self.preemptible is not None or self.requeue else False


class Read(NamedTuple):
    """Those that hold room, and of these those who were asked to go and are not on their way yet: when they will have
    gone hangs on the time."""

    running: Sequence[Running] = ()
    moving: frozenset[str] = frozenset()


def running(ask: Ask, groups: Sequence[str], now: float) -> list[Running]:
    """Those that hold room in these groups, oldest submit first. A row that cannot be read is left out: its end is
    nobody's to know."""
    if not groups:
        return []
    names = list(groups)
    return _read(ask(sql.RUNNING, groups=names), ask(sql.RUNNING_RANKS, groups=names), now)


def running_of(ask: Ask, ids: Sequence[str], now: float) -> Read:
    """Those of these sessions that hold room."""
    if not ids:
        return Read()
    listed = list(ids)
    found = ask(sql.RUNNING_OF, ids=listed)
    moving = frozenset(row[0] for row in found if _is_stopping(row) and row[12] != Phase.STOPPING)
    return Read(_read(found, ask(sql.RUNNING_RANKS_OF, ids=listed), now), moving)


def _read(sessions: Iterable[rows.Row], held: Iterable[rows.Row], now: float) -> list[Running]:
    ranks = _ranks(held)
    found: list[Running] = []
    for row in sessions:
        try:
            shape, said = _shape(row[8], row[9]), msgspec.json.decode(row[9], type=_Said)
        except (Invalid, ValueError):
            continue
        found.append(_of(row, shape, said, tuple(ranks.get(row[0], ())), now))
    return found


def _of(row: rows.Row, shape: Shape, said: _Said, ranks: tuple[RankPlace, ...], now: float) -> Running:
    placed_at, started_at, limit_s, grace_s = row[10], row[11], row[14], said.grace_s
    stopping = _is_stopping(row)
    ends = [(started_at or placed_at) + limit_s + grace_s] if limit_s is not None else []
    if stopping:
        ends.append((row[13] if row[12] == Phase.STOPPING else now) + grace_s)
    return Running(
        *row[:8],
        shape=shape,
        ranks=ranks,
        placed_at=placed_at,
        started_at=started_at,
        ends_at=min(ends, default=None),
        stopping=stopping,
        preemptible=said.may_go,
        preemptions=row[17],
        preempted_for=row[18],
        grace_s=grace_s,
    )


def _is_stopping(row: rows.Row) -> bool:
    return row[12] == Phase.STOPPING or row[15] == Wanted.STOP or row[16] is not None


def _shape(name: str, spec: str) -> Shape:
    found = _shapes.get(name)
    if found is None:
        if len(_shapes) >= MOST_SHAPES:
            _shapes.clear()
        found = _shapes[name] = rows.shape_in(spec)
    return found


def _ranks(held: Iterable[rows.Row]) -> dict[str, list[RankPlace]]:
    """Each session's live ranks, in rank order."""
    found: defaultdict[str, list[RankPlace]] = defaultdict(list)
    grants: list[Grant] = []
    on_node: rows.Row = ()
    for row in held:
        if row[5]:
            grants.append(Grant(row[5], row[8], row[9]))
            continue
        _end_rank(found, on_node, grants)
        on_node, grants = row, []
    _end_rank(found, on_node, grants)
    return found


def _end_rank(found: defaultdict[str, list[RankPlace]], row: rows.Row, grants: list[Grant]) -> None:
    if row:
        found[row[0]].append(RankPlace(row[2], row[3], row[4], row[6], row[7], tuple(grants)))
