"""Text from answers, where no real cluster easily gives them."""

from typing import Any

from corral.cli.render import show_node, show_nodes

NODE: dict[str, Any] = {
    "name": "n1", "group": "default", "state": "up", "schedulable": True, "epoch": 1, "address": "127.0.0.1",
    "cpus": 8.0, "cpus_used": 1.5, "memory_mib": 1024, "memory_used_mib": 0, "devices": 2, "labels": {},
    "runtimes": ["process"], "containment": "marker", "agent_version": "1", "boot_id": "b",
    "seen_at": "2026-01-01T00:00:00Z", "registered_at": "2026-01-01T00:00:00Z", "backoff_until": None, "foreign": 0,
}  # fmt: skip


def test_a_node_with_foreign_launches_says_so_wherever_it_is_shown() -> None:
    assert show_nodes([NODE], wide=False).splitlines()[1].split()[1] == "up"
    odd = NODE | {"foreign": 2, "schedulable": False}
    assert show_nodes([odd], wide=False).splitlines()[1].split()[1] == "up,unschedulable,foreign:2"
    token = "1-k3f9x2m4qa-1-0"
    found = {"node": odd, "devices": [], "sessions": [], "foreign": [{"node": "n1", "token": token, "seen_at": "now"}]}
    (line,) = [line for line in show_node(found).splitlines() if line.startswith("foreign")]
    assert token in line
