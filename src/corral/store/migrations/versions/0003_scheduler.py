"""Options that every resource group has."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column("resource_group", sa.Column("options", sa.Text, nullable=False, server_default=sa.text("'{}'")))
    for table in ("session", "node"):
        op.add_column(table, sa.Column("changed", BIG, nullable=False, server_default=sa.text("0")))
        op.create_index(f"{table}_changed", table, ["changed"])
    _add_preemption()
    _index("event_of_group", "event", ["grp", "seq"], "grp IS NOT NULL")
    _index("session_waiting", "session", ["shape", "ordinal"], "phase = 'pending' AND after_open = 0")
    columns = (sa.Column("grp", sa.Text, nullable=False), sa.Column("node", sa.Text, nullable=False))
    op.create_table("turn", *columns, sa.PrimaryKeyConstraint("grp"))
    _add_arrays()
    _add_quotas()
    _add_ahead()


def _index(name: str, table: str, columns: list[str], condition: str) -> None:
    """The index of that name, made anew."""
    op.drop_index(name, table)
    op.create_index(name, table, columns, sqlite_where=sa.text(condition), postgresql_where=sa.text(condition))


def _add_preemption() -> None:
    op.add_column("session", sa.Column("preemptions", BIG, nullable=False, server_default=sa.text("0")))
    op.add_column("session", sa.Column("preempted_for", sa.Text, nullable=True))
    op.add_column("session", sa.Column("room_by", sa.Double, nullable=True))
    amounts = ("cpu_milli", "memory_mib", "share_milli", "vram_mib")
    op.create_table(
        "pin",
        sa.Column("token", sa.Text, nullable=False),
        sa.Column("device", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("node", sa.Text, nullable=False),
        *(sa.Column(name, BIG, nullable=False, server_default=sa.text("0")) for name in amounts),
        sa.Column("expires_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("token", "device"),
        sa.CheckConstraint(" AND ".join(f"{name} >= 0" for name in amounts), name="pin_not_negative"),
    )
    op.create_index("pin_of", "pin", ["owner"])


OUTCOMES = "'succeeded', 'failed', 'cancelled'"
EXIT_CLASSES = "'ok', 'user', 'infra', 'timeout', 'oom', 'preempted', 'cancelled', 'lost'"


def _add_arrays() -> None:
    op.add_column("session", sa.Column("in_array", sa.Text, nullable=True))
    member = "in_array IS NOT NULL"
    op.create_index("session_member", "session", ["in_array", "phase", "outcome"], **_where(member))
    columns = ["in_array", "after_open", "phase"]
    op.create_index("session_member_live", "session", columns, **_where(f"{member} AND phase <> 'ended'"))
    op.create_table("session_array", *_array_columns(), *_array_constraints())
    op.create_index("array_open", "session_array", ["ordinal"], **_where("ended_at IS NULL"))
    op.create_index("array_unmade", "session_array", ["ordinal"], **_where("made < size"))
    op.create_index("array_of_owner", "session_array", ["owner", "ordinal"])


def _array_columns() -> list[sa.Column[Any]]:
    return [
        sa.Column("id", sa.Text, primary_key=True),
        _big("ordinal"),
        _text("spec"),
        _text("owner"),
        sa.Column("submitted_at", sa.Double, nullable=False),
        _big("seq", "1"),
        _text("wanted"),
        _text("grp", nullable=True),
        _big("priority", "0"),
        _big("time_limit_s", nullable=True),
        _big("size"),
        _big("throttle", nullable=True),
        _big("reached", "0"),
        _big("made", "0"),
        sa.Column("not_before", sa.Double, nullable=False, server_default=sa.text("0")),
        _flag("session_array", "after_open"),
        sa.Column("ended_at", sa.Double, nullable=True),
        _text("outcome", nullable=True),
        _text("exit_class", nullable=True),
        _big("exit_code", nullable=True),
        _text("reason_code", nullable=True),
        _text("reason_message", nullable=True),
        _text("requeue_of", nullable=True),
        _big("succeeded", "0"),
        _big("failed", "0"),
        _text("project"),
        _text("name"),
        _text("idempotency_key", nullable=True),
        _text("digest"),
    ]


def _array_constraints() -> list[sa.Constraint]:
    checks = {
        "wanted_known": "wanted IS NULL OR wanted IN ('run', 'hold', 'stop')",
        "outcome_known": f"outcome IS NULL OR outcome IN ({OUTCOMES})",
        "exit_class_known": f"exit_class IS NULL OR exit_class IN ({EXIT_CLASSES})",
        "made_of_its_size": "made BETWEEN 0 AND size AND reached BETWEEN 0 AND size",
        "ended_is_complete": "(ended_at IS NULL) = (outcome IS NULL) AND (ended_at IS NULL) = (exit_class IS NULL)",
    }
    return [
        *(sa.CheckConstraint(what, name=f"session_array_{name}") for name, what in checks.items()),
        sa.UniqueConstraint("ordinal", name="session_array_ordinal_key"),
        sa.UniqueConstraint("idempotency_key", "project", name="session_array_idempotency_key_project_key"),
    ]


def _add_quotas() -> None:
    op.create_table(
        "quota",
        sa.Column("name", sa.Text, primary_key=True),
        *(_text(name, nullable=True) for name in ("owner", "project", "domain", "grp")),
        _text("limits"),
        _text("above"),
        _big("version", "1"),
    )
    op.create_table("project_domain", sa.Column("project", sa.Text, primary_key=True), _text("domain"))
    op.add_column("event", sa.Column("quota", sa.Text, nullable=True))
    op.create_index("event_of_quota", "event", ["quota", "seq"], **_where("quota IS NOT NULL"))
    op.create_index("session_live_of", "session", ["phase", "owner", "project", "grp"], **_where("phase <> 'ended'"))


def _add_ahead() -> None:
    op.create_table(
        "reservation",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("version", BIG, primary_key=True, autoincrement=False),
        sa.Column("starts_at", sa.Double, nullable=False),
        sa.Column("ends_at", sa.Double, nullable=False),
        *(_text(name) for name in ("nodes", "owners", "projects", "reason")),
        sa.Column("made_at", sa.Double, nullable=False),
        _text("made_by"),
        sa.Column("deleted_at", sa.Double, nullable=True),
        _text("deleted_by", nullable=True),
        sa.CheckConstraint("starts_at < ends_at", name="reservation_ends_after_it_starts"),
    )
    op.create_index("reservation_open", "reservation", ["ends_at"], **_where("deleted_at IS NULL"))
    op.create_table(
        "planned_start",
        sa.Column("session", sa.Text, primary_key=True),
        sa.Column("at", sa.Double, nullable=False),
        _text("grp"),
    )


def _drop_quotas() -> None:
    op.drop_index("session_live_of", "session")
    op.execute("DELETE FROM event WHERE quota IS NOT NULL")  # the older Corral cannot read a quota's history
    op.drop_index("event_of_quota", "event")
    op.drop_column("event", "quota")
    op.drop_table("project_domain")
    op.drop_table("quota")


def _text(name: str, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.Text, nullable=nullable)


def _big(name: str, default: str | None = None, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, BIG, nullable=nullable, server_default=None if default is None else sa.text(default))


def _flag(table: str, name: str) -> sa.Column[Any]:
    known = sa.CheckConstraint(f"{name} IN (0, 1)", name=f"{table}_{name}_is_flag")
    return sa.Column(name, sa.SmallInteger, known, nullable=False, server_default=sa.text("0"))


def _where(condition: str) -> dict[str, Any]:
    return {"sqlite_where": sa.text(condition), "postgresql_where": sa.text(condition)}


def _drop_arrays() -> None:
    op.drop_table("session_array")
    op.drop_index("session_member_live", "session")
    op.drop_index("session_member", "session")
    op.drop_column("session", "in_array")


def downgrade() -> None:
    op.drop_table("turn")
    _index("session_waiting", "session", ["shape", "ordinal"], "phase = 'pending'")
    _index("event_of_group", "event", ["grp", "id"], "grp IS NOT NULL")
    op.drop_table("planned_start")
    op.drop_index("reservation_open", "reservation")
    op.drop_table("reservation")
    _drop_quotas()
    _drop_arrays()
    op.drop_index("pin_of", "pin")
    op.drop_table("pin")
    for column in ("room_by", "preempted_for", "preemptions"):
        op.drop_column("session", column)
    for table in ("session", "node"):
        op.drop_index(f"{table}_changed", table)
        op.drop_column(table, "changed")
    op.drop_column("resource_group", "options")
