"""The sessions of one owner that have not ended, newest first."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    live = sa.text("phase <> 'ended'")
    op.create_index("session_live_owner", "session", ["owner", "ordinal"], sqlite_where=live, postgresql_where=live)


def downgrade() -> None:
    op.drop_index("session_live_owner", "session")
