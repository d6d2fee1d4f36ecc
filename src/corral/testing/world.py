"""Run many seeds: `python -m corral.testing.world --seeds 1000`. Prints how far it is, what failed, and how to see it
again.

It knows how to share seeds among processes and to add up what came of them. One seed is `sim_world.py`; a rule left out
on purpose is `mutants.py`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from corral.testing.faults import BASE_RATES
from corral.testing.mutants import FOCUS, MUTANTS, applied
from corral.testing.nemesis import KINDS
from corral.testing.sim_node import NODE_RATES
from corral.testing.sim_store import RATES as STORE_RATES
from corral.testing.sim_store import schema_image
from corral.testing.sim_world import Report, World
from corral.testing.site import Focus

CHUNK = 4
ENOUGH = 3000  # seeds after which every kind of trouble and every mark has been met
TOLD_EVERY_S = 10.0
MARKS = (
    "agent.ended",
    "agent.forced",
    "manager.holds_to_quotas",
    "manager.moves",
    "manager.pins_are_over",
    "manager.pass_failed",
    "manager.plans_starts",
    "manager.preempts",
    "manager.uses_pins",
    "operator.confirmed",
    "operator.gave_up",
    "shim.again",
    "shim.decided_before",
    "shim.exited",
    "shim.failed",
    "shim.no_permission",
    "shim.taken",
    "store.again",
    "store.stood",
    "store.stood_not",
    "user.no_answer",
    "user.refused.confirm_dead",
    "user.refused.hold",
    "user.refused.requeue",
    "user.refused.update",
)
SHOWN_LINES = 120
SHOWN_FAILURES = 50


@dataclass(slots=True)
class Campaign:
    """What came of many seeds, added up."""

    seeds: int = 0
    starts: int = 0
    steps: int = 0
    failures: list[Report] = field(default_factory=list[Report])
    counts: Counter[str] = field(default_factory=Counter[str])
    reached: Counter[str] = field(default_factory=Counter[str])
    passes: Counter[str] = field(default_factory=Counter[str])
    crashes: Counter[str] = field(default_factory=Counter[str])

    def join(self, other: Campaign) -> None:
        self.seeds += other.seeds
        self.starts += other.starts
        self.steps += other.steps
        self.failures += other.failures
        for mine, more in zip(self._counters(), other._counters(), strict=True):
            mine.update(more)

    def _counters(self) -> tuple[Counter[str], ...]:
        return self.counts, self.reached, self.passes, self.crashes

    def add(self, report: Report) -> None:
        self.seeds += 1
        self.starts += report.starts
        self.steps += report.steps
        self.counts.update(report.counts)
        self.reached.update(report.reached)
        self.passes.update(report.passes)
        self.crashes.update(report.crashes)
        if report.failure is not None:
            self.failures.append(report)


def run_seed(seed: int, focus: Focus | None = None) -> Report:
    return World(seed, focus=focus).run()


def run_seeds(
    seeds: Sequence[int],
    *,
    jobs: int = 1,
    seconds: float | None = None,
    stop_after: int | None = None,
    focus: Focus | None = None,
    tell: Callable[[Campaign, Report], object] | None = None,
) -> Campaign:
    """Run these seeds, or as many as fit into `seconds`; with `stop_after`, no more once so many have failed. `tell`
    hears of each as it is done."""
    campaign = Campaign()
    deadline = None if seconds is None else time.monotonic() + seconds
    for report in _reports(seeds, jobs, focus):
        campaign.add(report)
        if tell is not None:
            tell(campaign, report)
        if deadline is not None and time.monotonic() > deadline:
            break
        if stop_after is not None and len(campaign.failures) >= stop_after:
            break
    return campaign


def _reports(seeds: Sequence[int], jobs: int, focus: Focus | None) -> Iterator[Report]:
    schema_image()
    one = partial(run_seed, focus=focus)
    if jobs <= 1:
        yield from map(one, seeds)
        return
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        yield from pool.imap_unordered(one, seeds, chunksize=CHUNK)


def never_met(campaign: Campaign) -> list[str]:
    """Kinds of trouble and `sometimes` marks that no seed met."""
    kinds = {*BASE_RATES, *STORE_RATES, *NODE_RATES, *KINDS}
    return sorted((kinds | set(MARKS)) - (+campaign.counts).keys() - campaign.reached.keys())


def never_died_at(campaign: Campaign) -> list[str]:
    """Crash points that were passed, and nobody died there."""
    return sorted(campaign.passes.keys() - campaign.crashes.keys())


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.mutants:
        return _all_mutants(options)
    with applied(options.mutant):
        if options.seed is not None:
            return _show(options.seed, _focus(options), verbose=options.verbose)
        return _many(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m corral.testing.world", description="Seeded simulation of Corral.")
    parser.add_argument("--seeds", type=int, default=1000, metavar="N", help="how many seeds to run (1000)")
    parser.add_argument("--first", type=int, default=0, metavar="S", help="the first of them (0)")
    parser.add_argument("--seconds", type=float, help="stop after so long, however many seeds were run")
    cpus = len(os.sched_getaffinity(0))
    parser.add_argument("--jobs", type=int, default=cpus, help=f"processes (one per processor: {cpus})")
    parser.add_argument("--mutant", choices=sorted(MUTANTS), help="leave this rule out")
    parser.add_argument("--focus", choices=sorted(FOCUS), help="look where this mutant is looked for")
    parser.add_argument("--mutants", action="store_true", help="try each mutant with up to --seeds seeds")
    parser.add_argument("--seed", type=int, metavar="S", help="run this one seed and tell of it")
    parser.add_argument("--verbose", action="store_true", help="with --seed: the last steps too")
    return parser


def _focus(options: argparse.Namespace) -> Focus | None:
    return MUTANTS[options.mutant or options.focus].focus if options.mutant or options.focus else None


def _show(seed: int, focus: Focus | None, *, verbose: bool) -> int:
    world = World(seed, traced=True, focus=focus)
    report = world.run()
    print(f"seed {seed}: {world.site.size}")
    print(f"{report.steps} steps, {report.lasted_s:.0f} s, {report.starts} starts, digest {report.digest}")
    print("nemesis:", ", ".join(sorted(world.nemesis.kinds)) or "none")
    if verbose:
        print("\n".join(report.lines[-SHOWN_LINES:]))
    print(report.failure or "all held")
    return 1 if report.failure else 0


def _many(options: argparse.Namespace) -> int:
    telling = _Telling(options)
    campaign = run_seeds(
        range(options.first, options.first + options.seeds),
        jobs=options.jobs,
        seconds=options.seconds,
        focus=_focus(options),
        tell=telling.hear,
    )
    took_s = time.monotonic() - telling.began
    print(
        f"{campaign.seeds} seeds in {took_s:.1f} s ({campaign.seeds / took_s * 60:.0f} per minute), "
        f"{campaign.starts} starts, {campaign.steps} steps, {len(campaign.failures)} failed"
    )
    print("what befell:", _listed(campaign.counts))
    print("crash points:", _listed(campaign.crashes))
    print("sometimes:", _listed(campaign.reached))
    plain = options.mutant is None and options.focus is None
    missed = never_met(campaign) + never_died_at(campaign) if plain and campaign.seeds >= ENOUGH else []
    if missed:
        print("NEVER REACHED:", ", ".join(missed))
    return 1 if campaign.failures or missed else 0


class _Telling:
    """Each failure when it is found, and now and then how far it is."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.began = self._told = time.monotonic()
        self._seeds: int = options.seeds
        named = (("mutant", options.mutant), ("focus", options.focus))
        self._under = "".join(f" --{name} {value}" for name, value in named if value)

    def hear(self, campaign: Campaign, report: Report) -> None:
        if report.failure is not None and len(campaign.failures) <= SHOWN_FAILURES:
            print(f"seed {report.seed} FAILED: {report.failure}", flush=True)
            print(f"  again: python -m corral.testing.world --seed {report.seed}{self._under} --verbose", flush=True)
        now = time.monotonic()
        if now - self._told >= TOLD_EVERY_S:
            self._told = now
            pace = campaign.seeds / (now - self.began)
            left = f"{campaign.seeds} of {self._seeds} seeds, {pace * 60:.0f} per minute"
            print(f"{left}, {len(campaign.failures)} failed", file=sys.stderr, flush=True)


def _all_mutants(options: argparse.Namespace) -> int:
    """A table of what each rule left out took to be found."""
    missed: list[str] = []
    for name, mutant in MUTANTS.items():
        with applied(name):
            campaign = run_seeds(
                range(options.first, options.first + options.seeds), jobs=options.jobs, stop_after=1, focus=mutant.focus
            )
        found = campaign.failures[0].failure or "" if campaign.failures else "NOT FOUND"
        missed += [] if campaign.failures else [name]
        print(f"{mutant.rule:8} {name:26} {campaign.seeds:5}  {found[:140]}", flush=True)
    return 1 if missed else 0


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


if __name__ == "__main__":
    sys.exit(main())
