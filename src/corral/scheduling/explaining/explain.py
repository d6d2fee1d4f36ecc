"""Why a session does not start now, and whether it ever can: the same rules as the pass, asked about one shape of every
node, to the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from corral.scheduling.engine.room import MESSAGES, NEVER
from corral.scheduling.explaining.survey import Sight, Survey
from corral.scheduling.limits import Admission, told_together
from corral.scheduling.ordering import HELD_BACK, groups_of
from corral.scheduling.plan import Refusal
from corral.scheduling.snapshot import Shape, Snapshot, Waiting


@dataclass(frozen=True, slots=True)
class NodeClass:
    """Nodes of one group with the same GPUs: how many, how many of them have room, and all that keeps it off the rest,
    each with how many nodes say so."""

    name: str
    group: str
    nodes: int
    fitting: int
    refusals: tuple[Refusal, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """`fits_now`: room is free at this moment. `infeasible`: no set of the nodes known could ever hold it, even empty;
    always False while no node is known, since then nothing is known. `refusals` count all nodes, `classes` each class
    for itself; a node may have several reasons."""

    fits_now: bool
    infeasible: bool
    refusals: tuple[Refusal, ...]
    classes: tuple[NodeClass, ...] = ()


def survey_of(snapshot: Snapshot) -> Survey:
    held_back = groups_of(snapshot.groups.values()).held_back
    return Survey(snapshot, {name: why.code for name, why in held_back.items()})


def explain(snapshot: Snapshot, shape: Shape, survey: Survey | None = None) -> Explanation:
    """Every node's reasons, counted: against the room that is free now, or, where that could never do, against all
    there is."""
    survey = survey or survey_of(snapshot)
    infeasible = bool(snapshot.nodes) and not survey.fits(shape, full=True)
    words = NEVER if infeasible else {**MESSAGES, **HELD_BACK}
    sights = survey.sights(shape, full=infeasible)
    fits = not infeasible and survey.fits(shape)
    classes = tuple(_class_of(one, words) for one in sights)
    if fits:
        return Explanation(True, False, (), classes)
    if not sights:
        return Explanation(False, False, (Refusal("no_nodes", words["no_nodes"]),))
    counted = sum((Counter(one.obstacles) for one in sights), Counter[str]())
    if fitting := sum(one.fitting for one in sights):
        counted["not_enough_nodes"] = fitting
    return Explanation(False, infeasible, _refusals(counted, words), classes)


def _class_of(sight: Sight, words: Mapping[str, str]) -> NodeClass:
    return NodeClass(sight.name, sight.group, sight.nodes, sight.fitting, _refusals(sight.obstacles, words))


def _refusals(counted: Mapping[str, int], words: Mapping[str, str]) -> tuple[Refusal, ...]:
    return tuple(
        Refusal(code, f"{count} {'node' if count == 1 else 'nodes'}: {words[code]}", {"nodes": count})
        for code, count in sorted(counted.items())
    )


def explain_waiting(snapshot: Snapshot, waiting: Waiting) -> Explanation:
    """The same of a session, whose quotas come before room."""
    found = explain(snapshot, waiting.shape)
    admission = Admission(snapshot.quotas, snapshot.nodes, snapshot.devices)
    if never := admission.never(waiting):
        return replace(found, fits_now=False, infeasible=True, refusals=(*never, *found.refusals))
    if barred := admission.barred(waiting, snapshot.groups):
        quotas, left = told_together(barred), _without(snapshot, barred, waiting.shape)
        if not found.infeasible:
            told = () if left.fits_now else (*quotas, *left.refusals)
            found = replace(found, fits_now=left.fits_now, infeasible=False, refusals=told)
    if held := admission.refusals(waiting):
        return replace(found, fits_now=False, refusals=(*held, *found.refusals))
    return found


def _without(snapshot: Snapshot, groups: Iterable[str], shape: Shape) -> Explanation:
    out = set(groups)
    open_ = [node for node in snapshot.nodes if node.group not in out]
    return explain(replace(snapshot, nodes=open_), shape) if open_ else Explanation(False, False, ())


def fits_now(snapshot: Snapshot, shape: Shape) -> bool:
    return survey_of(snapshot).fits(shape)
