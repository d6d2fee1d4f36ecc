"""What agents say: register, the one exchange (docs/protocol.md 4), and the streams they dial in with.

Bodies are decoded by `wire`; reconcile.exchange decides. An exchange with nothing new to tell is parked until a hint
for its node, the agent's next word, or the time it gave.
"""

from __future__ import annotations

from fastapi import APIRouter, Request, Response, WebSocket

from corral import wire
from corral.api.context import Context, Here, context_of
from corral.api.parking import Parking
from corral.api.policy import Policy, admit, allow, routes
from corral.api.relay import PATH
from corral.model.faults import Fault, Refused
from corral.ports import node_channel
from corral.reconcile import exchange as reconcile

LONGEST_PARK_S = 30.0
MOST_REFUSED = 1000
MEDIA_TYPE = "application/json"


def agent_routes() -> APIRouter:
    """The agents' routes, with a parking place of their own for each manager."""
    router = routes("agents")
    parking = Parking()

    @router.post("/api/v1/agent/register", include_in_schema=False)
    @allow(Policy.AGENT)
    async def register(here: Here, request: Request) -> Response:
        message = wire.decode(await request.body(), wire.Registration)
        try:
            registered = await here.store.tx("register", lambda tx: reconcile.register(tx, message, here.by))
        except Refused as why:
            if message.name in here.refused or len(here.refused) < MOST_REFUSED:
                here.refused[message.name] = why
            raise
        here.refused.pop(message.name, None)
        return Response(wire.encode(registered), media_type=MEDIA_TYPE)

    @router.post("/api/v1/agent/exchange", include_in_schema=False)
    @allow(Policy.AGENT)
    async def exchange(here: Here, request: Request) -> Response:
        message = wire.decode(await request.body(), wire.Exchange)
        desired = await _converse(here, parking, message)
        here.metrics.exchanged(
            "stale" if desired.stale else "orders" if desired.orders else "empty", len(message.facts)
        )
        return Response(wire.encode(desired), media_type=MEDIA_TYPE)

    @router.websocket(PATH + "{stream_id}")
    @allow(Policy.AGENT)
    async def streams(socket: WebSocket, stream_id: str) -> None:
        try:
            await admit(socket, Policy.AGENT)
        except Fault:
            await socket.close(1008)
            return
        await context_of(socket).relay.serve(stream_id, socket)

    return router


async def _converse(here: Context, parking: Parking, message: wire.Exchange) -> wire.Desired:
    """One transaction; if it has nothing new to tell, one more after each hint until it has."""
    deadline = here.clock.mono() + min(message.wait_s, LONGEST_PARK_S)
    watch = here.store.wakeups.watch(node_channel(message.node))

    async def ask() -> wire.Desired:
        return await here.store.tx("exchange", lambda tx: reconcile.exchange(tx, message, here.by, here.url))

    try:
        desired = await ask()
        if not desired.stale:
            parking.free(message.node)
        while not (desired.stale or message.facts or desired.version > message.have_version):
            left_s = deadline - here.clock.mono()
            hinted = left_s > 0 and await parking.park(message.node, watch, left_s, here.stopping)
            if not hinted or here.stopping.is_set():
                break
            desired = await ask()
        return desired
    finally:
        watch.close()
