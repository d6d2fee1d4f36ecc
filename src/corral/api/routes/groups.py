"""Resource groups: their policies and options, who has which share, pause and resume, and every change there was."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

import msgspec
from fastapi import Body, Query, Response

from corral.api.context import Here
from corral.api.discretion import event_for, order_options_for, placement_options_for
from corral.api.inputs import GroupChangeIn, GroupIn
from corral.api.openapi import json_of, respond
from corral.api.policy import Asking, Caller, Policy, allow, routes
from corral.api.render import EventView, ReasonView
from corral.model.faults import Invalid
from corral.model.node import ResourceGroup
from corral.ports import Reads, Tx
from corral.reconcile import groups as intents
from corral.scheduling.ordering import capacity_of
from corral.scheduling.policies import registry
from corral.scheduling.policies.group_options import GROUP_OPTIONS, group_options
from corral.scheduling.policies.options import Options, complete
from corral.scheduling.policies.registry import PolicyKind
from corral.scheduling.policies.shares import DRF, FAIR_SHARE, Share, drf_shares, fair_shares
from corral.scheduling.snapshot import Snapshot

router = routes("groups")


class GroupView(msgspec.Struct):
    """All options are there, defaults included; `problem` says why the group takes
    no sessions though it is not paused; `version` counts its changes."""

    name: str
    order: str
    order_options: dict[str, Any]
    placement: str
    placement_options: dict[str, Any]
    options: dict[str, Any]
    backend: str
    nodes: int
    paused: bool
    version: int
    problem: ReasonView | None


class ShareView(msgspec.Struct):
    """`entitled` and `used` are fractions of the whole; of `level` the lowest goes next."""

    project: str | None
    owner: str | None
    weight: float
    entitled: float
    used: float
    level: float


class GroupWithShares(msgspec.Struct):
    """`shares`: of groups by `fair-share` and `drf`, everyone's for administrators, else the caller's own."""

    group: GroupView
    shares: list[ShareView]


class OptionView(msgspec.Struct):
    name: str
    kind: str
    default: Any
    help: str
    choices: list[str]


class PolicyView(msgspec.Struct):
    kind: str
    name: str
    help: str
    options: list[OptionView]
    problem: ReasonView | None


@router.get("/api/v1/groups", responses=json_of(list[GroupView]))
@allow(Policy.USER)
async def groups(here: Here, asking: Asking) -> Response:
    """Every resource group and its policies, by name."""

    def look(reads: Reads) -> list[GroupView]:
        members = Counter(one.group for one in reads.nodes().values())
        return [_view(one, members[one.name], asking) for _, one in sorted(reads.groups().items())]

    return respond(await here.store.read("groups", look))


@router.post("/api/v1/groups", status_code=201, responses=json_of(GroupView, 201))
@allow(Policy.ADMIN)
async def create_group(here: Here, asking: Asking, asked: Annotated[GroupIn, Body()]) -> Response:
    """Make a group. One that a node names when it joins is made by itself, with the default policies."""
    group = ResourceGroup(
        asked.name,
        asked.order,
        asked.placement,
        order_options=_given(asked.order_options),
        placement_options=_given(asked.placement_options),
        options=_given(asked.options),
    )
    made = await here.store.tx("create group", lambda tx: _now(tx, intents.create(tx, group, asking.by), asking))
    return respond(made, 201, {"Location": f"/api/v1/groups/{made.name}"})


@router.get("/api/v1/groups/{name}", responses=json_of(GroupWithShares))
@allow(Policy.USER)
async def group(here: Here, asking: Asking, name: str) -> Response:
    """One group, and who has which share of it."""

    def look(reads: Reads) -> GroupWithShares:
        groups = reads.groups()
        found = groups.get(name)
        if found is None:
            raise intents.no_such_group(name, groups)
        return GroupWithShares(_now(reads, found, asking), [_share_view(one) for one in _shares(reads, found, asking)])

    return respond(await here.store.read("group", look))


@router.patch("/api/v1/groups/{name}", responses=json_of(GroupView))
@allow(Policy.ADMIN)
async def change_group(here: Here, asking: Asking, name: str, asked: Annotated[GroupChangeIn, Body()]) -> Response:
    """Change a group's policies and options. It counts from the next pass on, which is woken by it."""
    change = intents.GroupChange(
        order=asked.order,
        order_options=asked.order_options,
        placement=asked.placement,
        placement_options=asked.placement_options,
        options=asked.options,
        version=asked.version,
    )
    return respond(
        await here.store.tx("change group", lambda tx: _now(tx, intents.change(tx, name, change, asking.by), asking))
    )


@router.delete("/api/v1/groups/{name}", responses=json_of(GroupView))
@allow(Policy.ADMIN)
async def delete_group(here: Here, asking: Asking, name: str) -> Response:
    """Delete a group that has neither nodes nor sessions that have not ended; the group as it was last."""

    def write(tx: Tx) -> GroupView:
        before = tx.groups().get(name)
        intents.delete(tx, name, asking.by)
        assert before is not None
        return _view(before, 0, asking)

    return respond(await here.store.tx("delete group", write))


@router.post("/api/v1/groups/{name}/pause", responses=json_of(GroupView))
@allow(Policy.ADMIN)
async def pause(here: Here, asking: Asking, name: str) -> Response:
    """Start nothing new in the group from now on; what has room there goes on."""
    return respond(await here.store.tx("pause group", lambda tx: _now(tx, intents.pause(tx, name, asking.by), asking)))


@router.post("/api/v1/groups/{name}/resume", responses=json_of(GroupView))
@allow(Policy.ADMIN)
async def resume(here: Here, asking: Asking, name: str) -> Response:
    """Let the group start sessions again."""
    return respond(
        await here.store.tx("resume group", lambda tx: _now(tx, intents.resume(tx, name, asking.by), asking))
    )


@router.post("/api/v1/groups/{name}/schedule", responses=json_of(GroupView))
@allow(Policy.ADMIN)
async def schedule(here: Here, asking: Asking, name: str) -> Response:
    """Look now whose turn it is, without waiting for anything to happen. It changes nothing of the group."""
    return respond(await here.store.tx("schedule", lambda tx: _now(tx, intents.schedule(tx, name), asking)))


@router.get("/api/v1/groups/{name}/history", responses=json_of(list[EventView]))
@allow(Policy.USER)
async def group_history(
    here: Here,
    asking: Asking,
    name: str,
    after: Annotated[int, Query(ge=0, le=2**62)] = 0,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> Response:
    """Every change of the group, in the order of its versions, also of one that was deleted. `after` is a version."""

    def look(reads: Reads) -> list[EventView]:
        rows = reads.group_history(name, after, limit) if "\x00" not in name else []
        if not rows and name not in reads.groups() and not (after and reads.group_history(name, 0, 1)):
            raise intents.no_such_group(name, reads.groups())
        return [event_for(asking, row) for row in rows]

    return respond(await here.store.read("group history", look))


@router.get("/api/v1/policies", responses=json_of(list[PolicyView]))
@allow(Policy.USER)
async def policies(here: Here) -> Response:
    """Every policy that is installed in this manager, with the options it takes."""
    orders = [_policy_view(PolicyKind.ORDER, name) for name in registry.names(PolicyKind.ORDER)]
    placements = [_policy_view(PolicyKind.PLACEMENT, name) for name in registry.names(PolicyKind.PLACEMENT)]
    every = PolicyView("group", "every", "Options whatever the policies.", _option_views(GROUP_OPTIONS), None)
    return respond([*orders, *placements, every])


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _now(reads: Reads, group: ResourceGroup, asking: Caller) -> GroupView:
    return _view(group, sum(node.group == group.name for node in reads.nodes().values()), asking)


def _view(group: ResourceGroup, nodes: int, asking: Caller) -> GroupView:
    order_options, placement_options = dict(group.order_options), dict(group.placement_options)
    problem = None
    try:
        order_options = dict(registry.policies_of(group).order_options)
        declared = registry.placement_options(registry.placement_policy(group.placement))
        placement_options = complete(declared, group.placement_options, group.placement)
    except Invalid as error:
        problem = ReasonView(error.code, error.message)
    return GroupView(
        group.name,
        group.order,
        order_options_for(asking, group.order, order_options),
        group.placement,
        placement_options_for(asking, group.placement, placement_options),
        dict(group_options(group)),
        group.backend,
        nodes,
        group.paused,
        group.version,
        problem,
    )


def _shares(reads: Reads, group: ResourceGroup, asking: Caller) -> list[Share]:
    if group.order not in (DRF, FAIR_SHARE):
        return []
    try:
        options = registry.policies_of(group).order_options
    except Invalid:
        return []
    usage = reads.usage([group])
    if group.order == FAIR_SHARE:
        shares = fair_shares(usage, options)
    else:
        devices: dict[str, list[Any]] = {}
        for device in reads.devices():
            devices.setdefault(device.node, []).append(device)
        picture = Snapshot(reads.now, list(reads.nodes().values()), devices, ())
        shares = drf_shares(usage, capacity_of(picture, group.name), options)
    return [one for one in shares if asking.owner is None or one.owner == asking.owner]


def _share_view(share: Share) -> ShareView:
    return ShareView(*share)


def _policy_view(kind: PolicyKind, name: str) -> PolicyView:
    try:
        if kind is PolicyKind.ORDER:
            order = registry.order_policy(name)
            return PolicyView(kind, name, order.help, _option_views(order.options), None)
        placement = registry.placement_policy(name)
        help_ = " ".join((placement.__doc__ or "").split())
        return PolicyView(kind, name, help_, _option_views(registry.placement_options(placement)), None)
    except Invalid as error:
        return PolicyView(kind, name, "", [], ReasonView(error.code, error.message))


def _option_views(options: Options) -> list[OptionView]:
    return [
        OptionView(name, one.kind, one.default, one.help, list(one.choices)) for name, one in sorted(options.items())
    ]
