"""For probes and people without a credential: alive, ready, metrics, version, and the plain page at `/`."""

from __future__ import annotations

from collections import Counter

import msgspec
from fastapi import Response
from fastapi.responses import HTMLResponse

from corral import __version__
from corral.api.context import Context, Here
from corral.api.openapi import bytes_of, json_of, respond
from corral.api.page import status_page
from corral.api.policy import Policy, allow, routes
from corral.api.routes.cluster import Finding, loop_findings
from corral.api.routes.quotas import use_numbers
from corral.model.faults import Unavailable
from corral.model.lifecycle import Phase
from corral.ports import Reads

router = routes("health")
COUNT_PAUSE_S = 1.0
COUNT_PAUSES = 100  # so many times as long as counting took: whoever asks, it costs a hundredth of a processor


class LoopView(msgspec.Struct):
    """`success_age_s`: seconds since the last pass that succeeded."""

    name: str
    running: bool
    ticks: int
    errors: int
    restarts: int
    success_age_s: float | None
    last_error: str | None


class ReadyView(msgspec.Struct):
    ready: bool
    findings: list[Finding]
    loops: list[LoopView]


class AliveView(msgspec.Struct):
    alive: bool = True


class VersionView(msgspec.Struct):
    version: str
    api: str = "v1"


@router.get("/livez", responses=json_of(AliveView))
@allow(Policy.PUBLIC)
async def livez() -> Response:
    """The process answers."""
    return respond(AliveView())


@router.get("/readyz", responses=json_of(ReadyView, 200, 503))
@allow(Policy.PUBLIC)
async def readyz(here: Here) -> Response:
    """The database answers and every loop is well; 503 and the reasons otherwise."""
    findings = loop_findings(here.loops(), here.clock.mono())
    try:
        await here.store.read("ready", lambda reads: reads.generation())
    except Unavailable as error:
        findings.append(Finding("error", error.code, "database", error.message))
    view = ReadyView(not findings and not here.stopping.is_set(), findings, _loops(here))
    return respond(view, 200 if view.ready else 503)


def _loops(here: Context) -> list[LoopView]:
    now = here.clock.mono()
    return [
        LoopView(
            loop.name,
            loop.running,
            loop.ticks,
            loop.errors,
            loop.restarts,
            None if loop.last_success_at is None else round(now - loop.last_success_at, 3),
            loop.last_error,
        )
        for loop in here.loops()
    ]


@router.get("/metrics", responses=bytes_of("text/plain"))
@allow(Policy.PUBLIC)
async def metrics(here: Here) -> Response:
    """Numbers for Prometheus."""
    sessions, nodes = await counts(here)
    quotas = await here.store.read("quotas", use_numbers)
    page = here.metrics.page(sessions, nodes, here.loops(), here.clock.mono(), quotas, here.store.deeds)
    return Response(page, media_type="text/plain; version=0.0.4; charset=utf-8")


async def counts(here: Context) -> tuple[dict[str, int], dict[str, int]]:
    """Sessions by phase, nodes by state. To count what has ended is to look at all there ever was, and anybody may ask:
    it is done a second after the last time, or later the longer it takes."""
    began, ended = here.clock.mono(), here.ended
    recount = ended.due is None or began >= ended.due

    def look(reads: Reads) -> tuple[dict[str, int], dict[str, int]]:
        states = Counter(str(node.state) for node in reads.nodes().values())
        return reads.count_sessions() if recount else reads.count_live(), dict(states)

    sessions, nodes = await here.store.read("counts", look)
    if recount:
        now = here.clock.mono()
        ended.number = sessions.get(Phase.ENDED, 0)
        ended.due = now + max(COUNT_PAUSE_S, COUNT_PAUSES * (now - began))
    return sessions | {Phase.ENDED.value: ended.number}, nodes


@router.get("/version", responses=json_of(VersionView))
@allow(Policy.PUBLIC)
async def version() -> Response:
    return respond(VersionView(__version__))


@router.get("/", responses=bytes_of("text/html"))
@allow(Policy.PUBLIC)
async def page(here: Here) -> Response:
    """A page for people: counts only, nothing that needs a credential."""
    sessions, nodes = await counts(here)
    return HTMLResponse(
        status_page(sessions, nodes),
        headers={"Content-Security-Policy": "default-src 'self'; style-src 'unsafe-inline'"},
    )
