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


def downgrade() -> None:
    for table in ("session", "node"):
        op.drop_index(f"{table}_changed", table)
        op.drop_column(table, "changed")
    op.drop_column("resource_group", "options")
