"""What a user asks for: the one description of a session, the same on every backend.

A spec is immutable once accepted. `validate` refuses what makes no sense, before anything is stored; it knows nothing
of clusters, so that "no node can ever do this" is said elsewhere (scheduling.explaining.explain).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from corral.model.faults import Invalid
from corral.model.resources import MAX_AMOUNT, Resources

MAX_RANKS = 4096
MAX_ARGUMENT_BYTES = 128 * 1024  # Linux: one argument or variable (MAX_ARG_STRLEN)
MAX_SPEC_BYTES = 1024 * 1024
MAX_ENTRIES = 1024  # variables, labels, mounts, ports each
MAX_RETRIES = 1000
CONTINUATIONS, MAX_CONTINUATIONS = 1000, 9_999
MOST_PREFERRED = 16  # labels that it would rather have: so that what a node meets of them is one exact number
MAX_SECONDS = 10 * 365 * 86400
PRIORITY_LIMIT = 1_000_000

NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")
PROJECT = re.compile(r"^(?=.{1,128}\Z)[A-Za-z0-9][A-Za-z0-9._-]*(?:/[A-Za-z0-9][A-Za-z0-9._-]*){0,7}\Z")
LABEL_KEY = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,127}\Z")
VARIABLE = re.compile(r"^[A-Za-z_][A-Za-z0-9_]{0,255}\Z")
WARN_SIGNALS = ("HUP", "INT", "QUIT", "USR1", "USR2", "TERM", "CONT", "ALRM")
UNREADABLE = "unreadable"  # the option that names the content kept of a spec that could not be read
SYSTEM_VARIABLES = ("CORRAL_",)  # reserved for what Corral itself tells the process


class Kind(StrEnum):
    BATCH = "batch"
    INTERACTIVE = "interactive"
    SERVICE = "service"


class OutcomeRule(StrEnum):
    """Which exits decide how a session of several ranks ended (docs/submitting.md)."""

    ANY_FAILURE = "any-failure"
    MAIN_ONLY = "main-only"
    ALL = "all"


class OnNodeLoss(StrEnum):
    HOLD = "hold"
    FAIL = "fail"
    REQUEUE = "requeue"


@dataclass(frozen=True, slots=True)
class Mount:
    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class EarlySignal:
    """A signal sent `before_s` seconds before the time limit (`--signal USR1@120`), and instead of SIGTERM to one that
    makes way for others."""

    signal: str
    before_s: int


@dataclass(frozen=True, slots=True)
class SessionSpec:
    """Everything a session carries (A9). Amounts are per rank; sizes and times in the units of their names.

    `script`, `upload` and `bootstrap` are digests (`sha256:…`) of content stored at submit; with a script, `command`
    holds its arguments. `begin` is a text for `model.begin`, `after` are those of `model.dependency`,
    `array` those indices that `model.indices` reads.
    """

    command: tuple[str, ...] = ()
    name: str = ""
    kind: Kind = Kind.BATCH
    project: str = "default"
    group: str | None = None
    priority: int = 0
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    resources: Resources = Resources()
    nodes: int = 1
    ranks_per_node: int = 1
    exclusive: bool = False
    on_labels: Mapping[str, str] = field(default_factory=dict[str, str])
    on_nodes: tuple[str, ...] = ()
    not_nodes: tuple[str, ...] = ()
    prefer: tuple[tuple[str, str], ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    workdir: str | None = None
    script: str | None = None
    upload: str | None = None
    bootstrap: str | None = None
    mounts: tuple[Mount, ...] = ()
    ports: Mapping[str, int] = field(default_factory=dict[str, int])
    time_limit_s: int | None = None
    grace_s: int = 30
    early_signal: EarlySignal | None = None
    retries: int = 0
    continuations: int = CONTINUATIONS
    requeue: bool = True
    preemptible: bool | None = None
    on_node_loss: OnNodeLoss = OnNodeLoss.HOLD
    outcome_rule: OutcomeRule = OutcomeRule.ANY_FAILURE
    image: str | None = None
    runtime: str = "process"
    hold: bool = False
    begin: str | None = None
    after: tuple[str, ...] = ()
    array: str | None = None
    env_compat: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def ranks(self) -> int:
        return self.nodes * self.ranks_per_node


def validate(spec: SessionSpec) -> SessionSpec:
    """The spec itself, or `Invalid` naming the first field that makes no sense and what would be accepted."""
    _validate_command(spec)
    _validate_sizes(spec)
    _validate_times(spec)
    _validate_names(spec)
    _validate_environment(spec)
    return spec


def _validate_command(spec: SessionSpec) -> None:
    if not spec.command and spec.script is None:
        raise Invalid("no_command", "a session needs a command (after --) or a script")
    if spec.command and not spec.script and not spec.command[0]:
        raise Invalid("no_command", "the command's first word is empty")
    for index, argument in enumerate(spec.command):
        _plain_text(argument, f"argument {index}")


def _validate_sizes(spec: SessionSpec) -> None:
    resources = spec.resources
    if not resources.cpu_milli:
        raise Invalid(
            "out_of_range", "cpus is 0; nothing runs without: ask for a part of one, like 0.1 (1 if not said)"
        )
    if not resources.memory_mib:
        raise Invalid("out_of_range", "memory is 0; nothing runs without: ask for some, like 64MiB (1GiB if not said)")
    _between("cpus", resources.cpu_milli, 1, MAX_AMOUNT)
    _between("memory", resources.memory_mib, 1, MAX_AMOUNT)
    _between("nodes", spec.nodes, 1, MAX_RANKS)
    _between("ranks-per-node", spec.ranks_per_node, 1, MAX_RANKS)
    _between("nodes x ranks-per-node", spec.ranks, 1, MAX_RANKS)
    _between("priority", spec.priority, -PRIORITY_LIMIT, PRIORITY_LIMIT)
    gpu = resources.gpu
    if gpu is not None:
        _between("gpus", gpu.count, 1, 1024)
        _between("gpu share", gpu.share_milli, 0 if gpu.vram_mib else 1, 1000)
        _between("vram", gpu.vram_mib, 0, MAX_AMOUNT)
        if not gpu.whole and gpu.count != 1:
            raise Invalid("bad_gpus", "a share is of one GPU; ask for one share per rank, or for whole GPUs")


def _validate_times(spec: SessionSpec) -> None:
    if spec.time_limit_s is not None:
        _between("time", spec.time_limit_s, 1, MAX_SECONDS)
    _between("grace", spec.grace_s, 0, 86400)
    _between("retries", spec.retries, 0, MAX_RETRIES)
    _between("continuations", spec.continuations, 0, MAX_CONTINUATIONS)
    if spec.early_signal is not None:
        if spec.early_signal.signal not in WARN_SIGNALS:
            raise Invalid("bad_signal", f"signal {spec.early_signal.signal!r} is not one of {', '.join(WARN_SIGNALS)}")
        longest_s = MAX_SECONDS if spec.time_limit_s is None else spec.time_limit_s
        _between("signal's seconds", spec.early_signal.before_s, 0, longest_s)


def _validate_names(spec: SessionSpec) -> None:
    if spec.name and not NAME.match(spec.name):
        raise Invalid("bad_name", f"name {spec.name[:80]!r}: letters, digits, '.', '_' and '-', at most 128 of them")
    if not PROJECT.match(spec.project):
        raise Invalid("bad_project", f"project {spec.project[:80]!r} is not a name, nor names like vision/detect")
    for what, value in (("group", spec.group), ("runtime", spec.runtime)):
        if value is not None and not NAME.match(value):
            raise Invalid(f"bad_{what}", f"{what} {value[:80]!r} is not a name")
    for what, labels in (("label", spec.labels), ("on", spec.on_labels), ("option", spec.options)):
        _few(what, len(labels))
        _validate_labels(what, labels.items())
    if len(spec.prefer) > MOST_PREFERRED:
        raise Invalid("too_many", f"{len(spec.prefer)} different entries of --prefer; at most {MOST_PREFERRED}")
    _validate_labels("prefer", spec.prefer)
    for node in (*spec.on_nodes, *spec.not_nodes):
        if not NAME.match(node):
            raise Invalid("bad_node_name", f"{node[:80]!r} is not the name of a node")
    if both := set(spec.on_nodes) & set(spec.not_nodes):
        raise Invalid("contradiction", f"node {min(both)!r} is both asked for and excluded")


def _validate_labels(what: str, labels: Iterable[tuple[str, str]]) -> None:
    for key, value in labels:
        if not LABEL_KEY.match(key):
            raise Invalid("bad_label", f"--{what} {key[:80]!r} is not a key")
        _plain_text(value, f"the value of {what} {key}", limit=1024)


def _validate_environment(spec: SessionSpec) -> None:
    _few("env", len(spec.environment))
    for key, value in spec.environment.items():
        if not VARIABLE.match(key):
            raise Invalid("bad_variable", f"{key[:80]!r} is not the name of an environment variable")
        if key.startswith(SYSTEM_VARIABLES):
            raise Invalid("reserved_variable", f"{key}: names that begin with CORRAL_ are set by Corral itself")
        _plain_text(value, f"variable {key}")
    _few("mount", len(spec.mounts))
    for mount in spec.mounts:
        for path in (mount.source, mount.target):
            _absolute(path, "mount")
    _few("port", len(spec.ports))
    for name, port in spec.ports.items():
        if not NAME.match(name):
            raise Invalid("bad_port", f"{name[:80]!r} is not the name of a port")
        _between(f"port {name}", port, 1, 65535)
    if spec.workdir is not None:
        _absolute(spec.workdir, "workdir")
    if bad := set(spec.env_compat) - {"slurm", "backendai"}:
        raise Invalid("bad_env_compat", f"--env-compat {min(bad)!r}: slurm or backendai")


def _between(what: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise Invalid("out_of_range", f"{what} is {value}; it must be between {low} and {high}")


def _few(what: str, count: int) -> None:
    if count > MAX_ENTRIES:
        raise Invalid("too_many", f"{count} entries of --{what}; at most {MAX_ENTRIES}")


def _absolute(path: str, what: str) -> None:
    _plain_text(path, what, limit=4096)
    if not path.startswith("/") or ".." in path.split("/"):
        raise Invalid("bad_path", f"--{what} {path[:80]!r}: an absolute path without '..'")


def _plain_text(text: str, what: str, limit: int = MAX_ARGUMENT_BYTES) -> None:
    """What the kernel will accept as one argument: no NUL, encodable, not endless."""
    if "\x00" in text:
        raise Invalid("nul_byte", f"{what} contains a NUL byte, which no program can be given")
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError:
        raise Invalid("not_text", f"{what} is not valid Unicode text") from None
    if size >= limit:
        raise Invalid("too_long", f"{what} is {size} bytes long; at most {limit - 1}")
