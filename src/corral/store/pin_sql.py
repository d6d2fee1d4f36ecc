"""The statements about room that is kept for whom it was freed. Dialect-neutral, as `sql` says."""

from __future__ import annotations

ADD_PIN = """
INSERT INTO pin (token, device, owner, node, cpu_milli, memory_mib, share_milli, vram_mib, expires_at)
VALUES (:token, :device, :owner, :node, :cpu_milli, :memory_mib, :share_milli, :vram_mib, :until)"""
KEEP_PINS = "UPDATE pin SET expires_at = :until WHERE owner = :owner AND expires_at < :until"
DROP_PINS = "DELETE FROM pin WHERE owner @in(ids) RETURNING node, device, cpu_milli, memory_mib, share_milli, vram_mib"
DROP_OLD_PINS = """
DELETE FROM pin WHERE expires_at <= :now AND node @in(names)
RETURNING node, device, cpu_milli, memory_mib, share_milli, vram_mib"""
PIN_COLUMNS = "p.token, p.device, p.owner, p.node, p.cpu_milli, p.memory_mib, p.share_milli, p.vram_mib, p.expires_at"
PINS = f"SELECT {PIN_COLUMNS}, n.epoch, n.run_id FROM pin p JOIN node n ON n.name = p.node ORDER BY p.token, p.device"
PINS_OF = f"""
SELECT {PIN_COLUMNS}, n.epoch, n.run_id FROM pin p JOIN node n ON n.name = p.node
WHERE p.owner @in(ids) ORDER BY p.token, p.device"""
# What else must be locked with sessions: the nodes where room is kept for them, and those they were stopped for.
BOUND = """
SELECT node, NULL FROM pin WHERE owner @in(ids)
UNION
SELECT NULL, preempted_for FROM session WHERE id @in(ids) AND preempted_for IS NOT NULL AND phase <> 'ended'"""
MAKING_WAY = "SELECT id FROM session WHERE phase = 'stopping' AND phase <> 'ended' AND preempted_for = :id ORDER BY id"
