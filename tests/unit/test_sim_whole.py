"""The simulation as a whole, on a tiny protocol: it finds what is wrong, and a seed always does the same."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from corral.testing.steps import SimulationError
from tests.unit.token_counter import TokenCounter, digest

ROOT = Path(__file__).parent.parent.parent
SEEDS = range(150)


def test_the_protocol_holds_in_every_seed_and_every_kind_of_trouble_was_met() -> None:
    counts, reached, crashes = Counter[str](), Counter[str](), Counter[str]()
    for seed in SEEDS:
        world = TokenCounter(seed)
        world.run()
        assert set(world.truth.starts.values()) <= {1}
        counts += world.faults.counts
        reached += world.faults.reached
        crashes += world.faults.crashes
    missed = {kind for kind in world.faults.rates if not counts[kind]}
    assert missed == set()
    assert {"manager.no_answer", "agent.bury", "agent.disk_error", "shim.gave_up"} <= reached.keys()
    assert len(crashes) == len(world.faults.passes) == 8, "each crash point killed somebody"


@pytest.mark.parametrize("mutant", ["no_lock", "no_sync"])
def test_a_rule_left_out_is_found(mutant: str) -> None:
    found: list[str] = []
    for seed in SEEDS:
        try:
            TokenCounter(seed, mutant).run()
        except SimulationError as error:
            found.append(str(error))
    assert found
    assert all("KE1" in message for message in found)


def test_a_seed_repeats_in_one_interpreter() -> None:
    digests = [digest(seed) for seed in range(12)]
    assert digests == [digest(seed) for seed in range(12)]
    assert len(set(digests)) == 12


def test_a_seed_repeats_in_every_interpreter() -> None:
    """Sets and dictionaries of strings have another order under each PYTHONHASHSEED; the run must not."""
    seeds = [str(seed) for seed in range(6)]
    outputs = {
        subprocess.run(
            [sys.executable, "-m", "tests.unit.token_counter", *seeds],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        ).stdout
        for hash_seed in ("0", "1", "2")
    }
    assert len(outputs) == 1
    assert outputs.pop() == "".join(f"{seed} {digest(int(seed))}\n" for seed in seeds)
