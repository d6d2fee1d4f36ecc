"""The statements about resource groups, written as those of store.sql are."""

from __future__ import annotations

from corral.store.sql import EVENT_COLUMNS

GROUP_COLUMNS = (
    "name, order_policy, placement_policy, backend, order_options, placement_options, paused, version, options"
)

GROUPS = f"SELECT {GROUP_COLUMNS} FROM resource_group ORDER BY name"
LOCK_GROUP = "SELECT name FROM resource_group WHERE name = :name @for_update"
SHARE_GROUPS = "SELECT name FROM resource_group WHERE name @in(names) ORDER BY name @for_share"
# A group that is made anew goes on counting where the one of its name left off.
GO_ON_COUNTING = """
UPDATE resource_group SET version = (SELECT COALESCE(MAX(seq), 0) + 1 FROM event WHERE grp = :name)
WHERE name = :name"""
ADD_GROUP = """
INSERT INTO resource_group (name, order_policy, placement_policy, backend, order_options, placement_options, paused,
    options)
VALUES (:name, :order, :placement, :backend, :order_options, :placement_options, :paused, :options)
ON CONFLICT DO NOTHING"""
SET_GROUP = """
UPDATE resource_group SET order_policy = :order, placement_policy = :placement, order_options = :order_options,
    placement_options = :placement_options, paused = :paused, options = :options, version = version + 1
WHERE name = :name AND version = :old_version"""
DROP_GROUP = "DELETE FROM resource_group WHERE name = :name"
GROUP_LIVE = "SELECT COUNT(*) FROM session WHERE phase <> 'ended' AND grp = :name"
# By version: ids are of transactions, of which the later one may have waited for the earlier.
GROUP_HISTORY = f"""
SELECT {EVENT_COLUMNS} FROM event WHERE grp = :name AND seq > :after ORDER BY seq, id LIMIT :limit"""
ADD_GROUP_EVENT = """
INSERT INTO event (id, at, seq, fact, target, by_whom, detail, grp)
VALUES (@event_id, :now, :seq, :fact, '', :by, :detail, :name)"""

TURNS = "SELECT grp, node FROM turn ORDER BY grp"
HAD_TURN = """
INSERT INTO turn (grp, node) VALUES (:whose, :node) ON CONFLICT (grp) DO UPDATE SET node = excluded.node"""
