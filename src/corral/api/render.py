"""The model as the JSON that docs/sdk.md promises. One function makes a session's; its field names are a promise.

Times are RFC 3339 in UTC, GPUs are named by UUID. Never reads anything: what is not in the arguments is not shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from corral.api.membership import ArrayPart, MemberPart, member_part
from corral.api.waits import refusals_of
from corral.model.lifecycle import ExitClass, Outcome, Phase
from corral.model.node import Device, Holding, Node
from corral.model.resources import Resources
from corral.model.session import Kernel, Session, Why
from corral.ports import EventRow, Foreign, LaunchRow, Reads


class ReasonView(msgspec.Struct):
    code: str
    message: str


class ResourcesView(msgspec.Struct):
    """Amounts per rank. `gpus` is a count, or a share below 1 of one GPU; null: none."""

    cpus: float
    memory_mib: int
    gpus: float | None
    vram_mib: int | None
    gpu_model: str | None
    gpu_arch: str | None


class KernelView(msgspec.Struct):
    rank: int
    node: str
    devices: list[str]
    phase: str
    exit_code: int | None
    started_at: datetime | None
    ended_at: datetime | None
    token: str
    certificate: str | None


class RefusalView(msgspec.Struct):
    code: str
    message: str
    counts: dict[str, int]


class SessionView(msgspec.Struct):
    """`nodes` and `ranks` are how many it asks for; where each runs is in `kernels`. `script` is the digest of a stored
    script, whose arguments are then the `command`. `preempted_for` is whom it is being stopped for, or was. `array` is
    there of an array, `member` of a member of one. `continuations` is how often it went on as its command asked for,
    `most_continuations` how often it may. `planned_start` is when it starts at the latest, if those who run end by
    their limits."""

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
    reason: ReasonView | None
    cause: ReasonView | None
    attempt: int
    wanted: str
    submitted_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    resources: ResourcesView
    nodes: int
    ranks: int
    kernels: list[KernelView]
    refusals: list[RefusalView]
    position: int | None
    slurm_state: str
    labels: dict[str, str]
    command: list[str]
    script: str | None
    time_limit_s: int | None
    requeue_of: str | None
    error: str | None
    preemptible: bool | None = None
    preemptions: int = 0
    preempted_for: str | None = None
    array: ArrayPart | None = None
    member: MemberPart | None = None
    prefer: list[str] = []
    continuations: int = 0
    most_continuations: int = 0
    planned_start: datetime | None = None


class EventView(msgspec.Struct, rename={"from_": "from"}):
    """One line of history; `id` orders all events, `seq` one session's. A resource group's, or a quota's, has no
    phases, and its version as `seq`."""

    id: int
    session: str | None
    seq: int
    at: datetime
    from_: str | None
    fact: str
    to: str | None
    attempt: int
    by: str
    detail: dict[str, Any]
    group: str | None
    quota: str | None


class StepView(msgspec.Struct):
    """One step of a launch: what, when (null: not, or not known), and who wrote it."""

    step: str
    at: datetime | None
    by: str | None
    detail: dict[str, Any]


class LaunchView(msgspec.Struct):
    token: str
    attempt: int
    rank: int
    node: str
    node_epoch: int
    run_id: str
    starts: int
    steps: list[StepView]


class NodeView(msgspec.Struct):
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
    seen_at: datetime
    registered_at: datetime
    backoff_until: datetime | None
    foreign: int


class ForeignView(msgspec.Struct):
    """A launch that lives on the node and that the ledger does not know; kept for a human, never killed."""

    node: str
    token: str
    seen_at: datetime


class DeviceView(msgspec.Struct):
    node: str
    uuid: str
    index: int
    model: str
    arch: str | None
    capacity_mib: int
    used_mib: int
    used: float
    present: bool


class Rows(NamedTuple):
    """What is shown beside the sessions themselves, by session id."""

    kernels: Mapping[str, Sequence[Kernel]] = {}
    holdings: Mapping[str, Sequence[Holding]] = {}
    refusals: Mapping[str, Sequence[Mapping[str, Any]]] = {}
    planned: Mapping[str, float] = {}


def rows_of(reads: Reads, sessions: Iterable[Session]) -> Rows:
    """What must be read to show these sessions; of those that wait, hardly anything."""
    all_ = list(sessions)
    placed = [one.id for one in all_ if one.phase is not Phase.PENDING]
    waiting = [one.id for one in all_ if one.phase is Phase.PENDING]
    return Rows(
        reads.kernels(placed) if placed else {},
        reads.holdings(placed) if placed else {},
        refusals_of(reads, all_, waiting) if waiting else {},
        reads.planned(waiting) if waiting else {},
    )


def session_view(session: Session, rows: Rows, position: int | None = None) -> SessionView:
    spec = session.spec
    return SessionView(
        id=session.id,
        name=spec.name,
        kind=spec.kind,
        project=spec.project,
        owner=session.owner,
        group=session.group,
        priority=session.priority,
        phase=session.phase,
        outcome=session.outcome,
        exit_class=session.exit_class,
        exit_code=session.exit_code,
        reason=_reason(session.reason),
        cause=_reason(session.cause),
        attempt=session.attempt,
        wanted=session.wanted,
        submitted_at=_time(session.submitted_at),
        started_at=time_or_none(session.started_at),
        ended_at=time_or_none(session.ended_at),
        resources=resources_view(spec.resources),
        nodes=spec.nodes,
        ranks=spec.ranks,
        kernels=_kernel_views(rows.kernels.get(session.id, ()), rows.holdings.get(session.id, ())),
        refusals=[_refusal(refusal) for refusal in rows.refusals.get(session.id, ())],
        position=position,
        slurm_state=slurm_state(session),
        labels=dict(spec.labels),
        command=list(spec.command),
        script=spec.script,
        time_limit_s=session.time_limit_s,
        requeue_of=session.requeue_of,
        error=session.error,
        preemptible=spec.preemptible,
        preemptions=session.preemptions,
        preempted_for=session.preempted_for,
        member=member_part(session),
        prefer=[f"{key}={value}" for key, value in spec.prefer],
        continuations=session.continuations,
        most_continuations=spec.continuations,
        planned_start=time_or_none(rows.planned.get(session.id)),
    )


def resources_view(resources: Resources) -> ResourcesView:
    gpu = resources.gpu
    return ResourcesView(
        cpus=resources.cpu_milli / 1000,
        memory_mib=resources.memory_mib,
        gpus=None if gpu is None else (gpu.count if gpu.whole else gpu.share_milli / 1000),
        vram_mib=(gpu.vram_mib or None) if gpu else None,
        gpu_model=gpu.model if gpu else None,
        gpu_arch=gpu.arch if gpu else None,
    )


def _kernel_views(kernels: Sequence[Kernel], holdings: Sequence[Holding]) -> list[KernelView]:
    devices: dict[str, list[str]] = {}
    for holding in holdings:
        if holding.device is not None:
            devices.setdefault(holding.token, []).append(holding.device)
    return [
        KernelView(
            rank=kernel.rank,
            node=kernel.node,
            devices=devices.get(kernel.token, []),
            phase=kernel.phase,
            exit_code=kernel.result.code if kernel.result else None,
            started_at=time_or_none(kernel.ready_at),
            ended_at=time_or_none(kernel.certified_at),
            token=kernel.token,
            certificate=kernel.certificate and kernel.certificate.value,
        )
        for kernel in kernels
    ]


_SLURM_LIVE = {
    Phase.PENDING: "PENDING",
    Phase.PLACED: "CONFIGURING",
    Phase.STARTING: "CONFIGURING",
    Phase.RUNNING: "RUNNING",
    Phase.STOPPING: "COMPLETING",
}
_SLURM_FAILED = {
    ExitClass.TIMEOUT: "TIMEOUT",
    ExitClass.OOM: "OUT_OF_MEMORY",
    ExitClass.LOST: "NODE_FAIL",
    ExitClass.PREEMPTED: "PREEMPTED",
}


def slurm_state(session: Session) -> str:
    """The state Slurm would show."""
    if session.phase is not Phase.ENDED:
        return _SLURM_LIVE[session.phase]
    if session.outcome is Outcome.SUCCEEDED:
        return "COMPLETED"
    if session.outcome is Outcome.CANCELLED:
        return "CANCELLED"
    if session.exit_class is ExitClass.INFRA:
        return "BOOT_FAIL" if session.started_at is None else "NODE_FAIL"
    return _SLURM_FAILED.get(session.exit_class, "FAILED") if session.exit_class else "FAILED"


def event_view(row: EventRow) -> EventView:
    entry = row.entry
    return EventView(row.id, row.session, row.seq, _time(row.at), entry.source, entry.fact, entry.target,
                     entry.attempt, entry.by, dict(entry.detail), row.group, row.quota)  # fmt: skip


def launch_view(row: LaunchRow) -> LaunchView:
    """The chain that shows at most one start: each step, when, and who wrote it."""
    kernel, node = row.kernel, f"node:{row.kernel.node}"
    result = kernel.result
    steps = [
        _step("intent", row.placed_at, row.placed_by, {"node": kernel.node}),
        _step("claim", row.claimed_at, row.claimed_by, {"desired_version": kernel.claimed_version}),
        _step("served", row.served_at, row.claimed_by, {"node_epoch": kernel.node_epoch, "run_id": kernel.run_id}),
        _step("accepted", kernel.accepted_at, node),
        _step("started", kernel.ready_at, node, {"port": kernel.port}),
        _step("result", kernel.result_at, node, {"exit_code": result.code, "exit_class": result.exit_class} if result
              else {}),
        _step("certified", kernel.certified_at, _certifier(kernel),
              {"certificate": kernel.certificate, "reason": kernel.exit_reason}),
        _step("acknowledged", kernel.certified_at, row.certified_by),
    ]  # fmt: skip
    for name, why in (("refused", kernel.refused), ("failed", kernel.failed)):
        if why is not None:
            steps.insert(-2, _step(name, None, node, {"code": why.code, "message": why.message}))
    return LaunchView(
        token=kernel.token,
        attempt=kernel.attempt,
        rank=kernel.rank,
        node=kernel.node,
        node_epoch=kernel.node_epoch,
        run_id=kernel.run_id,
        starts=int(kernel.ready_at is not None),
        steps=steps,
    )


def _step(name: str, at: float | None, by: str | None, detail: Mapping[str, Any] | None = None) -> StepView:
    shown = {key: value for key, value in (detail or {}).items() if value is not None}
    return StepView(name, time_or_none(at), by if at is not None or shown else None, shown)


def _certifier(kernel: Kernel) -> str | None:
    if kernel.certificate is None:
        return None
    own = {"exit": f"node:{kernel.node}", "void": f"node:{kernel.node}", "operator": "operator"}
    return own.get(kernel.certificate, "manager")


def node_view(node: Node, devices: int, foreign: int, now: float) -> NodeView:
    return NodeView(
        name=node.name,
        group=node.group,
        state=node.state,
        schedulable=node.schedulable,
        epoch=node.epoch,
        address=node.address,
        cpus=node.cpu_milli / 1000,
        cpus_used=node.cpu_used_milli / 1000,
        memory_mib=node.memory_mib,
        memory_used_mib=node.memory_used_mib,
        devices=devices,
        labels=dict(node.labels),
        runtimes=list(node.runtimes),
        containment=node.containment,
        agent_version=node.agent_version,
        boot_id=node.boot_id,
        seen_at=_time(node.seen_at),
        registered_at=_time(node.registered_at),
        backoff_until=_time(node.backoff_until) if node.backoff_until > now else None,
        foreign=foreign,
    )


def foreign_view(found: Foreign) -> ForeignView:
    return ForeignView(found.node, found.token, _time(found.seen_at))


def device_view(device: Device) -> DeviceView:
    return DeviceView(device.node, device.uuid, device.index, device.model, device.arch, device.capacity_mib,
                      device.used_mib, device.used_milli / 1000, device.present)  # fmt: skip


def _reason(why: Why | None) -> ReasonView | None:
    return None if why is None else ReasonView(why.code, why.message)


def _refusal(refusal: Mapping[str, Any]) -> RefusalView:
    return RefusalView(str(refusal["code"]), str(refusal.get("message", "")), dict(refusal.get("counts") or {}))


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def time_or_none(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
