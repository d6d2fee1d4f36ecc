"""Lists of sessions and arrays, newest first: each filter becomes a statement that an index answers, so that a page
costs what it shows and not what has ever ended.

A row that cannot be read is listed as what can be told of it all the same. Never reads what is shown beside the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec

from corral.model.array import Array
from corral.model.faults import Invalid
from corral.model.lifecycle import ExitClass, Outcome, Phase, Wanted
from corral.model.session import Session
from corral.records import SessionFilter, Unreadable
from corral.store import rows, sql
from corral.store.array_sql import ARRAY_COLUMNS

Ask = Callable[..., list[Any]]
LIVE = tuple(phase.value for phase in Phase if phase is not Phase.ENDED)
NOT_ENDED = "phase <> 'ended'"  # word for word what the indices of those that live say of themselves
NAMED_AMONG = 10_000
SESSION_ROW = len(sql.SESSION_COLUMNS.split(","))
ARRAY_ROW = len(ARRAY_COLUMNS.split(","))


def sessions(ask: Ask, what: SessionFilter) -> Iterator[Session | Unreadable]:
    """All that fit, page after page as they are asked for."""
    after = what.after
    while True:
        page = ask(sessions_statement(what, after), **parameters(what, after))
        for row in page:
            one = _session(row)
            if has_labels(one, what.labels):
                yield one
        if len(page) < what.limit:
            return
        after = page[-1][1]


def has_labels(one: Session | Array | Unreadable, asked: Mapping[str, str]) -> bool:
    labels = one.labels if isinstance(one, Unreadable) else one.spec.labels
    return all(labels.get(key) == value for key, value in asked.items())


def array_pages(ask: Ask, what: SessionFilter, *, live: bool, unmade: bool) -> Iterator[list[rows.Row]]:
    """The rows of arrays, whatever their labels; `live`: that are not over, `unmade`: with members without rows."""
    after = what.after
    while True:
        page = ask(arrays_statement(what, after, live=live, unmade=unmade), **parameters(what, after))
        yield page
        if len(page) < what.limit:
            return
        after = page[-1][1]


def unreadable(ask: Ask, ids: Sequence[str]) -> list[Unreadable]:
    """Of these, those whose row cannot be read."""
    found = [_session(row) for row in ask(f"SELECT {_SESSION} FROM session WHERE id @in(ids)", ids=ids)]
    found += [array_or_not(row) for row in ask(f"SELECT {_ARRAY} FROM session_array WHERE id @in(ids)", ids=ids)]
    return [one for one in found if isinstance(one, Unreadable)]


def named(ask: Ask, name: str, owner: str | None, limit: int) -> list[str]:
    """Newest first; looks no further back than `NAMED_AMONG`, since no index knows names."""
    given = {"name": name, "limit": limit, "window": NAMED_AMONG} | ({} if owner is None else {"owner": owner})
    found = [row for table in ("session", "session_array") for row in ask(_named(table, owner is not None), **given)]
    return [row[0] for row in sorted(found, key=lambda row: -row[1])[:limit]]


@cache
def _named(table: str, owned: bool) -> str:
    said = [*["owner = :owner"] * owned, *["in_array IS NULL"] * (table == "session")]
    return f"""
SELECT id, ordinal FROM (SELECT id, ordinal, name FROM {table}{_where(said)} ORDER BY ordinal DESC LIMIT :window)
    AS newest WHERE name = :name ORDER BY ordinal DESC LIMIT :limit"""


# --- the statements


def sessions_statement(what: SessionFilter, after: int | None) -> str:
    asked = tuple(phase.value for phase in Phase if phase.value in what.phases)
    said = [*_said(what, after)]
    if what.in_array is not None:
        said.append("in_array = :in_array")
    elif not what.members:
        said.append("in_array IS NULL")
    return _sessions(tuple(said), asked, owned=what.owner is not None, one_array=what.in_array is not None)


@cache
def _sessions(said: tuple[str, ...], phases: tuple[str, ...], *, owned: bool, one_array: bool) -> str:
    live = bool(phases) and Phase.ENDED.value not in phases
    if live and owned and set(LIVE) <= set(phases):
        return _plain((*said, NOT_ENDED))
    if live and not one_array:
        return _by_phase(said, phases)
    return _plain((*said, f"phase IN ({_listed(phases)})") if phases else said)


def _plain(said: Sequence[str]) -> str:
    return f"SELECT {_SESSION} FROM session{_where(said)} ORDER BY ordinal DESC LIMIT :limit"


def _by_phase(said: tuple[str, ...], phases: tuple[str, ...]) -> str:
    """Of each phase the first, and the first of these: an index has those of one phase in order."""
    parts = [_first((f"phase = '{phase}'", NOT_ENDED, *said), "ordinal") for phase in phases]
    if set(LIVE) <= set(phases):  # and those that cannot be read; not in the table's own order, which would be walked
        aside = tuple(one.replace("ordinal <", "ordinal + 0 <") for one in said)
        parts.append(_first((f"phase NOT IN ({_listed(tuple(Phase))})", NOT_ENDED, *aside), "ordinal + 0"))
    early = " UNION ALL ".join(parts)
    return (
        f"SELECT {_SESSION} FROM ({early}) AS early JOIN session ON ordinal = place ORDER BY ordinal DESC LIMIT :limit"
    )


def _first(said: Sequence[str], order: str) -> str:
    within = f"SELECT ordinal AS place FROM session{_where(said)} ORDER BY {order} DESC LIMIT :limit"
    return f"SELECT * FROM ({within}) AS one"


@cache
def _arrays(said: tuple[str, ...]) -> str:
    return f"SELECT {_ARRAY} FROM session_array{_where(said)} ORDER BY ordinal DESC LIMIT :limit"


def arrays_statement(what: SessionFilter, after: int | None, *, live: bool, unmade: bool) -> str:
    said = [*_said(what, after), *["ended_at IS NULL"] * live, *["made < size"] * unmade]
    return _arrays((*said, "id = :in_array") if what.in_array is not None else tuple(said))


_SESSION = f"{sql.SESSION_COLUMNS}, project, name, labels"
_ARRAY = f"{ARRAY_COLUMNS}, project, name"
_COLUMNS = {"owner": "owner", "project": "project", "group": "grp", "name": "name"}


def _said(what: SessionFilter, after: int | None) -> tuple[str, ...]:
    found = [f"{column} = :{field}" for field, column in _COLUMNS.items() if getattr(what, field) is not None]
    return (*(["ordinal < :after"] if after is not None else []), *found)


def parameters(what: SessionFilter, after: int | None) -> dict[str, Any]:
    """What is not asked for is no parameter either: a driver may not take one that a statement does not name."""
    given = {"after": after, **{field: getattr(what, field) for field in _COLUMNS}, "in_array": what.in_array}
    return {name: value for name, value in given.items() if value is not None} | {"limit": what.limit}


def _where(said: Sequence[str]) -> str:
    return f" WHERE {' AND '.join(said)}" if said else ""


def _listed(phases: Sequence[str]) -> str:
    return ", ".join(f"'{phase}'" for phase in phases)


# --- rows


def _session(row: rows.Row) -> Session | Unreadable:
    try:
        return rows.session_of(row)
    except (Invalid, ValueError) as error:
        project, name, labels = row[SESSION_ROW:]
        return Unreadable(
            id=row[0], ordinal=row[1], owner=row[3], project=project, name=name, labels=_labels(labels), phase=row[5],
            attempt=row[6], wanted=row[8], group=row[9], priority=row[10], submitted_at=row[4], started_at=row[21],
            ended_at=row[22], outcome=row[12], exit_class=row[13], exit_code=row[14], error=str(error),
        )  # fmt: skip


def _labels(text: str) -> dict[str, str]:
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except msgspec.DecodeError:
        return {}


def array_or_not(row: rows.Row) -> Array | Unreadable:
    """From a row as it is listed."""
    try:
        array = _array_of(row)
        return array if array.size else _unreadable_array(row, "it is no array: it has no indices")
    except (Invalid, ValueError) as error:
        return _unreadable_array(row, str(error))


def _unreadable_array(row: rows.Row, error: str) -> Unreadable:
    """An array's row as it is listed, when nothing else can be made of it."""
    phase = Phase.PENDING if row[14] is None else Phase.ENDED
    project, name = row[ARRAY_ROW:]
    return Unreadable(
        id=row[0], ordinal=row[1], owner=row[3], project=project, name=name, labels={}, phase=phase,
        wanted=row[6], group=row[7], priority=row[8], submitted_at=row[4], ended_at=row[14], outcome=row[15],
        is_array=True, error=error,
    )  # fmt: skip


def _array_of(row: rows.Row) -> Array:
    return Array(
        id=row[0],
        ordinal=row[1],
        spec=rows.spec_of(row[2]),
        owner=row[3],
        submitted_at=row[4],
        seq=row[5],
        wanted=Wanted(row[6]),
        group=row[7],
        priority=row[8],
        time_limit_s=row[9],
        reached=row[10],
        made=row[11],
        not_before=row[12],
        waits=bool(row[13]),
        ended_at=row[14],
        outcome=None if row[15] is None else Outcome(row[15]),
        exit_class=None if row[16] is None else ExitClass(row[16]),
        exit_code=row[17],
        reason=rows.why(row[18], row[19]),
        requeue_of=row[20],
        succeeded=row[21],
        failed=row[22],
    )
