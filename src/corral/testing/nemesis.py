"""What befalls the machines and processes of one seed: kills, stops, reboots, cuts, outages, lost directories.

Each seed has its own few kinds, drawn once; each kind is one short method. It decides when and to whom; the world
carries it out and heals it. Next: `world.py`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from corral.testing.process import SimProcess, take_time
from corral.testing.simloop import SimLoop
from corral.testing.site import Focus


class Machine(Protocol):
    """A node as the nemesis sees it."""

    name: str
    is_on: bool

    def processes(self) -> list[SimProcess]: ...
    def power_on(self) -> None: ...
    def power_off(self, *, power_lost: bool) -> None: ...
    def heal(self) -> None: ...


class Battlefield(Protocol):
    """The world as the nemesis sees it."""

    loop: SimLoop

    def machines(self) -> list[Machine]: ...
    def managers(self) -> list[SimProcess]: ...
    def links(self) -> list[tuple[str, str]]: ...
    def cut(self, source: str, target: str) -> None: ...
    def mend(self, source: str, target: str) -> None: ...
    def database_down(self, down: bool) -> None: ...
    def operator_confirms(self, machine: Machine) -> None: ...
    def preparing(self) -> set[str]:
        """The nodes that were told of a launch that has not begun."""
        ...

    def operator_gives_up(self, agent: SimProcess) -> None: ...
    def odd_job(self, kind: str, machine: Machine) -> bool: ...


KINDS_OFF_IN, LONG_KINDS_OFF_IN = 0.45, 0.8
LONG_KINDS = ("silent", "long_off")
KINDS = (
    "kill_manager", "pause_manager", "kill_agent", "pause_agent", "reboot", "power_loss", "long_off", "silent", "cut",
    "database_down", "disk_full", "lose_run_directory", "clone", "kill_zygote", "kill_shim", "pause_shim",
    "freeze_shim",
)  # fmt: skip
ODD_JOBS = ("disk_full", "lose_run_directory", "clone", "kill_zygote", "kill_shim", "pause_shim", "freeze_shim")


class Nemesis:
    """`pending` counts the stories of an operator that have begun and not ended."""

    def __init__(self, seed: int, process: SimProcess, world: Battlefield, focus: Focus) -> None:
        self.process = process
        self.world = world
        self.done: Counter[str] = Counter()
        self.pending = 0
        self._lurking = False
        self.chance = random.Random(f"{seed}:nemesis")
        self.pace_s = focus.pace_s or self.chance.choice((0.5, 2.0, 5.0))
        kinds: dict[str, Callable[[], bool]] = {
            "kill_manager": self._kill_manager,
            "pause_manager": self._pause_manager,
            "kill_agent": self._kill_agent,
            "pause_agent": self._pause_agent,
            "reboot": lambda: self._power_cycle(power_lost=False),
            "power_loss": lambda: self._power_cycle(power_lost=True),
            "long_off": self._long_off,
            "silent": self._silent,
            "cut": self._cut,
            "database_down": self._database_down,
        }
        for kind in ODD_JOBS:
            kinds[kind] = lambda kind=kind: self._odd_job(kind)
        self.kinds = {
            name: act
            for name, act in kinds.items()
            if self.chance.random() >= (LONG_KINDS_OFF_IN if name in LONG_KINDS else KINDS_OFF_IN)
        }
        if focus.kinds:
            self.kinds = {name: kinds[name] for name in focus.kinds}

    async def rage(self, until_s: float) -> None:
        if not self.kinds:
            return
        names = sorted(self.kinds)
        while True:
            await take_time(self.process, self.chance, 2 * self.pace_s)
            if self.world.loop.now_s >= until_s:
                return
            name = self.chance.choice(names)
            if self.kinds[name]():
                self.done[name] += 1
                self.world.loop.world_note(f"nemesis {name}")

    def _span_s(self, longest_s: float) -> float:
        return longest_s * self.chance.random() ** 2

    def _later(self, longest_s: float, act: Callable[[], object]) -> None:
        self.world.loop.at(self._span_s(longest_s), act)

    def _one_machine(self) -> Machine | None:
        on = [machine for machine in self.world.machines() if machine.is_on]
        return self.chance.choice(on) if on else None

    # --- the kinds; each answers whether it did anything

    def _kill_manager(self) -> bool:
        managers = self.world.managers()
        if managers:
            self.chance.choice(managers).kill()
        return bool(managers)

    def _pause_manager(self) -> bool:
        return self._pause_one(self.world.managers())

    def _pause_one(self, processes: list[SimProcess]) -> bool:
        running = [process for process in processes if not process.paused]
        if not running:
            return False
        process = self.chance.choice(running)
        process.pause()
        self._later(70.0, process.resume)
        return True

    def _agents(self) -> list[SimProcess]:
        return [
            process
            for machine in self.world.machines()
            for process in machine.processes()
            if process.name == machine.name
        ]

    def _kill_agent(self) -> bool:
        agents = self._agents()
        if agents:
            self.chance.choice(agents).kill()
        return bool(agents)

    def _pause_agent(self) -> bool:
        return self._pause_one(self._agents())

    def _power_cycle(self, *, power_lost: bool) -> bool:
        machine = self._one_machine()
        if machine is None:
            return False
        machine.power_off(power_lost=power_lost)
        self._later(20.0, lambda: None if machine.is_on else machine.power_on())
        return True

    def _long_off(self) -> bool:
        """Dark for so long that an operator gives it up, and then it comes back."""
        machine = self._one_machine()
        if machine is None:
            return False
        machine.power_off(power_lost=True)
        self.pending += 1
        self.world.loop.at(62.0 + self._span_s(10.0), self._confirm, machine)
        return True

    def _confirm(self, machine: Machine) -> None:
        self.pending -= 1
        self.world.operator_confirms(machine)

    def _silent(self) -> bool:
        """An agent is stopped while it prepares a launch, so long that an operator confirms its node dead, and then it
        goes on."""
        if self._lurking:
            return False
        self._lurking = True
        return True

    def look(self, name: str) -> None:
        """After each commit: is there a launch to lie in wait for?"""
        if not self._lurking or name != "exchange":
            return
        preparing = self.world.preparing()
        agents = [agent for agent in self._agents() if agent.name in preparing and not agent.paused]
        if agents:
            self._lurking = False
            self.world.loop.at(self._span_s(self.chance.choice((0.06, 1.0))), self._give_up, self.chance.choice(agents))

    def _give_up(self, agent: SimProcess) -> None:
        if agent.alive and not agent.paused:
            agent.pause()
            self.pending += 1
            self.world.loop.at(61.0 + self._span_s(6.0), self._given_up, agent)

    def _given_up(self, agent: SimProcess) -> None:
        self.pending -= 1
        self.world.operator_gives_up(agent)

    def _cut(self) -> bool:
        source, target = self.chance.choice(self.world.links())
        self.world.cut(source, target)
        self._later(60.0, lambda: self.world.mend(source, target))
        if self.chance.random() < 0.6:
            self.world.cut(target, source)
            self._later(60.0, lambda: self.world.mend(target, source))
        return True

    def _database_down(self) -> bool:
        self.world.database_down(True)
        self._later(15.0, lambda: self.world.database_down(False))
        return True

    def _odd_job(self, kind: str) -> bool:
        machine = self._one_machine()
        return machine is not None and self.world.odd_job(kind, machine)
