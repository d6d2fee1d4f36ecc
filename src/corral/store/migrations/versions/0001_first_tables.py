"""The first tables."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

EXIT_CLASS_KNOWN = (
    "exit_class IS NULL OR exit_class IN ('ok', 'user', 'infra', 'timeout', 'oom', 'preempted', 'cancelled', 'lost')"
)

TABLES = (
    "meta",
    "session",
    "attempt",
    "kernel",
    "holding",
    "node",
    "device",
    "event",
    "resource_group",
    "blob",
    "credential",
    "member",
    "stream",
    "foreign_token",
    "operation",
)


def upgrade() -> None:
    _create_meta()
    _create_session()
    _create_attempt()
    _create_kernel()
    _create_holding()
    _create_node()
    _create_device()
    _create_event()
    _create_resource_group()
    _create_blob()
    _create_credential()
    _create_member()
    _create_stream()
    _create_foreign_token()
    _create_operation()


def downgrade() -> None:
    for table in reversed(TABLES):
        op.drop_table(table)


def _text(name: str, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.Text, nullable=nullable)


def _big(name: str, nullable: bool = False, default: str | None = None) -> sa.Column[Any]:
    return sa.Column(
        name, BIG, nullable=nullable, autoincrement=False, server_default=None if default is None else sa.text(default)
    )


def _double(name: str, nullable: bool = False, default: str | None = None) -> sa.Column[Any]:
    return sa.Column(name, sa.Double, nullable=nullable, server_default=None if default is None else sa.text(default))


def _flag(table: str, name: str) -> sa.Column[Any]:
    known = _check(table, f"{name}_is_flag", f"{name} IN (0, 1)")
    return sa.Column(name, sa.SmallInteger, known, nullable=False, server_default=sa.text("0"))


def _check(table: str, name: str, what: str) -> sa.CheckConstraint:
    return sa.CheckConstraint(what, name=f"{table}_{name}")


def _where(condition: str) -> dict[str, Any]:
    return {"sqlite_where": sa.text(condition), "postgresql_where": sa.text(condition)}


def _create_meta() -> None:
    op.create_table(
        "meta",
        _text("name"),
        _text("value"),
        sa.PrimaryKeyConstraint("name"),
    )


def _create_session() -> None:
    op.create_table("session", *_session_columns(), *_session_rules(), sqlite_autoincrement=True)
    op.create_index("session_due", "session", ["next_check_at"], **_where("phase <> 'ended'"))
    op.create_index("session_live", "session", ["phase", "ordinal"], **_where("phase <> 'ended'"))
    op.create_index("session_of_owner", "session", ["owner", "ordinal"])
    op.create_index("session_waiting", "session", ["shape", "ordinal"], **_where("phase = 'pending'"))


def _session_columns() -> list[sa.Column[Any]]:
    return [
        sa.Column("ordinal", BIG, sa.Identity(), primary_key=True),
        _text("id"),
        _text("spec"),
        _text("owner"),
        _double("submitted_at"),
        _text("phase"),
        _big("attempt", default="1"),
        _big("seq", default="1"),
        _text("wanted"),
        _text("grp", nullable=True),
        _big("priority", default="0"),
        _big("time_limit_s", nullable=True),
        _text("outcome", nullable=True),
        _text("exit_class", nullable=True),
        _big("exit_code", nullable=True),
        _text("reason_code", nullable=True),
        _text("reason_message", nullable=True),
        _text("cause_code", nullable=True),
        _text("cause_message", nullable=True),
        _text("stop_for", nullable=True),
        _double("phase_at"),
        _double("started_at", nullable=True),
        _double("ended_at", nullable=True),
        _double("not_before", default="0"),
        _double("next_check_at", nullable=True),
        _big("failures", default="0"),
        _big("infra_failures", default="0"),
        _big("refusals", default="0"),
        _text("requeue_of", nullable=True),
        _text("error", nullable=True),
        _text("project"),
        _text("name"),
        _text("labels"),
        _text("shape"),
        _text("idempotency_key", nullable=True),
        _text("digest"),
        _text("refused", nullable=True),
    ]


def _session_rules() -> list[sa.Constraint]:
    return [
        sa.PrimaryKeyConstraint("ordinal"),
        sa.UniqueConstraint("id", name="session_id_key"),
        sa.UniqueConstraint("project", "idempotency_key", name="session_project_idempotency_key_key"),
        _check(
            "session",
            "phase_known",
            "phase IS NULL OR phase IN ('pending', 'placed', 'starting', 'running', 'stopping', 'ended')",
        ),
        _check("session", "wanted_known", "wanted IS NULL OR wanted IN ('run', 'hold', 'stop')"),
        _check("session", "outcome_known", "outcome IS NULL OR outcome IN ('succeeded', 'failed', 'cancelled')"),
        _check("session", "exit_class_known", EXIT_CLASS_KNOWN),
        _check(
            "session",
            "stop_for_known",
            "stop_for IS NULL OR stop_for IN ('time_limit', 'start_deadline', 'requeue', 'preempted', 'drained')",
        ),
        _check(
            "session",
            "ended_is_complete",
            "(phase = 'ended') = (ended_at IS NOT NULL AND outcome IS NOT NULL AND exit_class IS NOT NULL)",
        ),
        _check("session", "no_silent_state", "phase = 'ended' OR next_check_at IS NOT NULL"),
    ]


def _create_attempt() -> None:
    op.create_table(
        "attempt",
        _text("session"),
        _big("attempt"),
        _text("grp"),
        _flag("attempt", "live"),
        _double("placed_at"),
        _double("started_at", nullable=True),
        _double("ended_at", nullable=True),
        _text("outcome", nullable=True),
        _text("exit_class", nullable=True),
        _big("exit_code", nullable=True),
        _text("reason_code", nullable=True),
        _text("reason_message", nullable=True),
        _text("cause_code", nullable=True),
        _text("cause_message", nullable=True),
        sa.PrimaryKeyConstraint("session", "attempt"),
        _check("attempt", "live_until_ended", "(live = 0) = (ended_at IS NOT NULL)"),
    )
    op.create_index("one_live_attempt", "attempt", ["session"], unique=True, **_where("live = 1"))


def _create_kernel() -> None:
    op.create_table(
        "kernel",
        _text("token"),
        _text("session"),
        _big("attempt"),
        _big("rank"),
        _text("node"),
        _big("node_epoch"),
        _text("run_id"),
        _big("claimed_version", nullable=True),
        _flag("kernel", "stop_asked"),
        _flag("kernel", "go"),
        _double("accepted_at", nullable=True),
        _double("ready_at", nullable=True),
        _big("port", nullable=True),
        _double("result_at", nullable=True),
        _big("exit_code", nullable=True),
        _big("signal", nullable=True),
        _text("exit_class", nullable=True),
        _flag("kernel", "began"),
        _text("refused_code", nullable=True),
        _text("refused_message", nullable=True),
        _text("failed_code", nullable=True),
        _text("failed_message", nullable=True),
        _text("exit_reason", nullable=True),
        _text("certificate", nullable=True),
        _double("certified_at", nullable=True),
        _text("certified_by", nullable=True),
        _big("changed_version", default="0"),
        _double("placed_at"),
        _text("placed_by"),
        _double("claimed_at", nullable=True),
        _text("claimed_by", nullable=True),
        _double("served_at", nullable=True),
        sa.PrimaryKeyConstraint("token"),
        sa.UniqueConstraint("session", "attempt", "rank", name="kernel_session_attempt_rank_key"),
        _check(
            "kernel",
            "certificate_known",
            "certificate IS NULL OR certificate IN ('exit', 'void', 'node_rebooted', 'operator', 'never_served')",
        ),
        _check("kernel", "exit_class_known", EXIT_CLASS_KNOWN),
        _check("kernel", "certified_when", "(certificate IS NULL) = (certified_at IS NULL)"),
        _check("kernel", "result_is_complete", "(result_at IS NULL) = (exit_class IS NULL)"),
    )
    op.create_index(
        "kernel_taken_for_dead", "kernel", ["node", "changed_version"], **_where("certificate = 'operator'")
    )
    op.create_index("kernel_alive", "kernel", ["node", "changed_version"], **_where("certificate IS NULL"))


def _create_holding() -> None:
    op.create_table(
        "holding",
        _text("token"),
        _text("device"),
        _text("session"),
        _big("attempt"),
        _text("node"),
        _big("cpu_milli", default="0"),
        _big("memory_mib", default="0"),
        _big("share_milli", default="0"),
        _big("vram_mib", default="0"),
        _flag("holding", "exclusive"),
        _double("held_at"),
        _double("released_at", nullable=True),
        sa.PrimaryKeyConstraint("token", "device"),
        _check("holding", "not_negative", "cpu_milli >= 0 AND memory_mib >= 0 AND share_milli >= 0 AND vram_mib >= 0"),
    )
    op.create_index("holding_live", "holding", ["node"], **_where("released_at IS NULL"))
    op.create_index("holding_of", "holding", ["session", "attempt"])
    op.create_index(
        "one_exclusive_holder",
        "holding",
        ["node", "device"],
        unique=True,
        **_where("exclusive = 1 AND released_at IS NULL"),
    )


def _create_node() -> None:
    op.create_table(
        "node",
        _text("name"),
        _text("grp"),
        _text("state"),
        _flag("node", "schedulable"),
        _big("epoch"),
        _text("boot_id"),
        _text("run_id"),
        _text("incarnation"),
        _text("hardware_id"),
        _text("nonce"),
        _text("address"),
        _big("cpu_milli", default="0"),
        _big("memory_mib", default="0"),
        _big("cpu_used_milli", default="0"),
        _big("memory_used_mib", default="0"),
        _big("desired_version", default="0"),
        _big("served_version", default="0"),
        _double("seen_at"),
        _double("registered_at"),
        _double("backoff_until", default="0"),
        _text("labels"),
        _text("runtimes"),
        _text("containment"),
        _text("agent_version"),
        sa.PrimaryKeyConstraint("name"),
        _check("node", "state_known", "state IS NULL OR state IN ('up', 'unreachable')"),
        _check("node", "cpu_not_over_committed", "cpu_used_milli BETWEEN 0 AND cpu_milli"),
        _check("node", "memory_not_over_committed", "memory_used_mib BETWEEN 0 AND memory_mib"),
        _check("node", "served_what_was_desired", "served_version <= desired_version"),
    )


def _create_device() -> None:
    op.create_table(
        "device",
        _text("node"),
        _text("uuid"),
        _big("idx", default="0"),
        _text("model"),
        _text("arch", nullable=True),
        _big("capacity_mib", default="0"),
        _big("used_mib", default="0"),
        _big("used_milli", default="0"),
        _flag("device", "present"),
        sa.PrimaryKeyConstraint("node", "uuid"),
        _check("device", "vram_not_over_committed", "used_mib BETWEEN 0 AND capacity_mib"),
        _check("device", "share_not_over_committed", "used_milli BETWEEN 0 AND 1000"),
    )


def _create_event() -> None:
    op.create_table(
        "event",
        sa.Column("id", BIG, sa.Identity(), primary_key=True),
        _double("at"),
        _text("session", nullable=True),
        _big("seq", default="0"),
        _text("fact"),
        _text("source", nullable=True),
        _text("target"),
        _big("attempt", default="0"),
        _text("by_whom"),
        _text("detail"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("session", "seq", name="event_session_seq_key"),
        sqlite_autoincrement=True,
    )


def _create_resource_group() -> None:
    op.create_table(
        "resource_group",
        _text("name"),
        _text("order_policy"),
        _text("placement_policy"),
        _text("backend"),
        sa.PrimaryKeyConstraint("name"),
    )


def _create_blob() -> None:
    op.create_table(
        "blob",
        _text("digest"),
        sa.Column("data", sa.LargeBinary, nullable=False),
        _double("at"),
        sa.PrimaryKeyConstraint("digest"),
    )


def _create_credential() -> None:
    op.create_table(
        "credential",
        _text("digest"),
        _text("name"),
        _text("kind"),
        _double("at"),
        sa.PrimaryKeyConstraint("digest"),
    )


def _create_member() -> None:
    op.create_table(
        "member",
        _text("id"),
        _text("url"),
        _double("seen_at"),
        sa.PrimaryKeyConstraint("id"),
    )


def _create_stream() -> None:
    op.create_table(
        "stream",
        _text("id"),
        _text("node"),
        _text("body"),
        _double("at"),
        sa.PrimaryKeyConstraint("id"),
    )


def _create_foreign_token() -> None:
    op.create_table(
        "foreign_token",
        _text("node"),
        _text("token"),
        _double("seen_at"),
        sa.PrimaryKeyConstraint("node", "token"),
    )


def _create_operation() -> None:
    op.create_table(
        "operation",
        _text("id"),
        _double("at"),
        sa.PrimaryKeyConstraint("id"),
    )
