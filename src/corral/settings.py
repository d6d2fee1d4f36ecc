"""What an operator sets, checked once at the start. Read from the command line and the environment by the CLI only."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from corral.model.faults import Invalid

_LISTEN = re.compile(r"^(?:\[([0-9a-fA-F:]+)\]|([A-Za-z0-9_.-]+)):(\d{1,5})$")
DEFAULT_LISTEN = "127.0.0.1:7700"


@dataclass(frozen=True, slots=True)
class Listen:
    """Where to listen; port 0 takes a free one."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class ManagerSettings:
    """One control-plane process. `url` is how agents and other managers reach it (default: from `listen`)."""

    database: str
    listen: Listen
    url: str | None = None
    token_file: Path | None = None


@dataclass(frozen=True, slots=True)
class UpSettings:
    """Everything for one machine."""

    data_dir: Path
    listen: Listen
    simulate_gpus: str | None = None
    nodes: int = 1
    cpus: str | None = None
    memory: str | None = None
    login: bool = True
    stop_sessions: bool = False
    labels: tuple[str, ...] = field(default=())


def parse_listen(text: str) -> Listen:
    """HOST:PORT, with an IPv6 host in brackets."""
    match = _LISTEN.match(text)
    if not match or int(match.group(3)) > 65535:
        raise Invalid("bad_listen", f"--listen {text!r} is not HOST:PORT; write for example {DEFAULT_LISTEN}")
    return Listen(match.group(1) or match.group(2), int(match.group(3)))
