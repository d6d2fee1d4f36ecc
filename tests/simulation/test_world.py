"""Production managers, agents and shims in simulated worlds: seeds that once failed, fresh ones, each crash point, and
every rule left out once.

How long fresh seeds are run is for `--sim-seconds` to say (150).
"""

from __future__ import annotations

import importlib
import inspect
import os
import random
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from corral import agent, server, testing
from corral.agent import shim
from corral.testing.mutants import FOCUS, MUTANTS, SELDOM_MET, applied
from corral.testing.sim_world import World
from corral.testing.site import Size
from corral.testing.world import MARKS, Campaign, never_met, run_seeds
from tests.simulation.scripted_node import ScriptedNode

ROOT = Path(__file__).parent.parent.parent
CORPUS = [line.split(maxsplit=2) for line in (Path(__file__).parent / "corpus.txt").read_text().splitlines()[1:]]
SEEDS_PER_MUTANT = 1500  # most are found by the first; those without a focus of their own can be rare
WORLDS_PER_POINT = 300  # most points are passed in each world, few in one of fifty
SEEDS_AT_ONCE, MOST_SEEDS, SEEDS_WHERE_MET = 200, 4000, 12
SLOW = {"late_registrations_count"}
TRANSACTIONS = (
    "place", "claim", "exchange", "register", "settle due sessions", "mark silent nodes", "seen member", "prune",
    "count usage", "unfold arrays", "preempt", "defragment", "drop pins",
    "submit", "cancel", "hold", "release", "requeue", "update", "confirm dead",
    "set quota", "delete quota", "create reservation", "delete reservation", "settle dependents",
    "create group", "change group", "pause group", "resume group", "delete group",
)  # fmt: skip
CPUS = len(os.sched_getaffinity(0))
OF_THE_NODE = sorted(
    name
    for path in Path(agent.__path__[0]).glob("[!_]*.py")
    for name in getattr(importlib.import_module(f"corral.agent.{path.stem}"), "CRASH_POINTS", ())
)
POINTS = (*OF_THE_NODE, *(f"{point} {name}" for point in server.CRASH_POINTS for name in TRANSACTIONS))
WHERE = {"agent.before_lost": "death_is_not_proven"} | {
    f"{point} {name}": focus
    for point in server.CRASH_POINTS
    for name, focus in (
        ("confirm dead", "permission_never_expires"),
        ("preempt", "pins_stay"),
        ("defragment", "movers_have_no_room"),
        ("drop pins", "manager.pins_are_over"),
        ("settle dependents", "dependents_go_early"),
        *((f"{verb} group", "pause_is_no_barrier") for verb in ("create", "change", "pause", "resume", "delete")),
    )
}

pytestmark = pytest.mark.simulation


@pytest.mark.parametrize("entry", CORPUS, ids=lambda entry: f"{entry[0]}-{entry[1]}")
def test_what_once_failed(entry: list[str]) -> None:
    seed, focus, _ = entry
    assert World(int(seed), focus=(FOCUS | SELDOM_MET).get(focus)).run().failure is None


@pytest.mark.slow
@pytest.mark.timeout(0)  # each seed is bounded by its steps
def test_fresh_seeds(pytestconfig: pytest.Config) -> None:
    """Others each time. One that fails is named, and does the same again wherever the code is the same."""
    first = random.SystemRandom().randrange(10**6, 10**9)
    seconds = float(pytestconfig.getoption("--sim-seconds") or 150)
    campaign = run_seeds(range(first, first + 10**6), jobs=CPUS, seconds=seconds)
    shown = [f"python -m corral.testing.world --verbose --seed {r.seed}: {r.failure}" for r in campaign.failures]
    assert not shown
    assert campaign.starts > campaign.seeds


# --- nothing is left out


@pytest.fixture(scope="module")
def enough() -> Campaign:
    """Seeds from 0 on, until everything that can happen has happened; what is seldom is looked for where it is not."""
    campaign, plain = Campaign(), 0
    while plain < MOST_SEEDS and never_met(campaign):
        campaign.join(run_seeds(range(plain, plain + SEEDS_AT_ONCE), jobs=CPUS))
        plain += SEEDS_AT_ONCE
        for mark in sorted(SELDOM_MET.keys() & never_met(campaign)):
            campaign.join(run_seeds(range(SEEDS_WHERE_MET), jobs=CPUS, focus=SELDOM_MET[mark]))
    return campaign


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_kind_of_trouble_and_every_mark_is_met(enough: Campaign) -> None:
    assert never_met(enough) == []
    assert [report.failure for report in enough.failures] == []


def test_crash_points_have_the_names_of_real_processes(enough: Campaign) -> None:
    assert {point.split(" ")[0] for point in enough.passes} == {*OF_THE_NODE, *server.CRASH_POINTS}


def test_no_transaction_is_left_out(enough: Campaign) -> None:
    assert {point.partition(" ")[2] for point in enough.passes} - {""} == set(TRANSACTIONS)


def test_every_mark_is_known() -> None:
    sources = "".join(path.read_text() for path in Path(testing.__path__[0]).glob("*.py"))
    calls = re.findall(r"\.sometimes\((.*)\)", sources)
    named = {name for call in calls for name in re.findall(r'(?<!f)"([a-z_.]+)"', call)}
    families = {prefix for call in calls for prefix in re.findall(r'f"([a-z_.]+)\{', call)}
    assert families == {"shim.", "user.refused."}
    words = {f"shim.{word}" for word in re.findall(r'return "(\w+)"', inspect.getsource(shim.supervise))}
    refused = {mark for mark in MARKS if mark.startswith("user.refused.")}
    assert set(MARKS) == named | words | refused


@pytest.mark.parametrize("point", POINTS)
def test_a_death_at_each_point_is_survived(point: str) -> None:
    """Whoever passes first dies, and again whoever passes third, in the first worlds where somebody does."""
    died = 0
    for seed in range(WORLDS_PER_POINT):
        world = World(seed, focus=(FOCUS | SELDOM_MET).get(WHERE.get(point, "")))
        world.faults.plan_crash(point, 1)
        world.faults.plan_crash(point, 3)
        report = world.run()
        assert report.failure is None, f"seed {seed}"
        died += report.crashes[point]
        if died >= 2:
            return
    raise AssertionError(f"{point} was passed {died} times in {WORLDS_PER_POINT} worlds")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in MUTANTS]
)
def test_a_rule_left_out_is_found(name: str) -> None:
    with applied(name):
        campaign = run_seeds(range(SEEDS_PER_MUTANT), jobs=CPUS, stop_after=1, focus=MUTANTS[name].focus)
    assert campaign.failures, f"rule {MUTANTS[name].rule} ({MUTANTS[name].left_out}) was left out, and nothing failed"


@pytest.mark.parametrize("name", FOCUS)
def test_with_the_rule_in_force_its_focus_holds(name: str) -> None:
    campaign = run_seeds(range(100, 108), focus=FOCUS[name])
    assert [report.failure for report in campaign.failures] == []


def test_a_mutant_leaves_production_as_it_was() -> None:
    before = [(patch.target, patch.name, patch.target.__dict__[patch.name]) for patch in _patches()]
    for name in MUTANTS:
        with applied(name):
            pass
    assert all(target.__dict__[name] is value for target, name, value in before)


def _patches():
    return [patch for mutant in MUTANTS.values() for patch in mutant.patches()]


@pytest.mark.parametrize("seed", range(40))
def test_managers_alone(seed: int) -> None:
    """Against a node that is a page of script: what fails here is the managers' own."""
    assert World(seed, make_node=ScriptedNode).run().failure is None


# --- a seed always does the same


def test_a_seed_repeats_in_every_interpreter() -> None:
    seeds = [str(seed) for seed in range(8)]
    program = "import sys\nfrom corral.testing.sim_world import World\nfor seed in sys.argv[1:]:\n    " + (
        "print(seed, World(int(seed), traced=True).run().digest)\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program, *seeds],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
            text=True,
            timeout=100,
        ).stdout
        for hash_seed in ("0", "1", "2")
    }
    assert len(outputs) == 1
    assert outputs.pop() == "".join(f"{seed} {World(int(seed), traced=True).run().digest}\n" for seed in seeds)


@pytest.mark.parametrize("seed", range(6))
def test_no_decision_hangs_on_a_wall_clock(seed: int) -> None:
    """EP4: hours of skew between the machines change nothing of what happens, and when."""
    story = _story(seed, 0.0)
    assert len(story) > 20
    assert story == _story(seed, 3600.0 * 5)


def _story(seed: int, skew_s: float) -> list[tuple[object, ...]]:
    size = replace(Size.draw(random.Random(f"{seed}:world")), skew_s=skew_s, sessions=6)
    world = World(seed, size=size)
    rows: list[tuple[object, ...]] = []
    select = "SELECT at, session, seq, fact, target, attempt, by_whom FROM event ORDER BY id"
    world.checkers.at_the_end = lambda: rows.extend(world.site.database.raw.execute(select))
    assert world.run().failure is None
    return rows
