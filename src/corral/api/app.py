"""The application: context, gate, routes and problem documents put together. Checks that every route has a policy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from fastapi import APIRouter, FastAPI, Request, Response

from corral import __version__
from corral.api import openapi, problems
from corral.api.bodies import JSON_LIMIT_BYTES, UPLOAD_LIMIT_BYTES, Gate
from corral.api.context import Context, Ended
from corral.api.credentials import Credentials
from corral.api.policy import Policy, PolicyRoute, allow, policy_of, routes
from corral.api.relay import DIAL_WAIT_S, Relay
from corral.api.routes import (
    blobs,
    clearing,
    cluster,
    events,
    groups,
    health,
    logs,
    quotas,
    reservations,
    sessions,
    stories,
    verbs,
)
from corral.api.routes.agents import agent_routes
from corral.model.faults import Fault
from corral.observe import Measured, Metrics
from corral.ports import Clock, Ids, Store
from corral.reconcile.loop import LoopHealth, Loops

LOCAL_HOSTS = ("localhost", "testserver")
DESCRIPTION = "Sessions on machines with GPUs, each started at most once. Errors are problem documents with a `code`."


def create_app(
    store: Store,
    clock: Clock,
    ids: Ids,
    *,
    url: str,
    by: str = "manager",
    loops: Loops | None = None,
    stopping: asyncio.Event | None = None,
    hosts: Sequence[str] = (),
    json_limit_bytes: int = JSON_LIMIT_BYTES,
    upload_limit_bytes: int = UPLOAD_LIMIT_BYTES,
    dial_wait_s: float = DIAL_WAIT_S,
    refused: dict[str, Fault] | None = None,
    slow_policies: Mapping[str, float] | None = None,
) -> FastAPI:
    """The ASGI application of one manager. `url` is where agents reach it; `stopping`, once set, ends every wait;
    `refused` is filled with the nodes whose last registration was refused, and why."""
    metrics = Metrics()
    measured = Measured(store, metrics, clock)
    health_of: Callable[[], Sequence[LoopHealth]] = loops.health if loops is not None else tuple
    app = FastAPI(
        title="Corral",
        version=__version__,
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    relay = Relay(measured, ids, url, dial_wait_s)
    credentials = Credentials(measured, clock)
    app.state.context = Context(
        measured,
        clock,
        ids,
        url,
        by,
        metrics,
        relay,
        credentials,
        stopping or asyncio.Event(),
        health_of,
        {} if refused is None else refused,
        Ended(),
        {} if slow_policies is None else slow_policies,
    )
    app.router.route_class = PolicyRoute
    problems.install(app)
    for router in (_described(app), *_routers()):
        app.include_router(router)
    known = (*LOCAL_HOSTS, *hosts, urlsplit(url).hostname or "")
    app.add_middleware(Gate, hosts=known, json_limit=json_limit_bytes, upload_limit=upload_limit_bytes)
    app.openapi = partial(openapi.describe, app)
    return app


def _routers() -> list[APIRouter]:
    modules = (health, sessions, verbs, stories, logs, events, cluster, groups, quotas, reservations, clearing, blobs)
    routers = [*(module.router for module in modules), agent_routes()]
    for router in routers:
        for route in router.routes:
            policy_of(_endpoint(route))
    return routers


def _endpoint(route: Any) -> Callable[..., Any]:
    return route.endpoint


def _described(app: FastAPI) -> APIRouter:
    router = routes("health")

    @router.get("/openapi.json", include_in_schema=False)
    @allow(Policy.PUBLIC)
    async def document(request: Request) -> Response:
        return openapi.respond(openapi.describe(app))

    return router
