"""Backfill on real processes: the first in line has a planned start, short ones pass it, and it starts when it may."""

from pathlib import Path
from typing import Any

from tests.end_to_end.control_plane import Plane, plane, wait_until


def why_of(one: Plane, session: str, code: str) -> dict[str, Any] | None:
    return next((why for why in one.show(session)["refusals"] if why["code"] == code), None)


def test_a_large_session_is_not_starved_by_small_ones(tmp_path: Path) -> None:
    with plane(tmp_path, "--cpus", "4", "--memory", "4GiB") as one:
        runs = one.submit("--cpus", "3", "--time", "10m", "--grace", "1s", "--", "sleep", "600")
        one.wait_phase(runs, "running")
        large = one.submit("--cpus", "4", "--time", "1m", "--", "true")
        wait_until(lambda: one.show(large)["planned_start"], "a planned start")
        endless = one.submit("--cpus", "1", "--", "sleep", "600")
        why = wait_until(lambda: why_of(one, endless, "would_delay"), "to be told whom it would delay")
        assert large in why["message"]
        assert one.run("run", "--cpus", "1", "--time", "5m", "--", "true").code == 0, "it ends before"
        assert one.show(endless)["phase"] == "pending"
        told = one.run("explain", endless).out
        assert "with --time" in told and "it would start now" in told
        assert one.run("update", endless, "--time", "2m").code == 0
        one.wait_phase(endless, "running")
        one.run("cancel", endless)
        one.run("cancel", runs)
        assert one.run("wait", large).code == 0
        assert one.show(large)["planned_start"] is None
