"""(h) Backfill on lublin_256: average bounded slowdown beside an independent simulator's, and what the default order
makes of it with and without."""

from __future__ import annotations

import time
from pathlib import Path

from corral.sim.report import report
from corral.sim.simulating import Wanted, prepare

TRACE = Path(__file__).parent / "data" / "jct" / "lublin_256.swf.gz"
ELSEWHERE: dict[str, float | None] = {
    "fifo+strict": 66_502, "easy": 590, "shortest-first": 31.2, "fifo+easy-shortest": None, "conservative": None,
    "fifo": None, "shortest-first+easy": None,
}  # fmt: skip


def run() -> dict[str, float]:
    """Prints the table; the slowdowns."""
    prepared = prepare(Wanted(TRACE), list(ELSEWHERE))
    print(f"{'policy':<22}{'elsewhere':>11}{'ours':>11}{'mean wait s':>13}{'in use':>8}{'took s':>8}")
    found: dict[str, float] = {}
    for policy, elsewhere in ELSEWHERE.items():
        began = time.perf_counter()
        told = report(prepared.replay(policy))
        slowdown = found[policy] = told.all.slowdown_mean or 0.0
        shown = "-" if elsewhere is None else f"{elsewhere:,.1f}"
        print(f"{policy:<22}{shown:>11}{slowdown:>11,.1f}{told.all.wait_mean_s or 0.0:>13,.0f}"
              f"{100 * told.utilisation:>7.1f}%{time.perf_counter() - began:>8.1f}", flush=True)  # fmt: skip
    return found
