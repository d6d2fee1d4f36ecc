"""Submitting: one, many at once, or only asking what would happen. The request is made a valid spec first; then one
transaction stores all of it or nothing (reconcile.intents.submit)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import msgspec
from fastapi import Body, Response

from corral.api.ahead import Ahead, ChangeView, EstimateView, HolderView, look_ahead
from corral.api.arrays import array_view
from corral.api.context import Context, Here
from corral.api.digests import digests_of
from corral.api.explaining import ClassView, classes_of, without_own
from corral.api.inputs import BatchIn, SessionIn
from corral.api.keys import Key, checked_key
from corral.api.lookup import find_any
from corral.api.openapi import json_of, respond
from corral.api.others import told_to
from corral.api.policy import Asking, Caller, Policy, allow, routes
from corral.api.preferring import PreferenceView, preferences_of
from corral.api.render import (
    RefusalView,
    ResourcesView,
    Rows,
    SessionView,
    resources_view,
    rows_of,
    session_view,
)
from corral.api.specs import spec_of
from corral.api.waits import asked_refusals
from corral.model.array import Array, has_row, member_of, phase_of
from corral.model.dependency import Dependency, DependencyKind, dependencies_of
from corral.model.faults import Fault, Invalid, Refused
from corral.model.indices import indices_of
from corral.model.lifecycle import Phase
from corral.model.session import Session
from corral.model.spec import SessionSpec
from corral.ports import DependencyRow, NewSession, Reads, Tx
from corral.reconcile import arrays, intents
from corral.reconcile.dependencies import let_wait
from corral.reconcile.groups import no_such_group
from corral.reconcile.quotas import asked_about, asked_to_wait
from corral.scheduling.explaining.explain import explain, explain_waiting
from corral.scheduling.snapshot import Shape, shape_of

router = routes("sessions")
MOST_AT_ONCE = 10_000  # sessions that one request may name to wait for; ranges of its arrays, all together


class SessionsView(msgspec.Struct):
    sessions: list[SessionView]
    next: str | None = None


class PlanView(msgspec.Struct):
    """What would happen now: `fits_now` says that room is free, `blockers` what keeps it from starting, with room or
    without, `infeasible` that no node could ever do it, `changes` with which single change it would start now,
    `classes` what each class of nodes says, `preferences` which nodes have the labels that it would rather have; of an
    array it is said of each of its `members`."""

    fits_now: bool
    infeasible: bool
    blockers: list[RefusalView]
    resources: ResourcesView
    nodes: int
    ranks: int
    changes: list[ChangeView] = []
    members: int = 1
    classes: list[ClassView] = []
    estimate: EstimateView | None = None
    preferences: list[PreferenceView] = []
    estimate_unknown: str | None = None
    held_by: list[HolderView] = []


@router.post("/api/v1/sessions", status_code=201, responses=json_of(SessionView, 201, 200))
@allow(Policy.USER)
async def submit(here: Here, asking: Asking, asked: Annotated[SessionIn, Body()], key: Key = None) -> Response:
    """Submit one session. With an idempotency key, repeating the request answers the session it made."""
    spec = spec_of(asked)
    digest, *older = digests_of([spec])
    new = NewSession(here.ids.session_id(), spec, asking.name, _key(asked, key), digest, older=older)
    created, views = await _store(here, asking, [new])
    headers = {"Location": f"/api/v1/sessions/{views[0].id}"}
    return respond(views[0], 201 if created else 200, headers)


@router.post("/api/v1/sessions:batch", status_code=201, responses=json_of(SessionsView, 201, 200))
@allow(Policy.USER)
async def submit_batch(here: Here, asking: Asking, asked: Annotated[BatchIn, Body()], key: Key = None) -> Response:
    """Submit many sessions: all, or none. The key is for the whole of the request."""
    checked_key(key)
    _few_ranges(asked)
    specs = [_numbered(number, lambda one=one: spec_of(one)) for number, one in enumerate(asked.sessions)]
    whole = digests_of(specs) if key else ()
    new: list[NewSession] = []
    for number, (one, spec) in enumerate(zip(asked.sessions, specs, strict=True)):
        if key is not None and one.idempotency_key is not None:
            raise Invalid("two_keys", f"sessions[{number}]: give a key for the request or for the session, not both")
        own_key = f"{key}#{number}" if key else _key(one, None)
        digest, *older = whole or digests_of([spec])
        new.append(NewSession(here.ids.session_id(), spec, asking.name, own_key, digest, older=older))
    created, views = await _store(here, asking, new)
    return respond(SessionsView(views), 201 if created else 200)


@router.post("/api/v1/sessions:plan", responses=json_of(PlanView))
@allow(Policy.USER)
async def plan(here: Here, asking: Asking, asked: Annotated[SessionIn, Body()]) -> Response:
    """What submitting this would meet, without submitting it."""
    spec = spec_of(asked)
    members = 1 if spec.array is None else indices_of(spec.array).size

    def look(reads: Reads) -> PlanView:
        _known_group(reads, spec)
        needs = [_dependency_row(reads, kind, one) for kind, one in _named(reads, asking, spec)]
        snapshot, waiting = reads.snapshot(1), asked_about(asking.name, spec)
        found = explain_waiting(snapshot, waiting)
        blockers = [RefusalView(**one) for one in asked_refusals(spec, needs, reads.now)]
        full = asked_to_wait(reads, asking.name, spec, members)
        own, possible = list(blockers), not found.infeasible
        ahead = Ahead() if own or full else look_ahead(reads, asking, waiting, possible=possible)
        told = [*full, *found.refusals]
        blockers += [RefusalView(one.code, one.message, dict(one.counts)) for one in told]
        blockers += ahead.blockers
        fits = found.fits_now and not ahead.blockers and not full
        view = PlanView(fits, found.infeasible, blockers, resources_view(spec.resources), spec.nodes, spec.ranks,
                        without_own(reads, waiting, own) if own and not full else list(ahead.changes), members,
                        classes_of(found), ahead.estimate, preferences_of(snapshot, spec), ahead.unknown,
                        list(ahead.held_by))  # fmt: skip
        return told_to(reads, asking, [view])[0]

    return respond(await here.store.read("plan", look))


async def _store(here: Context, asking: Caller, new: Sequence[NewSession]) -> tuple[bool, list[SessionView]]:
    """Whether any is new, and each as it is now."""
    ids = {one.id for one in new}
    needs = await _all_needs(here, asking, new)

    def write(tx: Tx) -> tuple[bool, list[Session | Array]]:
        _make_rows(tx, [one.needs for named in needs.values() for one in named], asking.by)
        sessions = intents.submit_all(tx, new, asking.by)
        fresh = [session for session in sessions if session.id in ids]
        let_wait(tx, asking.name, {one.id: needs[one.id] for one in fresh if one.id in needs},
                 {one.id for one in fresh if isinstance(one, Array)})  # fmt: skip
        _content_is_there(tx, [session.spec for session in fresh])
        _not_hopeless(tx, [session.spec for session in fresh])
        return bool(fresh), sessions

    def show(reads: Reads) -> list[SessionView]:
        plain = [one for one in sessions if isinstance(one, Session)]
        rows = rows_of(reads, plain) if len(sessions) == 1 or not created else Rows()
        position = reads.position(plain[0]) if plain and len(sessions) == 1 else None
        views = [
            array_view(reads, one) if isinstance(one, Array) else session_view(one, rows, position) for one in sessions
        ]
        return told_to(reads, asking, views)

    created, sessions = await here.store.tx("submit", write)
    return created, await here.store.read("show", show)


def _make_rows(tx: Tx, named: Sequence[str], by: str) -> None:
    """Arrays' members that are waited for are rows from then on."""
    for id_ in sorted({id_ for id_ in named if member_of(id_) is not None}):
        arrays.make_member(tx, id_, by)


def _content_is_there(tx: Tx, specs: Sequence[SessionSpec]) -> None:
    digests = {digest for spec in specs for digest in (spec.script, spec.upload, spec.bootstrap) if digest}
    for digest in sorted(digests):
        if not tx.has_blob(digest):
            raise Invalid("no_such_blob", f"{digest} is not stored here; PUT it to /api/v1/blobs/{digest} first",
                          subject=digest)  # fmt: skip


def _not_hopeless(tx: Tx, specs: Sequence[SessionSpec]) -> None:
    """Refuse at once what no node can ever do. Equal requests are judged once."""
    shapes: dict[Shape, SessionSpec] = {shape_of(spec): spec for spec in specs}
    if not shapes:
        return
    for spec in shapes.values():
        _known_group(tx, spec)
    snapshot = tx.snapshot(0)
    for shape in shapes:
        found = explain(snapshot, shape)
        if found.infeasible:
            reasons = "; ".join(one.message for one in found.refusals)
            raise Refused(
                "infeasible", f"no node here can ever do this ({reasons}); ask for less, or see `corral nodes`"
            )


async def _all_needs(here: Context, asking: Caller, new: Sequence[NewSession]) -> dict[str, list[Dependency]]:
    """Looked up before the transaction that stores them: no session is ever gone once it is there."""
    dependents = [one for one in new if one.spec.after]
    named = sum(len(one.spec.after) for one in dependents)
    if named > MOST_AT_ONCE:
        raise Invalid("bad_dependency", f"the request names {named} sessions with --after; at most {MOST_AT_ONCE}",
                      subject="--after")  # fmt: skip
    if not dependents:
        return {}
    return await here.store.read(
        "dependencies", lambda reads: {one.id: _needs(reads, asking, one.spec) for one in dependents}
    )


def _needs(reads: Reads, asking: Caller, spec: SessionSpec) -> list[Dependency]:
    """What it is to wait for, each the caller's own session by its full id."""
    return [Dependency(_waited_for(one), kind) for kind, one in _named(reads, asking, spec)]


def _named(reads: Reads, asking: Caller, spec: SessionSpec) -> list[tuple[DependencyKind, Session | Array]]:
    found = [(kind, find_any(reads, asking, needs)) for needs, kind in dependencies_of(spec.after)]
    both = {one.id for kind, one in found if kind is DependencyKind.OK} & {
        one.id for kind, one in found if kind is DependencyKind.NOT_OK
    }
    if both:
        raise Invalid("bad_dependency", f"--after {min(both)}:ok and :notok can never both be met; give one of them, "
                      "or :any", subject="--after")  # fmt: skip
    return found


def _dependency_row(reads: Reads, kind: DependencyKind, one: Session | Array) -> DependencyRow:
    phase = one.phase if isinstance(one, Session) else phase_of(one, reads.tallies([one])[one.id])
    return DependencyRow(one.id, kind, phase, one.outcome)


def _waited_for(one: Session | Array) -> str:
    """A member that ended with its array has no row and gets none; how the array ends says as much of it."""
    gone = isinstance(one, Session) and not has_row(one) and one.phase is Phase.ENDED
    return one.id.partition("[")[0] if gone else one.id


def _known_group(reads: Reads, spec: SessionSpec) -> None:
    if spec.group is not None and spec.group not in (groups := reads.groups()):
        raise no_such_group(spec.group, groups)


def _few_ranges(asked: BatchIn) -> None:
    """Ranges that lie across one another take time to count: one request keeps nobody waiting for thousands of them."""
    ranges = sum(one.array.count(",") + 1 for one in asked.sessions if one.array is not None)
    if ranges > MOST_AT_ONCE:
        raise Invalid("too_many", f"the request's arrays have {ranges} ranges together; at most {MOST_AT_ONCE}: submit "
                      "them in several requests", subject="--array")  # fmt: skip


def _numbered(number: int, make: Callable[[], SessionSpec]) -> SessionSpec:
    try:
        return make()
    except Fault as fault:
        fault.message = f"sessions[{number}]: {fault.message}"
        raise


def _key(asked: SessionIn, header: str | None) -> str | None:
    if header is not None and asked.idempotency_key and header != asked.idempotency_key:
        raise Invalid("two_keys", "the Idempotency-Key header and the field idempotency_key differ; give one of them")
    return checked_key(asked.idempotency_key if header is None else header)
