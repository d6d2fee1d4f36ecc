"""Tables, and the constraints that are the last line of defence. One schema for SQLite and PostgreSQL.

Only this package names a table. Amounts are 64-bit integers, times are seconds since 1970 by the database's clock,
truth values are 0 and 1 (the two dialects agree on nothing else), documents are JSON text.
"""

from __future__ import annotations

from sqlalchemy import (
    CheckConstraint,
    Column,
    Double,
    Identity,
    Index,
    LargeBinary,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from corral.model.dependency import DependencyKind
from corral.model.lifecycle import ExitClass, Outcome, Phase, Wanted
from corral.model.node import NodeState
from corral.model.session import Certificate, StopFor
from corral.store.array_schema import session_array
from corral.store.columns import BIG, metadata
from corral.store.columns import big as _big
from corral.store.columns import flag as _flag
from corral.store.columns import moment as _time
from corral.store.columns import one_of as _one_of
from corral.store.columns import words as _text

__all__ = ["metadata", "session", "session_array"]

meta = Table("meta", metadata, Column("name", Text, primary_key=True), _text("value"))

session = Table(
    "session",
    metadata,
    Column("ordinal", BIG, Identity(), primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    _text("spec"),
    _text("owner"),
    _time("submitted_at", nullable=False),
    _text("phase"),
    _big("attempt", 1),
    _big("seq", 1),
    _text("wanted"),
    _text("grp", nullable=True),
    _big("priority"),
    _big("time_limit_s", None, nullable=True),
    _text("outcome", nullable=True),
    _text("exit_class", nullable=True),
    _big("exit_code", None, nullable=True),
    _text("reason_code", nullable=True),
    _text("reason_message", nullable=True),
    _text("cause_code", nullable=True),
    _text("cause_message", nullable=True),
    _text("stop_for", nullable=True),
    _time("phase_at", nullable=False),
    _time("started_at"),
    _time("ended_at"),
    Column("not_before", Double, nullable=False, server_default=text("0")),
    _time("next_check_at"),
    _big("failures"),
    _big("infra_failures"),
    _big("refusals"),
    _text("requeue_of", nullable=True),
    _text("error", nullable=True),
    _text("project"),
    _text("name"),
    _text("labels"),
    _text("shape"),
    _text("idempotency_key", nullable=True),
    _text("digest"),
    _text("refused", nullable=True),
    _flag("after_open"),  # 1 while it waits for another session's end (`dependency`) or for its turn (`in_array`)
    _big("changed"),  # raised with whatever a scheduling pass sees of it; see store.changes
    _big("preemptions"),
    _text("preempted_for", nullable=True),
    _time("room_by"),
    _text("in_array", nullable=True),  # the array of which it is a member
    _big("continuations"),
    _one_of("phase", Phase),
    _one_of("wanted", Wanted),
    _one_of("outcome", Outcome),
    _one_of("exit_class", ExitClass),
    _one_of("stop_for", StopFor),
    CheckConstraint(
        "(phase = 'ended') = (ended_at IS NOT NULL AND outcome IS NOT NULL AND exit_class IS NOT NULL)",
        name="ended_is_complete",
    ),
    CheckConstraint("phase = 'ended' OR next_check_at IS NOT NULL", name="no_silent_state"),
    UniqueConstraint("project", "idempotency_key"),
    sqlite_autoincrement=True,
)
Index("session_of_owner", session.c.owner, session.c.ordinal)
Index("session_waiting", session.c.shape, session.c.ordinal,
      sqlite_where=text("phase = 'pending' AND after_open = 0"),
      postgresql_where=text("phase = 'pending' AND after_open = 0"))  # fmt: skip
TOLD = text("phase = 'pending' AND refused IS NOT NULL AND room_by IS NULL AND wanted = 'run'")
Index("session_told", session.c.shape, session.c.ordinal, sqlite_where=TOLD, postgresql_where=TOLD)
Index("session_changed", session.c.changed)
Index("session_live", session.c.phase, session.c.ordinal, sqlite_where=text("phase <> 'ended'"),
      postgresql_where=text("phase <> 'ended'"))  # fmt: skip
Index("session_due", session.c.next_check_at, sqlite_where=text("phase <> 'ended'"),
      postgresql_where=text("phase <> 'ended'"))  # fmt: skip
Index("session_live_of", session.c.phase, session.c.owner, session.c.project, session.c.grp,
      sqlite_where=text("phase <> 'ended'"), postgresql_where=text("phase <> 'ended'"))  # fmt: skip
Index("session_live_owner", session.c.owner, session.c.ordinal, sqlite_where=text("phase <> 'ended'"),
      postgresql_where=text("phase <> 'ended'"))  # fmt: skip

Index("session_dependent", session.c.id, sqlite_where=text("after_open = 1 AND phase = 'pending'"),
      postgresql_where=text("after_open = 1 AND phase = 'pending'"))  # fmt: skip
Index("session_member", session.c.in_array, session.c.phase, session.c.outcome,
      sqlite_where=text("in_array IS NOT NULL"), postgresql_where=text("in_array IS NOT NULL"))  # fmt: skip
Index("session_member_live", session.c.in_array, session.c.after_open, session.c.phase,
      sqlite_where=text("in_array IS NOT NULL AND phase <> 'ended'"),
      postgresql_where=text("in_array IS NOT NULL AND phase <> 'ended'"))  # fmt: skip

# What a session waits for: the end of `needs`, as `kind` has it (model.dependency). Both are ids of sessions or arrays.
dependency = Table(
    "dependency",
    metadata,
    Column("session", Text, primary_key=True),
    Column("needs", Text, primary_key=True),
    Column("kind", Text, primary_key=True),
    _one_of("kind", DependencyKind),
)

attempt = Table(
    "attempt",
    metadata,
    Column("session", Text, primary_key=True),
    Column("attempt", BIG, primary_key=True, autoincrement=False),
    _text("grp"),
    _flag("live"),
    _time("placed_at", nullable=False),
    _time("started_at"),
    _time("ended_at"),
    _text("outcome", nullable=True),
    _text("exit_class", nullable=True),
    _big("exit_code", None, nullable=True),
    _text("reason_code", nullable=True),
    _text("reason_message", nullable=True),
    _text("cause_code", nullable=True),
    _text("cause_message", nullable=True),
    CheckConstraint("(live = 0) = (ended_at IS NOT NULL)", name="live_until_ended"),
)
Index("one_live_attempt", attempt.c.session, unique=True, sqlite_where=text("live = 1"),
      postgresql_where=text("live = 1"))  # fmt: skip

kernel = Table(
    "kernel",
    metadata,
    Column("token", Text, primary_key=True),
    _text("session"),
    _big("attempt", None),
    _big("rank", None),
    _text("node"),
    _big("node_epoch", None),
    _text("run_id"),
    _big("claimed_version", None, nullable=True),
    _flag("stop_asked"),
    _flag("go"),
    _time("accepted_at"),
    _time("ready_at"),
    _big("port", None, nullable=True),
    _time("result_at"),
    _big("exit_code", None, nullable=True),
    _big("signal", None, nullable=True),
    _text("exit_class", nullable=True),
    _flag("began"),
    _text("refused_code", nullable=True),
    _text("refused_message", nullable=True),
    _text("failed_code", nullable=True),
    _text("failed_message", nullable=True),
    _text("exit_reason", nullable=True),
    _text("certificate", nullable=True),
    _time("certified_at"),
    _text("certified_by", nullable=True),
    _big("changed_version"),
    _time("placed_at", nullable=False),
    _text("placed_by"),
    _time("claimed_at"),
    _text("claimed_by", nullable=True),
    _time("served_at"),
    UniqueConstraint("session", "attempt", "rank"),
    _one_of("certificate", Certificate),
    _one_of("exit_class", ExitClass),
    CheckConstraint("(certificate IS NULL) = (certified_at IS NULL)", name="certified_when"),
    CheckConstraint("(result_at IS NULL) = (exit_class IS NULL)", name="result_is_complete"),
)
Index("kernel_taken_for_dead", kernel.c.node, kernel.c.changed_version,
      sqlite_where=text("certificate = 'operator'"), postgresql_where=text("certificate = 'operator'"))  # fmt: skip
Index("kernel_alive", kernel.c.node, kernel.c.changed_version, sqlite_where=text("certificate IS NULL"),
      postgresql_where=text("certificate IS NULL"))  # fmt: skip

holding = Table(
    "holding",
    metadata,
    Column("token", Text, primary_key=True),
    Column("device", Text, primary_key=True),  # '' is room on the node itself
    _text("session"),
    _big("attempt", None),
    _text("node"),
    _big("cpu_milli"),
    _big("memory_mib"),
    _big("share_milli"),
    _big("vram_mib"),
    _flag("exclusive"),
    _time("held_at", nullable=False),
    _time("released_at"),
    _flag("counted"),  # into `usage`; while it is not, fair share reads it here
    CheckConstraint("cpu_milli >= 0 AND memory_mib >= 0 AND share_milli >= 0 AND vram_mib >= 0", name="not_negative"),
)
Index("one_exclusive_holder", holding.c.node, holding.c.device, unique=True,
      sqlite_where=text("exclusive = 1 AND released_at IS NULL"),
      postgresql_where=text("exclusive = 1 AND released_at IS NULL"))  # fmt: skip
Index("holding_of", holding.c.session, holding.c.attempt)
Index("holding_uncounted", holding.c.token, sqlite_where=text("counted = 0"), postgresql_where=text("counted = 0"))
Index("holding_live", holding.c.node, sqlite_where=text("released_at IS NULL"),
      postgresql_where=text("released_at IS NULL"))  # fmt: skip

# Room kept for the session `owner` that others were stopped for: what a holding was until it was given back.
pin = Table(
    "pin",
    metadata,
    Column("token", Text, primary_key=True),
    Column("device", Text, primary_key=True),
    _text("owner"),
    _text("node"),
    _big("cpu_milli"),
    _big("memory_mib"),
    _big("share_milli"),
    _big("vram_mib"),
    _time("expires_at", nullable=False),
    CheckConstraint("cpu_milli >= 0 AND memory_mib >= 0 AND share_milli >= 0 AND vram_mib >= 0", name="not_negative"),
)
Index("pin_of", pin.c.owner)

node = Table(
    "node",
    metadata,
    Column("name", Text, primary_key=True),
    _text("grp"),
    _text("state"),
    _flag("schedulable"),
    _big("epoch", None),
    _text("boot_id"),
    _text("run_id"),
    _text("incarnation"),
    _text("hardware_id"),
    _text("nonce"),
    _text("address"),
    _big("cpu_milli"),
    _big("memory_mib"),
    _big("cpu_used_milli"),
    _big("memory_used_mib"),
    _big("desired_version"),
    _big("served_version"),
    _time("seen_at", nullable=False),
    _time("registered_at", nullable=False),
    Column("backoff_until", Double, nullable=False, server_default=text("0")),
    _text("labels"),
    _text("runtimes"),
    _text("containment"),
    _text("agent_version"),
    _big("changed"),  # raised with whatever a scheduling pass sees of it or its devices
    _one_of("state", NodeState),
    CheckConstraint("cpu_used_milli BETWEEN 0 AND cpu_milli", name="cpu_not_over_committed"),
    CheckConstraint("memory_used_mib BETWEEN 0 AND memory_mib", name="memory_not_over_committed"),
    CheckConstraint("served_version <= desired_version", name="served_what_was_desired"),
)
Index("node_changed", node.c.changed)

device = Table(
    "device",
    metadata,
    Column("node", Text, primary_key=True),
    Column("uuid", Text, primary_key=True),
    _big("idx"),
    _text("model"),
    _text("arch", nullable=True),
    _big("capacity_mib"),
    _big("used_mib"),
    _big("used_milli"),
    _flag("present"),
    CheckConstraint("used_mib BETWEEN 0 AND capacity_mib", name="vram_not_over_committed"),
    CheckConstraint("used_milli BETWEEN 0 AND 1000", name="share_not_over_committed"),
)

event = Table(
    "event",
    metadata,
    Column("id", BIG, Identity(), primary_key=True),
    _time("at", nullable=False),
    _text("session", nullable=True),
    _big("seq"),
    _text("fact"),
    _text("source", nullable=True),
    _text("target"),
    _big("attempt"),
    _text("by_whom"),
    _text("detail"),
    _text("grp", nullable=True),  # a group's own history, its version as `seq`
    _text("quota", nullable=True),  # and a quota's
    UniqueConstraint("session", "seq"),
    sqlite_autoincrement=True,
)
Index("event_of_group", event.c.grp, event.c.seq, sqlite_where=text("grp IS NOT NULL"),
      postgresql_where=text("grp IS NOT NULL"))  # fmt: skip
Index("event_of_quota", event.c.quota, event.c.seq, sqlite_where=text("quota IS NOT NULL"),
      postgresql_where=text("quota IS NOT NULL"))  # fmt: skip

resource_group = Table(
    "resource_group",
    metadata,
    Column("name", Text, primary_key=True),
    _text("order_policy"),
    _text("placement_policy"),
    _text("backend"),
    Column("order_options", Text, nullable=False, server_default=text("'{}'")),
    Column("placement_options", Text, nullable=False, server_default=text("'{}'")),
    _flag("paused"),
    _big("version", 1),
    Column("options", Text, nullable=False, server_default=text("'{}'")),
)
# What may be held, run and wait at once, and by whom (model.quota). `above`: of what was held when these limits were
# set, that which was more than they allow; it may only become less.
quota = Table(
    "quota",
    metadata,
    Column("name", Text, primary_key=True),
    _text("owner", nullable=True),
    _text("project", nullable=True),
    _text("domain", nullable=True),
    _text("grp", nullable=True),
    _text("limits"),
    _text("above"),
    _big("version", 1),
)
project_domain = Table("project_domain", metadata, Column("project", Text, primary_key=True), _text("domain"))
# Nodes kept free for a time. Those of one name are told apart by `version`; one that was deleted is kept.
reservation = Table(
    "reservation",
    metadata,
    Column("name", Text, primary_key=True),
    Column("version", BIG, primary_key=True, autoincrement=False),
    _time("starts_at", nullable=False),
    _time("ends_at", nullable=False),
    _text("nodes"),
    _text("owners"),
    _text("projects"),
    _text("reason"),
    _time("made_at", nullable=False),
    _text("made_by"),
    _time("deleted_at"),
    _text("deleted_by", nullable=True),
    CheckConstraint("starts_at < ends_at", name="ends_after_it_starts"),
)
Index("reservation_open", reservation.c.ends_at, sqlite_where=text("deleted_at IS NULL"),
      postgresql_where=text("deleted_at IS NULL"))  # fmt: skip
# When those who wait in front are to start, as they were told, and the room held for it (ahead_reads.Kept, as JSON).
planned_start = Table(
    "planned_start",
    metadata,
    Column("session", Text, primary_key=True),
    _time("at", nullable=False),
    _text("grp"),
    Column("kept", Text),
)
# What was used and is over, faded to the moment `at`: one row for each owner in each project of each group.
usage = Table(
    "usage",
    metadata,
    Column("grp", Text, primary_key=True),
    Column("owner", Text, primary_key=True),
    Column("project", Text, primary_key=True),
    Column("cpu_s", Double, nullable=False),
    Column("gpu_s", Double, nullable=False),
    _time("at", nullable=False),
)
# In a group whose placement takes turns: the node that was given something last.
turn = Table("turn", metadata, Column("grp", Text, primary_key=True), _text("node"))
blob = Table(
    "blob",
    metadata,
    Column("digest", Text, primary_key=True),
    Column("data", LargeBinary, nullable=False),
    _time("at", nullable=False),
)
credential = Table(
    "credential",
    metadata,
    Column("digest", Text, primary_key=True),
    _text("name"),
    _text("kind"),
    _time("at", nullable=False),
)
member = Table("member", metadata, Column("id", Text, primary_key=True), _text("url"), _time("seen_at", nullable=False))
stream = Table(
    "stream",
    metadata,
    Column("id", Text, primary_key=True),
    _text("node"),
    _text("body"),
    _time("at", nullable=False),
)
foreign_token = Table(
    "foreign_token",
    metadata,
    Column("node", Text, primary_key=True),
    Column("token", Text, primary_key=True),
    _time("seen_at", nullable=False),
)
operation = Table("operation", metadata, Column("id", Text, primary_key=True), _time("at", nullable=False))
