"""What the control plane answers and what it is asked, as typed dictionaries: the JSON itself, nothing lost in between.

Times are RFC 3339 texts in UTC. Fields that a newer control plane adds are there too, untyped.
"""

from __future__ import annotations

from typing import Any, TypedDict


class SessionFields(TypedDict, total=False):
    """What to submit. Names are those of the CLI's options; amounts as people write them (`"4GiB"`, `"A100:2"`)."""

    command: list[str]
    script: str
    name: str
    project: str
    group: str
    profile: str
    priority: int
    labels: dict[str, str]
    cpus: float | str
    memory: int | str
    gpus: float | str
    vram: int | str
    gpu_arch: str
    gpu_model: str
    nodes: int
    ranks_per_node: int
    exclusive: bool
    on: dict[str, str]
    prefer: list[str] | dict[str, str]
    node: list[str]
    not_node: list[str]
    time: int | str
    begin: str
    after: list[str]
    array: str
    retries: int
    continuations: int
    requeue: bool
    preemptible: bool
    signal: str
    grace: int | str
    on_node_loss: str
    outcome_rule: str
    image: str
    runtime: str
    mounts: list[str]
    env: dict[str, str]
    workdir: str
    upload: str
    bootstrap: str
    interactive: bool
    service: bool
    ready_http: str
    ports: dict[str, int]
    idle_timeout: int | str
    max_lifetime: int | str
    hold: bool
    right_size: bool
    env_compat: list[str]
    options: dict[str, str]
    idempotency_key: str


class Reason(TypedDict):
    code: str
    message: str


class Refusal(TypedDict):
    code: str
    message: str
    counts: dict[str, int]


class SessionResources(TypedDict):
    """Amounts per rank; `gpus` below 1 is a share of one."""

    cpus: float
    memory_mib: int
    gpus: float | None
    vram_mib: int | None
    gpu_model: str | None
    gpu_arch: str | None


class Kernel(TypedDict):
    rank: int
    node: str
    devices: list[str]
    phase: str
    exit_code: int | None
    started_at: str | None
    ended_at: str | None
    token: str


class ArrayPart(TypedDict):
    """`phases` and `outcomes` count the members; `throttle` is how many may live at once."""

    indices: str
    size: int
    throttle: int | None
    phases: dict[str, int]
    outcomes: dict[str, int]


class MemberPart(TypedDict):
    array: str
    index: int


class Session(TypedDict):
    """Or an array, which has `array`; a member of one has `member`."""

    id: str
    name: str
    kind: str
    project: str
    owner: str
    group: str | None
    priority: int
    phase: str
    outcome: str | None
    exit_class: str | None
    exit_code: int | None
    reason: Reason | None
    cause: Reason | None
    attempt: int
    wanted: str
    submitted_at: str
    started_at: str | None
    ended_at: str | None
    resources: SessionResources
    nodes: int
    ranks: int
    kernels: list[Kernel]
    refusals: list[Refusal]
    position: int | None
    slurm_state: str
    planned_start: str | None
    labels: dict[str, str]
    command: list[str]
    script: str | None
    time_limit_s: int | None
    requeue_of: str | None
    error: str | None
    array: ArrayPart | None
    member: MemberPart | None
    preemptible: bool | None
    preemptions: int
    preempted_for: str | None
    prefer: list[str]
    continuations: int
    most_continuations: int


class SessionPage(TypedDict):
    """One page of sessions, newest first; `next` asks for the following one."""

    sessions: list[Session]
    next: str | None


# `from` is a word of Python's, so this one has the other syntax.
Event = TypedDict(
    "Event",
    {
        "id": int,
        "session": str | None,
        "seq": int,
        "at": str,
        "from": str | None,
        "fact": str,
        "to": str | None,
        "attempt": int,
        "by": str,
        "detail": dict[str, Any],
        "group": str | None,
        "quota": str | None,
    },
)


class Attempt(TypedDict):
    attempt: int
    group: str | None
    live: bool
    placed_at: str | None
    started_at: str | None
    ended_at: str | None
    outcome: str | None
    exit_class: str | None
    exit_code: int | None
    reason: Reason | None
    cause: Reason | None


class Step(TypedDict):
    step: str
    at: str | None
    by: str | None
    detail: dict[str, Any]


class Launch(TypedDict):
    token: str
    attempt: int
    rank: int
    node: str
    node_epoch: int
    run_id: str
    starts: int
    steps: list[Step]


class Launches(TypedDict):
    """Every launch of a session; `double_starts` names tokens that began more than once: there are none."""

    session: str
    launches: list[Launch]
    double_starts: list[str]


class Node(TypedDict):
    name: str
    group: str
    state: str
    schedulable: bool
    epoch: int
    address: str
    cpus: float
    cpus_used: float
    memory_mib: int
    memory_used_mib: int
    devices: int
    labels: dict[str, str]
    runtimes: list[str]
    containment: str
    agent_version: str
    boot_id: str
    seen_at: str
    registered_at: str
    backoff_until: str | None
    foreign: int


class Foreign(TypedDict):
    """A launch that lives on a node and that the ledger does not know."""

    node: str
    token: str
    seen_at: str


class Device(TypedDict):
    node: str
    uuid: str
    index: int
    model: str
    arch: str | None
    capacity_mib: int
    used_mib: int
    used: float
    present: bool


class NodeDetail(TypedDict):
    node: Node
    devices: list[Device]
    sessions: list[str]
    foreign: list[Foreign]


class Freed(TypedDict):
    """The sessions whose room the operator's word gave back."""

    node: str
    sessions: list[str]


class Group(TypedDict):
    """`problem` says why it takes no sessions though it is not paused; `version` counts its changes."""

    name: str
    order: str
    order_options: dict[str, Any]
    placement: str
    placement_options: dict[str, Any]
    options: dict[str, Any]
    backend: str
    nodes: int
    paused: bool
    version: int
    problem: Reason | None


class Share(TypedDict):
    """`entitled` and `used` are fractions of the whole; of `level` the lowest goes next."""

    project: str | None
    owner: str | None
    weight: float
    entitled: float
    used: float
    level: float


class GroupDetail(TypedDict):
    group: Group
    shares: list[Share]


class QuotaLimits(TypedDict):
    """None: not limited."""

    cpus: float | None
    memory_mib: int | None
    gpus: float | None
    vram_mib: int | None
    sessions: int | None
    waiting: int | None
    time_limit_s: int | None


class QuotaUse(TypedDict):
    """What is held by those that a quota counts together; `of` names them."""

    of: str
    cpus: float
    memory_mib: int
    gpus: float
    vram_mib: int
    sessions: int
    waiting: int | None


class Quota(TypedDict):
    """`owner`, `project`, `domain` and `group` say together whom it is about, `*` each one apart."""

    name: str
    of: str
    owner: str | None
    project: str | None
    domain: str | None
    group: str | None
    limits: QuotaLimits
    used: list[QuotaUse]
    version: int


class PolicyOption(TypedDict):
    name: str
    kind: str
    default: Any
    help: str
    choices: list[str]


class InstalledPolicy(TypedDict):
    """`kind`: order or placement."""

    kind: str
    name: str
    help: str
    options: list[PolicyOption]
    problem: Reason | None


class Finding(TypedDict):
    severity: str
    code: str
    subject: str
    message: str


class Diagnosis(TypedDict):
    ok: bool
    findings: list[Finding]
    checked: dict[str, int]


class Version(TypedDict):
    version: str
    api: str
