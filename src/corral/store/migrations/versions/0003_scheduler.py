"""Options that every resource group has."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("resource_group", sa.Column("options", sa.Text, nullable=False, server_default=sa.text("'{}'")))


def downgrade() -> None:
    op.drop_column("resource_group", "options")
