"""What is said of a session that does not run yet: every blocker with its count, or what is still missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from corral.api.ahead import GROUPS_CLOSED, Ahead, ChangeView, EstimateView, HolderView, look_ahead, without_waiting
from corral.api.membership import turn_refusals
from corral.api.policy import Caller
from corral.api.preferring import PreferenceView, preferences_met, preferences_of
from corral.api.render import RefusalView
from corral.api.waits import dependency_refusals, own_refusals
from corral.model.lifecycle import Fact, Phase
from corral.model.node import NodeState
from corral.model.session import Kernel, Session
from corral.model.wording import span
from corral.ports import Reads
from corral.reconcile.placement import PER_SHAPE
from corral.reconcile.quotas import as_waiting
from corral.scheduling.explaining.explain import Explanation, explain_waiting
from corral.scheduling.ordering import position_of
from corral.scheduling.plan import Refusal, refusal
from corral.scheduling.snapshot import Waiting
from corral.scheduling.stopping.pinned import pinned_nodes
from corral.scheduling.stopping.preemption import being_made


class ClassView(msgspec.Struct):
    """Nodes of one group with the same GPUs: how many, how many of them have room, and what keeps it off the rest."""

    name: str
    group: str
    nodes: int
    fitting: int
    blockers: list[RefusalView]


class ExplainView(msgspec.Struct):
    """`blockers` keep it from going on; `missing` names what has to happen until every rank runs, or is proven over;
    `changes` are single changes with which it would start now; `classes` tell of each class of nodes,
    `preferences` of the labels that it would rather have, on the nodes there are, or on its own."""

    id: str
    phase: str
    summary: str
    fits_now: bool
    infeasible: bool
    position: int | None
    blockers: list[RefusalView]
    missing: list[str]
    changes: list[ChangeView] = []
    classes: list[ClassView] = []
    estimate: EstimateView | None = None
    preferences: list[PreferenceView] = []
    estimate_unknown: str | None = None
    held_by: list[HolderView] = []


def classes_of(found: Explanation) -> list[ClassView]:
    return [
        ClassView(one.name, one.group, one.nodes, one.fitting,
                  [RefusalView(why.code, why.message, dict(why.counts)) for why in one.refusals])
        for one in found.classes
    ]  # fmt: skip


def explain_view(reads: Reads, asking: Caller, session: Session) -> ExplainView:
    if session.phase is not Phase.PENDING:
        kernels = [one for one in reads.kernels([session.id]).get(session.id, []) if one.certificate is None]
        away, missing = _away(reads, kernels), list(_missing(session, kernels))
        summary = _summary(session, missing) + "".join(f"; {one.message}" for one in away) + _goes_on(session)
        return ExplainView(session.id, session.phase, summary, False, False, None, away, missing,
                           preferences=preferences_met(reads, session))  # fmt: skip
    snapshot, waiting = reads.snapshot(1), as_waiting(session)
    found = explain_waiting(snapshot, waiting)
    own = [RefusalView(**one) for one in own_refusals(session, reads.now)]
    own += [RefusalView(**one) for one in turn_refusals(reads, [session]).get(session.id, [])]
    own += _room_being_made(reads, session)
    own += [RefusalView(**one) for one in dependency_refusals(reads, [session]).get(session.id, [])]
    blockers = own + [RefusalView(one.code, one.message, dict(one.counts)) for one in found.refusals]
    if found.refusals and (kept := pinned_nodes(snapshot, session.spec, session.id)):
        blockers.append(_view(refusal("pinned", {"nodes": kept})))
    if own and not found.refusals:  # a policy that fails at work is known by what the pass told
        blockers += [RefusalView(**one) for one in reads.refusals([session.id]).get(session.id, [])
                     if one["code"] == "group_broken"]  # fmt: skip
    position = reads.position(session)
    if position is None and not own:
        position = position_of(reads.snapshot(PER_SHAPE), session.id)
    pace = None if _held_back(found) else position
    possible = not found.infeasible
    ahead = Ahead() if own else look_ahead(reads, asking, waiting, pace, possible=possible)
    blockers += [one for one in ahead.blockers if one.code not in {known.code for known in blockers}]
    if not blockers and position and position > 1:
        before = f"{position - 1} session{' is' if position == 2 else 's are'} before it"
        blockers.append(RefusalView("behind", before, {"sessions": position - 1}))
    summary = "; ".join(one.message for one in blockers) if blockers else "room is free: it starts at the next pass"
    if (last := _last_end(reads, session)) is not None:
        summary += f" (attempt {session.attempt - 1}: {last})"
    summary += _goes_on(session)
    fits = found.fits_now and not ahead.blockers
    changes = without_own(reads, waiting, own) if own else list(ahead.changes)
    return ExplainView(session.id, session.phase, summary, fits, found.infeasible, position, blockers, ["granted"],
                       changes, classes_of(found), ahead.estimate, preferences_of(snapshot, session.spec),
                       ahead.unknown, list(ahead.held_by))  # fmt: skip


def without_own(reads: Reads, waiting: Waiting, own: Sequence[RefusalView]) -> list[ChangeView]:
    """Where one condition of its own is all that keeps it: without which option it would start."""
    options = {"begin_not_reached": "begin", "dependency": "after"}
    option = options.get(own[0].code) if len(own) == 1 else None
    return [] if option is None else without_waiting(reads, waiting, option)


def _held_back(found: Explanation) -> bool:
    """By a quota, or by all groups that it could go to: how soon others start says nothing of when it will."""
    codes = {one.code for one in found.refusals}
    return any(code.startswith("quota_") for code in codes) or (bool(codes) and codes <= GROUPS_CLOSED)


def _room_being_made(reads: Reads, session: Session) -> Iterator[RefusalView]:
    if session.room_by is not None and session.room_by > reads.now:
        yield _view(being_made(len(reads.making_way(session.id)), session.room_by))


def _view(one: Refusal) -> RefusalView:
    return RefusalView(one.code, one.message, dict(one.counts))


def _goes_on(session: Session) -> str:
    """Which continuation it is that waits, runs or has ended, of one whose command asked to go on."""
    number, most = session.continuations, session.spec.continuations
    return f"; continuation {number} of at most {most}" if number else ""


def _last_end(reads: Reads, session: Session) -> str | None:
    """How the attempt before this one ended, of a session that waits for another."""
    rows = reads.history(session.id, max(0, session.seq - LINES_OF_AN_ATTEMPT)) if session.attempt > 1 else []
    for entry in (row.entry for row in reversed(rows)):
        if entry.attempt == session.attempt - 1 and entry.fact in _ENDS:
            where = f"rank {entry.detail['rank']} " if "rank" in entry.detail else ""
            where += f"on {entry.detail['node']} " if "node" in entry.detail else ""
            told = [str(entry.detail[name]) for name in ("code", "exit_code", "reason") if entry.detail.get(name)]
            return where + _ENDS[Fact(entry.fact)] + (f": {', '.join(told)}" if told else "")
    return None


_ENDS = {
    Fact.REFUSED: "was refused by the node",
    Fact.FAILED: "could not be started",
    Fact.LOST: "was lost",
    Fact.DECIDED: "ended",
    Fact.UNWANTED: "was stopped",
}
LINES_OF_AN_ATTEMPT = 12


def _away(reads: Reads, kernels: Sequence[Kernel]) -> list[RefusalView]:
    """The nodes that do not answer though launches of it may live there: nothing is known until they do."""
    ranks: dict[str, list[int]] = {}
    for kernel in kernels:
        ranks.setdefault(kernel.node, []).append(kernel.rank)
    nodes = reads.nodes(ranks) if ranks else {}
    return [
        RefusalView(
            "node_unreachable",
            f"node {name} has not been heard for {span(reads.now - node.seen_at)}: what became of rank "
            f"{', '.join(map(str, ranks[name][:8]))} is known once it is back, or `corral node confirm-dead {name}`",
            {"ranks": len(ranks[name])},
        )
        for name, node in sorted(nodes.items())
        if node.state is not NodeState.UP
    ]


def _missing(session: Session, kernels: Sequence[Kernel]) -> Iterator[str]:
    if session.phase not in (Phase.PLACED, Phase.STARTING, Phase.STOPPING):
        return
    for kernel in kernels:
        where = f"rank {kernel.rank} on {kernel.node}"
        if session.phase is Phase.STOPPING:
            yield f"{where}: its end to be proven"
        elif kernel.claimed_version is None:
            yield f"{where}: to be claimed"
        elif kernel.accepted_at is None:
            yield f"{where}: to be accepted by the node"
        elif kernel.ready_at is None:
            yield f"{where}: workspace and command being prepared"


def _summary(session: Session, missing: Sequence[str]) -> str:
    if missing:
        for_whom = f" (preempted for {session.preempted_for})" if session.preempted_for is not None else ""
        return f"{session.phase}{for_whom}; still missing: " + "; ".join(missing)
    if session.phase is Phase.ENDED:
        whys = [why.message or why.code for why in (session.reason, session.cause) if why is not None]
        if not whys and session.exit_code:
            whys = [f"exit code {session.exit_code} ({session.exit_class})"]
        return f"it has ended, {session.outcome}" + (f": {'; '.join(whys)}" if whys else "")
    return {Phase.RUNNING: "it is running", Phase.STOPPING: "it is stopping"}.get(session.phase, str(session.phase))
