"""Groups, quotas and reservations are asked for, changed and deleted in the same way."""

import json
from typing import Any

import pytest

from corral.cli.commands.groups import group
from corral.cli.commands.quotas import quota
from corral.cli.commands.reservations import reservation
from corral.cli.grouped import show_changes, show_group, show_policies, show_quotas
from corral.cli.tables import WIDTH
from corral.cli.values import pairs, when
from tests.cli.conftest import Corral

MADE: dict[str, tuple[str, ...]] = {
    "group": ("create", "tidy"),
    "quota": ("set", "tidy", "--owner", "nobody", "--memory", "512GiB", "--time", "26h"),
    "reservation": ("create", "tidy", "--group", "default", "--begin", "+2h", "--for", "1h"),
}


@pytest.mark.parametrize("kind", MADE)
def test_made_shown_listed_deleted_and_gone(corral: Corral, kind: str) -> None:
    assert corral(kind, *MADE[kind], "-o", "name").line == "tidy"
    try:
        assert "tidy" in corral(kind, "list", "-o", "name").out.split()
        assert corral(kind, "show", "tidy", "-o", "name").line == "tidy"
        assert isinstance(corral(kind, "list", "-o", "json").json(), list)
        near = corral(kind, "show", "tiddy")
        assert (near.code, "did you mean 'tidy'?" in near.error) == (3, True)
        problem = corral(kind, "show", "tiddy", "-o", "json")
        assert (problem.code, json.loads(problem.err)["status"]) == (3, 404)
    finally:
        gone = corral(kind, "delete", "tidy")
    assert gone.line == f"{kind} tidy is deleted"
    assert corral(kind, "delete", "tidy").code == 3
    assert corral(kind, "show", "tidy").code == 3


@pytest.mark.parametrize("commands", [group, quota, reservation], ids=["group", "quota", "reservation"])
def test_they_have_the_same_verbs(commands: Any) -> None:
    assert {"list", "show", "delete"} <= commands.commands.keys()
    assert {"create", "set"} & commands.commands.keys()


OPTIONS = {f"an_option_that_is_long_{number}": "x" * 20 for number in range(9)}
GROUP: dict[str, Any] = {
    "name": "g", "order": "fifo", "order_options": {}, "placement": "pack", "placement_options": {"label": "rack"},
    "options": OPTIONS, "paused": False, "problem": None, "backend": "nodes", "nodes": 1, "version": 3,
}  # fmt: skip


def test_no_line_of_a_group_or_of_the_policies_is_too_long() -> None:
    shown = show_group(GROUP)
    assert all(f"  {name}={value}" in shown for name, value in OPTIONS.items())
    policies = [{"kind": "order", "name": "p", "help": "word " * 80, "problem": None, "options": []}]
    events = [{"seq": 1, "at": "now", "fact": "group_set", "by": "user:a", "detail": {"options": OPTIONS}}]
    for text in (shown, show_policies(policies), show_changes(events)):
        assert max(map(len, text.splitlines())) <= WIDTH
    assert "word word" in show_policies(policies)


def test_amounts_have_their_units() -> None:
    limits = {"cpus": 2.0, "memory_mib": 1536, "vram_mib": 20480, "time_limit_s": 93600, "gpus": None}
    used = {"of": "owner a", "cpus": 1.5, "memory_mib": 1024, "vram_mib": 0}
    lines = show_quotas([{"name": "q", "of": "x", "limits": limits, "used": [used], "version": 1}]).splitlines()
    assert [line.split()[3:6] for line in lines[1:]] == [
        ["cpus", "1.5", "2"], ["memory", "1GiB", "1536MiB"], ["vram", "0MiB", "20GiB"], ["time", "-", "1d2h"],
    ]  # fmt: skip
    detail = {"cpu_milli": 20500, "gpu_milli": 8000, "memory_mib": 4096, "time_limit_s": 93600, "room_by": 1796008453.9,
              "order_options": {"weights": {"a": 2.0}}, "options": {}, "of": None, "again": True}  # fmt: skip
    assert pairs(detail) == (
        "cpus=20.5 gpus=8 memory=4GiB time=1d2h room_by=2026-11-30T03:14:13Z weights=a:2 again=true"
    )
    assert pairs({"room_by": "a label's own word"}) == "room_by=a label's own word"
    assert when("2026-11-30T03:27:44.765966Z") == when("2026-11-30T04:27:44+01:00") == "2026-11-30T03:27:44Z"
