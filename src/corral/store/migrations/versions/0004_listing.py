"""The sessions of one owner that have not ended, newest first; those of a shape that were told why they wait."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

BIG = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    live = sa.text("phase <> 'ended'")
    op.create_index("session_live_owner", "session", ["owner", "ordinal"], sqlite_where=live, postgresql_where=live)
    told = sa.text("phase = 'pending' AND refused IS NOT NULL AND room_by IS NULL AND wanted = 'run'")
    op.create_index("session_told", "session", ["shape", "ordinal"], sqlite_where=told, postgresql_where=told)
    op.add_column("session", sa.Column("continuations", BIG, nullable=False, server_default=sa.text("0")))
    op.add_column("planned_start", sa.Column("kept", sa.Text, nullable=True))


def downgrade() -> None:
    op.drop_column("planned_start", "kept")
    op.drop_column("session", "continuations")
    op.drop_index("session_told", "session")
    op.drop_index("session_live_owner", "session")
