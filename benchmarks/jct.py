"""(g) Completion times on Muri's traces, beside the published averages: `srtf` and `srsf` hold the simulator against
the paper's, `learning` and `newest` are what one can use without knowing run times."""

from __future__ import annotations

import time
from pathlib import Path

from corral.sim.report import Report, report
from corral.sim.simulating import Wanted, prepare

DATA = Path(__file__).parent / "data" / "jct"
FLEET = "8x8xV100:32GB"
PUBLISHED: dict[str, dict[str, float]] = {  # seconds, on average
    "trace3": {"srtf": 193_082, "srsf": 185_022, "tiresias-l": 347_213},
    "trace4": {"srtf": 581_983, "srsf": 487_167, "tiresias-l": 1_319_383},
    "trace3_pr": {"srtf": 844_395, "srsf": 798_058},
    "cluster_trace": {"srtf": 249_140, "srsf": 238_612, "tiresias-l": 336_533},
}
ROUNDS_S = {"cluster_trace": 360.0}  # what is published of it was measured on a testbed that decided so often
# Held against Tiresias-L, which does not know run times either:
KNOWING_LITTLE = ("learning", "learning-patient", "newest", "newest-patient")
POLICIES = ("srtf", "srsf", "tiresias-l", *KNOWING_LITTLE, "fifo", "easy")


def run() -> dict[str, float]:
    """Prints the table; ours by the published number for what is published, in per cent more or less."""
    print(f"{'trace':<15}{'policy':<16}{'published s':>13}{'ours s':>13}{'differs':>9}{'stops':>7}{'most':>6}"
          f"{'lost GPU-h':>12}{'took s':>8}")  # fmt: skip
    found: dict[str, float] = {}
    for trace, published in PUBLISHED.items():
        prepared = prepare(Wanted(DATA / f"{trace}.csv.gz", nodes=FLEET, round_s=ROUNDS_S.get(trace, 0.0)), POLICIES)
        for policy in POLICIES:
            began = time.perf_counter()
            told = report(prepared.replay(policy))
            against = published.get("tiresias-l" if policy in KNOWING_LITTLE else policy)
            difference = _line(trace, policy, against, told, time.perf_counter() - began)
            if difference is not None:
                found[f"{trace}_{policy}_%"] = difference
    return found


def _line(trace: str, policy: str, published: float | None, told: Report, took_s: float) -> float | None:
    ours = told.all.completion_mean_s or 0.0
    difference = None if published is None else 100 * (ours / published - 1)
    shown = "-" if published is None else f"{published:,.0f}"
    apart = "-" if difference is None else f"{difference:+.1f} %"
    print(f"{trace:<15}{policy:<16}{shown:>13}{ours:>13,.0f}{apart:>9}{told.all.preemptions:>7}"
          f"{told.all.most_preemptions:>6}{told.all.lost_hours:>12,.0f}{took_s:>8.1f}", flush=True)  # fmt: skip
    return difference
