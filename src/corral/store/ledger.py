"""The rows that model.invariants looks at: all, or those of live sessions and of one of each story that is over.

Sessions that ended after the same story are as right as one another: whatever a rule looks at in the rows of an ended
session is in its story, and the database tells stories apart. What a rule adds up over sessions is of those that live
or are members of arrays, which are never left out. So whoever finds nothing wrong in the few need not look at all.
Next: api.routes.cluster, `doctor`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from corral.model.faults import Invalid
from corral.model.lifecycle import ExitClass, Outcome, Phase, Wanted
from corral.model.session import StopFor
from corral.store import array_sql, quota_reads, quota_sql, rows, sql

Ask = Callable[..., list[Any]]
LEDGER = {**sql.LEDGER, **array_sql.LEDGER, **quota_sql.LEDGER}
ENDED_ALONE = "s.phase = 'ended' AND s.in_array IS NULL"
OF_SESSIONS = ("attempt", "kernel", "holding", "event")
TABLE_OF = {"array": "session_array", "domain": "project_domain"}


def ledger(ask: Ask, *, alike: bool = True) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(table, row); without `alike` one of each story stands for all that are over."""
    ids = [] if alike else [row[0] for row in ask(STORIES)]
    for table, statement in LEDGER.items():
        names = [word.strip() for word in statement.split("FROM")[0].removeprefix("SELECT").split(",")]
        few = not alike and table in FEW
        for row in ask(FEW[table], ids=ids) if few else ask(statement):
            named = dict(zip(names, row, strict=True))
            yield table, quota_reads.decoded(named) if table == "quota" else named


def counts(ask: Ask) -> dict[str, int]:
    """How many rows there are of each kind."""
    return {table: int(ask(statement)[0][0]) for table, statement in COUNTS.items()}


def unreadable_sessions(ask: Ask) -> dict[str, str]:
    """Every session whose row cannot be read, and why. What many have in common is read once."""
    texts = [row[0] for row in ask("SELECT DISTINCT spec FROM session")]
    specs = [text for text in texts if _error_of(rows.spec_of, text) is not None]
    words = {field: [one.value for one in kind] for field, kind in WORDS.items()}
    found = ((row[0], _error_of(rows.session_of, row)) for row in ask(ODD, specs=specs, **words))
    return {id_: error for id_, error in found if error is not None}


def _error_of(read: Callable[[Any], object], what: Any) -> str | None:
    try:
        read(what)
    except (Invalid, ValueError) as error:
        return str(error)
    return None


WORDS = {"phase": Phase, "wanted": Wanted, "outcome": Outcome, "exit_class": ExitClass, "stop_for": StopFor}
ODD = f"""
SELECT {sql.SESSION_COLUMNS} FROM session
WHERE spec @in(specs) OR {" OR ".join(f"NOT ({field} @in({field}))" for field in WORDS)}"""
COUNTS = {
    table: f"SELECT COUNT(*) FROM {TABLE_OF.get(table, table)}" + " WHERE session IS NOT NULL" * (table == "event")
    for table in LEDGER
}


def _no(column: str) -> str:
    return f"CAST({column} IS NULL AS text)"


def _told(value: str, rows_: str) -> str:
    """Rows as one text, in order."""
    return f"(SELECT @joined(v) FROM (SELECT {value} AS v FROM {rows_} ORDER BY v) AS told)"


_EVENTS = _told(
    "(1000000 + e.seq) || ' ' || e.fact || ' ' || COALESCE(e.source, '') || ' ' || e.target || ' ' || e.attempt",
    "event e WHERE e.session = s.id",
)
_ATTEMPTS = _told(f"a.attempt || ' ' || a.live || {_no('a.ended_at')}", "attempt a WHERE a.session = s.id")
_KERNELS = _told(
    f"k.attempt || ' ' || k.rank || {_no('k.claimed_version')} || {_no('k.ready_at')} || {_no('k.result_at')}"
    f" || {_no('k.certificate')} || COALESCE(CAST(k.node_epoch <= n.epoch AS text), '?')"
    " || COALESCE(CAST(COALESCE(k.claimed_version, 0) <= n.desired_version AS text), '?')",
    "kernel k LEFT JOIN node n ON n.name = k.node WHERE k.session = s.id",
)
_HOLDINGS = _told(
    f"h.attempt || ' ' || CAST(h.device = '' AS text) || {_no('h.released_at')} || {_no('k.certificate')}"
    " || COALESCE(CAST(k.node = h.node AS text), '?')",
    "holding h LEFT JOIN kernel k ON k.token = h.token WHERE h.session = s.id",
)
# Those whose stories differ in anything that a rule looks at, one for each.
STORIES = f"""
SELECT MIN(id) FROM (
    SELECT s.id, s.attempt, s.seq, s.wanted, s.outcome IS NULL AS no_outcome, s.exit_class IS NULL AS no_class,
        s.ended_at IS NULL AS no_end, s.room_by IS NULL AS no_room, {_EVENTS} AS events, {_ATTEMPTS} AS attempts,
        {_KERNELS} AS kernels, {_HOLDINGS} AS holdings
    FROM session s WHERE {ENDED_ALONE}) AS told
GROUP BY attempt, seq, wanted, no_outcome, no_class, no_end, no_room, events, attempts, kernels, holdings"""


def _few(table: str) -> str:
    """The rows without those of sessions that another stands for."""
    whole = LEDGER[table]
    one = "id" if table == "session" else "session"
    left_out = f"""EXISTS (
    SELECT 1 FROM session s WHERE s.id = {table}.{one} AND {ENDED_ALONE} AND NOT (s.id @in(ids)))"""
    return f"{whole} {'AND' if 'WHERE' in whole else 'WHERE'} NOT {left_out}"


FEW = {table: _few(table) for table in ("session", *OF_SESSIONS)}
