"""The options of `submit` and `run`, in one table. Names are the fields of the REST body.

Which of them work is for the control plane to say (`not_available`); here they are only read.
"""

from __future__ import annotations

import textwrap

import click

from corral.cli.verbs import option, path

# Read, and refused by the control plane of this release; not shown, so that nobody builds on them.
NOT_YET = ("profile", "image", "runtime", "interactive", "service", "ready_http", "idle_timeout", "max_lifetime",
           "right_size", "env_compat", "on_node_loss")  # fmt: skip
ONLY = {"runtime": "process", "on_node_loss": "hold"}  # the one value of these that works
MOST_LINE = 106  # of help, within its indentation


def _flag_of(field: str) -> str:
    return "--" + field.replace("_", "-")


def _but(field: str) -> str:
    return f" (but for {ONLY[field]})" if field in ONLY else ""


def _text(field: str, metavar: str, help_: str) -> click.Option:
    return option(_flag_of(field), metavar=metavar, help=help_)


def _texts(field: str, metavar: str, help_: str) -> click.Option:
    return option(_flag_of(field), metavar=metavar, multiple=True, help=f"{help_} (may be repeated).")


def _count(field: str, help_: str) -> click.Option:
    return option(_flag_of(field), type=int, metavar="N", help=help_)


def _switch(field: str, help_: str, *more: str) -> click.Option:
    return option(_flag_of(field), *more, is_flag=True, help=help_)


def _either(field: str, help_: str) -> click.Option:
    name = field.replace("_", "-")
    return option(f"--{name}/--no-{name}", default=None, help=help_)


def _one_of(field: str, words: tuple[str, ...], help_: str) -> click.Option:
    return option(_flag_of(field), type=click.Choice(words), help=help_)


IDENTITY = (
    _text("name", "NAME", "A name for people."),
    _text("project", "NAME", "Project it belongs to."),
    _text("group", "NAME", "Resource group to run in."),
    _text("profile", "NAME", "Resources and image set by an administrator."),
    _count("priority", "Higher goes first, where the group's order looks at it."),
    _texts("label", "K=V", "A label to find it by"),
)
RESOURCES = (
    _text("cpus", "N", "CPUs per rank: 2, 0.5, 500m; default 1."),
    _text("memory", "SIZE", "Memory per rank: 4GiB, 20GB; default 1GiB."),
    _text("gpus", "N|MODEL:N|SHARE", "GPUs per rank: 2, A100:2, or a share: 0.5."),
    _text("vram", "SIZE", "GPU memory: 20GB."),
    _text("gpu_arch", "ARCH", "GPU architecture: sm_86."),
    _text("gpu_model", "MODEL", "GPU model: A100."),
    _count("nodes", "Nodes to run on; default 1."),
    _count("ranks_per_node", "Ranks on each node; default 1."),
    _switch("exclusive", "Share the nodes with nobody."),
    _texts("on", "KEY=VALUE", "Only nodes with this label"),
    _texts("prefer", "KEY=VALUE", "Rather nodes with this label, the dearest first"),
    _texts("node", "NAME", "Only these nodes"),
    _texts("not_node", "NAME", "Never these nodes"),
)
COURSE = (
    _text("time", "DURATION", "Time limit: 90s, 10m, 2h, 1-00:00:00."),
    _text("begin", "TIME", "Not before this time: 18:00, 2026-12-01T08:00, +2h."),
    _texts("after", "ID[:ok|:notok|:any]", "Only after another session ended well, not well, or at all"),
    _text("array", "RANGE[%N]", "One member per number: 0-99%8."),
    _count("retries", "Try again this often when it fails by itself."),
    _count("continuations", "Let it go on this often after exit code 75 or 85; default 1000."),
    _either("requeue", "Whether it may be queued again; default yes."),
    _either("preemptible", "Whether it may be stopped for others; default as its group has it."),
    _text("signal", "SIGNAL[@SECONDS]", "A signal before the time limit: USR1@120."),
    _text("grace", "DURATION", "Between SIGTERM and the end; default 30s."),
    _one_of("on_node_loss", ("hold", "fail", "requeue"), "When its node is gone; default hold."),
    _one_of("outcome_rule", ("any-failure", "main-only", "all"), "Which ranks decide how it ended."),
    _switch("hold", "Submit it held; `release` lets it start."),
)
SURROUNDINGS = (
    _text("image", "REF", "Container image."),
    _one_of("runtime", ("process", "container"), "How to run it; default process."),
    _texts("mount", "SRC:DST[:ro]", "Show a path of the node in another place"),
    _texts("env", "K=V", "An environment variable; K alone copies the caller's"),
    option("--env-file", metavar="FILE", type=path(), multiple=True, help="Variables from a file of K=V lines."),
    _switch("env_all", "Copy the caller's environment."),
    _text("workdir", "DIR", "Directory to run in; default its workspace."),
    option("--upload", metavar="DIR", type=path(), help="Copy a tree into the working directory."),
    option("--bootstrap", metavar="FILE", type=path(), help="A script to run before the command."),
    _texts("env_compat", "slurm|backendai", "Also set another system's variables"),
)
KINDS = (
    _switch("interactive", "A session to work in.", "-it"),
    _switch("service", "Restarted until cancelled."),
    _text("ready_http", "PORT/PATH", "A service is ready once this answers."),
    _texts("port", "NAME:PORT", "A port by name"),
    _text("idle_timeout", "DURATION", "End an interactive session that idles."),
    _text("max_lifetime", "DURATION", "End it after this time in any case."),
)
REQUEST = (
    option("-f", "--file", metavar="FILE", help="Read the request from YAML or JSON; - is stdin."),
    _text("idempotency_key", "KEY", "Repeating with the same key submits nothing new."),
    _switch("dry_run", "Only say what would happen."),
    _switch("right_size", "Let past use choose the resources."),
    option("-q", "--quiet", is_flag=True, help="Print the id and nothing else."),
)
SUBMIT = (*IDENTITY, *RESOURCES, *COURSE, *SURROUNDINGS, *KINDS, *REQUEST)
for _option in SUBMIT:
    _option.hidden = _option.name in NOT_YET
REFUSED = "\b\n" + textwrap.fill(
    f"Not built yet, and refused: {', '.join(_flag_of(field) + _but(field) for field in NOT_YET)}.",
    MOST_LINE, break_on_hyphens=False,
)  # fmt: skip
