"""The production managers, agents and shims in the seeded world: the same seeds in order, as many as fit the time.

`make sim SEEDS=…` runs more, and others. A seed that fails prints the command that shows it again.
"""

import subprocess
import sys

import pytest

from corral.testing.world import run_seed, run_seeds

SECONDS = 90.0
FEWEST = 50


@pytest.mark.simulation
@pytest.mark.timeout(600)
def test_no_seed_breaks_a_promise() -> None:
    campaign = run_seeds(range(100_000), jobs=2, seconds=SECONDS)
    failed = [f"seed {report.seed}: {report.failure}" for report in campaign.failures]
    assert failed == [], "see it again: python -m corral.testing.world --verbose --seed N"
    assert campaign.seeds >= FEWEST
    assert campaign.counts["kill_manager"] and campaign.counts["reboot"] and campaign.counts["power_loss"]


@pytest.mark.simulation
@pytest.mark.parametrize("seed", [3, 11])
def test_a_seed_repeats_itself_whatever_the_hash_seed(seed: int) -> None:
    """The same choices, the same steps: in this process twice, and in others with other hash seeds."""
    code = f"from corral.testing.world import run_seed; r = run_seed({seed}); print(r.starts, r.steps, r.failure)"
    here = run_seed(seed)
    told = f"{here.starts} {here.steps} {here.failure}"
    for hash_seed in ("0", "1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True, text=True, check=True, timeout=120,
        )  # fmt: skip
        assert done.stdout.strip() == told
