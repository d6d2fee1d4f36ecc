"""A manager whose words are scripted: it speaks wire.py over real HTTP and WebSocket, and remembers what it was told.

It answers as docs/protocol.md 4 and 9 have it (versions, nonces, orders until accepted) and may be told to misbehave.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from corral import wire
from corral.model.resources import Resources
from corral.model.session import FactKind, KernelFact, Why, parse_token
from tests.agent.node import until

TOKEN = "agents-secret"
ENDS = {FactKind.EXITED, FactKind.VOID, FactKind.REFUSED, FactKind.FAILED}


@dataclass
class Stream:
    """What a reader got: frames as they came."""

    heads: list[dict[str, Any]] = field(default_factory=list)
    data: bytes = b""
    over: bool = False

    @property
    def unavailable(self) -> str | None:
        return next((head["unavailable"] for head in self.heads if "unavailable" in head), None)


@dataclass
class Ordered:
    """One kernel of the desired set."""

    order: wire.KernelOrder
    version: int


class ScriptedManager:
    """`facts` in the order of their first arrival, `arrivals` each time. One lock for all that both threads touch."""

    def __init__(self, port: int = 0) -> None:
        self.epoch = 1
        self.facts: list[KernelFact] = []
        self.arrivals: list[KernelFact] = []
        self.registrations: list[wire.Registration] = []
        self.exchanges: list[wire.Exchange] = []
        self.blobs: dict[str, bytes] = {}
        self.streams: dict[str, Stream] = {}
        self.blob_gate = threading.Event()
        self.blob_gate.set()
        self.blob_requests = 0
        self.frozen = False
        self.lose_answers = 0
        self.stale_answers = 0
        self.refuse_registration: tuple[int, str] | None = None
        self.boot_id = ""
        self.nonce: str | None = None
        self._ordered: dict[str, Ordered] = {}
        self._stream_orders: list[wire.StreamOrder] = []
        self._version = 0
        self._lock = threading.RLock()
        self._listening = socket.create_server(("127.0.0.1", port))
        self.port = self._listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._server = uvicorn.Server(
            uvicorn.Config(self._app(), log_level="error", ws="websockets-sansio", lifespan="off")
        )
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        until(lambda: self._server.started, "the scripted manager listening")

    def _serve(self) -> None:
        self._server.run(sockets=[self._listening])

    def close(self) -> None:
        self.blob_gate.set()
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(10)
        self._listening.close()

    def _app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/api/v1/agent/register", self._register, methods=["POST"]),
                Route("/api/v1/agent/exchange", self._exchange, methods=["POST"]),
                Route("/api/v1/agent/blobs/{digest}", self._blob),
                WebSocketRoute("/api/v1/agent/streams/{id}", self._stream),
            ]
        )

    # --- the routes

    async def _register(self, request: Request) -> Response:
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return _problem(401, "unauthenticated", "no such token")
        body = await request.body()
        with self._lock:
            message = wire.decode(body, wire.Registration)
            self.registrations.append(message)
            if self.refuse_registration:
                status, code = self.refuse_registration
                return _problem(status, code, "refused by the script")
            if self.boot_id not in ("", message.boot_id):
                self.epoch += 1
            self.boot_id = message.boot_id
            self._take(message.facts)
            self.nonce = message.nonces[1]
            return _answer(wire.Registered(epoch=self.epoch, generation=1, node_timeout_s=30.0))

    async def _exchange(self, request: Request) -> Response:
        body = await request.body()
        while self.frozen and not await request.is_disconnected():
            await asyncio.sleep(0.005)
        message = wire.decode(body, wire.Exchange)
        give_up = asyncio.get_running_loop().time() + message.wait_s
        with self._lock:
            self.exchanges.append(message)
            newest = self.registrations[-1].incarnation if self.registrations else None
            if self.stale_answers or message.epoch != self.epoch or message.incarnation != newest:
                self.stale_answers = max(0, self.stale_answers - 1)
                return _answer(wire.Desired(version=0, stale=True))
            assert self.nonce in message.nonces, f"{self.nonce} is not one of {message.nonces}"
            self.nonce = message.nonces[1]
            self._take(message.facts)
            if self.lose_answers:
                self.lose_answers -= 1
                return _problem(503, "unavailable", "lost by the script")
        while self.frozen or (not (answer := self._desired(message)) and asyncio.get_running_loop().time() < give_up):
            answer = None
            await asyncio.sleep(0.005)
            if await request.is_disconnected():
                break
        return _answer(answer or wire.Desired(version=self._version))

    def _desired(self, message: wire.Exchange) -> wire.Desired | None:
        with self._lock:
            orders = [one.order for one in self._ordered.values() if one.version > message.have_version]
            if not orders and not self._stream_orders:
                return None
            streams, self._stream_orders = self._stream_orders, []
            return wire.Desired(version=self._version, orders=orders, streams=streams)

    def _take(self, facts: Sequence[KernelFact]) -> None:
        known = {(fact.token, fact.kind) for fact in self.facts}
        for fact in facts:
            self.arrivals.append(fact)
            if (fact.token, fact.kind) not in known:
                known.add((fact.token, fact.kind))
                self.facts.append(fact)
            ordered = self._ordered.get(fact.token)
            if ordered and fact.kind is FactKind.ACCEPTED:
                ordered.order = msgspec.structs.replace(ordered.order, launch=None)
            if fact.kind in ENDS:
                self._ordered.pop(fact.token, None)

    async def _blob(self, request: Request) -> Response:
        self.blob_requests += 1
        while not self.blob_gate.is_set():
            await asyncio.sleep(0.01)
            if await request.is_disconnected():
                return Response(status_code=499)
        content = self.blobs.get(request.path_params["digest"])
        return _problem(404, "blob_missing", "no such blob") if content is None else Response(content)

    async def _stream(self, socket: WebSocket) -> None:
        await socket.accept()
        got = self.streams[socket.path_params["id"]]
        try:
            while True:
                message = await socket.receive()
                if message["type"] == "websocket.disconnect":
                    break
                if message.get("text") is not None:
                    got.heads.append(json.loads(message["text"]))
                else:
                    got.data += message["bytes"]
        except WebSocketDisconnect:
            pass
        got.over = True

    # --- the script

    def order(self, token: str, **changes: Any) -> None:
        """Put a kernel into the desired set, or change what is desired of it. Raises the version."""
        with self._lock:
            before = self._ordered.get(token)
            if before is None:
                words: dict[str, Any] = {"token": token, "run_id": self.registrations[-1].run_id}
                order = wire.KernelOrder(**(words | changes))
            else:
                order = msgspec.structs.replace(before.order, **changes)
            self._version += 1
            self._ordered[token] = Ordered(order, self._version)

    def launch(self, token: str, *command: str, **changes: Any) -> None:
        self.order(token, launch=self.launch_of(token, *command, **changes))

    def launch_of(self, token: str, *command: str, **changes: Any) -> wire.Launch:
        name = parse_token(token)
        known = self.registrations[-1]
        words: dict[str, Any] = {
            "session": name.session,
            "attempt": name.attempt,
            "rank": name.rank,
            "node_epoch": self.epoch,
            "run_id": known.run_id,
            "command": command,
            "environment": {"CORRAL_LAUNCH_TOKEN": token},
            "resources": Resources(),
            "devices": [],
            "ranks": 1,
            "local_rank": 0,
            "hosts": [known.address],
        }
        return wire.Launch(**(words | changes))

    def stop(self, token: str, reason: str = "cancelled", grace_s: int = 30, signal: str | None = None) -> None:
        self.order(token, launch=None, stop=wire.Stop(reason=reason, message=reason, grace_s=grace_s, signal=signal))

    def ask(self, token: str) -> None:
        """Ask about a kernel that was accepted."""
        self.order(token, launch=None)

    def drop(self, token: str) -> None:
        with self._lock:
            self._ordered.pop(token, None)

    def read_log(self, token: str, stream: str = "stdout", offset: int = 0, follow: bool = False) -> Stream:
        with self._lock:
            id_ = f"stream-{len(self.streams)}"
            got = self.streams[id_] = Stream()
            url = f"ws://127.0.0.1:{self.port}/api/v1/agent/streams/{id_}"
            self._stream_orders.append(
                wire.StreamOrder(id=id_, url=url, token=token, stream=stream, offset=offset, follow=follow)
            )
        return got

    def put_blob(self, content: bytes) -> str:
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        self.blobs[digest] = content
        return digest

    # --- what it was told

    def fact(self, token: str, kind: FactKind) -> KernelFact | None:
        with self._lock:
            return next((fact for fact in self.facts if (fact.token, fact.kind) == (token, kind)), None)

    def kinds(self, token: str) -> list[str]:
        with self._lock:
            return [fact.kind.value for fact in self.facts if fact.token == token]

    def wait_for(self, token: str, kind: FactKind | str) -> KernelFact:
        return until(lambda: self.fact(token, FactKind(kind)), f"{token} {kind} (has {self.kinds(token)})")

    def why(self, token: str, kind: FactKind | str) -> Why:
        why = self.wait_for(token, kind).why
        assert why is not None
        return why

    def forget_facts(self) -> None:
        with self._lock:
            self.facts.clear()
            self.arrivals.clear()


def ended(fact: KernelFact) -> KernelFact:
    """A fact without its time, for comparing."""
    return replace(fact, at=0.0)


def _answer(message: object) -> Response:
    return Response(wire.encode(message), media_type="application/json")


def _problem(status: int, code: str, detail: str) -> Response:
    body = json.dumps({"code": code, "detail": detail, "status": status}).encode()
    return Response(body, status_code=status, media_type="application/problem+json")
