"""Alembic's way in. The connection, already open and locked, is passed by `store.revision`; there is no other mode."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"], transactional_ddl=True)
with context.begin_transaction():
    context.run_migrations()
