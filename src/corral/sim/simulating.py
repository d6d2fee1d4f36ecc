"""From words and files to replays: what `corral simulate` asks for, checked before anything runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from corral.model.faults import Invalid
from corral.model.quota import NO_QUOTAS, Quotas
from corral.plugins import offer_policies
from corral.scheduling.policies.registry import placement_policy
from corral.scheduling.snapshot import Shape
from corral.sim.clusters import Cluster
from corral.sim.files import read_text
from corral.sim.fleets import UNKNOWN, Machines, machines_from, machines_of
from corral.sim.grouped import quotas_of
from corral.sim.history import corral
from corral.sim.jobs import Job
from corral.sim.nodeevents import NodeEvent, node_events
from corral.sim.policies import policy_of
from corral.sim.replay import Replay, Replayed
from corral.sim.room import FleetRoom
from corral.sim.traces import Reader, muri, openb, philly, swf

READERS: Mapping[str, Reader] = {"muri": muri, "philly": philly, "openb": openb, "swf": swf, "corral": corral}
NEVER_FITS = "larger than the fleet"
MOST_FACTOR = 1000.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """`nodes` in words or `fleet` as a file; neither only where the trace names its machine. `limit_factor`: what the
    scheduler knows of a run time is so many times as long, where the trace has no time limit; 0: nothing."""

    trace: Path | None
    format: str = "auto"
    nodes: str | None = None
    fleet: Path | None = None
    placement: str = "pack"
    limit_factor: float = 1.0
    node_events: Path | None = None
    checkpoint_s: float = 0.0
    round_s: float = 0.0
    quotas: Path | None = None
    history: Cluster | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """`left_out` counts rows of the trace that are not replayed, by why; `notes` say what is replayed otherwise."""

    name: str
    jobs: tuple[Job, ...]
    left_out: Mapping[str, int]
    machines: Machines
    events: tuple[NodeEvent, ...]
    placement: str
    checkpoint_s: float
    round_s: float = 0.0
    notes: tuple[str, ...] = ()
    quotas: Quotas = NO_QUOTAS

    def replay(self, policy: str) -> Replayed:
        chosen = policy_of(policy, self.placement, self.quotas)
        run = Replay(self.machines, chosen, placement=self.placement, node_events=self.events,
                     checkpoint_s=self.checkpoint_s, round_s=self.round_s)  # fmt: skip
        return run.run(self.jobs)


def prepare(wanted: Wanted, policies: Sequence[str]) -> Prepared:
    """Everything read and checked, or `Invalid` that says what is wrong and where."""
    offer_policies()
    quotas = NO_QUOTAS if wanted.quotas is None else quotas_of(read_text(wanted.quotas), wanted.quotas.name)
    for policy in policies:
        policy_of(policy, wanted.placement, quotas)
    if not 0 <= wanted.limit_factor <= MOST_FACTOR:
        raise Invalid("bad_limit_factor", f"--limit-factor {wanted.limit_factor} is not between 0 and {MOST_FACTOR:g}")
    placement_policy(wanted.placement)
    name, text, reader = _trace(wanted)
    machines = _machines(wanted)
    trace = reader(name, text, machines.per_node if machines else UNKNOWN)
    if machines is None:
        if trace.cpus is None:
            raise Invalid("no_fleet", f"{name} does not say what it ran on; name a fleet with --nodes or --fleet")
        machines = machines_of(f"1x{trace.cpus}cpus")
    events = () if wanted.node_events is None else node_events(
        wanted.node_events.name, read_text(wanted.node_events), machines
    )  # fmt: skip
    zero_s = min((job.submitted_s for job in trace.jobs), default=0.0)
    known = [_limited(replace(job, submitted_s=job.submitted_s - zero_s), wanted.limit_factor) for job in trace.jobs]
    known, notes = _in_known_groups(known, machines)
    jobs, too_large = _that_fit(known, machines, wanted.placement)
    left_out = Counter(trace.left_out) + Counter({NEVER_FITS: too_large})
    if not jobs:
        why = ", ".join(f"{count} {why}" for why, count in sorted(left_out.items())) or "the trace has no job"
        raise Invalid("nothing_to_run", f"{name}: nothing to run on this fleet: {why}")
    return Prepared(
        name,
        jobs,
        left_out,
        machines,
        events,
        wanted.placement,
        wanted.checkpoint_s,
        wanted.round_s,
        notes,
        quotas,
    )


def _machines(wanted: Wanted) -> Machines | None:
    if wanted.nodes is not None and wanted.fleet is not None:
        raise Invalid("two_fleets", "give --nodes or --fleet, not both")
    if wanted.fleet is not None:
        return machines_from(wanted.fleet.name, read_text(wanted.fleet))
    if wanted.nodes is not None:
        return machines_of(wanted.nodes)
    return None if wanted.history is None else wanted.history.machines()


def _trace(wanted: Wanted) -> tuple[str, str, Reader]:
    """Its name, its text and what reads it."""
    if (wanted.trace is None) == (wanted.history is None):
        raise Invalid("no_trace", "name a TRACE, or say --history for what the control plane had; one of them")
    if wanted.history is not None:
        return "history", wanted.history.sessions, corral
    assert wanted.trace is not None
    text = read_text(wanted.trace)
    return wanted.trace.name, text, READERS[_format(wanted.trace, wanted.format, text)]


def _format(trace: Path, format_: str, text: str) -> str:
    """The reader's name: as said, or by what the file begins with."""
    if format_ != "auto":
        return format_
    head = next((line.strip() for line in text.splitlines() if line.strip()), "")
    if head.startswith(";") or ".swf" in trace.suffixes:
        return "swf"
    if head.startswith(("[", "{")):
        return "corral"
    marks = (("iterations", "muri"), ("gpu_milli", "openb"), ("cluster", "philly"))
    found = next((name for mark, name in marks if mark in head.split(",")), None)
    if found is None:
        raise Invalid("unknown_format", f"{trace.name} begins like no known trace; say --format {'|'.join(READERS)}")
    return found


def _limited(job: Job, factor: float) -> Job:
    """A job that ends at its time limit at the latest, and whose limit is known as far as it should be."""
    if job.limit_s is None:
        return replace(job, limit_s=job.run_s * factor) if factor else job
    return replace(job, run_s=min(job.run_s, job.limit_s))


def _in_known_groups(jobs: Sequence[Job], machines: Machines) -> tuple[list[Job], tuple[str, ...]]:
    """The jobs, those of a group that the fleet lacks free to go anywhere; and a note of them."""
    groups = {node.group for node in machines.nodes}
    lacking = Counter(job.shape.group for job in jobs if job.shape.group is not None and job.shape.group not in groups)
    if not lacking:
        return list(jobs), ()
    free = [replace(job, shape=replace(job.shape, group=None)) if job.shape.group in lacking else job for job in jobs]
    named = ", ".join(repr(group)[:80] for group in sorted(str(group) for group in lacking)[:5])
    count = lacking.total()
    return free, (f"{count} of the trace go anywhere: the fleet has no resource group {named}",)


def _that_fit(jobs: Sequence[Job], machines: Machines, placement: str) -> tuple[tuple[Job, ...], int]:
    """The jobs that the empty fleet has room for, and how many are larger."""
    room = FleetRoom(machines, placement)
    fits: dict[Shape, bool] = {}
    for job in jobs:
        if job.shape not in fits:
            places = room.place(job.shape)
            fits[job.shape] = places is not None
            if places is not None:
                room.give_back(places)
    fitting = tuple(job for job in jobs if fits[job.shape])
    return fitting, len(jobs) - len(fitting)
