"""Where the labels that a session would rather have are: on which of the nodes that it may go to, or on its own."""

from __future__ import annotations

import msgspec

from corral.model.session import Session
from corral.model.spec import SessionSpec
from corral.ports import Reads
from corral.scheduling.explaining.explain import survey_of
from corral.scheduling.snapshot import Snapshot, shape_of


class PreferenceView(msgspec.Struct):
    """Of one that waits: on how many `nodes` of those that it may go to the label is, and how many of them have room
    now (`fitting`). Of one with nodes: on how many of its `nodes` it is (`met`)."""

    label: str
    message: str
    counts: dict[str, int]


def preferences_of(snapshot: Snapshot, spec: SessionSpec) -> list[PreferenceView]:
    if not spec.prefer:
        return []
    shape, survey = shape_of(spec), survey_of(snapshot)
    parts = [(part.pool, part.possible(shape), part.fitting(shape)) for part in survey.parts]
    found: list[PreferenceView] = []
    for key, value in spec.prefer:
        there = [(pool.labelled(key, value) & possible, fitting) for pool, possible, fitting in parts]
        nodes = sum(int(flags.sum()) for flags, _ in there)
        room = sum(int((flags & fitting).sum()) for flags, fitting in there)
        where = f"{nodes} of the nodes it may go to, with room on {room} now" if nodes else "no node it may go to"
        found.append(PreferenceView(f"{key}={value}", f"{key}={value}: {where}", {"nodes": nodes, "fitting": room}))
    return found


def preferences_met(reads: Reads, session: Session) -> list[PreferenceView]:
    """The same of one that has nodes, or had: those of its newest attempt."""
    prefer = session.spec.prefer
    names = {kernel.node for kernel in reads.kernels([session.id]).get(session.id, ())} if prefer else set[str]()
    if not names:
        return []
    nodes = reads.nodes(names).values()
    found: list[PreferenceView] = []
    for key, value in prefer:
        met = sum(node.labels.get(key) == value for node in nodes)
        message = f"{key}={value}: {met} of its {len(names)} node{'s' * (len(names) > 1)}"
        found.append(PreferenceView(f"{key}={value}", message, {"nodes": len(names), "met": met}))
    return found
