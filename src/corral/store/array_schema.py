"""The table of arrays; a part of store.schema."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, Double, Index, Table, Text, UniqueConstraint, text

from corral.model.lifecycle import ExitClass, Outcome, Wanted
from corral.store.columns import BIG, big, flag, metadata, moment, one_of, words

# One request with many members. A member has a row of `session` from its turn on; its ordinal is its array's, one, and
# its place. Every place before `reached` has its row, `made` places in all.
session_array = Table(
    "session_array",
    metadata,
    Column("id", Text, primary_key=True),
    Column("ordinal", BIG, nullable=False, unique=True),
    words("spec"),
    words("owner"),
    moment("submitted_at", nullable=False),
    big("seq", 1),
    words("wanted"),
    words("grp", nullable=True),
    big("priority"),
    big("time_limit_s", None, nullable=True),
    big("size", None),
    big("throttle", None, nullable=True),
    big("reached"),
    big("made"),
    Column("not_before", Double, nullable=False, server_default=text("0")),
    flag("after_open"),
    moment("ended_at"),
    words("outcome", nullable=True),
    words("exit_class", nullable=True),
    big("exit_code", None, nullable=True),
    words("reason_code", nullable=True),
    words("reason_message", nullable=True),
    words("requeue_of", nullable=True),
    big("succeeded"),  # how many of its members, once it has ended
    big("failed"),
    words("project"),
    words("name"),
    words("idempotency_key", nullable=True),
    words("digest"),
    one_of("wanted", Wanted),
    one_of("outcome", Outcome),
    one_of("exit_class", ExitClass),
    CheckConstraint("made BETWEEN 0 AND size AND reached BETWEEN 0 AND size", name="made_of_its_size"),
    CheckConstraint("(ended_at IS NULL) = (outcome IS NULL) AND (ended_at IS NULL) = (exit_class IS NULL)",
                    name="ended_is_complete"),
    UniqueConstraint("idempotency_key", "project"),
)  # fmt: skip
Index("array_open", session_array.c.ordinal, sqlite_where=text("ended_at IS NULL"),
      postgresql_where=text("ended_at IS NULL"))  # fmt: skip
Index("array_unmade", session_array.c.ordinal, sqlite_where=text("made < size"),
      postgresql_where=text("made < size"))  # fmt: skip
Index("array_of_owner", session_array.c.owner, session_array.c.ordinal)
