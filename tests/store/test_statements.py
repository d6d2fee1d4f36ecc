"""Every statement by itself, on both dialects: it is valid whether its parameters are given or null, and the hot ones
never read a whole table."""

import re
import sqlite3
from collections.abc import Iterator, Mapping
from typing import Any

import psycopg
import pytest

from corral.store import ahead_sql, array_sql, group_sql, node_sql, pin_sql, quota_sql, sql, upgrade
from corral.store.connection import PostgresConnection, SqliteConnection
from tests.services.postgres import Server

STATEMENTS = {
    name: text
    for module in (sql, ahead_sql, array_sql, group_sql, node_sql, pin_sql, quota_sql)
    for name, text in vars(module).items()
    if isinstance(text, str) and text.lstrip().startswith(("SELECT", "INSERT", "UPDATE", "DELETE"))
} | {f"LEDGER {table}": text for table, text in (sql.LEDGER | quota_sql.LEDGER).items()}

LISTS = ("ids", "tokens", "names", "sessions", "phases", "groups", "keys", "owners")
BYTES = ("data",)
NUMBERS = (
    *(
        "attempt",
        "old_attempt",
        "seq",
        "old_seq",
        "priority",
        "time_limit_s",
        "exit_code",
        "failures",
        "infra_failures",
    ),
    *(
        "refusals",
        "ordinal",
        "limit",
        "per_shape",
        "after",
        "any_phase",
        "n",
        "rank",
        "node_epoch",
        "epoch",
        "old_epoch",
    ),
    *("cpu_milli", "memory_mib", "share_milli", "vram_mib", "exclusive", "version", "have", "held", "idx", "port"),
    *(
        "size",
        "throttle",
        "reached",
        "more",
        "live",
        "unmade",
        "members",
        "window",
        "first",
        "end",
        "after_open",
        "succeeded",
        "failed",
    ),
    *("by_shortest", "by_restarted", "since", "preemptions", "continuations"),
    *("capacity_mib", "signal", "began", "old_version", "paused", "by_owner", "by_project", "by_priority", "by_newest"),
)
TIMES = (
    *("now", "phase_at", "started_at", "ended_at", "not_before", "next_check_at", "check_at", "before", "until"),
    *("accepted_at", "ready_at", "result_at", "certified_at", "half_life", "cpu_s", "gpu_s", "room_by"),
    *("starts_at", "at", "submitted_at"),
)
WORDS = {
    "phase": "pending",
    "old_phase": "pending",
    "wanted": "run",
    "outcome": "failed",
    "exit_class": "user",
    "stop_for": "requeue",
    "certificate": "exit",
    "kind": "any",
    "state": "up",
}
NULLABLE = (
    *("grp", "time_limit_s", "outcome", "exit_class", "exit_code", "reason_code", "reason_message", "cause_code"),
    *("cause_message", "stop_for", "started_at", "ended_at", "next_check_at", "requeue_of", "key", "source", "port"),
    *("accepted_at", "ready_at", "result_at", "signal", "began", "refused_code", "refused_message", "failed_code"),
    *("failed_message", "exit_reason", "certificate", "certified_at", "arch", "after", "owner", "project", "name"),
    *("preempted_for", "room_by", "throttle"),
)


def value(name: str) -> Any:
    if name in LISTS:
        return ["x", "y"]
    if name in BYTES:
        return b"\x00\xff"
    if name in NUMBERS:
        return 1
    if name in TIMES:
        return 1.5
    if name == "ends_at":
        return 2.5
    return WORDS.get(name, "x")


def parameters(text: str) -> dict[str, Any]:
    names = re.findall(r"(?<![:\w]):([a-z_]+)", text) + re.findall(r"@in\((\w+)\)", text)
    return {name: value(name) for name in [*names, *(["n"] if "@event_id" in text else [])]}


def variants(name: str, text: str) -> list[Mapping[str, Any]]:
    given = parameters(text)
    if text.lstrip().startswith("SELECT"):
        return [given, given | {one: [] for one in given if one in LISTS}]
    no_lists = {one: [] for one in given if one in LISTS}
    nulls = {one: None for one in given if one in NULLABLE and not must_be_given(name, one)}
    return [given, given | nulls, given | no_lists]


def must_be_given(statement: str, name: str) -> bool:
    """Columns that one statement must fill and another may leave empty."""
    required = {
        "WRITE_SESSION": ("next_check_at",),
        "SUBMIT": ("next_check_at", "not_before", "owner", "project", "name"),
        "BEGIN_ATTEMPT": ("grp",),
        "ADD_PIN": ("owner",),
        "ADD_NODE": ("grp", "name"),
        "RENEW_NODE": ("grp", "name"),
        "CERTIFY": ("certificate",),
        "ADD_USAGE": ("grp", "owner", "project"),
        "PUT_PLANNED": ("grp",),
        "WRITE_ARRAY": ("exit_class", "outcome", "ended_at"),
        "ADD_MEMBER": ("next_check_at", "owner", "project", "name"),
    }
    return name in required.get(statement, ("owner", "project", "name"))


Pair = tuple[SqliteConnection, PostgresConnection]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, postgres_server: Server, migrated: str) -> Iterator[Pair]:
    """One database of each kind for all: every statement is rolled back."""
    path = tmp_path_factory.mktemp("statements") / "corral.db"
    upgrade(f"sqlite://{path}")
    lite = sqlite3.connect(path, isolation_level=None)
    with (
        postgres_server.fresh_database(template=migrated) as url,
        psycopg.connect(url, autocommit=True) as postgres,
    ):
        yield SqliteConnection(lite, lambda: 1.0), PostgresConnection(postgres)
    lite.close()


def test_there_are_statements() -> None:
    assert len(STATEMENTS) > 60


UNSEEN_BY_A_PASS = ("POSTPONE", "SERVED", "RAISE_DESIRED")  # columns that no scheduling pass looks at


@pytest.mark.parametrize("name", STATEMENTS)
def test_what_a_pass_sees_is_not_written_without_a_mark(name: str) -> None:
    """`changed` is how a manager that kept what it read knows what to read again; a device changes with its node."""
    found = re.match(r"\s*(UPDATE|INSERT INTO|DELETE FROM) (session|node)\b", STATEMENTS[name])
    if found is None:
        return
    assert found[1] != "DELETE FROM", "nobody would hear of it"
    assert (f"@change({found[2]})" in STATEMENTS[name]) == (name not in UNSEEN_BY_A_PASS)


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_statement_is_valid_on_both(both: Pair, name: str) -> None:
    text = STATEMENTS[name]
    for given in variants(name, text):
        answers = []
        for connection in both:
            connection.raw.execute("BEGIN")
            try:
                if "SELECT" in text[:8] or "RETURNING" in text:
                    answers.append(len(connection.rows(text, **given)))
                else:
                    answers.append(connection.run(text, **given))
            finally:
                connection.raw.execute("ROLLBACK")
        assert answers[0] == answers[1], f"the two databases answer differently to {given}"


HOT = (
    *(
        "ATTAINED",
        "USAGE_HELD",
        "USAGE_USED",
        "USAGE_COUNTED",
        "UNCOUNTED",
        "COUNT_HOLDINGS",
        "CLAIMANTS",
        "GROUP_LIVE",
    ),
    *("GROUP_HISTORY", "RUNNING", "RUNNING_RANKS"),
    *("ARRAYS", "ARRAY_KEYS", "ARRAY_NEWEST", "ARRAY_TALLY", "ARRAYS_UNMADE", "ARRAYS_IN_GROUP", "ARRAYS_DUE"),
    *("ARRAYS_DECIDED", "MEMBERS_LIVE", "MEMBERS_TURNED", "MEMBERS_IN_WAIT", "MEMBERS_THERE", "MEMBER_NOT_GOOD"),
    *("LOCK_ARRAYS", "WRITE_ARRAY", "REACH", "GIVE_TURN", "TAKE_TURN_BACK"),
    "DEPENDENCIES",
    "DEPENDENTS_DECIDED",
    *("SESSIONS", "SESSION_PREFIX", "SESSION_KEY", "SESSION_NEWEST", "SESSIONS_DUE", "SESSIONS_IN_PHASE"),
    *("SESSIONS_STALE", "LOCK_SESSIONS", "WRITE_SESSION", "POSTPONE", "START_ATTEMPT", "END_ATTEMPT", "HISTORY"),
    *("EVENTS", "LAST_EVENT", "KERNELS", "LAUNCHES", "TOKENS_SESSIONS", "HOLDINGS", "USE_NODE", "USE_DEVICE"),
    *("RELEASE_HOLDINGS", "FREE_NODE", "FREE_DEVICE", "CLAIM_KERNELS", "CERTIFY", "ASK_STOP", "RELEASE_BARRIER"),
    *("ASK_AGAIN", "KERNEL_NODES", "RECORD", "SESSIONS_ON", "ORDERS", "TOMBSTONES", "MARK_SERVED"),
    *("LOCK_NODES", "NODES"),
    *("DEVICES", "TOUCH_NODE", "SERVED", "RAISE_DESIRED", "BACK_OFF", "BLOB", "CREDENTIAL", "META"),
)
SMALL = ("node", "n", "json_each")


@pytest.mark.parametrize("name", HOT)
def test_a_hot_statement_never_reads_a_whole_table(both: Pair, name: str) -> None:
    text = f"EXPLAIN QUERY PLAN {STATEMENTS[name].lstrip()}"
    plan = [row[3] for row in both[0].rows(text, **parameters(text))]
    scans = [step for step in plan if step.startswith("SCAN") and "INDEX" not in step and step.split()[1] not in SMALL]
    assert scans == [], plan
