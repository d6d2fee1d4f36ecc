"""The statements about nodes and their devices, written as those of store.sql are."""

from __future__ import annotations

NODE_COLUMNS = """name, grp, state, schedulable, epoch, boot_id, run_id, incarnation, hardware_id, nonce, address,
    cpu_milli, memory_mib, cpu_used_milli, memory_used_mib, desired_version, served_version, seen_at, registered_at,
    backoff_until, labels, runtimes, containment, agent_version"""
DEVICE_COLUMNS = "node, uuid, idx, model, arch, capacity_mib, used_mib, used_milli, present"

LOCK_NODES = "SELECT name FROM node WHERE name @in(names) ORDER BY name @for_update"
NODES = f"SELECT {NODE_COLUMNS} FROM node WHERE name @in(names) ORDER BY name"
ALL_NODES = f"SELECT {NODE_COLUMNS} FROM node ORDER BY name"
DEVICES = f"SELECT {DEVICE_COLUMNS} FROM device WHERE node @in(names) ORDER BY node, idx"
ALL_DEVICES = f"SELECT {DEVICE_COLUMNS} FROM device ORDER BY node, idx"
ADD_NODE = """
INSERT INTO node (name, grp, state, schedulable, epoch, boot_id, run_id, incarnation, hardware_id, nonce, address,
    cpu_milli, memory_mib, seen_at, registered_at, labels, runtimes, containment, agent_version, changed)
VALUES (:name, :grp, 'up', 1, :epoch, :boot_id, :run_id, :incarnation, :hardware_id, :nonce, :address,
    :cpu_milli, :memory_mib, :now, :now, :labels, :runtimes, :containment, :agent_version, @change(node))
ON CONFLICT DO NOTHING"""
RENEW_NODE = """
UPDATE node SET grp = :grp, state = 'up', epoch = :epoch, boot_id = :boot_id, run_id = :run_id,
    incarnation = :incarnation, nonce = :nonce, address = :address,
    cpu_milli = CASE WHEN cpu_used_milli > :cpu_milli THEN cpu_used_milli ELSE :cpu_milli END,
    memory_mib = CASE WHEN memory_used_mib > :memory_mib THEN memory_used_mib ELSE :memory_mib END,
    desired_version = CASE WHEN desired_version < :held THEN :held ELSE desired_version END,
    seen_at = :now, registered_at = :now, labels = :labels, runtimes = :runtimes, containment = :containment,
    agent_version = :agent_version, changed = @change(node)
WHERE name = :name AND epoch = :old_epoch AND boot_id = :old_boot_id AND incarnation = :old_incarnation
  AND hardware_id = :hardware_id"""
ADD_DEVICE = """
INSERT INTO device (node, uuid, idx, model, arch, capacity_mib, present)
VALUES (:node, :uuid, :idx, :model, :arch, :capacity_mib, 1)
ON CONFLICT (node, uuid) DO UPDATE SET present = 1, idx = excluded.idx, model = excluded.model, arch = excluded.arch,
    capacity_mib = CASE WHEN device.used_mib > excluded.capacity_mib THEN device.used_mib
                        ELSE excluded.capacity_mib END"""
DEVICES_ABSENT = "UPDATE device SET present = 0 WHERE node = :node"
TOUCH_NODE = """
UPDATE node SET nonce = :next, seen_at = :now, state = 'up',
    changed = CASE WHEN state = 'up' THEN changed ELSE @change(node) END
WHERE name = :name AND incarnation = :incarnation AND (nonce = :last OR nonce = :next)"""
SERVED = """
UPDATE node SET served_version = :version
WHERE name = :name AND served_version < :version AND desired_version >= :version"""
RAISE_DESIRED = """
UPDATE node SET desired_version = desired_version + 1 WHERE name @in(names) RETURNING name, desired_version"""
SET_NODE_STATE = """
UPDATE node SET state = :state, changed = @change(node)
WHERE name = :name AND state <> :state AND seen_at < :before"""
BACK_OFF = """
UPDATE node SET backoff_until = :until, changed = @change(node) WHERE name = :node AND backoff_until < :until"""
FOREIGN = "SELECT node, token, seen_at FROM foreign_token ORDER BY node, token"
NOTE_FOREIGN = """
INSERT INTO foreign_token (node, token, seen_at) VALUES (:node, :token, :now)
ON CONFLICT (node, token) DO UPDATE SET seen_at = excluded.seen_at"""
