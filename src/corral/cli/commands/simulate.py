"""`corral simulate`: the scheduler on a simulated fleet in virtual time. Needs no control plane."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from corral.cli.tables import listing, table
from corral.cli.terminal import Terminal
from corral.cli.verbs import SECONDS, TOLD, argument, option, path, verb
from corral.model.faults import Invalid
from corral.model.wording import number_of, span

if TYPE_CHECKING:
    from corral.sim.clusters import Cluster
    from corral.sim.replay import Replayed
    from corral.sim.report import Numbers, Report

FORMATS = ("auto", "muri", "philly", "openb", "swf", "corral")
DEFAULT_POLICY = "fifo"
TIMES = ("ENDED", "COMPLETION", "MEDIAN", "P95", "WAIT", "MEDIAN", "P95", "SLOWDOWN")
LEGEND = """\
COMPLETION  from submit to end: the mean, the median, and the 95th percentile
WAIT        from submit to start, likewise
SLOWDOWN    the mean of completion by run time, of 10s at least; 1 is to run at once
IN USE      part of the fleet's GPUs (its CPUs, if it has none) that jobs held
IDLE        part of it that lay idle while somebody waited"""
LEGEND_LOST = """
PREEMPTED   how often jobs were stopped for others, and MOST of one job
LOST        GPU-hours (CPU-hours) of work that was done again"""


@verb(
    "simulate",
    argument("trace", "[TRACE]", type=path(), required=False),
    option("--policy", "policies", multiple=True, metavar="NAME", help="What decides (fifo); repeat to compare."),
    option("--nodes", metavar="SPEC", help="The fleet: 8x8xV100:32GB, 4x8xA100:80GB+96cpus+1TiB, 1x256cpus."),
    option("--fleet", metavar="FILE", type=path(), help="The fleet as a table: name,cpu_milli,memory_mib,gpu,model."),
    option("--format", "format_", type=click.Choice(FORMATS), default="auto", help="What TRACE is (by its look)."),
    option("--placement", metavar="NAME", default="pack", help="Where it goes (pack)."),
    option("--limit-factor", type=float, default=1.0, metavar="F",
           help="Time limits known: F times the run time, where the trace has none (1); 0: none."),
    option("--node-events", metavar="FILE", type=path(), help="Nodes come and go: at_s,node,event (join|leave|fail)."),
    option("--checkpoint", "checkpoint_s", type=SECONDS, default=0.0, metavar="S",
           help="Work is saved every S seconds, for when a node fails (0: never)."),
    option("--round", "round_s", type=SECONDS, default=0.0, metavar="S",
           help="Decide only every S seconds (0: whenever anything happens)."),
    option("--history", is_flag=True,
           help="What the control plane had, on the nodes that it has, where no fleet is named."),
    option("--database", metavar="URL",
           help="--history out of this database, with nothing asked of a control plane: sqlite:////path/corral.db …"),
    option("--last", metavar="T",
           help="Of it what was submitted in so much time before the newest: 30d."),
    option("--quotas", "quotas_file", metavar="FILE", type=path(),
           help="Quotas as `corral quota list -o json` prints them, for policies group:…"),
    option("--plot", "plot_file", metavar="FILE", type=path(), help="Draw it, as SVG."),
    option("--jobs", "jobs_file", metavar="FILE", type=path(), help="What became of each job, as CSV."),
    formats=TOLD,
)  # fmt: skip
def simulate(
    terminal: Terminal,
    trace: Path | None,
    policies: Sequence[str],
    nodes: str | None,
    fleet: Path | None,
    format_: str,
    placement: str,
    limit_factor: float,
    node_events: Path | None,
    checkpoint_s: float,
    round_s: float,
    history: bool,
    database: str | None,
    last: str | None,
    quotas_file: Path | None,
    plot_file: Path | None,
    jobs_file: Path | None,
) -> None:
    """Replay TRACE on a simulated fleet in virtual time, with the scheduler that runs sessions."""
    from corral.sim.report import report
    from corral.sim.simulating import Wanted, prepare

    names = list(dict.fromkeys(policies)) or [DEFAULT_POLICY]
    had = _history(terminal, database, last, with_nodes=nodes is None and fleet is None) if history else None
    if database is not None and had is None:
        raise Invalid("no_history", "--database says where --history is to come from; say --history too")
    wanted = Wanted(
        trace, format_, nodes, fleet, placement, limit_factor, node_events, checkpoint_s, round_s, quotas_file,
        had,
    )  # fmt: skip
    prepared = prepare(wanted, names)
    replays = [prepared.replay(name) for name in names]
    reports = [report(one) for one in replays]
    if jobs_file is not None:
        _write_jobs(jobs_file, replays)
    if plot_file is not None:
        from corral.sim.plot import plot

        plot_file.write_text(plot(f"{prepared.name} on {number_of(len(prepared.machines.nodes), 'node')}", replays))
    if terminal.as_json:
        terminal.print_json({
            "trace": prepared.name, "jobs": len(prepared.jobs), "left_out": dict(prepared.left_out),
            "notes": list(prepared.notes), "nodes": len(prepared.machines.nodes), "gpus": prepared.machines.gpus,
            "placement": prepared.placement, "policies": [one.as_json() for one in reports],
        })  # fmt: skip
        return
    for note in prepared.notes:
        terminal.note(note)
    for why, count in sorted(prepared.left_out.items()):
        terminal.note(f"{count} of the trace left out: {why}")
    terminal.print(show(prepared.name, len(prepared.machines.nodes), prepared.machines.gpus, reports))


def _history(terminal: Terminal, database: str | None, last: str | None, *, with_nodes: bool) -> Cluster:
    from corral.model.resources import parse_duration_s
    from corral.sim.clusters import Cluster, of_the_last

    length_s = None if last is None else parse_duration_s(last)
    if database is not None:
        from corral.clock import SystemClock
        from corral.sim.stored import cluster_in
        from corral.store import look

        return look(database, SystemClock(), lambda reads: cluster_in(reads, length_s, with_nodes=with_nodes))
    client = terminal.client
    sessions = of_the_last(length_s, client.all_sessions(phase="ended", members=1))
    return Cluster(sessions, *((client.nodes(), client.devices()) if with_nodes else ()))


def show(name: str, nodes: int, gpus: int, reports: Sequence[Report]) -> str:
    fleet = f"{number_of(nodes, 'node')}, {number_of(gpus, 'GPU')}"
    facts = listing([("trace", name), ("jobs", reports[0].all.jobs), ("fleet", fleet)])
    lost = any(one.all.preemptions or one.all.lost_hours for one in reports)
    head = ["POLICY", *TIMES, "IN USE", "IDLE", *(["PREEMPTED", "MOST", "LOST"] if lost else [])]
    rows = [
        [one.policy, *_cells(one.all), f"{one.utilisation:.1%}", f"{one.idle_while_waiting:.1%}",
         *([one.all.preemptions, one.all.most_preemptions, f"{one.all.lost_hours:.0f}h"] if lost else [])]
        for one in reports
    ]  # fmt: skip
    parts = [facts, table(head, rows, right=range(1, len(head))), LEGEND + LEGEND_LOST * lost]
    parts += _parts("SIZE", [(one.policy, one.by_size) for one in reports])
    parts += _parts("OWNER", [(one.policy, one.by_owner) for one in reports])
    return "\n\n".join(parts)


def _parts(title: str, groups: Sequence[tuple[str, Mapping[str, Numbers]]]) -> list[str]:
    """A table by size or owner, the policies below one another; nothing where all are the same."""
    names = list(dict.fromkeys(key for _, by in groups for key in by))
    if len(names) < 2:
        return []
    rows = [[key, policy, *_cells(by[key])] for key in names for policy, by in groups if key in by]
    return [table([title, "POLICY", *TIMES], rows, right=range(2, len(TIMES) + 2))]


def _cells(one: Numbers) -> list[object]:
    times = (one.completion_mean_s, one.completion_median_s, one.completion_p95_s,
             one.wait_mean_s, one.wait_median_s, one.wait_p95_s)  # fmt: skip
    slow = None if one.slowdown_mean is None else f"{one.slowdown_mean:,.1f}"
    ended = str(one.ended) if one.ended == one.jobs else f"{one.ended}/{one.jobs}"
    return [ended, *(None if value is None else _span(value) for value in times), slow]


def _span(seconds: float) -> str:
    """Fine enough to tell policies apart."""
    return span(seconds) if seconds < 86400 else f"{seconds / 86400:.2f}d"


def _write_jobs(file: Path, replays: Sequence[Replayed]) -> None:
    from corral.sim.report import JOB_HEAD, job_rows

    with file.open("w", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(JOB_HEAD)
        for one in replays:
            writer.writerows(job_rows(one))
