"""The statements about arrays, written as those of store.sql are. Their members are rows of `session`."""

from __future__ import annotations

ARRAY_COLUMNS = """id, ordinal, spec, owner, submitted_at, seq, wanted, grp, priority, time_limit_s, reached, made,
    not_before, after_open, ended_at, outcome, exit_class, exit_code, reason_code, reason_message, requeue_of,
    succeeded, failed"""

# --- questions

ARRAYS = f"SELECT {ARRAY_COLUMNS} FROM session_array WHERE id @in(ids)"
ARRAY_KEYS = "SELECT project, idempotency_key, id, digest FROM session_array WHERE idempotency_key @in(keys)"
ARRAY_NEWEST = "SELECT id, ordinal FROM session_array WHERE owner = :owner ORDER BY ordinal DESC LIMIT 1"
ARRAY_TALLY = """
SELECT in_array, phase, outcome, COUNT(*) FROM session WHERE in_array @in(ids) GROUP BY in_array, phase, outcome"""
ARRAYS_UNMADE = """
SELECT COALESCE(SUM(CASE WHEN wanted = 'stop' THEN 0 ELSE size - made END), 0),
    COALESCE(SUM(CASE WHEN wanted = 'stop' THEN size - made ELSE 0 END), 0)
FROM session_array WHERE made < size"""
ARRAYS_IN_GROUP = "SELECT COUNT(*) FROM session_array WHERE ended_at IS NULL AND made < size AND grp = :name"
# Those that have nothing left to come and nothing that lives, and those of which more may get their turn: fewer wait
# for room than one pass reads, and fewer live than may.
ARRAYS_DUE = """
SELECT a.id FROM session_array a
WHERE a.ended_at IS NULL AND (
    ((a.made = a.size OR a.wanted = 'stop')
        AND NOT EXISTS (SELECT 1 FROM session s WHERE s.in_array = a.id AND s.phase <> 'ended'))
    OR (a.wanted <> 'stop' AND a.after_open = 0
        AND ((a.made < a.size AND a.wanted = 'run') OR EXISTS (
            SELECT 1 FROM session s WHERE s.in_array = a.id AND s.phase <> 'ended' AND s.after_open = 1
              AND s.phase = 'pending' AND s.wanted = 'run'))
        AND :window > (SELECT COUNT(*) FROM session s WHERE s.in_array = a.id AND s.phase <> 'ended'
            AND s.after_open = 0 AND s.phase = 'pending')
        AND (a.throttle IS NULL OR a.throttle > (SELECT COUNT(*) FROM session s WHERE s.in_array = a.id
            AND s.phase <> 'ended' AND s.after_open = 0))))
ORDER BY a.ordinal LIMIT :limit"""
MEMBERS_LIVE = "SELECT id FROM session WHERE in_array = :id AND phase <> 'ended' ORDER BY ordinal"
MEMBERS_TURNED = """
SELECT phase, COUNT(*) FROM session WHERE in_array = :id AND phase <> 'ended' AND after_open = 0 GROUP BY phase"""
MEMBERS_IN_WAIT = """
SELECT id, ordinal FROM session
WHERE in_array = :id AND phase <> 'ended' AND after_open = 1 AND phase = 'pending' AND wanted = 'run'
ORDER BY ordinal LIMIT :limit"""
MEMBERS_THERE = "SELECT ordinal FROM session WHERE ordinal >= :first AND ordinal < :end ORDER BY ordinal"
MEMBER_NOT_GOOD = """
SELECT ordinal, exit_code, exit_class FROM session
WHERE in_array = :id AND phase = 'ended' AND outcome IN ('failed', 'cancelled') ORDER BY ordinal LIMIT 1"""

LEDGER = {
    "array": """SELECT id, ordinal, seq, size, throttle, wanted, reached, made, ended_at, outcome, succeeded, failed
                FROM session_array""",
}

# --- writes

LOCK_ARRAYS = "SELECT id FROM session_array WHERE id @in(ids) ORDER BY id @for_update"
ADD_ARRAY = """
INSERT INTO session_array (id, ordinal, spec, owner, submitted_at, seq, wanted, grp, priority, time_limit_s, size,
    throttle, not_before, requeue_of, project, name, idempotency_key, digest)
VALUES (:id, :ordinal, :spec, :owner, :now, 1, :wanted, :grp, :priority, :time_limit_s, :size, :throttle, :not_before,
    :requeue_of, :project, :name, :key, :digest)"""
WRITE_ARRAY = """
UPDATE session_array SET spec = :spec, throttle = :throttle, seq = :seq, wanted = :wanted, grp = :grp,
    priority = :priority, time_limit_s = :time_limit_s, ended_at = :ended_at, outcome = :outcome,
    exit_class = :exit_class, exit_code = :exit_code, reason_code = :reason_code, reason_message = :reason_message,
    succeeded = :succeeded, failed = :failed
WHERE id = :id AND seq = :old_seq AND ended_at IS NULL"""
REACH = """
UPDATE session_array SET reached = :reached, made = made + :more
WHERE id = :id AND ended_at IS NULL AND made + :more <= size AND reached <= :reached"""
OPEN_ARRAY_AFTER = "UPDATE session_array SET after_open = 1 WHERE id = :id AND ended_at IS NULL"
CLOSE_ARRAY_AFTER = "UPDATE session_array SET after_open = 0 WHERE id = :id AND after_open = 1"
ADD_MEMBER = """
INSERT INTO session (ordinal, in_array, after_open, id, spec, owner, submitted_at, phase, attempt, seq, wanted, grp,
    priority, time_limit_s, phase_at, not_before, next_check_at, project, name, labels, shape, digest, changed)
VALUES (:ordinal, :in_array, :after_open, :id, :spec, :owner, :submitted_at, 'pending', 1, 1, :wanted, :grp,
    :priority, :time_limit_s, :now, :not_before, :next_check_at, :project, :name, :labels, :shape, '',
    @change(session))"""
GIVE_TURN = """
UPDATE session SET after_open = 0, changed = @change(session)
WHERE id = :id AND in_array IS NOT NULL AND after_open = 1 AND phase = 'pending' AND wanted = 'run'"""
TAKE_TURN_BACK = """
UPDATE session SET after_open = 1, changed = @change(session)
WHERE id = :id AND in_array IS NOT NULL AND phase = 'pending'"""
