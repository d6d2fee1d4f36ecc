"""Quotas on real processes: never more at once than they allow, through either of two managers, whichever dies."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from corral.store import upgrade
from tests.chaos.world import World, managed_world
from tests.end_to_end.control_plane import wait_until
from tests.services.postgres import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
JOB = 'date +%s%N > "$MARKS/$CORRAL_LAUNCH_TOKEN.began"; sleep 0.5; date +%s%N > "$MARKS/$CORRAL_LAUNCH_TOKEN.ended"'


@pytest.fixture
def two(postgres_server: Server, tmp_path: Path) -> Iterator[World]:
    with postgres_server.fresh_database() as database:
        upgrade(database)
        with managed_world(tmp_path, [database, database]) as world:
            yield world
            wait_until(lambda: world.ask("GET", "doctor", prefer=0)["ok"], "doctor", 30)
    assert world.left_over() == []


def submit(world: World, number: int, folder: Path, project: str) -> str:
    body = {"command": ["sh", "-c", JOB], "cpus": 0.1, "memory": "16MiB", "project": project,
            "env": {"MARKS": str(folder)}}  # fmt: skip
    return world.ask("POST", "sessions", body, f"quota-{project}-{number}", prefer=number % 2)["id"]


def at_once(folder: Path) -> int:
    """The most that ran at one moment."""
    moments: list[tuple[int, int]] = []
    for began in folder.glob("*.began"):
        moments += [(int(began.read_text()), 1), (int(began.with_suffix(".ended").read_text()), -1)]
    most = now = 0
    for _, change in sorted(moments):
        now += change
        most = max(most, now)
    return most


def test_no_more_run_at_once_than_may_and_others_are_not_held_up(two: World, tmp_path: Path) -> None:
    two.ask("PUT", "quotas/few", {"project": "few", "sessions": 2}, None, prefer=0)
    few, free = tmp_path / "few", tmp_path / "free"
    few.mkdir()
    free.mkdir()
    held = [submit(two, number, few, "few") for number in range(12)]
    others = [submit(two, number, free, "free") for number in range(6)]
    two.managers[0].kill()

    def all_ended(ids: list[str]) -> dict[str, Any] | None:
        found = {id_: two.ask("GET", f"sessions/{id_}", prefer=1) for id_ in ids}
        return found if all(one["phase"] == "ended" for one in found.values()) else None

    for id_, session in wait_until(lambda: all_ended(others), "those of no quota to end", 60).items():
        assert session["outcome"] == "succeeded", id_
    for id_, session in wait_until(lambda: all_ended(held), "those of the quota to end", 120).items():
        assert (session["outcome"], session["attempt"]) == ("succeeded", 1), id_
    assert len(list(few.glob("*.ended"))) == 12 and at_once(few) <= 2
    assert two.ask("GET", "quotas/few", prefer=1)["used"][0]["sessions"] == 0, "nothing is held"
