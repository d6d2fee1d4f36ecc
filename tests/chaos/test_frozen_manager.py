"""A manager that is frozen past every time-out and thawed again: nobody waited for it, and it writes nothing stale."""

import time
from pathlib import Path

import pytest

from tests.chaos import oracle
from tests.chaos.work import Tale, Work
from tests.chaos.world import managed_world
from tests.end_to_end.control_plane import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(600)]
PAST_EVERY_TIMEOUT_S = 45.0  # a silent node is given up after 30
SHORT_S = 10.0
SOON_S = 25.0  # an agent leaves a manager that does not answer after 15; one that only waits is never left alone


def test_a_frozen_manager_delays_nobody_and_thaws_without_harm(
    database: str, tmp_path: Path, tale: Tale, long: bool
) -> None:
    with managed_world(tmp_path, [database, database]) as world:

        def submit(work: Work, number: int, **more: object) -> str:
            id_ = world.ask("POST", "sessions", work.fields(world, **more), f"frozen-{number}", prefer=1)["id"]
            tale.submitted[id_] = work
            return id_

        before = [submit(Work(0, seconds=3, code=number), number) for number in range(3)]
        world.managers[0].freeze()
        frozen_at = time.monotonic()
        patience_s = PAST_EVERY_TIMEOUT_S if long else SHORT_S
        number = 10
        waited: list[float] = []
        while time.monotonic() - frozen_at < patience_s:
            began = time.monotonic()
            quick = [submit(Work(0, seconds=0.1), number + n, name="quick") for n in range(3)]
            number += 3
            for id_ in quick:
                wait_until(
                    lambda id_=id_: world.ask("GET", f"sessions/{id_}", prefer=1)["phase"] == "ended",
                    "a session to end while a manager is frozen",
                    SOON_S,
                )
            waited.append(round(time.monotonic() - began, 1))
            oracle.ledger_covers_what_lives(world)
        print("each three sessions took, in seconds:", waited)
        world.managers[0].thaw()
        wait_until(lambda: world.ask("GET", "doctor", prefer=0)["ok"], "the thawed manager to be well", 30)
        sessions = oracle.everything_holds(world, tale)
        assert {one["attempt"] for one in sessions.values()} == {1}
        assert [sessions[id_]["exit_code"] for id_ in before] == [0, 1, 2]
    assert world.left_over() == []
