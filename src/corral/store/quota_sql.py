"""The statements about quotas, written as those of store.sql are."""

from __future__ import annotations

from corral.store.sql import EVENT_COLUMNS

QUOTA_COLUMNS = "name, owner, project, domain, grp, limits, version"
# A share of a GPU counts as the larger of its parts of time and memory, in whole thousandths (model.quota.gpu_milli).
_GPU_MILLI = """SUM(CASE WHEN d.capacity_mib > 0 AND {0}.vram_mib * 1000 / d.capacity_mib > {0}.share_milli
    THEN {0}.vram_mib * 1000 / d.capacity_mib ELSE {0}.share_milli END)"""

QUOTAS = f"SELECT {QUOTA_COLUMNS} FROM quota ORDER BY name"
LOCK_QUOTAS = "SELECT name FROM quota WHERE name @in(names) ORDER BY name @for_update"
DOMAINS = "SELECT project, domain FROM project_domain ORDER BY project"


def _held(owners: str) -> str:
    """By whoever holds room; the index leads to them alone, and from each to what it holds."""
    return f"""
SELECT s.owner, s.project, s.grp, SUM(h.cpu_milli), SUM(h.memory_mib), {_GPU_MILLI.format("h")}, SUM(h.vram_mib)
FROM session s CROSS JOIN holding h LEFT JOIN device d ON d.node = h.node AND d.uuid = h.device
WHERE s.phase <> 'ended' AND s.phase IN ('placed', 'starting', 'running', 'stopping'){owners}
  AND h.session = s.id AND h.attempt = s.attempt AND h.released_at IS NULL
GROUP BY s.owner, s.project, s.grp"""


def _holding(owners: str) -> str:
    return f"""
SELECT owner, project, grp, COUNT(*) FROM session s
WHERE phase <> 'ended' AND phase IN ('placed', 'starting', 'running', 'stopping'){owners}
GROUP BY owner, project, grp"""


OF_OWNERS = " AND s.owner @in(owners)"
QUOTA_HELD, QUOTA_HELD_OF = _held(""), _held(OF_OWNERS)
QUOTA_HOLDING, QUOTA_HOLDING_OF = _holding(""), _holding(OF_OWNERS)
QUOTA_PINNED = f"""
SELECT p.owner, s.owner, s.project, n.grp, SUM(p.cpu_milli), SUM(p.memory_mib), {_GPU_MILLI.format("p")},
    SUM(p.vram_mib)
FROM pin p JOIN session s ON s.id = p.owner JOIN node n ON n.name = p.node
LEFT JOIN device d ON d.node = p.node AND d.uuid = p.device
GROUP BY p.owner, s.owner, s.project, n.grp ORDER BY p.owner"""

# For whom others stop just now, or for whom what they freed is kept: what it asks for is its own under its quotas from
# then on, so that no two have others stopped where a quota has room for one.
QUOTA_CLAIMING = """
SELECT s.id, s.spec, s.owner, s.project, MIN(c.grp)
FROM (SELECT v.preempted_for AS id, v.grp FROM session v
      WHERE v.phase <> 'ended' AND v.phase = 'stopping' AND v.preempted_for IS NOT NULL
      UNION ALL
      SELECT p.owner, n.grp FROM pin p JOIN node n ON n.name = p.node) AS c
JOIN session s ON s.id = c.id
WHERE s.phase = 'pending' AND s.phase <> 'ended' AND s.wanted = 'run' AND s.room_by > :now
GROUP BY s.id, s.spec, s.owner, s.project ORDER BY s.id"""


def _waiting(owners: str) -> str:
    """Members of arrays that have no row yet wait, too."""
    return f"""
SELECT owner, project, grp, SUM(number) FROM (
    SELECT owner, project, grp, COUNT(*) AS number FROM session
    WHERE phase <> 'ended' AND phase = 'pending'{owners}
    GROUP BY owner, project, grp
    UNION ALL
    SELECT owner, project, grp, size - made FROM session_array
    WHERE made < size AND wanted <> 'stop'{owners}) AS counted
GROUP BY owner, project, grp"""


QUOTA_WAITING = _waiting("")
QUOTA_WAITING_OF = _waiting(" AND owner @in(owners)")

ADD_QUOTA = """
INSERT INTO quota (name, owner, project, domain, grp, limits, above, version)
VALUES (:name, :owner, :project, :domain, :grp, :limits, :above, :version) ON CONFLICT DO NOTHING"""
SET_QUOTA = """
UPDATE quota SET owner = :owner, project = :project, domain = :domain, grp = :grp, limits = :limits, above = :above,
    version = :version
WHERE name = :name AND version = :old_version"""
DROP_QUOTA = "DELETE FROM quota WHERE name = :name AND version = :old_version"
SET_DOMAIN = """
INSERT INTO project_domain (project, domain) VALUES (:project, :domain)
ON CONFLICT (project) DO UPDATE SET domain = excluded.domain"""
ADD_QUOTA_EVENT = """
INSERT INTO event (id, at, seq, fact, target, by_whom, detail, quota)
VALUES (@event_id, :now, :seq, :fact, '', :by, :detail, :name)"""
QUOTA_HISTORY = f"""
SELECT {EVENT_COLUMNS} FROM event WHERE quota = :name AND seq > :after ORDER BY seq LIMIT :limit"""
QUOTA_LAST = "SELECT COALESCE(MAX(seq), 0) FROM event WHERE quota = :name"

# What model.quota_invariants looks at beside the rest.
LEDGER = {
    "quota": "SELECT name, owner, project, domain, grp, limits, above FROM quota",
    "domain": "SELECT project, domain FROM project_domain",
}
