"""The migrations, run by Alembic through `env.py`; `store.revision` is the way in."""
