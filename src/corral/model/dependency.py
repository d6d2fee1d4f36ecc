"""What a session waits for before it may start: the end of others, any end, a good one, or one that was not good."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from corral.model.faults import Invalid
from corral.model.lifecycle import Outcome, Phase

MOST = 1000
LONGEST_SHOWN = 80


class DependencyKind(StrEnum):
    OK = "ok"
    NOT_OK = "notok"
    ANY = "any"


class Dependency(NamedTuple):
    """`needs` names a session: its id, or what a user wrote for it."""

    needs: str
    kind: DependencyKind


def dependency_of(text: str) -> Dependency:
    """From `ID`, `ID:ok`, `ID:notok` or `ID:any`; without a word a good end is meant."""
    needs, colon, word = text.partition(":")
    kinds = list(DependencyKind)
    if not needs or (colon and word not in kinds):
        shown = text[:LONGEST_SHOWN]
        raise Invalid(
            "bad_dependency", f"--after {shown!r} is not ID, or ID with :ok, :notok or :any", subject="--after"
        )
    return Dependency(needs, DependencyKind(word or DependencyKind.OK))


def dependencies_of(texts: Sequence[str]) -> tuple[Dependency, ...]:
    if len(texts) > MOST:
        raise Invalid("bad_dependency", f"--after names {len(texts)} sessions; at most {MOST}", subject="--after")
    return tuple(dict.fromkeys(dependency_of(text) for text in texts))


def is_met(kind: DependencyKind, phase: Phase, outcome: Outcome | None) -> bool | None:
    """Whether the end of that session is the one waited for; None while it has not ended."""
    if phase is not Phase.ENDED:
        return None
    return kind is DependencyKind.ANY or (outcome is Outcome.SUCCEEDED) is (kind is DependencyKind.OK)
