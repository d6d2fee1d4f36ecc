"""Text from answers, where no real cluster easily gives them."""

from typing import Any

import pytest

from corral.cli.render import command_of, gpus_of, show_history, show_node, show_nodes

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
    found = {
        "node": odd,
        "devices": [],
        "sessions": [],
        "foreign": [{"node": "n1", "token": token, "seen_at": NODE["seen_at"]}],
    }
    (line,) = [line for line in show_node(found).splitlines() if line.startswith("foreign")]
    assert token in line


@pytest.mark.parametrize(
    ("gpus", "model", "vram_mib", "ranks", "shown"),
    [
        (None, None, None, 3, None), (2, None, None, 1, "2"), (2, None, None, 3, "6"), (1, "A100", None, 4, "A100:4"),
        (0.5, None, None, 1, "0.5"), (0.5, None, None, 3, "3x0.5"), (0.5, "A100", None, 3, "A100:3x0.5"),
        (0, None, 20480, 1, "20480MiB"), (0, None, 20480, 2, "2x20480MiB"),
    ],
)  # fmt: skip
def test_gpus_are_those_of_the_whole_session(
    gpus: float | None, model: str | None, vram_mib: int | None, ranks: int, shown: str | None
) -> None:
    assert gpus_of({"resources": {"gpus": gpus, "gpu_model": model, "vram_mib": vram_mib}, "ranks": ranks}) == shown


def test_a_script_is_shown_before_its_arguments() -> None:
    assert command_of({"script": None, "command": ["sh", "-c", "x"]}) == "sh -c x"
    assert command_of({"script": "sha256:" + "ab" * 32, "command": ["one"]}) == "[script abababababab] one"


def test_what_belongs_to_a_line_of_history_is_text() -> None:
    detail = {"nodes": ["n1", "n2"], "rank": 0, "left": None, "again": True, "why": "disk full"}
    event = {"seq": 2, "at": "now", "from": "pending", "fact": "placed", "to": "placed", "attempt": 1, "by": "m"}
    line = show_history([event | {"detail": detail}]).splitlines()[1]
    assert line.endswith("nodes=n1,n2 rank=0 again=true why=disk full")
