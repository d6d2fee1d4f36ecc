"""Gangs of three ranks of `/bin/true`, many at once: each succeeds, none is lost, none runs twice."""

from typing import Any

import pytest

from tests.chaos import oracle
from tests.chaos.work import Tale, Work
from tests.chaos.world import World
from tests.end_to_end.control_plane import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(1200)]


def test_each_of_many_short_gangs_succeeds_once(up: World, tale: Tale, long: bool) -> None:
    count = 300 if long else 30
    fields = {"command": ["/bin/true"], "nodes": 3, "cpus": 0.1, "memory": "32MiB", "env": {"MARKS": str(up.marks)}}
    answer = up.ask("POST", "sessions:batch", {"sessions": [fields] * count}, key=f"gangs-{tale.seed}")
    ids = [one["id"] for one in answer.get("items", answer.get("sessions"))]
    assert len(set(ids)) == count

    def all_ended() -> dict[str, Any] | None:
        sessions = up.sessions()
        return sessions if all(one["phase"] == "ended" for one in sessions.values()) else None

    sessions = wait_until(all_ended, f"{count} gangs to end", 30 + count * 2)
    assert sessions.keys() == set(ids)
    assert {(one["outcome"], one["attempt"], one["exit_code"]) for one in sessions.values()} == {("succeeded", 1, 0)}
    for one in sessions.values():
        assert sorted(kernel["node"] for kernel in one["kernels"]) == ["node-1", "node-2", "node-3"]
    records = up.exit_records()
    told = {kernel["token"] for one in sessions.values() for kernel in one["kernels"]}
    assert {token for token, kinds in records.items() if "result" in kinds} == told
    assert len(told) == 3 * count
    tale.submitted.update({id_: Work(0) for id_ in ids})
    oracle.no_double(up)
    wait_until(lambda: not up.live_tokens(), "the last process to be gone", 20)
    assert up.ask("GET", "doctor")["ok"]
