"""What a scheduling pass reads anew: the nodes and sessions that were written since it last read (`changed`).

Every write of what a pass sees puts a number there that grows: on SQLite, with its one writer, by one; on PostgreSQL it
is the id of the writing transaction. A reader goes on where the oldest transaction began that was open when it read, so
that whatever is committed late is read then, and some of the rest twice. Next: `scheduling.kept.picture` keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from corral.model.lifecycle import Phase
from corral.scheduling.kept.picture import Changed, Mark, Picture
from corral.scheduling.snapshot import Waiting
from corral.store import node_sql, rows, running, sql, waiting

Ask = Callable[..., list[Any]]
PAGE = 5000
ALL = 2**62
HOLDING = tuple(phase for phase in Phase if phase.holds_room)
IN_LINE, HOLDS_ROOM = 1, 2  # what SESSIONS_CHANGED says


def changed(ask: Ask, picture: Picture, now: float) -> Changed:
    """All that is new to the picture. Everything, when it is of another database, or of a later state of this one than
    there is by now."""
    since, mark = picture.mark, _mark(ask)
    if since is None or since.database != mark.database or since.nodes > mark.nodes or since.sessions > mark.sessions:
        return _whole(ask, mark, now)
    names = [row[0] for row in ask(sql.NODES_CHANGED, since=since.nodes)]
    found = _sorted(ask, ask(sql.SESSIONS_CHANGED, since=since.sessions))
    again = picture.moving.union(found.holding)
    read = running.running_of(ask, sorted(again), now) if again else running.Read()
    return Changed(
        mark,
        False,
        [rows.node_of(row) for row in ask(node_sql.NODES, names=names)] if names else (),
        [rows.device_of(row) for row in ask(node_sql.DEVICES, names=names)] if names else (),
        found.waiting,
        read.running,
        [*found.gone, *again.difference(one.id for one in read.running)],
        read.moving,
    )


def _mark(ask: Ask) -> Mark:
    nodes, sessions, database, generation = ask(sql.MARKS)[0]
    return Mark(f"{database} {generation}", int(nodes), int(sessions))


def _whole(ask: Ask, mark: Mark, now: float) -> Changed:
    nodes = [rows.node_of(row) for row in ask(node_sql.ALL_NODES)]
    devices = [rows.device_of(row) for row in ask(node_sql.ALL_DEVICES)]
    line = [one for page in _pages(ask) for one in _sorted(ask, page).waiting]
    ids = [row[0] for phase in HOLDING for row in ask(sql.SESSIONS_IN_PHASE, phase=phase.value, limit=ALL)]
    read = running.running_of(ask, ids, now)
    return Changed(mark, True, nodes, devices, line, read.running, (), read.moving)


def _pages(ask: Ask) -> Iterator[list[rows.Row]]:
    """All that wait, some thousands at a time: their specs are large."""
    after = 0
    while page := ask(sql.SESSIONS_PENDING, after=after, limit=PAGE):
        yield page
        after = page[-1][1]


class _Sorted:
    def __init__(self) -> None:
        self.waiting: list[tuple[Waiting, float]] = []
        self.holding: list[str] = []
        self.gone: list[str] = []


def _sorted(ask: Ask, found: Iterable[rows.Row]) -> _Sorted:
    """By what became of each."""
    into = _Sorted()
    for row in found:
        one = waiting.waiting_of(row) if row[-1] == IN_LINE else None
        if one is not None:
            into.waiting.append((one, row[-2]))
        elif row[-1] == HOLDS_ROOM:
            into.holding.append(row[0])
        else:
            into.gone.append(row[0])
    again = {one.id: one for one, _ in into.waiting if one.attempt > 1}
    if again:
        waiting.add_attained(ask, again)
        into.waiting = [(again.get(one.id, one), not_before) for one, not_before in into.waiting]
    return into
