"""Quotas: how much may be held at once, how many sessions may run and wait, and how long one may take, by whom.

A quota is about an owner, a project (with all below it), a domain, a resource group, or several of these together; `*`
stands for each one by itself. What counts as used is what is held: there is no second count that could differ from it.
Next: `scheduling.limits` looks at one that waits, `reconcile.quotas` holds placing and submitting to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from corral.model.faults import Invalid
from corral.model.resources import (
    MAX_AMOUNT,
    WHOLE_GPU_MILLI,
    parse_cpu_milli,
    parse_duration_s,
    parse_memory_mib,
)
from corral.model.spec import PROJECT

EACH = "*"
DEFAULT_DOMAIN = "default"
KINDS = ("owner", "project", "domain", "group")
HELD = ("cpu_milli", "memory_mib", "gpu_milli", "vram_mib", "sessions")
WAITING, TIME = "waiting", "time_limit_s"
LIMITS = (*HELD, WAITING, TIME)
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
LONGEST_SCOPE = 256
LONGEST_SHOWN = 80
Bucket = tuple[str, ...]


class Amounts(NamedTuple):
    """What is held. A share of a GPU counts as the larger of its parts of time and of memory."""

    cpu_milli: int = 0
    memory_mib: int = 0
    gpu_milli: int = 0
    vram_mib: int = 0
    sessions: int = 0

    def plus(self, other: Amounts) -> Amounts:
        return Amounts(*(one + more for one, more in zip(self, other, strict=True)))

    def less(self, other: Amounts) -> Amounts:
        return Amounts(*(one - fewer for one, fewer in zip(self, other, strict=True)))

    def at_least(self, other: Amounts) -> Amounts:
        """Of each the larger."""
        return Amounts(*(max(one, least) for one, least in zip(self, other, strict=True)))


NOTHING = Amounts()


class Claimant(NamedTuple):
    """Whose a session is. `group` is None while it may still go to any."""

    owner: str
    project: str
    group: str | None = None


class Held(NamedTuple):
    """What one claimant's sessions hold together."""

    claimant: Claimant
    amounts: Amounts


@dataclass(frozen=True, slots=True)
class Quota:
    """`limits` by the names of `LIMITS`; what it does not name is not limited. `version` is raised by each change."""

    name: str
    owner: str | None = None
    project: str | None = None
    domain: str | None = None
    group: str | None = None
    limits: Mapping[str, int] = field(default_factory=dict[str, int])
    version: int = 1

    @property
    def kind(self) -> str:
        """What it is about first of all."""
        return next((kind for kind in KINDS if getattr(self, kind) is not None), "group")

    def bucket(self, claimant: Claimant, domains: Mapping[str, str]) -> Bucket | None:
        """Which of its counts a session of this claimant's falls into: one for every `*`. None: into none of them."""
        parts: list[str] = []
        for kind in KINDS:
            wanted: str | None = getattr(self, kind)
            if wanted is None:
                continue
            found = domain_of(claimant.project, domains) if kind == "domain" else getattr(claimant, kind)
            if found is None:
                return None
            if wanted == EACH:
                parts.append(found)
            elif wanted != found and not (kind == "project" and found.startswith(f"{wanted}/")):
                return None
        return tuple(parts)

    def whose(self, bucket: Bucket = ()) -> str:
        """In words: `owner ann in group gpu`."""
        found: list[str] = []
        rest = iter(bucket)
        for kind in KINDS:
            wanted: str | None = getattr(self, kind)
            if wanted is None:
                continue
            named = next(rest, EACH) if wanted == EACH else wanted
            words = f"each {kind}" if named == EACH else f"{kind} {named}"
            found.append(f"in {words}" if kind == "group" and found else words)
        return " ".join(found)


class Quotas(NamedTuple):
    """All of them, which domain each project is of (those not named, of that above them or the default), and what is
    held: by sessions that have room, and `pinned` for some that wait, by their ids: what is kept for them, and while
    others stop for one all that it asks for."""

    listed: tuple[Quota, ...] = ()
    domains: Mapping[str, str] = {}
    held: tuple[Held, ...] = ()
    pinned: Mapping[str, Held] = {}

    def all_held(self) -> Iterator[Held]:
        yield from self.held
        yield from self.pinned.values()

    def of(self, claimant: Claimant) -> Iterator[tuple[Quota, Bucket]]:
        """Those that a session of this claimant's falls under."""
        for quota in self.listed:
            bucket = quota.bucket(claimant, self.domains)
            if bucket is not None:
                yield quota, bucket


NO_QUOTAS = Quotas()


def domain_of(project: str, domains: Mapping[str, str]) -> str:
    while project:
        if project in domains:
            return domains[project]
        project = project.rpartition("/")[0]
    return DEFAULT_DOMAIN


def used_under(quota: Quota, quotas: Quotas) -> dict[Bucket, Amounts]:
    """What is held under a quota, by what it counts apart."""
    found: dict[Bucket, Amounts] = {}
    for claimant, amounts in quotas.all_held():
        bucket = quota.bucket(claimant, quotas.domains)
        if bucket is not None:
            found[bucket] = found.get(bucket, NOTHING).plus(amounts)
    return found


def gpu_milli(share_milli: int, vram_mib: int, capacity_mib: int) -> int:
    """What part of a device counts."""
    return max(share_milli, vram_mib * WHOLE_GPU_MILLI // capacity_mib) if capacity_mib > 0 else share_milli


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise Invalid("bad_number", f"{text[:LONGEST_SHOWN]!r} is not a whole number of sessions")
    return int(text[:20])


def _gpus(text: str) -> int:
    try:
        return parse_cpu_milli(text)  # thousandths of a whole, too
    except Invalid:
        raise Invalid(
            "bad_gpus", f"{text[:LONGEST_SHOWN]!r} is not a number of GPUs; write for example 8 or 0.5"
        ) from None


# What each limit is called where people give it, and how what they write is read.
OPTIONS: Mapping[str, tuple[str, Callable[[str], int]]] = {
    "cpus": ("cpu_milli", parse_cpu_milli),
    "memory": ("memory_mib", parse_memory_mib),
    "gpus": ("gpu_milli", _gpus),
    "vram": ("vram_mib", parse_memory_mib),
    "sessions": ("sessions", _number),
    "waiting": (WAITING, _number),
    "time": (TIME, parse_duration_s),
}


def limits_of(given: Mapping[str, int | float | str | None]) -> dict[str, int]:
    """The limits as they are stored, from what people write; None is no limit."""
    found: dict[str, int] = {}
    for option, value in given.items():
        if value is None:
            continue
        if option not in OPTIONS or isinstance(value, bool):
            raise Invalid("bad_quota", f"{option[:LONGEST_SHOWN]!r} is no limit; there are {', '.join(OPTIONS)}")
        name, parse = OPTIONS[option]
        text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
        try:
            found[name] = parse(text)
        except Invalid as error:
            raise Invalid(error.code, f"--{option}: {error.message}", subject=f"--{option}") from None
    return found


def checked(quota: Quota) -> Quota:
    """The quota, if it makes sense; else `Invalid`."""
    shown = quota.name[:LONGEST_SHOWN]
    if not NAME.fullmatch(quota.name):
        raise Invalid("bad_name", f"quota {shown!r}: letters, digits, '.', '_' and '-', beginning with a letter or "
                      "digit, at most 128 of them", subject=shown)  # fmt: skip
    scope = {kind: getattr(quota, kind) for kind in KINDS}
    if all(value is None for value in scope.values()):
        raise Invalid("bad_quota", f"quota {shown} is about nobody; say whose with --owner, --project, --domain or "
                      "--group ('*' is each one by itself)", subject=shown)  # fmt: skip
    for kind, value in scope.items():
        if value is not None and not (value.isprintable() and 0 < len(value) <= LONGEST_SCOPE):
            raise Invalid("bad_quota", f"quota {shown}: {kind} {value[:LONGEST_SHOWN]!r} is no name", subject=shown)
    for kind, form in (("project", PROJECT), ("group", NAME)):
        if scope[kind] not in (None, EACH) and not form.fullmatch(scope[kind]):
            raise Invalid("bad_quota", f"quota {shown}: no {kind} can be called {scope[kind][:LONGEST_SHOWN]!r}",
                          subject=shown)  # fmt: skip
    if not quota.limits:
        raise Invalid("bad_quota", f"quota {shown} limits nothing; say what, for example --gpus 8", subject=shown)
    for name, value in quota.limits.items():
        if name not in LIMITS:
            raise Invalid("bad_quota", f"quota {shown}: there is no limit {name[:LONGEST_SHOWN]!r}; there are "
                          f"{', '.join(LIMITS)}", subject=shown)  # fmt: skip
        if not (name == TIME) <= value <= MAX_AMOUNT:
            raise Invalid("bad_quota", f"quota {shown}: {name} is {value}; it must be between {int(name == TIME)} and "
                          f"{MAX_AMOUNT}", subject=shown)  # fmt: skip
    return quota
