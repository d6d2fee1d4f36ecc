"""A node whose agent is a page of script: it obeys orders at once and forgets nothing but by reboot.

It lets managers be simulated alone. It has no files, no shim and no durable store, so it is only killed by a reboot.
"""

from __future__ import annotations

import asyncio
from typing import Any

from corral import wire
from corral.model.lifecycle import ExitClass
from corral.model.node import DeviceInventory, Inventory
from corral.model.session import FactKind, KernelFact, Result, Why
from corral.testing.network import NetworkError
from corral.testing.process import HostClock, SimProcess
from corral.testing.sim_manager import answer_of, request
from corral.testing.site import Site
from corral.testing.trees import SimTrees, Tree
from corral.testing.workload import draw_job

POLL_S = 20.0


class ScriptedNode:
    def __init__(self, site: Site, name: str, gpus: int) -> None:
        self.site = site
        self.name = name
        self.clock = HostClock(site.loop)
        self.trees = SimTrees(site.loop, site.faults, name, site.truth)
        self.gpus = gpus
        self.boots = 0
        self.agent: SimProcess | None = None
        self.nonces: tuple[str, str] = ("", "")
        self.is_on = False

    def power_on(self) -> None:
        self.boots += 1
        self.is_on = True
        self.site.network.lighten(self.name)
        self.agent = SimProcess(self.site.loop, self.site.faults, self.name, self.boots, self.clock)
        script = _Script(self, self.agent)
        self.agent.spawn(script.run(), name="agent")

    def power_off(self, *, power_lost: bool = True) -> None:
        self.is_on = False
        self.site.network.darken(self.name)
        if self.agent:
            self.agent.kill(silently=True)
        for token in self.trees.trees:
            self.site.checkers.records.forgotten.add(token)
        self.trees.power_off()

    def heal(self) -> None:
        if self.agent:
            self.agent.resume()
        if not self.is_on:
            self.power_on()

    def processes(self) -> list[SimProcess]:
        return []  # its script forgets what it knew when it is killed alone


class _Script:
    def __init__(self, node: ScriptedNode, process: SimProcess) -> None:
        self.node = node
        self.process = process
        self.records = node.site.checkers.records
        self.facts: list[KernelFact] = []
        self.trees: dict[str, Tree | None] = {}
        self.barriers: dict[str, asyncio.Future[bool]] = {}
        self.have = 0

    async def run(self) -> None:
        while True:
            epoch = await self._register()
            while await self._exchange(epoch):
                pass

    async def _register(self) -> int:
        node = self.node
        devices = tuple(DeviceInventory(f"SIM-{node.name}-{i}", i, "sim", "A100", None, 8192) for i in range(node.gpus))
        while True:
            message = wire.Registration(
                name=node.name, group="default", boot_id=f"boot{node.boots}", run_id=f"run{node.boots}",
                incarnation=self.process.title, hardware_id=node.name, nonces=self._pair(), address=node.name,
                inventory=Inventory(4000, 8192, devices), facts=list(self.facts),
            )  # fmt: skip
            answer = await self._post("register", message)
            if answer is not None and answer[0] == 200:
                node.nonces = (message.nonces[1], "")
                self.have = 0
                return wire.decode(answer[1], wire.Registered).epoch
            await self.process.sleep(1.0)

    def _pair(self) -> tuple[str, str]:
        last, following = self.node.nonces
        self.node.nonces = (last, following or self.process.nonce())
        return self.node.nonces

    async def _exchange(self, epoch: int) -> bool:
        sent = list(self.facts)
        message = wire.Exchange(
            node=self.node.name, incarnation=self.process.title, epoch=epoch, boot_id=f"boot{self.node.boots}",
            run_id=f"run{self.node.boots}", nonces=self._pair(), have_version=self.have, facts=sent,
            wait_s=0.0 if sent else 2.0,
        )  # fmt: skip
        asked_at = self.process.mono()
        answer = await self._post("exchange", message)
        if answer is None or answer[0] != 200:
            await self.process.sleep(0.5)
            return True
        desired = wire.decode(answer[1], wire.Desired)
        if desired.stale:
            return False
        self.node.nonces = (message.nonces[1], "")
        self.facts = [fact for fact in self.facts if fact not in sent]
        if desired.version >= self.have:
            self.have = desired.version
            for order in desired.orders:
                self._obey(order, self.process.mono() - asked_at)
        return True

    async def _post(self, path: str, message: Any) -> tuple[int, bytes] | None:
        managers = self.node.site.manager_names
        manager = managers[int(self.node.site.chance.random() * len(managers))]
        body = request(f"/api/v1/agent/{path}", wire.encode(message))
        try:
            return answer_of(await self.node.site.network.request(self.process, manager, body, POLL_S))
        except NetworkError:
            return None

    def _say(self, token: str, kind: FactKind, **more: Any) -> None:
        self.facts.append(KernelFact(token, kind, 0.0, **more))

    def _obey(self, order: wire.KernelOrder, age_s: float) -> None:
        token = order.token
        tree = self.trees.get(token)
        if (order.go or order.stop) and token in self.barriers and not self.barriers[token].done():
            self.barriers[token].set_result(order.stop is None)
        if order.stop and token not in self.trees:
            self.trees[token] = None
            self.records.said_void.add(token)
            self._say(token, FactKind.VOID)
        elif order.stop and tree is not None:
            self.node.trees.kill_now(token)
        elif order.launch and token not in self.trees and age_s < 60:
            self.trees[token] = None
            self.process.spawn(self._start(token, order.launch), name="job")

    async def _start(self, token: str, launch: wire.Launch) -> None:
        self._say(token, FactKind.ACCEPTED)
        if self.process.faults.chance.random() < 0.05:
            self.records.said_void.add(token)
            self._say(token, FactKind.REFUSED, why=Why("device_busy", "busy"))
            return
        self.records.said_run.add(token)
        if launch.ranks > 1 and not await self._pass_barrier(token, launch.rank):
            self.records.results[token] = (None, None)
            self._say(token, FactKind.RESULT, result=Result(None, None, ExitClass.CANCELLED, started=False))
            self._say(token, FactKind.EXITED)
            return
        plan = draw_job(self.node.site, token)
        devices = tuple(uuid for uuid, *_ in launch.devices)
        tree = await self.node.trees.start(self.process, token, launch.session, launch.rank, plan, devices)
        self.trees[token] = tree
        if launch.ranks == 1:
            self._say(token, FactKind.READY)
        code, signal = await self.node.trees.wait_main(self.process, tree)
        self.records.results[token] = (code, signal)
        class_ = ExitClass.OK if code == 0 else ExitClass.USER
        self._say(token, FactKind.RESULT, result=Result(code, signal, class_))
        await self.node.trees.kill_tree(self.process, token)
        await self.node.trees.wait_empty(self.process, token)
        self._say(token, FactKind.EXITED)

    async def _pass_barrier(self, token: str, rank: int) -> bool:
        """False: stopped before the others were ready."""
        self.barriers[token] = self.process.loop.create_future()
        self._say(token, FactKind.READY, port=4000 if rank == 0 else None)
        return await self.barriers[token]
