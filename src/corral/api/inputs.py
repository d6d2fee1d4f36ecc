"""The bodies that clients send, field by field. Field names are the names of the CLI's options; nothing unknown passes.

Knows shapes only. What the values mean, and whether they make sense, is said in `specs`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

Amount = int | float | Annotated[str, Field(max_length=64)]
Text = Annotated[str, Field(max_length=4096)]
Name = Annotated[str, Field(max_length=256)]
Pairs = dict[str, str] | list[str]


def _named(*names: str) -> AliasChoices:
    return AliasChoices(*names)


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class MountIn(Body):
    source: Text
    target: Text
    read_only: bool = False


class SignalIn(Body):
    signal: Name
    before_s: int


class SessionIn(Body):
    """What to run, and what it needs. Amounts may be numbers or what people write: `4GiB`, `A100:2`, `2h`."""

    command: list[str] = Field([], description="program and arguments; with a script, the script's arguments")
    script: Text | None = Field(None, description="digest of a stored script to run")
    name: Name | None = None
    project: Name | None = None
    group: Name | None = None
    priority: int | None = None
    labels: Pairs | None = Field(None, validation_alias=_named("labels", "label"))

    cpus: Amount | None = Field(None, description="CPUs per rank: 2, 0.5, '500m'")
    memory: Amount | None = Field(None, description="memory per rank: '4GiB', '20GB'; a bare number counts bytes")
    gpus: Amount | None = Field(None, description="GPUs per rank: 2, 'A100:2', or a share of one: 0.5")
    vram: Amount | None = Field(None, description="memory of the GPU: '20GB'")
    gpu_model: Name | None = None
    gpu_arch: Name | None = None
    nodes: int | None = None
    ranks_per_node: int | None = None
    exclusive: bool = False
    on: Pairs | None = Field(None, description="labels that a node must have")
    prefer: Pairs | None = Field(None, description="labels it would rather have on its nodes, the dearest first")
    node: list[Name] | Name | None = Field(None, description="nodes to choose from")
    not_node: list[Name] | Name | None = Field(None, description="nodes to leave out")

    env: Pairs | None = Field(None, validation_alias=_named("env", "environment"))
    workdir: Text | None = None
    upload: Text | None = Field(None, description="digest of a stored tar to unpack into the working directory")
    bootstrap: Text | None = Field(None, description="digest of a stored script to run before the command")
    mount: list[MountIn | Text] | None = Field(None, validation_alias=_named("mount", "mounts"))
    port: dict[str, int] | list[Text] | None = Field(None, validation_alias=_named("port", "ports"))

    time: Amount | None = Field(None, description="time limit: 90, '10m', '2h', '1-00:00:00'")
    grace: Amount | None = Field(None, description="between SIGTERM and the end: '30s'")
    signal: SignalIn | Name | None = Field(None, description="signal before the time limit: 'USR1@120'")
    retries: int | None = None
    continuations: int | None = Field(None, description="how often it may go on after exit code 75 or 85; 1000")
    requeue: bool = True
    on_node_loss: Literal["hold", "fail", "requeue"] = "hold"
    outcome_rule: Literal["any-failure", "main-only", "all"] = "any-failure"
    hold: bool = False
    runtime: Name | None = None
    options: dict[str, str] | None = None
    idempotency_key: Annotated[str, Field(min_length=1, max_length=255)] | None = None

    profile: Name | None = None
    begin: Text | None = None
    after: list[Text] | Text | None = None
    array: Text | None = Field(None, description="one member per index: '0-99', '0-99%8', '1,3,20-30:2'")
    preemptible: bool | None = Field(None, description="whether it may be stopped for others; else as its group has it")
    image: Text | None = None
    interactive: bool = False
    service: bool = False
    ready_http: Text | None = None
    idle_timeout: Amount | None = None
    max_lifetime: Amount | None = None
    right_size: bool = False
    env_compat: list[Name] | Name | None = None


class BatchIn(Body):
    """Sessions to submit together: all, or none."""

    sessions: list[SessionIn] = Field(min_length=1, max_length=10_000)


class UpdateIn(Body):
    """What to change: `priority` and `group` while pending, `time` and `preemptible` until it ends; of an array also
    `throttle`, how many members may live at once (0: as many as there is room for)."""

    priority: int | None = None
    group: Name | None = None
    time: Amount | None = None
    preemptible: bool | None = None
    throttle: int | None = Field(None, ge=0, le=999_999_999)


OptionValues = dict[Name, bool | int | float | Text | dict[Name, float] | None]


class GroupIn(Body):
    """A new resource group. `order_options` and `placement_options` are those that its policies declare, `options`
    those of every group; `corral group policies` lists them all."""

    name: Name
    order: Name = "fifo"
    order_options: OptionValues = {}
    placement: Name = "pack"
    placement_options: OptionValues = {}
    options: OptionValues = {}


class GroupChangeIn(Body):
    """What to change of a resource group. Options are laid over those that are set, null puts one back to its default,
    another policy begins with its own. `version`: change it only while it is at this one."""

    order: Name | None = None
    order_options: OptionValues = {}
    placement: Name | None = None
    placement_options: OptionValues = {}
    options: OptionValues = {}
    version: int | None = None


class ReservationIn(Body):
    """Nodes to keep free: those named in `node`, or `nodes` many of a `group`, or all of it. From `begin` to `end`, or
    for `length`; times as with `--begin`. `owner` and `project` say whose sessions may start there."""

    name: Name
    begin: Name = "now"
    end: Name | None = None
    length: Name | None = None
    node: list[Name] = []
    group: Name | None = None
    nodes: int | None = None
    owner: list[Name] = []
    project: list[Name] = []
    reason: Text = ""


class DefragmentIn(Body):
    """Whom moves are to make room for, and how many: as with the plan."""

    moves: int = Field(10, ge=1, le=1000)
    moves_per_goal: int = Field(3, ge=1, le=100)
    gpus: int = Field(0, ge=0, le=1024)
    count: int = Field(1, ge=1, le=1000)
    group: Name | None = None


class QuotaIn(Body):
    """A quota as a whole: whom it is about (`*` is each one by himself), and what they may hold at once, how many of
    their sessions may run and wait, how long one may take. What is left out is not limited. `version`: set it only
    while it is at this one; 0: only if there is none."""

    owner: Name | None = None
    project: Name | None = None
    domain: Name | None = None
    group: Name | None = None
    cpus: Amount | None = None
    memory: Amount | None = None
    gpus: Amount | None = None
    vram: Amount | None = None
    sessions: int | None = None
    waiting: int | None = None
    time: Amount | None = None
    version: int | None = None
