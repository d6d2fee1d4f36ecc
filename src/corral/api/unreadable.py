"""A session, or an array, whose stored row cannot be read, as the same JSON that a readable one is: what its columns
say, and why the rest is not known (D12). What is not known is none, empty or zero."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import TypeVar

from corral.api.render import ResourcesView, Rows, SessionView, session_view
from corral.model.lifecycle import ExitClass, Outcome, Phase, Wanted
from corral.model.session import Session
from corral.model.spec import SessionSpec
from corral.ports import Reads
from corral.records import Unreadable

UNKNOWN = "unknown"
T = TypeVar("T", bound=StrEnum)


def unreadable_views(reads: Reads, found: Iterable[Unreadable]) -> list[SessionView]:
    """With the nodes that they hold room on, of which other rows tell."""
    all_ = list(found)
    placed = [one.id for one in all_ if one.phase != Phase.PENDING]
    rows = Rows(reads.kernels(placed), reads.holdings(placed)) if placed else Rows()
    return [_view(one, rows) for one in all_]


def _view(one: Unreadable, rows: Rows) -> SessionView:
    phase = _known(Phase, one.phase)
    told = Session(
        id=one.id,
        ordinal=one.ordinal,
        spec=SessionSpec(name=one.name, project=one.project, labels=one.labels),
        owner=one.owner,
        submitted_at=one.submitted_at,
        phase=phase or Phase.PENDING,
        attempt=one.attempt,
        wanted=_known(Wanted, one.wanted) or Wanted.RUN,
        group=one.group,
        priority=one.priority,
        outcome=_known(Outcome, one.outcome),
        exit_class=_known(ExitClass, one.exit_class),
        exit_code=one.exit_code,
        started_at=one.started_at,
        ended_at=one.ended_at,
        error=f"its record cannot be read: {one.error}",
    )
    view = session_view(told, rows)
    view.kind = "array" if one.is_array else UNKNOWN
    view.phase, view.wanted = one.phase, one.wanted
    view.nodes = view.ranks = 0
    view.resources = ResourcesView(cpus=0.0, memory_mib=0, gpus=None, vram_mib=None, gpu_model=None, gpu_arch=None)
    if phase is None:
        view.slurm_state = UNKNOWN.upper()
    return view


def _known(kind: type[T], word: str | None) -> T | None:
    return kind(word) if word in {one.value for one in kind} else None
