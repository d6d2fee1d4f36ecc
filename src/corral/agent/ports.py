"""What the agent's deciding code needs of its machine and its managers, as Protocols.

Every method that touches the world is async, so that each is one step which may be the last. Nothing here knows how:
production adapters stand beside (`rundir`, `nodedb`, `shims`, `link`, `provision`, …), the simulator has its own.
`daemon` drives the exchange over these, `jobs` the kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from corral.agent.jobspec import JsonObject
from corral.model.node import DeviceInventory
from corral.model.session import KernelFact, Token, Why
from corral.wire import Launch, StreamOrder

# --- what goes wrong --------------------------------------------------------------------------------------------------


class Unreachable(Exception):
    """No answer from that manager: refused, cut, timed out, or a 5xx. What was sent may have arrived."""


class Rejected(Exception):
    """The manager understood and said no (401, 404, 409, 422); `code` is the problem document's."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


class NoRoom(Exception):
    """The disk will not take it (bytes or inodes); nothing was written that counts."""


class Unsafe(Exception):
    """A sync failed: what the durable store holds is no longer known. The agent must not go on."""


class NotProvided(Exception):
    """What the launch needs cannot be had. `refused`: this node's trouble, not elsewhere's; else the session's."""

    def __init__(self, why: Why, *, refused: bool = False) -> None:
        super().__init__(why.message)
        self.why = why
        self.refused = refused


# --- the run directory ------------------------------------------------------------------------------------------------


class JobDirs(Protocol):
    """RUN: the run id, and one directory per launch token (names of its files: `jobdir`)."""

    async def read_run_id(self) -> str | None: ...
    async def write_run_id(self, run_id: str) -> None:
        """Once, in a run directory that has none."""
        ...

    async def tokens(self) -> list[str]:
        """The accepted launches. What a dead agent left half made is removed first."""
        ...

    async def accept(self, token: str, spec: JsonObject, files: Mapping[str, bytes]) -> None:
        """Make the directory whole under another name, with room kept for the last words, and rename it. A directory
        that is there already stays as it is. Raises NoRoom."""
        ...

    async def read(self, token: str, name: str) -> JsonObject | None:
        """The file's object, None where there is no such file (or directory); `jobdir.Unreadable` for rubbish."""
        ...

    async def write(self, token: str, name: str, value: JsonObject) -> None:
        """Replace `go.json`, `stop.json`, `limit.json` or `exit.json` whole. Raises NoRoom."""
        ...

    async def decision(self, token: str) -> str | None:
        """`run`, `void`, or None while undecided. What cannot be read is a run that began and died."""
        ...

    async def void(self, token: str, reason: str, at: float) -> bool:
        """True where `started` now says void, whoever wrote it; False: a shim was first."""
        ...

    async def is_locked(self, token: str) -> bool:
        """Whether a shim lives, asked without taking the lock."""
        ...

    async def try_lock(self, token: str) -> bool:
        """Take the lock to judge a death; False while a shim holds it. `unlock` gives it back."""
        ...

    async def unlock(self, token: str) -> None: ...
    async def collect(self, token: str) -> None:
        """The end is acknowledged: remove the directory (renamed first, so that it is gone in one step)."""
        ...


# --- the durable store ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Identity:
    """What the store says of this node; empty strings before the first registration."""

    name: str = ""
    boot_id: str = ""
    run_id: str = ""
    nonces: tuple[str, str] = ("", "")
    held_version: int = 0


@dataclass(frozen=True, slots=True)
class Seen:
    """One row of the horizon: a token this node has been asked to start or told to stop."""

    token: Token
    boot_id: str
    stopped: bool = False
    ended: bool = False
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Entries:
    """What one commit writes. `facts` are kept by (token, kind), first write; `acknowledged` names such pairs."""

    identity: Identity | None = None
    seen: Sequence[Seen] = ()
    facts: Sequence[KernelFact] = ()
    acknowledged: Sequence[tuple[str, str]] = ()
    forget_before: float | None = None


class Ledger(Protocol):
    """STATE/node.db: what outlives the run directory and a power loss."""

    async def identity(self) -> Identity: ...
    async def commit(self, entries: Entries, *, sync: bool) -> None:
        """All or nothing. Without `sync` it survives the process, not the power. Later writes of `seen` add: what was
        once stopped or ended stays so. Raises NoRoom, or Unsafe after a failed sync."""
        ...

    async def horizon(self, sessions: Sequence[str]) -> list[Seen]: ...
    async def live(self, boot_id: str) -> list[str]:
        """Tokens seen under this boot whose end is not written here."""
        ...

    async def facts(self, token: str) -> list[KernelFact]: ...
    async def unacknowledged(self) -> list[KernelFact]: ...


# --- processes --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Birth:
    """Which launch to start, and under which permission (the zygote checks it against spec.json)."""

    token: str
    run_id: str
    node_epoch: int


class Shims(Protocol):
    """The zygote and the shims it forks. `changes` merges all that may have happened to a launch: a datagram, its
    end (pidfd), a spawn that failed. A change is a hint: the directory says what is true."""

    async def spawn(self, birth: Birth) -> None:
        """Ask for a shim; whether one came to be is seen in the directory."""
        ...

    async def watch(self, token: str, pid: int, start_time: int) -> bool:
        """Have this very process's end reported as a change; False when it is gone already."""
        ...

    async def poke(self, pid: int, start_time: int) -> None:
        """Tell this very process that its files changed (SIGUSR1), and to go on if it was stopped (SIGCONT)."""
        ...

    async def changes(self) -> set[str]:
        """Wait; the tokens to look at."""
        ...


class Trees(Protocol):
    """Process trees by token, for when the shim is dead, or its directory is. Whoever else has the launch's lock open
    is part of its tree: a shim that may be about to start the command."""

    async def kill(self, token: str) -> None: ...
    async def is_empty(self, token: str) -> bool: ...
    async def remove(self, token: str) -> None: ...
    async def tokens(self) -> list[str]:
        """Every tree in our own root, whoever started it."""
        ...


# --- the machine ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Machine:
    """What does not change while it is up."""

    boot_id: str
    hardware_id: str
    cpu_milli: int
    memory_mib: int
    containment: JsonObject = field(default_factory=lambda: {"kind": "marker"})
    kill_grace_s: float = 60.0
    home: str = "/"
    user: str = "corral"


class Devices(Protocol):
    async def inventory(self) -> tuple[DeviceInventory, ...]: ...
    async def check(self, token: str, uuids: Sequence[str]) -> Why | None:
        """The last look before a start: why these devices cannot be used now (`device_busy`), None when clean."""
        ...


@dataclass(frozen=True, slots=True)
class Provided:
    """What was made ready for one launch. `port` is free just now on a lone kernel's address."""

    workspace: str
    script: str | None = None
    bootstrap: str | None = None
    port: int | None = None


class Provision(Protocol):
    """Blobs fetched, verified and cached; the upload unpacked; a free port. May be slow; may be cancelled."""

    async def provide(self, launch: Launch) -> Provided:
        """Raises NotProvided."""
        ...

    async def sweep(self, keep: set[str], before: float) -> None:
        """Remove logs and workspaces older than `before`; never those of the sessions in `keep`."""
        ...


# --- managers ---------------------------------------------------------------------------------------------------------


class Link(Protocol):
    async def post(self, manager: str, path: str, body: bytes, timeout_s: float) -> bytes:
        """One request; cancelling it leaves open whether it arrived. Raises Unreachable, Rejected."""
        ...


class LogSource(Protocol):
    """Who knows where a token's output is, and whether more may come."""

    def stem(self, token: str, stream: str) -> str | None:
        """None: this node has no such log."""
        ...

    def over(self, token: str) -> bool: ...


class Streams(Protocol):
    async def serve(self, order: StreamOrder, source: LogSource) -> None:
        """Dial, serve, return when done. Never raises for what the network does."""
        ...
