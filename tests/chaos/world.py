"""Corral in real processes that can be killed, frozen and started again, and what of it lives at this moment.

Two forms: one `corral up`, or managers on one database with agents of their own. Asks any manager that answers.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from corral.agent.machine import choose_run_dir
from tests.end_to_end.control_plane import children_of, command_of, wait_until
from tests.services.ports import free_port

PYTHON = [sys.executable, "-m"]
ANSWER_S = 4.0
ASK_FOR_S = 90.0
ROOM = ("--cpus", "4", "--memory", "8GiB")


@dataclass
class Program:
    """One process of Corral's, started again and again on the same data."""

    name: str
    command: Sequence[str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    frozen: bool = False
    armed: str | None = None  # crash points of every start, each of which strikes once

    def start(self, crash: str | None = None) -> None:
        plan = crash or self.armed
        environment = os.environ | ({"CORRAL_CRASH": plan} if plan else {})
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([*self.command], stdout=log, stderr=log, env=environment)
        self.frozen = False

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(20)

    def freeze(self) -> None:
        if self.alive:
            os.kill(self.pid, signal.SIGSTOP)
            self.frozen = True

    def thaw(self) -> None:
        if self.alive and self.frozen:
            os.kill(self.pid, signal.SIGCONT)
        self.frozen = False

    def stop(self) -> None:
        """As an operator would; by force when that does not help."""
        self.thaw()
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()


@dataclass
class World:
    """The processes, the way to ask them, and the marks that jobs leave."""

    folder: Path
    managers: list[Program]
    agents: dict[str, Program]
    urls: list[str]
    token_file: Path
    states: dict[str, Path]
    runs: dict[str, Path] = field(default_factory=dict[str, Path])
    kept_agents: bool = False
    _clients: dict[str, httpx.Client] = field(default_factory=dict[str, httpx.Client])

    @property
    def marks(self) -> Path:
        return self.folder / "marks"

    @property
    def programs(self) -> list[Program]:
        return [*self.managers, *self.agents.values()]

    # --- asking

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        key: str | None = None,
        prefer: int = 0,
        patience_s: float = ASK_FOR_S,
    ) -> Any:
        """The answer of the first manager that has one. Only for what may be asked twice."""
        deadline = time.monotonic() + patience_s
        order = [self.urls[(prefer + n) % len(self.urls)] for n in range(len(self.urls))]
        last: object = None
        while time.monotonic() < deadline:
            for url in order:
                try:
                    answer = self._client(url).request(
                        method, f"/api/v1/{path}", json=body, headers={"Idempotency-Key": key} if key else {}
                    )
                except httpx.HTTPError as error:
                    last = error
                    continue
                if answer.is_success:
                    return answer.json()
                last = f"{answer.status_code}: {answer.text[:500]}"
                assert answer.status_code >= 500 or answer.status_code == 429, f"{method} {path}: {last}"
            time.sleep(0.05)
        raise AssertionError(f"{method} {path} was not answered within {patience_s} s: {last!r}")

    def _client(self, url: str) -> httpx.Client:
        if url not in self._clients:
            token = self.token_file.read_text().strip()
            headers = {"Authorization": f"Bearer {token}"}
            self._clients[url] = httpx.Client(base_url=url, headers=headers, timeout=ANSWER_S, trust_env=False)
        return self._clients[url]

    def sessions(self, patience_s: float = ASK_FOR_S) -> dict[str, Any]:
        found: dict[str, Any] = {}
        cursor: str | None = None
        while True:
            path = "sessions?limit=500" + (f"&cursor={cursor}" if cursor else "")
            page = self.ask("GET", path, patience_s=patience_s)
            found |= {one["id"]: one for one in page.get("items", page.get("sessions", []))}
            if (cursor := page.get("next")) is None:
                return found

    def ready(self) -> None:
        """Every manager answers and every node is up."""
        for url in self.urls:
            wait_until(lambda url=url: self._answers(url), f"the manager at {url}")
        wait_until(
            lambda: {node["name"] for node in self.ask("GET", "nodes") if node["state"] == "up"} >= set(self.states),
            f"the nodes {sorted(self.states)}",
        )

    def _answers(self, url: str) -> bool:
        try:
            return self.token_file.exists() and self._client(url).get("/api/v1/nodes").is_success
        except httpx.HTTPError:
            return False

    # --- who lives

    def agent_pids(self) -> list[int]:
        own = [agent.pid for agent in self.agents.values() if agent.alive]
        if self.kept_agents:
            own += [pid for one in self.managers if one.alive for pid in children_of(one.pid)]
        return [pid for pid in own if "corral.agent" in command_of(pid)]

    def zygote_pids(self) -> list[int]:
        return [pid for agent in self.agent_pids() for pid in children_of(agent) if "zygote.py" in command_of(pid)]

    def shim_pids(self) -> list[int]:
        """The supervisors, as the decision files name them."""
        found: list[int] = []
        for run in self.runs.values():
            for started in run.glob("jobs/*/started"):
                with suppress(OSError, ValueError, KeyError):
                    pid = int(json.loads(started.read_text())["pid"])
                    if "zygote.py" in command_of(pid):
                        found.append(pid)
        return found

    def live_tokens(self) -> dict[str, list[int]]:
        """The launches of which any process lives, by what their environment says."""
        ours, found = f"MARKS={self.marks}".encode(), dict[str, list[int]]()
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with suppress(OSError):
                words = (entry / "environ").read_bytes().split(b"\0")
                tokens = [
                    word.partition(b"=")[2].decode() for word in words if word.startswith(b"CORRAL_LAUNCH_TOKEN=")
                ]
                if ours in words and tokens:
                    found.setdefault(tokens[0], []).append(int(entry.name))
        return found

    def exit_records(self) -> dict[str, dict[str, Any]]:
        """What each node's own durable store says of the ends: (token, kind) as the agent reported it."""
        found: dict[str, dict[str, Any]] = {}
        for state in self.states.values():
            with sqlite3.connect(f"file:{state}/node.db?mode=ro", uri=True) as db:
                for token, kind, body in db.execute("SELECT token, kind, body FROM fact"):
                    found.setdefault(token, {})[kind] = json.loads(body)
        return found

    # --- healing and ending

    def tend(self) -> None:
        """Whoever is dead is started again; whoever is frozen stays so."""
        for one in self.programs:
            if not one.alive:
                one.start()

    def heal(self) -> None:
        for one in self.programs:
            one.thaw()
        self.tend()

    def close(self) -> None:
        """Everything of this world goes, jobs included; nothing of it may be left."""
        for one in [*self.agents.values(), *self.managers]:
            one.stop()
        for client in self._clients.values():
            client.close()
        for pids in self.live_tokens().values():
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for pid in self.shim_pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def left_over(self) -> list[str]:
        """Processes that name this world on their command line, and job processes."""
        mine = str(self.folder)
        named = [(pid, command_of(pid)) for pid in map(int, filter(str.isdigit, os.listdir("/proc")))]
        own = [f"{pid} {command}" for pid, command in named if mine in command and pid != os.getpid()]
        return own + [f"{pid} of {token}" for token, pids in self.live_tokens().items() for pid in pids]


@contextmanager
def _open(world: World) -> Iterator[World]:
    world.marks.mkdir()
    world.runs.update({name: Path(choose_run_dir(str(state))) for name, state in world.states.items()} | world.runs)
    try:
        for one in world.managers:
            one.start()
        wait_until(world.token_file.exists, "the tokens")
        for one in world.agents.values():
            one.start()
        world.ready()
        yield world
    finally:
        world.close()


@contextmanager
def up_world(folder: Path, nodes: int = 3) -> Iterator[World]:
    """One `corral up` on SQLite."""
    data, port = folder / "data", free_port()
    command = [*PYTHON, "corral", "up", "--data-dir", str(data), "--listen", f"127.0.0.1:{port}", "--no-login"]
    keeper = Program("up", [*command, "--nodes", str(nodes), *ROOM], folder / "up.log")
    states = {f"node-{n}": data.resolve() / "nodes" / f"node-{n}" for n in range(1, nodes + 1)}
    for state in states.values():
        state.mkdir(parents=True)
    url = f"http://127.0.0.1:{port}"
    with _open(World(folder, [keeper], {}, [url], data / "admin.token", states, kept_agents=True)) as world:
        yield world


@contextmanager
def managed_world(
    folder: Path,
    databases: Sequence[str],
    nodes: int = 3,
    states: Mapping[str, Path] | None = None,
    runs: Mapping[str, Path] | None = None,
) -> Iterator[World]:
    """One manager per URL of the one database, and agents that know all managers, each beginning with another."""
    token_file = folder / "admin.token"
    ports = [free_port() for _ in databases]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    managers: list[Program] = []
    for number, (database, port) in enumerate(zip(databases, ports, strict=True), 1):
        command = [*PYTHON, "corral", "manager", "--database", database, "--listen", f"127.0.0.1:{port}"]
        managers.append(
            Program(f"manager-{number}", [*command, "--token-file", str(token_file)], folder / f"manager-{number}.log")
        )
    named = dict(states or {f"node-{n}": folder / f"node-{n}" for n in range(1, nodes + 1)})
    agents: dict[str, Program] = {}
    for number, (name, state) in enumerate(named.items()):
        state.mkdir(parents=True, exist_ok=True)
        known = [urls[(number + n) % len(urls)] for n in range(len(urls))]
        command = [*PYTHON, "corral.agent", "--manager", ",".join(known), "--name", name, "--state-dir", str(state)]
        command += ["--token-file", str(folder / "agent.token"), *ROOM]
        if runs and name in runs:
            command += ["--run-dir", str(runs[name])]
        agents[name] = Program(name, command, folder / f"{name}.log")
    with _open(World(folder, managers, agents, urls, token_file, named, dict(runs or {}))) as world:
        yield world


def pick(among: Sequence[Any], chance: float) -> Any:
    """The choice that a number from 0 to 1 makes; None where there is none."""
    return among[min(int(chance * len(among)), len(among) - 1)] if among else None


def kill_exactly(pids: Sequence[int], sure: Callable[[int], bool]) -> int:
    """SIGKILL for those of which it is sure that they are what they were; how many."""
    killed = 0
    for pid in pids:
        with suppress(ProcessLookupError):
            if sure(pid):
                os.kill(pid, signal.SIGKILL)
                killed += 1
    return killed
