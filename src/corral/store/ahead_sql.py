"""The statements about what lies ahead, reservations and planned starts, written as those of store.sql are."""

from __future__ import annotations

RESERVATION_COLUMNS = (
    "name, version, starts_at, ends_at, nodes, owners, projects, reason, made_at, made_by, deleted_at, deleted_by"
)
RESERVATIONS = f"""
SELECT {RESERVATION_COLUMNS} FROM reservation WHERE deleted_at IS NULL AND ends_at > :now ORDER BY starts_at, name"""
ALL_RESERVATIONS = f"SELECT {RESERVATION_COLUMNS} FROM reservation ORDER BY made_at DESC, name LIMIT :limit"
RESERVATION_LAST = "SELECT COALESCE(MAX(version), 0) FROM reservation WHERE name = :name"
ADD_RESERVATION = """
INSERT INTO reservation (name, version, starts_at, ends_at, nodes, owners, projects, reason, made_at, made_by)
VALUES (:name, :version, :starts_at, :ends_at, :nodes, :owners, :projects, :reason, :now, :by) ON CONFLICT DO NOTHING"""
DROP_RESERVATION = """
UPDATE reservation SET deleted_at = :now, deleted_by = :by
WHERE name = :name AND version = :version AND deleted_at IS NULL"""

# Of a group's newest sessions those that ran and ended: looked for among the last ones only.
ENDED_LATELY = """
SELECT started_at, ended_at, time_limit_s FROM session
WHERE phase = 'ended' AND started_at IS NOT NULL AND grp = :grp
  AND ordinal > (SELECT COALESCE(MAX(ordinal), 0) FROM session) - :window
ORDER BY ordinal DESC LIMIT :limit"""

PLANNED = "SELECT session, at, grp, kept FROM planned_start ORDER BY session"
PLANNED_OF = """
SELECT p.session, p.at FROM planned_start p JOIN session s ON s.id = p.session
WHERE p.session @in(ids) AND s.phase = 'pending' AND s.wanted = 'run'"""
PUT_PLANNED = """
INSERT INTO planned_start (session, at, grp, kept) VALUES (:session, :at, :grp, :kept)
ON CONFLICT (session) DO UPDATE SET at = excluded.at, grp = excluded.grp, kept = excluded.kept"""
DROP_PLANNED = "DELETE FROM planned_start WHERE session @in(ids)"
