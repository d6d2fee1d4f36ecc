"""The agent's ports in the simulation: run directory, shims, trees, devices, provision and link of one node.

Each class is one Protocol of `agent.ports` in the hands of one agent process. It knows the order of system calls and
what may fail, and decides nothing. `sim_ledger.py` holds the durable store. Next: `sim_node.py` puts an agent together.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from corral.agent import jobdir
from corral.agent.jobspec import JsonObject
from corral.agent.ports import Birth, NoRoom, NotProvided, Provided, Rejected, Unreachable
from corral.model.node import DeviceInventory
from corral.model.session import Why
from corral.testing import sim_jobdir
from corral.testing.checkers import Records
from corral.testing.disk import SimFiles
from corral.testing.network import NetworkError, SimNetwork
from corral.testing.process import SimProcess, take_time, yield_once
from corral.testing.sim_manager import answer_of, request
from corral.testing.simloop import SimLoop
from corral.testing.trees import SimTrees
from corral.wire import Launch

SLOW_PROVISION_S = 20.0
LATEST_COPY_S = 120.0
FULL = (errno.ENOSPC, errno.EDQUOT)


class SimJobDirs:
    """agent.ports.JobDirs. `run` is the run directory: on the tmpfs, or on the disk of a node without one.

    Production's calls block: no other coroutine of the agent runs between their steps, though other processes do.
    """

    def __init__(self, files: SimFiles, run: str, records: Records) -> None:
        self._files = files
        self._run = run
        self._jobs = f"{run}/jobs"
        self._records = records
        self._made = 0
        self._turn = asyncio.Lock()

    async def read_run_id(self) -> str | None:
        async with self._turn:
            try:
                return (await self._files.read(f"{self._run}/run_id")).decode() or None
            except FileNotFoundError:
                return None

    async def write_run_id(self, run_id: str) -> None:
        async with self._turn:
            await self._files.make_directories(self._jobs)
            await self._files.replace_atomic(f"{self._run}/run_id", run_id.encode())

    async def tokens(self) -> list[str]:
        async with self._turn:
            await self._files.make_directories(self._jobs)
            names = await self._files.list(self._jobs)
            for name in names:
                if name.startswith("."):
                    await self._files.remove_tree(f"{self._jobs}/{name}")
            return [name for name in names if not name.startswith(".")]

    async def accept(self, token: str, spec: JsonObject, files: Mapping[str, bytes]) -> None:
        async with self._turn:
            self._made += 1
            partial = f"{self._jobs}/.new-{token}-{self._made}"
            try:
                await self._files.make_directories(partial)
                await self._files.create_excl(f"{partial}/{jobdir.SPEC}", json.dumps(spec).encode())
                await sim_jobdir.reserve(self._files, partial)
                for path, data in files.items():
                    await self._files.make_directories(path.rsplit("/", 1)[0])
                    await self._files.append(path, data)
                await self._files.rename(partial, f"{self._jobs}/{token}")
            except OSError as error:
                with contextlib.suppress(OSError):
                    await self._files.remove_tree(partial)
                if error.errno in FULL:
                    raise NoRoom(str(error)) from None
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise

    async def read(self, token: str, name: str) -> JsonObject | None:
        async with self._turn:
            return await sim_jobdir.read_object(self._files, f"{self._jobs}/{token}", name)

    async def write(self, token: str, name: str, value: JsonObject) -> None:
        async with self._turn:
            try:
                with contextlib.suppress(FileNotFoundError):
                    await sim_jobdir.write_object(self._files, f"{self._jobs}/{token}", name, value)
            except OSError as error:
                if error.errno in FULL:
                    raise NoRoom(str(error)) from None
                raise

    async def decision(self, token: str) -> str | None:
        async with self._turn:
            return await sim_jobdir.decision_of(self._files, f"{self._jobs}/{token}")

    async def void(self, token: str, reason: str, at: float) -> bool:
        async with self._turn:
            folder = f"{self._jobs}/{token}"
            words: JsonObject = {"says": "void", "by": "agent", "reason": reason, "at": at, "version": jobdir.VERSION}
            if await sim_jobdir.decide(self._files, folder, "void.tmp", words):
                self._records.said_void.add(token)
            return await sim_jobdir.decision_of(self._files, folder) == "void"

    async def is_locked(self, token: str) -> bool:
        async with self._turn:
            try:
                return await self._files.is_locked(f"{self._jobs}/{token}/{jobdir.LOCK}")
            except FileNotFoundError:
                return False

    async def try_lock(self, token: str) -> bool:
        async with self._turn:
            return await sim_jobdir.try_lock(self._files, f"{self._jobs}/{token}")

    async def unlock(self, token: str) -> None:
        async with self._turn:
            with contextlib.suppress(FileNotFoundError):
                await self._files.unlock(f"{self._jobs}/{token}/{jobdir.LOCK}")

    async def collect(self, token: str) -> None:
        async with self._turn:
            gone = f"{self._jobs}/.gone-{token}"
            with contextlib.suppress(FileNotFoundError):
                await self._files.rename(f"{self._jobs}/{token}", gone)
            with contextlib.suppress(OSError):
                await self._files.remove_tree(gone)


class Forks(Protocol):
    """The node, as its agent's processes hang on it."""

    loop: SimLoop
    chance: random.Random
    hear: Callable[[str], None]

    def new_zygote(self) -> SimProcess: ...
    def serve_birth(self, zygote: SimProcess, birth: Birth) -> tuple[int, int]: ...
    def shim_at(self, pid: int, start_time: int) -> SimProcess | None: ...
    def poke(self, pid: int, start_time: int) -> None: ...


class Holders(Protocol):
    """The node, as far as its shims' locks can be seen from outside them."""

    def agent_kills(self, token: str) -> None: ...
    def lock_holders(self) -> dict[str, list[SimProcess]]: ...


class SimShims:
    """agent.ports.Shims: the zygote hangs on the agent, the shims do not."""

    def __init__(self, node: Forks, process: SimProcess) -> None:
        self._node = node
        self._process = process
        self._zygote: SimProcess | None = None
        self._changed: dict[str, None] = {}
        self._waiting: asyncio.Future[None] | None = None
        node.hear = self.hear
        process.at_exit.append(lambda _: self._zygote and self._zygote.kill())

    def hear(self, token: str) -> None:
        self._changed[token] = None
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def spawn(self, birth: Birth) -> None:
        await yield_once()
        if self._zygote is None or not self._zygote.alive:
            self._zygote = self._node.new_zygote()
        self._zygote.spawn(self._serve(self._zygote, birth), name="fork")

    async def _serve(self, zygote: SimProcess, birth: Birth) -> None:
        """In the zygote: its death before the answer loses the request, or the answer, and nobody is told."""
        await zygote.sleep(self._node.chance.random() * 0.01)
        pid = start_time = 0
        if not zygote.faults.hit("node.fork_failed"):
            pid, start_time = self._node.serve_birth(zygote, birth)
        self._node.loop.at(self._node.chance.random() * 0.01, self._answered, birth.token, pid, start_time)

    def _answered(self, token: str, pid: int, start_time: int) -> None:
        """A shim's hints may be lost; its end is always seen from here on."""
        if self._process.alive and not self._watch(token, pid, start_time):
            self.hear(token)

    async def watch(self, token: str, pid: int, start_time: int) -> bool:
        await yield_once()
        return self._watch(token, pid, start_time)

    def _watch(self, token: str, pid: int, start_time: int) -> bool:
        shim = self._node.shim_at(pid, start_time)
        if shim is None:
            return False
        shim.at_exit.append(lambda _: self.hear(token) if self._process.alive else None)
        return True

    async def poke(self, pid: int, start_time: int) -> None:
        await yield_once()
        self._node.poke(pid, start_time)

    async def changes(self) -> set[str]:
        if not self._changed:
            self._waiting = self._process.loop.create_future()
            await self._waiting
            self._waiting = None
        changed, self._changed = set(self._changed), {}
        return changed


class SimTreesPort:
    """agent.ports.Trees. A shim that holds its lock is part of the tree, be the directory there or not."""

    def __init__(self, trees: SimTrees, process: SimProcess, node: Holders) -> None:
        self._trees = trees
        self._process = process
        self._node = node

    async def kill(self, token: str) -> None:
        self._node.agent_kills(token)
        for shim in self._node.lock_holders().get(token, ()):
            shim.kill()
        await self._trees.kill_tree(self._process, token)

    async def is_empty(self, token: str) -> bool:
        empty = await self._trees.is_empty(self._process, token)
        return empty and token not in self._node.lock_holders()

    async def remove(self, token: str) -> None:
        await yield_once()

    async def tokens(self) -> list[str]:
        return sorted({*await self._trees.tokens(self._process), *self._node.lock_holders()})


class SimDevices:
    """agent.ports.Devices: a fleet of one model, sometimes busy with what is not ours."""

    def __init__(self, fleet: Sequence[DeviceInventory], trees: SimTrees, process: SimProcess) -> None:
        self._fleet = tuple(fleet)
        self._trees = trees
        self._process = process

    async def inventory(self) -> tuple[DeviceInventory, ...]:
        await yield_once()
        return self._fleet

    async def check(self, token: str, uuids: Sequence[str]) -> Why | None:
        await yield_once()
        if uuids and self._process.faults.hit("node.device_busy"):
            return Why("device_busy", f"another program uses {uuids[0]}")
        return None


class SimProvision:
    """agent.ports.Provision: takes its time, and sometimes cannot."""

    def __init__(self, process: SimProcess, chance: random.Random, step_s: float) -> None:
        self._process = process
        self._chance = chance
        self._step_s = step_s

    async def provide(self, launch: Launch) -> Provided:
        faults = self._process.faults
        slow = SLOW_PROVISION_S if faults.hit("node.slow_provision") else self._step_s
        await take_time(self._process, self._chance, slow)
        if faults.hit("node.not_provided"):
            refused = self._chance.random() < 0.5
            raise NotProvided(Why("node_disk" if refused else "blob_missing", "cannot be had"), refused=refused)
        return Provided(f"/state/workspaces/{launch.session}", port=30_000 if launch.ranks == 1 else None)

    async def sweep(self, keep: set[str], before: float) -> None:
        await yield_once()


class SimLink:
    """agent.ports.Link over the simulated network."""

    def __init__(self, network: SimNetwork, process: SimProcess) -> None:
        self._network = network
        self._process = process

    async def post(self, manager: str, path: str, body: bytes, timeout_s: float) -> bytes:
        name = manager.removeprefix("http://")
        faults = self._process.faults
        if path.endswith("/register") and faults.hit("node.late_copy"):
            self._network.repeat(self._process, name, request(path, body), faults.span_s(LATEST_COPY_S))
        try:
            answer = await self._network.request(self._process, name, request(path, body), timeout_s)
        except NetworkError as error:
            raise Unreachable(str(error)) from None
        status, content = answer_of(answer)
        if status == 200:
            return content
        problem = msgspec.json.decode(content)
        if status >= 500:
            raise Unreachable(problem["message"])
        raise Rejected(status, problem["code"], problem["message"])
