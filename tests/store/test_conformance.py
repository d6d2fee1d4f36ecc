"""The public suite for ports.Store, on a SQLite file and on PostgreSQL."""

from corral.testing.conformance import StoreConformance


class TestStore(StoreConformance):
    """The fixture `store` of conftest.py is each of the two in turn."""
