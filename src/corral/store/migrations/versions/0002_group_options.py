"""Resource groups with options, versions, pause and history; what was used, for fair share; sessions after others."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column("resource_group", _options("order_options"))
    op.add_column("resource_group", _options("placement_options"))
    _add_flag("resource_group", "paused")
    op.add_column("resource_group", sa.Column("version", BIG, nullable=False, server_default=sa.text("1")))
    op.add_column("event", sa.Column("grp", sa.Text, nullable=True))
    op.create_index("event_of_group", "event", ["grp", "id"], **_where("grp IS NOT NULL"))
    _add_flag("holding", "counted")
    op.create_index("holding_uncounted", "holding", ["token"], **_where("counted = 0"))
    op.create_table(
        "usage",
        sa.Column("grp", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("project", sa.Text, nullable=False),
        sa.Column("cpu_s", sa.Double, nullable=False),
        sa.Column("gpu_s", sa.Double, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("grp", "owner", "project"),
    )
    _add_flag("session", "after_open")
    op.create_index("session_dependent", "session", ["id"], **_where("after_open = 1 AND phase = 'pending'"))
    op.create_table(
        "dependency",
        sa.Column("session", sa.Text, nullable=False),
        sa.Column("needs", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("session", "needs", "kind"),
        sa.CheckConstraint("kind IS NULL OR kind IN ('ok', 'notok', 'any')", name="dependency_kind_known"),
    )


def downgrade() -> None:
    op.drop_table("dependency")
    op.drop_index("session_dependent", "session")
    op.drop_column("session", "after_open")
    op.drop_table("usage")
    op.drop_index("holding_uncounted", "holding")
    op.drop_column("holding", "counted")
    op.execute("DELETE FROM event WHERE grp IS NOT NULL")  # the older Corral cannot read a group's history
    op.drop_index("event_of_group", "event")
    op.drop_column("event", "grp")
    for column in ("version", "paused", "placement_options", "order_options"):
        op.drop_column("resource_group", column)


def _options(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.Text, nullable=False, server_default=sa.text("'{}'"))


def _add_flag(table: str, name: str) -> None:
    """In words that both databases take: Alembic would add the check by a statement of its own, which SQLite lacks."""
    check = f"CONSTRAINT {table}_{name}_is_flag CHECK ({name} IN (0, 1))"
    op.execute(f"ALTER TABLE {table} ADD COLUMN {name} SMALLINT DEFAULT 0 NOT NULL {check}")


def _where(condition: str) -> dict[str, Any]:
    return {"sqlite_where": sa.text(condition), "postgresql_where": sa.text(condition)}
