"""From an order to an accepted job directory: permission, the horizon, what the launch needs, the devices, room.

Whatever says no says it before anything has begun. Next: `jobs` asks for the shim.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from corral.agent.environment import Layout, Me, spec_for
from corral.agent.horizon import Horizon
from corral.agent.jobspec import JsonObject
from corral.agent.ports import Devices, JobDirs, Machine, NoRoom, NotProvided, Provided, Provision
from corral.model.session import FactKind, Why
from corral.ports import Clock, CrashPoint
from corral.wire import Launch

START_TTL_S = 60.0
PERMISSION_EXPIRED = Why("permission_expired", "the order to start it was too old by the time it could be started")

CRASH_POINTS = ("agent.before_seen", "agent.before_accept", "agent.after_accept")


class NotBegun(NamedTuple):
    """Nothing was started, nor will be: refused, failed, or (`void`) stopped meanwhile."""

    kind: FactKind
    why: Why | None


class Launcher:
    def __init__(
        self,
        me: Me,
        machine: Machine,
        layout: Layout,
        dirs: JobDirs,
        devices: Devices,
        provision: Provision,
        horizon: Horizon,
        clock: Clock,
        point: CrashPoint,
    ) -> None:
        self._me = me
        self._machine = machine
        self._layout = layout
        self._dirs = dirs
        self._devices = devices
        self._provision = provision
        self._horizon = horizon
        self._clock = clock
        self._point = point
        self._providing: dict[str, asyncio.Future[Provided]] = {}

    async def prepare(self, token: str, launch: Launch, asked_at: float) -> JsonObject | NotBegun:
        """The spec of a job directory that is now there; or why not, with nothing begun."""
        if launch.node_epoch != self._me.epoch:
            return NotBegun(FactKind.REFUSED, Why("stale_epoch", f"ordered for epoch {launch.node_epoch} of this node"))
        fences = self._horizon.fences
        if (why := await self._horizon.fenced(token)) is not None:
            return NotBegun(FactKind.REFUSED, why)
        try:
            provided = await self._provide(token, launch)
        except NotProvided as missing:
            return NotBegun(FactKind.REFUSED if missing.refused else FactKind.FAILED, missing.why)
        if provided is None:
            return NotBegun(FactKind.VOID, None)
        busy = await self._devices.check(token, [uuid for uuid, *_ in launch.devices])
        if busy is not None:
            return NotBegun(FactKind.REFUSED, busy)
        return await self._accept(token, launch, provided, asked_at + START_TTL_S, fences)

    async def _accept(
        self, token: str, launch: Launch, provided: Provided, start_before_s: float, fences: int
    ) -> JsonObject | NotBegun:
        if self._clock.mono() >= start_before_s:
            return NotBegun(FactKind.REFUSED, PERMISSION_EXPIRED)
        self._point("agent.before_seen")
        await self._horizon.remember(token)
        if self._horizon.fences != fences and (why := await self._horizon.fenced(token)) is not None:
            return NotBegun(FactKind.REFUSED, why)  # a stop, or a later attempt, came meanwhile
        made = spec_for(token, launch, provided, self._me, self._machine, self._layout, start_before_s)
        self._point("agent.before_accept")
        try:
            await self._dirs.accept(token, made.spec, made.files)
        except NoRoom as full:
            return NotBegun(FactKind.REFUSED, Why("node_disk", f"no room on the node's disk: {full}"))
        self._point("agent.after_accept")
        return made.spec

    async def _provide(self, token: str, launch: Launch) -> Provided | None:
        """What the launch needs; None where it was given up meanwhile."""
        providing = self._providing[token] = asyncio.ensure_future(self._provision.provide(launch))
        try:
            return await providing
        except asyncio.CancelledError:
            return None
        finally:
            del self._providing[token]

    def give_up(self, token: str) -> None:
        """A stop came: do not wait for what the launch needs."""
        if (providing := self._providing.get(token)) is not None:
            providing.cancel()
