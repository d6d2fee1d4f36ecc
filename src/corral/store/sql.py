"""Every statement, once, for both dialects.

`:name` is a parameter; `@in(name)` is membership in a list parameter; `@event_id` is the next id in commit order;
`@each(column FROM …)` is a table of `value` made anew for each row of the tables before it, `@joined(column)` all its
values in order as one text. `@change(table)` is what a write puts into `changed` of a row of which a scheduling pass
sees something else from then on, `@mark(table)` where whoever has read all there is reads on (store.changes).
`store.connection` turns them into what each driver wants. A write names the state it expects, and its row count is
checked by the caller.
"""

from __future__ import annotations

import math

SESSION_COLUMNS = """id, ordinal, spec, owner, submitted_at, phase, attempt, seq, wanted, grp, priority, time_limit_s,
    outcome, exit_class, exit_code, reason_code, reason_message, cause_code, cause_message, stop_for, phase_at,
    started_at, ended_at, not_before, next_check_at, failures, infra_failures, refusals, requeue_of, error,
    preemptions, preempted_for, room_by, continuations"""

KERNEL_COLUMNS = """k.token, k.session, k.attempt, k.rank, k.node, k.node_epoch, k.run_id, k.claimed_version,
    k.stop_asked, k.go, k.accepted_at, k.ready_at, k.port, k.result_at, k.exit_code, k.signal, k.exit_class, k.began,
    k.refused_code, k.refused_message, k.failed_code, k.failed_message, k.exit_reason, k.certificate, k.certified_at"""


HOLDING_COLUMNS = (
    "h.token, h.session, h.attempt, h.node, h.device, h.cpu_milli, h.memory_mib, h.share_milli, h.vram_mib"
)
WAITING_COLUMNS = """s.id, s.ordinal, s.attempt, s.seq, s.priority, s.owner, s.project, s.submitted_at, s.spec,
    s.refused, s.shape, s.time_limit_s, s.room_by"""
EVENT_COLUMNS = "id, at, session, seq, fact, source, target, attempt, by_whom, detail, grp, quota"

# A share of a GPU counts as the larger of its parts of time and memory.
GPU_MILLI = """CAST(CASE WHEN d.capacity_mib > 0 AND h.vram_mib * 1000.0 / d.capacity_mib > h.share_milli
    THEN h.vram_mib * 1000.0 / d.capacity_mib ELSE h.share_milli END AS double precision)"""


def _halvings(since: str, until: str) -> str:
    """How often what was used then has halved until then; bounded, since PostgreSQL refuses what would come to 0."""
    times = f"(({until}) - ({since})) / :half_life"
    return f"CASE WHEN {times} < 1000.0 THEN {times} ELSE 1000.0 END"


def _faded(until: str) -> str:
    """What a holding's seconds up to then count at `:now`: the integral of a weight that halves every `:half_life`."""
    end, start = _halvings(until, ":now"), _halvings("h.held_at", ":now")
    return f"(:half_life / {math.log(2)} * (power(2.0, -({end})) - power(2.0, -({start}))))"


def _decided(table: str, is_open: str) -> str:
    """Those of this table that wait for others, of which all ended as wished, or one as it must not."""
    return f"""
SELECT d.session FROM {table} c JOIN dependency d ON d.session = c.id
LEFT JOIN session p ON p.id = d.needs LEFT JOIN session_array a ON a.id = d.needs
WHERE c.after_open = 1 AND {is_open}
GROUP BY d.session
HAVING MIN(CASE WHEN p.phase <> 'ended' OR (a.id IS NOT NULL AND a.ended_at IS NULL) THEN 0 WHEN d.kind = 'any' THEN 1
                WHEN (COALESCE(p.outcome, a.outcome) = 'succeeded') = (d.kind = 'ok') THEN 1 ELSE -1 END) <> 0
ORDER BY d.session LIMIT :limit"""


# --- sessions: questions

SESSIONS = f"SELECT {SESSION_COLUMNS} FROM session WHERE id @in(ids)"
# Members are called by their array's id and index, and do not make that ambiguous.
SESSION_PREFIX = """
SELECT id FROM session WHERE id >= :low AND id < :high AND id NOT LIKE '%]'
    AND owner = COALESCE(CAST(:owner AS TEXT), owner)
UNION ALL SELECT id FROM session_array WHERE id >= :low AND id < :high AND owner = COALESCE(CAST(:owner AS TEXT), owner)
ORDER BY id LIMIT :limit"""
SESSION_KEY = "SELECT id, digest FROM session WHERE project = :project AND idempotency_key = :key"
SESSION_NEWEST = "SELECT id, ordinal, in_array FROM session WHERE owner = :owner ORDER BY ordinal DESC LIMIT 1"
# Those that have ended are never looked at one by one: there is no end to them.
SESSION_COUNTS = """
WITH live (phase, number) AS (SELECT phase, COUNT(*) FROM session WHERE phase <> 'ended' GROUP BY phase)
SELECT phase, number FROM live
UNION ALL
SELECT 'ended', (SELECT COUNT(*) FROM session) - (SELECT COALESCE(SUM(number), 0) FROM live)"""
SESSION_COUNTS_LIVE = "SELECT phase, COUNT(*) FROM session WHERE phase <> 'ended' GROUP BY phase"
# Of one that stands in line, and of those before it only who stands there too.
SESSION_POSITION = """
SELECT 1 + (SELECT COUNT(*) FROM session b
            WHERE b.phase = 'pending' AND b.phase <> 'ended' AND b.wanted = 'run' AND b.after_open = 0
              AND b.not_before <= :now AND b.error IS NULL AND b.ordinal < s.ordinal
              AND COALESCE(b.grp, '') @in(groups))
FROM session s WHERE s.id = :id AND s.phase = 'pending' AND s.wanted = 'run' AND s.after_open = 0
  AND s.not_before <= :now AND s.error IS NULL"""
# A session is told what the first of its shape is told, unless it was first once and told something itself; of one that
# does not stand in line, what it was told itself may have become wrong. One that room is being made for speaks for
# itself alone. With `after_open + 0` only the index of those that were told will do: that of all that wait would be
# walked where nobody of a shape was told anything, as when all are held.
SESSION_REFUSALS = """
SELECT id, why FROM (
    SELECT s.id, COALESCE(CASE WHEN s.wanted = 'run' AND s.after_open = 0 AND s.not_before <= :now THEN s.refused END, (
        SELECT r.refused FROM session r WHERE r.phase = 'pending' AND r.shape = s.shape AND r.refused IS NOT NULL
          AND r.room_by IS NULL AND r.wanted = 'run' AND r.after_open + 0 = 0 AND r.not_before <= :now
        ORDER BY r.ordinal LIMIT 1)) AS why
    FROM session s WHERE s.id @in(ids) AND s.phase = 'pending') AS told
WHERE why IS NOT NULL"""
SESSIONS_DUE = """
SELECT id FROM session WHERE phase <> 'ended' AND next_check_at <= :now ORDER BY next_check_at LIMIT :limit"""
SESSIONS_IN_PHASE = "SELECT id FROM session WHERE phase = :phase AND phase <> 'ended' ORDER BY ordinal LIMIT :limit"
# The index leads from shape to shape, so that a pass costs what it reads, not what waits behind it.
SESSIONS_WAITING = f"""
WITH RECURSIVE shapes (shape) AS (
    SELECT MIN(shape) FROM session WHERE phase = 'pending' AND after_open = 0
    UNION ALL
    SELECT (SELECT MIN(w.shape) FROM session w
            WHERE w.phase = 'pending' AND w.after_open = 0 AND w.shape > shapes.shape)
    FROM shapes WHERE shapes.shape IS NOT NULL)
SELECT {WAITING_COLUMNS}
FROM shapes CROSS JOIN @each(ordinal FROM session WHERE phase = 'pending' AND session.shape = shapes.shape
    AND wanted = 'run' AND after_open = 0 AND not_before <= :now AND error IS NULL
    ORDER BY ordinal LIMIT :per_shape) AS early
JOIN session s ON s.ordinal = early.value ORDER BY s.ordinal"""
# For groups whose order needs more than the oldest of each shape: beside those the oldest of each shape and owner and
# so on, and of each shape those that come first by another measure. It looks at all that wait in these groups.
SESSIONS_WAITING_BY = f"""
SELECT {WAITING_COLUMNS}, early.place, early.turn
FROM (
    SELECT ordinal, ROW_NUMBER() OVER (PARTITION BY shape, CASE WHEN :by_owner = 1 THEN owner END,
            CASE WHEN :by_project = 1 THEN project END, CASE WHEN :by_priority = 1 THEN priority END,
            CASE WHEN :by_restarted = 1 AND attempt > 1 THEN ordinal END ORDER BY ordinal) AS place,
        ROW_NUMBER() OVER (PARTITION BY shape ORDER BY
            CASE WHEN :by_newest = 1 THEN -ordinal
                 WHEN :by_shortest = 1 THEN COALESCE(time_limit_s, 4611686018427387904)
                 ELSE ordinal END, ordinal) AS turn,
        ROW_NUMBER() OVER (PARTITION BY shape ORDER BY ordinal) AS age
    FROM session
    WHERE phase = 'pending' AND wanted = 'run' AND after_open = 0 AND not_before <= :now AND error IS NULL
      AND COALESCE(grp, '') @in(groups)) AS early
JOIN session s ON s.ordinal = early.ordinal
WHERE early.age > :per_shape AND (early.place <= :per_shape OR early.turn <= :per_shape) ORDER BY s.ordinal"""
SESSIONS_STALE = """
SELECT DISTINCT k.session FROM kernel k JOIN node n ON n.name = k.node
WHERE k.certificate IS NULL AND k.node_epoch < n.epoch LIMIT :limit"""
# What a pass that kept what it read reads next. `line` is 1 of a session that stands in line or will, 2 of one that has
# room, 0 of any other.
MARKS = "SELECT @mark(node), @mark(session), @database, (SELECT value FROM meta WHERE name = 'generation')"
NODES_CHANGED = "SELECT name FROM node WHERE changed >= :since"
SESSIONS_PENDING = f"""
SELECT {WAITING_COLUMNS}, s.not_before, 1 AS line FROM session s
WHERE s.phase = 'pending' AND s.wanted = 'run' AND s.after_open = 0 AND s.error IS NULL AND s.ordinal > :after
ORDER BY s.ordinal LIMIT :limit"""
SESSIONS_CHANGED = f"""
SELECT {WAITING_COLUMNS}, s.not_before,
    CASE WHEN s.phase = 'pending' AND s.wanted = 'run' AND s.after_open = 0 AND s.error IS NULL THEN 1
         WHEN s.phase IN ('placed', 'starting', 'running', 'stopping') THEN 2 ELSE 0 END AS line
FROM session s WHERE s.changed >= :since"""
ATTEMPTS = """
SELECT attempt, grp, live, placed_at, started_at, ended_at, outcome, exit_class, exit_code,
       reason_code, reason_message, cause_code, cause_message
FROM attempt WHERE session = :session ORDER BY attempt"""

DEPENDENCIES = """
SELECT d.session, d.needs, d.kind,
    COALESCE(p.phase, CASE WHEN a.ended_at IS NOT NULL THEN 'ended' WHEN a.id IS NOT NULL THEN 'pending' END),
    COALESCE(p.outcome, a.outcome)
FROM dependency d LEFT JOIN session p ON p.id = d.needs LEFT JOIN session_array a ON a.id = d.needs
WHERE d.session @in(ids) ORDER BY d.session, d.needs, d.kind"""
DEPENDENTS_DECIDED = _decided("session", "c.phase = 'pending' AND c.error IS NULL")
ARRAYS_DECIDED = _decided("session_array", "c.ended_at IS NULL")

# --- sessions: writes

ADD_DEPENDENCY = """
INSERT INTO dependency (session, needs, kind) VALUES (:session, :needs, :kind) ON CONFLICT DO NOTHING"""
COUNT_DEPENDENTS = """
SELECT (SELECT COUNT(*) FROM session c WHERE c.after_open = 1 AND c.phase = 'pending' AND c.owner = :owner
    AND EXISTS (SELECT 1 FROM dependency d WHERE d.session = c.id))
  + (SELECT COUNT(*) FROM session_array a WHERE a.after_open = 1 AND a.ended_at IS NULL AND a.owner = :owner)"""
STILL_DEPENDENT = "SELECT id FROM session WHERE id @in(ids) AND after_open = 1"
OPEN_AFTER = """
UPDATE session SET after_open = 1, changed = @change(session) WHERE id = :id AND phase = 'pending'"""
CLOSE_AFTER = """
UPDATE session SET after_open = 0, changed = @change(session) WHERE id @in(ids) AND after_open = 1"""

LOCK_SESSIONS = "SELECT id FROM session WHERE id @in(ids) ORDER BY id @for_update"
SUBMIT = """
INSERT INTO session (id, spec, owner, submitted_at, phase, attempt, seq, wanted, grp, priority, time_limit_s, phase_at,
    not_before, next_check_at, requeue_of, project, name, labels, shape, idempotency_key, digest, changed)
VALUES (:id, :spec, :owner, :now, 'pending', 1, 1, :wanted, :grp, :priority, :time_limit_s, :now,
    :not_before, :next_check_at, :requeue_of, :project, :name, :labels, :shape, :key, :digest, @change(session))
ON CONFLICT DO NOTHING"""
WRITE_SESSION = """
UPDATE session SET phase = :phase, attempt = :attempt, seq = :seq, wanted = :wanted, grp = :grp, priority = :priority,
    time_limit_s = :time_limit_s, outcome = :outcome, exit_class = :exit_class, exit_code = :exit_code,
    reason_code = :reason_code, reason_message = :reason_message, cause_code = :cause_code,
    cause_message = :cause_message, stop_for = :stop_for, phase_at = :phase_at, started_at = :started_at,
    ended_at = :ended_at, not_before = :not_before, next_check_at = :next_check_at, failures = :failures,
    infra_failures = :infra_failures, refusals = :refusals, error = NULL, preemptions = :preemptions,
    preempted_for = :preempted_for, room_by = :room_by, continuations = :continuations,
    refused = CASE WHEN CAST(:phase AS text) = 'pending' THEN refused END, changed = @change(session)
WHERE id = :id AND phase = :old_phase AND attempt = :old_attempt AND seq = :old_seq"""
SET_SPEC = """
UPDATE session SET spec = :spec, shape = :shape, changed = @change(session) WHERE id = :id AND phase <> 'ended'"""
RAW_SESSION = "SELECT spec, project, name, phase, wanted, stop_for FROM session WHERE id = :id"
LAST_TARGET = "SELECT target FROM event WHERE session = :id ORDER BY seq DESC LIMIT 1"
SET_ASIDE = """
UPDATE session SET spec = :spec, phase = :phase, wanted = :wanted, stop_for = :stop_for, changed = @change(session)
WHERE id = :id"""
NOTE_REFUSALS = """
UPDATE session SET refused = :refused, changed = @change(session) WHERE id = :id AND phase = 'pending'"""
MARK_BROKEN = """
UPDATE session SET error = :error, next_check_at = :check_at, changed = @change(session)
WHERE id = :id AND phase <> 'ended'"""
POSTPONE = "UPDATE session SET next_check_at = :check_at WHERE phase <> 'ended' AND id @in(ids)"
ADD_EVENT = """
INSERT INTO event (id, at, session, seq, fact, source, target, attempt, by_whom, detail)
VALUES (@event_id, :now, :session, :seq, :fact, :source, :target, :attempt, :by, :detail)"""

BEGIN_ATTEMPT = """
INSERT INTO attempt (session, attempt, grp, live, placed_at) VALUES (:session, :attempt, :grp, 1, :now)"""
START_ATTEMPT = "UPDATE attempt SET started_at = :now WHERE session = :session AND attempt = :attempt AND live = 1"
END_ATTEMPT = """
UPDATE attempt SET live = 0, ended_at = :now, started_at = COALESCE(started_at, :started_at),
    outcome = :outcome, exit_class = :exit_class, exit_code = :exit_code,
    reason_code = :reason_code, reason_message = :reason_message, cause_code = :cause_code,
    cause_message = :cause_message
WHERE session = :session AND attempt = :attempt AND live = 1"""

# --- events

HISTORY = f"SELECT {EVENT_COLUMNS} FROM event WHERE session = :session AND seq > :after ORDER BY seq LIMIT :limit"
EVENTS = f"""
SELECT {EVENT_COLUMNS} FROM event WHERE id > :after AND id < @safe_event_id
  AND (CAST(:owner AS text) IS NULL
       OR NOT EXISTS (SELECT 1 FROM session s WHERE s.id = event.session AND s.owner <> :owner))
ORDER BY id LIMIT :limit"""
LAST_EVENT = "SELECT COALESCE(MAX(id), 0) FROM event WHERE id < @safe_event_id"

# --- kernels and room

KERNELS = f"""
SELECT {KERNEL_COLUMNS} FROM kernel k JOIN session s ON s.id = k.session AND s.attempt = k.attempt
WHERE k.session @in(ids) ORDER BY k.session, k.rank"""
LAUNCHES = f"""
SELECT {KERNEL_COLUMNS}, k.placed_at, k.placed_by, k.claimed_at, k.claimed_by, k.served_at,
    k.certified_by
FROM kernel k WHERE k.session = :session ORDER BY k.attempt, k.rank"""
TOKENS_SESSIONS = "SELECT token, session, attempt FROM kernel WHERE token @in(tokens)"
HOLDINGS = f"""
SELECT {HOLDING_COLUMNS} FROM holding h JOIN session s ON s.id = h.session AND s.attempt = h.attempt
WHERE h.session @in(ids) ORDER BY h.token, h.device"""
ADD_KERNEL = """
INSERT INTO kernel (token, session, attempt, rank, node, node_epoch, run_id, placed_at, placed_by)
VALUES (:token, :session, :attempt, :rank, :node, :node_epoch, :run_id, :now, :by)"""
ADD_HOLDING = """
INSERT INTO holding (token, device, session, attempt, node, cpu_milli, memory_mib, share_milli, vram_mib, exclusive,
    held_at)
VALUES (:token, :device, :session, :attempt, :node, :cpu_milli, :memory_mib, :share_milli, :vram_mib, :exclusive,
    :now)"""
USE_NODE = """
UPDATE node SET cpu_used_milli = cpu_used_milli + :cpu_milli, memory_used_mib = memory_used_mib + :memory_mib,
    changed = @change(node)
WHERE name = :node AND epoch = :epoch AND schedulable = 1"""
USE_DEVICE = """
UPDATE device SET used_mib = used_mib + :vram_mib, used_milli = used_milli + :share_milli
WHERE node = :node AND uuid = :device"""
RELEASE_HOLDINGS = """
UPDATE holding SET released_at = :now WHERE session @in(sessions) AND released_at IS NULL
RETURNING session, attempt, node, device, cpu_milli, memory_mib, share_milli, vram_mib, token"""
# Where earlier attempts of these sessions went wrong in a way that may be the node's fault.
WENT_WRONG = """
SELECT DISTINCT k.session, k.node FROM kernel k JOIN session s ON s.id = k.session AND k.attempt < s.attempt
JOIN attempt a ON a.session = k.session AND a.attempt = k.attempt
WHERE k.session @in(ids) AND (k.refused_code IS NOT NULL OR k.failed_code IS NOT NULL
  OR k.exit_class IN ('user', 'infra', 'lost') OR k.certificate IN ('node_rebooted', 'operator'))
  AND a.exit_class <> 'preempted' AND COALESCE(a.reason_code, '') NOT IN ('requeue_asked', 'resume_asked')"""
SAVED_ON = """
SELECT DISTINCT k.session, k.node FROM kernel k JOIN session s ON s.id = k.session AND k.attempt = s.attempt - 1
JOIN attempt a ON a.session = k.session AND a.attempt = k.attempt
WHERE k.session @in(ids) AND k.ready_at IS NOT NULL AND a.reason_code IN ('resume_asked', 'preempted')
ORDER BY k.session, k.node"""
ATTAINED = f"""
SELECT h.session, SUM(h.cpu_milli / 1000.0 * (h.released_at - h.held_at)),
    SUM({GPU_MILLI} / 1000.0 * (h.released_at - h.held_at))
FROM holding h LEFT JOIN device d ON d.node = h.node AND d.uuid = h.device
WHERE h.session @in(ids) AND h.released_at IS NOT NULL GROUP BY h.session"""
USAGE_HELD = f"""
SELECT a.grp, s.owner, s.project, SUM(h.cpu_milli), SUM(h.memory_mib), SUM({GPU_MILLI})
FROM holding h JOIN session s ON s.id = h.session
JOIN attempt a ON a.session = h.session AND a.attempt = h.attempt
LEFT JOIN device d ON d.node = h.node AND d.uuid = h.device
WHERE h.released_at IS NULL AND a.grp @in(groups) GROUP BY a.grp, s.owner, s.project"""
USAGE_USED = f"""
SELECT s.owner, s.project, SUM(h.cpu_milli / 1000.0 * {_faded("COALESCE(h.released_at, :now)")}),
    SUM({GPU_MILLI} / 1000.0 * {_faded("COALESCE(h.released_at, :now)")})
FROM holding h JOIN session s ON s.id = h.session
JOIN attempt a ON a.session = h.session AND a.attempt = h.attempt
LEFT JOIN device d ON d.node = h.node AND d.uuid = h.device
WHERE h.counted = 0 AND a.grp = :grp GROUP BY s.owner, s.project"""
USAGE_COUNTED = f"""
SELECT owner, project, cpu_s * kept, gpu_s * kept
FROM (SELECT owner, project, cpu_s, gpu_s, power(2.0, -({_halvings("at", ":now")})) AS kept
      FROM usage WHERE grp = :grp) AS faded"""
COUNT_HOLDINGS = """
UPDATE holding SET counted = 1
WHERE counted = 0 AND released_at IS NOT NULL AND token @in(tokens)
RETURNING session, attempt, node, device, cpu_milli, share_milli, vram_mib, held_at, released_at"""
# Who holds room in these groups; a session that has ended, or waits again, holds none.
_RUNNING = """
SELECT s.id, s.ordinal, s.attempt, s.seq, s.grp, s.owner, s.project, s.priority, s.shape, s.spec, a.placed_at,
    s.started_at, s.phase, s.phase_at, s.time_limit_s, s.wanted, s.stop_for, s.preemptions, s.preempted_for
FROM session s JOIN attempt a ON a.session = s.id AND a.attempt = s.attempt
WHERE s.phase <> 'ended' AND s.phase IN ('placed', 'starting', 'running', 'stopping')"""
RUNNING = f"{_RUNNING} AND s.grp @in(groups) ORDER BY s.ordinal"
RUNNING_OF = f"{_RUNNING} AND s.id @in(ids) ORDER BY s.ordinal"
# The room on the node itself comes first of each token's: its device is ''.
_RUNNING_RANKS = """
SELECT h.session, h.token, h.node, k.node_epoch, k.run_id, h.device, h.cpu_milli, h.memory_mib, h.share_milli,
    h.vram_mib
FROM holding h JOIN kernel k ON k.token = h.token JOIN session s ON s.id = h.session
WHERE h.released_at IS NULL"""
RUNNING_RANKS = f"{_RUNNING_RANKS} AND s.grp @in(groups) ORDER BY h.session, k.rank, h.device"
RUNNING_RANKS_OF = f"{_RUNNING_RANKS} AND h.session @in(ids) ORDER BY h.session, k.rank, h.device"
UNCOUNTED = "SELECT token FROM holding WHERE counted = 0 AND released_at IS NOT NULL LIMIT :limit"
CLAIMANTS = """
SELECT a.session, a.attempt, a.grp, s.owner, s.project FROM attempt a JOIN session s ON s.id = a.session
WHERE a.session @in(ids)"""
ADD_USAGE = f"""
INSERT INTO usage (grp, owner, project, cpu_s, gpu_s, at) VALUES (:grp, :owner, :project, :cpu_s, :gpu_s, :now)
ON CONFLICT (grp, owner, project) DO UPDATE SET
    cpu_s = usage.cpu_s * power(2.0, -({_halvings("usage.at", "excluded.at")})) + excluded.cpu_s,
    gpu_s = usage.gpu_s * power(2.0, -({_halvings("usage.at", "excluded.at")})) + excluded.gpu_s,
    at = excluded.at"""
GROW_HOLDING = """
UPDATE holding SET cpu_milli = cpu_milli + :cpu_milli, memory_mib = memory_mib + :memory_mib
WHERE token = :token AND device = '' AND released_at IS NULL"""
FREE_NODE = """
UPDATE node SET cpu_used_milli = cpu_used_milli - :cpu_milli, memory_used_mib = memory_used_mib - :memory_mib,
    changed = @change(node)
WHERE name = :node"""
FREE_DEVICE = """
UPDATE device SET used_mib = used_mib - :vram_mib, used_milli = used_milli - :share_milli
WHERE node = :node AND uuid = :device"""

CLAIM_KERNELS = """
UPDATE kernel SET claimed_version = :version, changed_version = :version, claimed_at = :now, claimed_by = :by
WHERE token @in(tokens) AND claimed_version IS NULL AND certificate IS NULL"""
CERTIFY = """
UPDATE kernel SET certificate = :certificate, certified_at = :now, certified_by = :by
WHERE token @in(tokens) AND certificate IS NULL"""
ASK_STOP = """
UPDATE kernel SET stop_asked = 1, changed_version = :version WHERE token @in(tokens) AND certificate IS NULL"""
RELEASE_BARRIER = """
UPDATE kernel SET go = 1, changed_version = :version WHERE token @in(tokens) AND certificate IS NULL AND go = 0"""
ASK_AGAIN = """
UPDATE kernel SET changed_version = :version
WHERE token @in(tokens) AND certificate IS NULL AND claimed_version IS NOT NULL"""
KERNEL_NODES = "SELECT token, node FROM kernel WHERE token @in(tokens)"

# All that a node reports of one kernel at a time. Each group of columns is kept by its first write.
RECORD = """
UPDATE kernel SET accepted_at = COALESCE(accepted_at, :accepted_at),
    port = CASE WHEN ready_at IS NULL THEN :port ELSE port END,
    ready_at = COALESCE(ready_at, :ready_at),
    exit_code = CASE WHEN result_at IS NULL THEN :exit_code ELSE exit_code END,
    signal = CASE WHEN result_at IS NULL THEN :signal ELSE signal END,
    exit_class = CASE WHEN result_at IS NULL THEN :exit_class ELSE exit_class END,
    began = CASE WHEN result_at IS NULL THEN COALESCE(:began, 0) ELSE began END,
    result_at = COALESCE(result_at, :result_at),
    refused_message = CASE WHEN refused_code IS NULL THEN :refused_message ELSE refused_message END,
    refused_code = COALESCE(refused_code, :refused_code),
    failed_message = CASE WHEN failed_code IS NULL THEN :failed_message ELSE failed_message END,
    failed_code = COALESCE(failed_code, :failed_code),
    exit_reason = CASE WHEN certificate IS NULL THEN :exit_reason ELSE exit_reason END,
    certified_at = COALESCE(certified_at, :certified_at),
    certified_by = COALESCE(certified_by, :certified_by),
    certificate = COALESCE(certificate, :certificate)
WHERE token = :token AND (
    (accepted_at IS NULL AND CAST(:accepted_at AS double precision) IS NOT NULL)
    OR (ready_at IS NULL AND CAST(:ready_at AS double precision) IS NOT NULL)
    OR (result_at IS NULL AND CAST(:result_at AS double precision) IS NOT NULL)
    OR (refused_code IS NULL AND CAST(:refused_code AS text) IS NOT NULL)
    OR (failed_code IS NULL AND CAST(:failed_code AS text) IS NOT NULL)
    OR (certificate IS NULL AND CAST(:certificate AS text) IS NOT NULL))"""

SESSIONS_ON = "SELECT DISTINCT session FROM kernel WHERE node = :node AND certificate IS NULL"
ORDERS = f"""
SELECT {KERNEL_COLUMNS} FROM kernel k
WHERE k.node = :node AND k.certificate IS NULL AND k.claimed_version IS NOT NULL AND k.changed_version > :have
ORDER BY k.changed_version, k.token"""
# Stops that a node missed because an operator took it for dead: served when it returns all the same, if not rebooted.
TOMBSTONES = f"""
SELECT {KERNEL_COLUMNS} FROM kernel k JOIN node n ON n.name = k.node AND n.epoch = k.node_epoch
WHERE k.node = :node AND k.certificate = 'operator' AND k.stop_asked = 1 AND k.changed_version > :have
ORDER BY k.changed_version, k.token"""
MARK_SERVED = """
UPDATE kernel SET served_at = :now
WHERE node = :node AND certificate IS NULL AND claimed_version IS NOT NULL AND claimed_version <= :version
  AND changed_version > :have AND served_at IS NULL"""

# --- the rest

STREAMS = "SELECT body FROM stream WHERE node = :node ORDER BY at, id"
ADD_STREAM = "INSERT INTO stream (id, node, body, at) VALUES (:id, :node, :body, :now) ON CONFLICT DO NOTHING"
DROP_STREAM = "DELETE FROM stream WHERE id = :id"
DROP_OLD_STREAMS = "DELETE FROM stream WHERE at < :before"
BLOB = "SELECT data FROM blob WHERE digest = :digest"
HAS_BLOB = "SELECT 1 FROM blob WHERE digest = :digest"
PUT_BLOB = "INSERT INTO blob (digest, data, at) VALUES (:digest, :data, :now) ON CONFLICT DO NOTHING"
CREDENTIAL = "SELECT name, kind FROM credential WHERE digest = :digest"
ANY_CREDENTIAL = "SELECT 1 FROM credential LIMIT 1"
ADD_CREDENTIAL = """
INSERT INTO credential (digest, name, kind, at) VALUES (:digest, :name, :kind, :now) ON CONFLICT DO NOTHING"""
MEMBERS = "SELECT id, url, seen_at FROM member ORDER BY id"
SEEN_MEMBER = """
INSERT INTO member (id, url, seen_at) VALUES (:id, :url, :now)
ON CONFLICT (id) DO UPDATE SET url = excluded.url, seen_at = excluded.seen_at"""
DROP_OLD_MEMBERS = "DELETE FROM member WHERE seen_at < :before"
META = "SELECT value FROM meta WHERE name = :name"
SET_META = """
INSERT INTO meta (name, value) VALUES (:name, :value) ON CONFLICT DO NOTHING"""
ADD_OPERATION = "INSERT INTO operation (id, at) VALUES (:id, :now)"
OPERATION = "SELECT id FROM operation WHERE id = :id"
DROP_OLD_OPERATIONS = "DELETE FROM operation WHERE at < :before"

# What model.invariants looks at, by table.
LEDGER = {
    "session": """SELECT id, owner, project, phase, attempt, seq, wanted, outcome, exit_class, ended_at,
                  next_check_at, room_by, stop_for, ordinal, in_array, after_open FROM session""",
    "attempt": "SELECT session, attempt, grp, live, ended_at FROM attempt",
    "kernel": """SELECT token, session, attempt, rank, node, node_epoch, claimed_version, ready_at, result_at,
                 certificate FROM kernel""",
    "holding": "SELECT token, device, session, attempt, node, cpu_milli, memory_mib, share_milli, vram_mib, exclusive,"
    " released_at FROM holding",
    "pin": "SELECT token, device, owner, node, cpu_milli, memory_mib, share_milli, vram_mib FROM pin",
    "node": """SELECT name, grp, epoch, cpu_milli, memory_mib, cpu_used_milli, memory_used_mib, desired_version,
               served_version FROM node""",
    "device": "SELECT node, uuid, capacity_mib, used_mib, used_milli FROM device",
    "event": "SELECT session, seq, fact, source, target, attempt FROM event WHERE session IS NOT NULL",
}
