"""The shapes that travel between manager and agent, and the two-way mapping of model values to JSON.

Every message is msgspec-typed: what does not fit is refused with one `Invalid`. Sent as JSON over HTTP; see
docs/protocol.md 4 and docs/path.md for the conversation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from corral.model.faults import Invalid
from corral.model.node import Inventory
from corral.model.resources import Resources
from corral.model.session import KernelFact
from corral.model.spec import EarlySignal, Mount, SessionSpec

T = TypeVar("T")


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """An agent introduces itself: after it started, after a reboot, or when told `stale`.

    `facts` are durable results not yet acknowledged; they are applied before an epoch is raised. `nonces` are (last,
    next) of docs/protocol.md 9; `held_version` is the highest desired version this node's durable store has seen.
    """

    name: str
    group: str
    boot_id: str
    run_id: str
    incarnation: str
    hardware_id: str
    nonces: tuple[str, str]
    address: str
    inventory: Inventory
    labels: Mapping[str, str] = {}
    facts: list[KernelFact] = []
    held_version: int = 0


class Registered(msgspec.Struct, frozen=True, kw_only=True):
    """The manager's answer: the node's epoch and the control plane's generation.

    With a `challenge` nothing was registered: the agent's nonces were not the node's, so its request may have been
    under way since before a reboot. It registers again, with the challenge as its last nonce.
    """

    epoch: int
    generation: int
    node_timeout_s: float
    challenge: str = ""


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """Observed, up. `have_version` is the desired version this agent process has applied, 0 after it started."""

    node: str
    incarnation: str
    epoch: int
    boot_id: str
    run_id: str
    nonces: tuple[str, str]
    have_version: int = 0
    facts: list[KernelFact] = []
    foreign: list[str] = []
    wait_s: float = 0.0


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a node needs to start one kernel. Paths on the node are the agent's to choose.

    `environment` is complete but for what only the node knows (its paths, the port of a lone kernel); `devices` are
    (uuid, index, vram_mib, share_milli).
    """

    session: str
    attempt: int
    rank: int
    node_epoch: int
    run_id: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    resources: Resources
    devices: list[tuple[str, int, int, int]]
    ranks: int
    local_rank: int
    hosts: list[str]
    script: str | None = None
    upload: str | None = None
    bootstrap: str | None = None
    workdir: str | None = None
    mounts: tuple[Mount, ...] = ()
    time_limit_s: int | None = None
    grace_s: int = 30
    early_signal: EarlySignal | None = None
    memory_enforced: bool = False
    options: Mapping[str, str] = {}


class Go(msgspec.Struct, frozen=True, kw_only=True):
    """The barrier's release: the session is recorded running, and where rank 0 listens."""

    master_address: str
    master_port: int


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    """`signal` is sent first, unless it was sent already; None: SIGTERM."""

    reason: str
    message: str
    grace_s: int
    signal: str | None = None


class KernelOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What is desired of one kernel now. Absence never kills: only `stop` does.

    `launch` is there until the node has accepted it; a node that is told of a kernel it should know and does not has
    lost its run directory, and reports it so.
    """

    token: str
    run_id: str
    launch: Launch | None = None
    go: Go | None = None
    stop: Stop | None = None
    time_limit_s: int | None = None


class StreamOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Dial `url` by WebSocket and serve this kernel's log from `offset`, followed while asked (docs/protocol.md 19)."""

    id: str
    url: str
    token: str
    stream: str
    offset: int
    follow: bool


class Desired(msgspec.Struct, frozen=True, kw_only=True):
    """Desired, down: every kernel whose orders changed after `have_version`. All facts sent are hereby acknowledged.

    `stale` means this agent is not who holds the node just now: it must register, and start nothing until then.
    """

    version: int
    orders: list[KernelOrder] = []
    streams: list[StreamOrder] = []
    stale: bool = False


def encode(value: object) -> bytes:
    """JSON of a message or of a model value."""
    return msgspec.json.encode(value)


def decode(data: bytes | str, type_: type[T]) -> T:
    """The message in `data`; `Invalid` says which field does not fit."""
    try:
        return msgspec.json.decode(data, type=type_)
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid("bad_message", f"not a valid {type_.__name__}: {error}") from None


def spec_to_json(spec: SessionSpec) -> str:
    return msgspec.json.encode(spec).decode()


def spec_from_json(text: str | bytes) -> SessionSpec:
    return decode(text, SessionSpec)


def plain(value: object) -> Any:
    """A model value as dictionaries, lists and numbers."""
    return msgspec.to_builtins(value)
