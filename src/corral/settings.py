"""What an operator sets, checked once at the start. Read from the command line, the environment and files by the CLI
only."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from corral.model.faults import Invalid
from corral.model.quota import KINDS, LONGEST_SHOWN, Quota, checked, limits_of

_LISTEN = re.compile(r"^(?:\[([0-9a-fA-F:]+)\]|([A-Za-z0-9_.-]+)):(\d{1,5})$")
DEFAULT_LISTEN = "127.0.0.1:7700"


@dataclass(frozen=True, slots=True)
class Listen:
    """Where to listen; port 0 takes a free one."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class QuotaFile:
    """Quotas, and of which domain projects are, as a file says them."""

    quotas: tuple[Quota, ...] = ()
    domains: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class ManagerSettings:
    """One control-plane process. `url` is how agents and other managers reach it (default: from `listen`)."""

    database: str
    listen: Listen
    url: str | None = None
    token_file: Path | None = None
    quotas: QuotaFile | None = None


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
    quotas: QuotaFile | None = None


def parse_listen(text: str) -> Listen:
    """HOST:PORT, with an IPv6 host in brackets."""
    match = _LISTEN.match(text)
    if not match or int(match.group(3)) > 65535:
        raise Invalid("bad_listen", f"--listen {text!r} is not HOST:PORT; write for example {DEFAULT_LISTEN}")
    return Listen(match.group(1) or match.group(2), int(match.group(3)))


def parse_quotas(text: str, name: str) -> QuotaFile:
    """A TOML file of quotas (docs/operations.md). `name` is what it is called in errors."""
    try:
        told = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise Invalid("bad_quota_file", f"{name} is not TOML: {error}", subject=name) from None
    if unknown := sorted(told.keys() - {"quotas", "domains"}):
        raise _bad_file(name, f"there is no section {unknown[0][:LONGEST_SHOWN]!r}; there are quotas and domains")
    domains: dict[str, str] = {}
    for domain, projects in _table(told, "domains", name).items():
        if not isinstance(projects, list) or not all(isinstance(one, str) for one in cast("list[Any]", projects)):
            raise _bad_file(name, f"domain {domain[:LONGEST_SHOWN]!r} is not a list of projects")
        for project in cast("list[str]", projects):
            if domains.setdefault(project, domain) != domain:
                raise _bad_file(name, f"project {project[:LONGEST_SHOWN]!r} is of two domains")
    listed = [_quota(label, fields, name) for label, fields in _table(told, "quotas", name).items()]
    return QuotaFile(tuple(listed), domains)


def _quota(label: str, fields: Any, name: str) -> Quota:
    if not isinstance(fields, dict):
        raise _bad_file(name, f"quota {label[:LONGEST_SHOWN]!r} is not a table")
    said = cast("dict[str, Any]", fields)
    scope = {kind: said[kind] for kind in KINDS if kind in said}
    if wrong := next((kind for kind, value in scope.items() if not isinstance(value, str)), None):
        raise _bad_file(name, f"quota {label[:LONGEST_SHOWN]!r}: {wrong} is not text")
    try:
        limits = limits_of({option: value for option, value in said.items() if option not in scope})
        return checked(Quota(label, **scope, limits=limits))
    except Invalid as error:
        raise _bad_file(name, f"quota {label[:LONGEST_SHOWN]!r}: {error.message}") from None


def _table(told: Mapping[str, Any], section: str, name: str) -> dict[str, Any]:
    found = told.get(section, {})
    if not isinstance(found, dict):
        raise _bad_file(name, f"{section} is not a table")
    return cast("dict[str, Any]", found)


def _bad_file(name: str, why: str) -> Invalid:
    return Invalid("bad_quota_file", f"{name}: {why}", subject=name)
