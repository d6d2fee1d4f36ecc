"""Options that every resource group has."""

from __future__ import annotations

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


def downgrade() -> None:
    op.drop_table("turn")
    _index("session_waiting", "session", ["shape", "ordinal"], "phase = 'pending'")
    _index("event_of_group", "event", ["grp", "id"], "grp IS NOT NULL")
    op.drop_index("pin_of", "pin")
    op.drop_table("pin")
    for column in ("room_by", "preempted_for", "preemptions"):
        op.drop_column("session", column)
    for table in ("session", "node"):
        op.drop_index(f"{table}_changed", table)
        op.drop_column(table, "changed")
    op.drop_column("resource_group", "options")
