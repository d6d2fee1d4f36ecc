"""What these tests stand on: the application with four credentials, and a node that does as the test says."""

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx
import msgspec
import uvicorn
from starlette.testclient import TestClient

from corral import wire
from corral.api.app import create_app
from corral.api.credentials import digest_of
from corral.clock import SystemClock, SystemIds
from corral.model.lifecycle import ExitClass
from corral.model.node import DeviceInventory, Inventory
from corral.model.session import FactKind, KernelFact, Result, Why
from corral.ports import Tx
from corral.reconcile.loop import Loops
from corral.reconcile.loops import manager_loops
from corral.store.create import open_store
from corral.store.sqlite import SqliteStore

T = TypeVar("T")
TOKENS = {"admin": "admin-token", "ann": "ann-token", "bob": "bob-token", "agents": "agent-token"}
KINDS = {"admin": "admin", "ann": "user", "bob": "user", "agents": "agent"}
WAIT_S = 20.0


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {TOKENS[name]}"}


def add_credentials(tx: Tx) -> None:
    for name, token in TOKENS.items():
        tx.add_credential(name, KINDS[name], digest_of(token))


class Face:
    """The application in process. Requests are the administrator's unless `as_` names another."""

    def __init__(self, database: Path, **options: Any) -> None:
        self._closed = False
        self.stopping = asyncio.Event()
        store = open_store(f"sqlite:///{database}", SystemClock(), SystemIds())
        assert isinstance(store, SqliteStore)
        self.store = store
        self.app = create_app(
            store, SystemClock(), SystemIds(), url="http://127.0.0.1:7700", stopping=self.stopping, **options
        )
        self.client = TestClient(self.app, raise_server_exceptions=False)

    def __enter__(self) -> "Face":
        self.client.__enter__()
        self.tx(add_credentials)
        return self

    def __exit__(self, *_: object) -> None:
        self.client.__exit__()
        self.close_store()

    def close_store(self) -> None:
        if not self._closed:
            self._closed = True
            self.store.close()

    def tx(self, body: Callable[[Tx], T]) -> T:
        assert self.client.portal is not None
        return self.client.portal.call(self.store.tx, "test", body)

    def request(self, method: str, path: str, as_: str = "admin", **options: Any) -> httpx.Response:
        headers = bearer(as_) | options.pop("headers", {})
        return self.client.request(method, path, headers=headers, **options)

    def get(self, path: str, as_: str = "admin", **options: Any) -> Any:
        return good(self.request("GET", path, as_, **options))

    def post(self, path: str, body: Any = None, as_: str = "admin", **options: Any) -> Any:
        return good(self.request("POST", path, as_, json=body, **options))

    def submit(self, as_: str = "admin", **fields: Any) -> dict[str, Any]:
        return self.post("/api/v1/sessions", {"command": ["/bin/true"]} | fields, as_)

    def node(self, name: str = "n1", **options: Any) -> "Node":
        return Node(name, lambda path, body: self.request("POST", path, "agents", content=body), **options)


def good(response: httpx.Response) -> Any:
    assert response.status_code < 300, (response.status_code, response.text)
    return response.json()


def problem(response: httpx.Response) -> tuple[int, str]:
    """Status and code of a well-formed problem document."""
    assert response.headers["content-type"] == "application/problem+json", response.text
    body = response.json()
    assert body["status"] == response.status_code
    assert body["type"] == f"urn:corral:problem:{body['code']}"
    assert body["detail"]
    assert "\n" not in body["detail"]
    return response.status_code, body["code"]


class Node:
    """An agent's side of the conversation, one step at a time."""

    def __init__(
        self, name: str, post: Callable[[str, bytes], httpx.Response], gpus: int = 0, group: str = "default"
    ) -> None:
        self.name = name
        self._post = post
        self.have_version = 0
        self._nonces = ("n0", "n1")
        self._count = 1
        devices = tuple(DeviceInventory(f"SIM-{name}-{i}", i, "nvidia", "A100", "sm_80", 80_000) for i in range(gpus))
        self.registration = wire.Registration(
            name=name, group=group, boot_id="boot", run_id="run", incarnation="one", hardware_id=f"hw-{name}",
            nonces=self._nonces, address="127.0.0.1", inventory=Inventory(8000, 16384, devices),
        )  # fmt: skip
        self.epoch = 0

    def register(self) -> "Node":
        answer = good(self._post("/api/v1/agent/register", wire.encode(self.registration)))
        self.epoch = answer["epoch"]
        return self

    def message(self, *facts: KernelFact, wait_s: float = 0.0) -> wire.Exchange:
        return wire.Exchange(
            node=self.name, incarnation="one", epoch=self.epoch, boot_id="boot", run_id="run", nonces=self._nonces,
            have_version=self.have_version, facts=list(facts), wait_s=wait_s,
        )  # fmt: skip

    def send(self, message: wire.Exchange) -> wire.Desired:
        response = self._post("/api/v1/agent/exchange", wire.encode(message))
        assert response.status_code == 200, response.text
        return wire.decode(response.content, wire.Desired)

    def exchange(self, *facts: KernelFact, wait_s: float = 0.0) -> wire.Desired:
        """One exchange whose answer is applied."""
        desired = self.send(self.message(*facts, wait_s=wait_s))
        self._count += 1
        self._nonces = (self._nonces[1], f"n{self._count}")
        self.have_version = max(self.have_version, desired.version)
        return desired

    def orders(self, deadline_s: float = WAIT_S) -> list[wire.KernelOrder]:
        """The next orders, waiting for them."""
        clock = SystemClock()
        end = clock.mono() + deadline_s
        while clock.mono() < end:
            if orders := self.exchange(wait_s=1.0).orders:
                return orders
        raise AssertionError(f"no orders for {self.name} within {deadline_s} s")

    def stream(self, deadline_s: float = WAIT_S) -> wire.StreamOrder:
        """The next stream this node is asked to serve."""
        clock = SystemClock()
        end = clock.mono() + deadline_s
        while clock.mono() < end:
            if streams := self.exchange(wait_s=1.0).streams:
                return streams[-1]
        raise AssertionError(f"no stream for {self.name} within {deadline_s} s")


def fact(token: str, kind: FactKind, code: int | None = None, why: Why | None = None) -> KernelFact:
    result = None if code is None else Result(code, exit_class=ExitClass.OK if code == 0 else ExitClass.USER)
    return KernelFact(token, kind, at=0.0, result=result, why=why)


class Served:
    """The application behind uvicorn on a free port, with a manager's loops, all on one thread of its own."""

    def __init__(self, database: Path, **options: Any) -> None:
        self._database = database
        self._options = options
        self._closed = False
        self._up = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name="served")
        self.url = ""

    def __enter__(self) -> "Served":
        self._thread.start()
        assert self._up.wait(WAIT_S), "the server did not start"
        self.client = httpx.Client(base_url=self.url, headers=bearer("admin"), timeout=WAIT_S)
        self._agent = httpx.Client(base_url=self.url, headers=bearer("agents"), timeout=WAIT_S)
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self._agent.close()
        self.loop.call_soon_threadsafe(self.finished.set)
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), "the server did not stop"

    async def _main(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.finished, self.stopping = asyncio.Event(), asyncio.Event()
        clock, ids = SystemClock(), SystemIds()
        # the protocol is named, or asyncio leaves Nagle's algorithm on and every answer waits 40 ms for an ACK
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listening.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        store = open_store(f"sqlite:///{self._database}", clock, ids)
        assert isinstance(store, SqliteStore)
        self.store = store
        await store.tx("credentials", add_credentials)
        loops = Loops(manager_loops(store, "m1", self.url, clock), store.wakeups, clock, lambda name, error: None)
        app = create_app(store, clock, ids, url=self.url, loops=loops, stopping=self.stopping, **self._options)
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=2))
        server.capture_signals = contextlib.nullcontext  # pyright: ignore[reportAttributeAccessIssue]
        tasks = [asyncio.ensure_future(loops.run()), asyncio.ensure_future(server.serve(sockets=[listening]))]
        while not server.started:
            await clock.sleep(0.005)
        self._up.set()
        await self.finished.wait()
        self.stopping.set()
        server.should_exit = True
        await asyncio.wait([tasks[1]], timeout=WAIT_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.close_store()

    def close_store(self) -> None:
        if not self._closed:
            self._closed = True
            self.store.close()

    def tx(self, body: Callable[[Tx], T]) -> T:
        return asyncio.run_coroutine_threadsafe(self.store.tx("test", body), self.loop).result(WAIT_S)

    def get(self, path: str, **options: Any) -> Any:
        return good(self.client.get(path, **options))

    def submit(self, **fields: Any) -> dict[str, Any]:
        return good(self.client.post("/api/v1/sessions", json={"command": ["/bin/true"]} | fields))

    def node(self, name: str = "n1", **options: Any) -> Node:
        return Node(name, lambda path, body: self._agent.post(path, content=body), **options)

    def until(self, true: Callable[[], Any], what: str) -> Any:
        """What `true` answers once it is anything."""
        clock = SystemClock()
        end = clock.mono() + WAIT_S
        pause = threading.Event()
        while clock.mono() < end:
            if found := true():
                return found
            pause.wait(0.01)
        raise AssertionError(f"not within {WAIT_S} s: {what}")


def events_of(lines: Iterator[str]) -> Iterator[tuple[str | None, str, Any]]:
    """(id, event, data) of each server-sent event; heartbeats are left out."""
    fields: dict[str, str] = {}
    for line in lines:
        if line == "":
            if "data" in fields:
                yield fields.get("id"), fields.get("event", "message"), json.loads(fields["data"])
            fields = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value


def frame(start: int, data: bytes, *, end: bool, dropped: int = 0) -> str:
    head = {"start": start, "next": start + len(data), "end": end, "dropped": dropped}
    return msgspec.json.encode(head).decode()
