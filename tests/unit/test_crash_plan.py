"""A process dies where it was told to, and nowhere else: `CORRAL_CRASH` as managers, agents and shims read it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

PASSING = """
import sys
from corral.crashplan import CrashPlan
plan = CrashPlan(sys.argv[1])
for number in range(5):
    plan.pass_by("one")
    plan.pass_by("two")
    print(number, flush=True)
"""


def passes(plan: str) -> tuple[int, int]:
    """How the process ended, and how many rounds it came."""
    done = subprocess.run([sys.executable, "-c", PASSING, plan], capture_output=True, text=True, timeout=60)
    return done.returncode, len(done.stdout.split())


@pytest.mark.parametrize(
    ("plan", "rounds"), [("one:1", 0), ("one", 0), ("two:2", 1), ("three:1,one:4", 3), ("two:3,one:3", 2)]
)
def test_death_comes_at_the_pass_that_was_named(plan: str, rounds: int) -> None:
    assert passes(plan) == (-signal.SIGKILL, rounds)


@pytest.mark.parametrize("plan", ["", "three:1", "one:6"])
def test_who_passes_no_such_point_lives(plan: str) -> None:
    assert passes(plan) == (0, 5)


def test_of_all_that_are_told_the_one_that_makes_the_file_dies(tmp_path: Path) -> None:
    plan = f"one:2:{tmp_path / 'died'}"
    assert passes(plan) == (-signal.SIGKILL, 1)
    assert passes(plan) == (0, 5)
