"""One seed: a small cluster of production managers and nodes, users, and what befalls them; then healing, then proof.

It puts the parts together, keeps processes coming back, heals, waits within bounds, and asks the checkers for the last
look. It knows no rule itself. Next: `world.py` runs many seeds.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from corral.model.node import ResourceGroup
from corral.reconcile import groups
from corral.testing.faults import Faults
from corral.testing.nemesis import Machine, Nemesis
from corral.testing.process import SimProcess
from corral.testing.sim_manager import SimManager
from corral.testing.sim_node import NODE_RATES, SimNode
from corral.testing.sim_store import RATES as STORE_RATES
from corral.testing.simloop import SimLoop
from corral.testing.site import Focus, Site, Size
from corral.testing.steps import SimulationError
from corral.testing.trace import Trace
from corral.testing.workload import User

STEP_S = 5e-5
QUIET_WITHIN_S = 900.0
LOOK_EVERY_S = 2.0
JOBS_IN_A_ROW = 60


@dataclass(slots=True)
class Report:
    """What came of one seed."""

    seed: int
    failure: str | None = None
    digest: str = ""
    steps: int = 0
    lasted_s: float = 0.0
    starts: int = 0
    counts: Counter[str] = field(default_factory=Counter[str])
    reached: Counter[str] = field(default_factory=Counter[str])
    passes: Counter[str] = field(default_factory=Counter[str])
    crashes: Counter[str] = field(default_factory=Counter[str])
    lines: list[str] = field(default_factory=list[str])


class World:
    """`make_node` replaces the nodes, for a simulation of managers alone."""

    def __init__(
        self,
        seed: int,
        *,
        traced: bool = False,
        size: Size | None = None,
        focus: Focus | None = None,
        make_node: Callable[[Site, str, int], Machine] = SimNode,
    ) -> None:
        self.seed = seed
        chance = random.Random(f"{seed}:world")
        size = size or Size.draw(chance)
        focus = focus or Focus()
        size = replace(
            size,
            chaos_s=focus.chaos_s or size.chaos_s,
            nodes=focus.nodes or size.nodes,
            sessions=focus.sessions or size.sessions,
        )
        self.trace = Trace() if traced else None
        self.loop = SimLoop(random.Random(f"{seed}:order"), step_s=STEP_S, trace=self.trace)
        self.faults = Faults(seed, {**STORE_RATES, **NODE_RATES})
        self.faults.note = self.loop.world_note
        self.faults.rates.update(focus.rates)
        self.site = Site(seed, size, focus, chance, self.loop, self.faults)
        self.checkers = self.site.checkers
        self._managers: dict[str, SimManager | None] = dict.fromkeys(self.site.manager_names)
        self._users: list[User] = []
        self._healed = False
        self._dismissed: set[str] = set()
        self._make_node = make_node
        self._machines: list[Machine] = []
        self.nemesis = Nemesis(seed, self.site.process("weather"), self, focus)
        self.site.database.on_commit.append(self.nemesis.look)

    # --- what nodes and the nemesis ask of it

    def machines(self) -> list[Machine]:
        return self._machines

    def managers(self) -> list[SimProcess]:
        return [manager.process for manager in self._managers.values() if manager and manager.process.alive]

    def links(self) -> list[tuple[str, str]]:
        asking = [machine.name for machine in self._machines] + [user.process.name for user in self._users]
        return [(name, manager) for name in asking for manager in self._managers]

    def cut(self, source: str, target: str) -> None:
        self.site.network.cut(source, target)

    def mend(self, source: str, target: str) -> None:
        self.site.network.mend(source, target)

    def database_down(self, down: bool) -> None:
        self.site.database.is_down = down and not self._healed

    def operator_confirms(self, machine: Machine) -> None:
        """Only of a machine that is off, and it stays off until the word was heard."""
        if machine.is_on or self._healed or not self._users:
            return
        user = self._users[0]
        if user.process.alive:
            user.process.spawn(self._confirm(user, machine), name="confirm dead")

    async def _confirm(self, user: User, machine: Machine) -> None:
        if await user.confirm_dead(machine.name):
            user.process.sometimes("operator.confirmed")
        self.loop.at(self.site.chance.random() * 5.0, lambda: None if machine.is_on else machine.power_on())

    def preparing(self) -> set[str]:
        return self.checkers.preparing()

    def operator_gives_up(self, agent: SimProcess) -> None:
        """The word on a node whose agent is only stopped. What lives there is a documented limit; what does not live
        yet may never begin (docs/protocol.md 7)."""
        user = self._users[0] if self._users else None
        lives = self.checkers.begun_on(agent.name)
        if user is None or self._healed or lives or not agent.paused:
            agent.resume()
            return
        user.process.spawn(self._give_up(user, agent), name="confirm dead")

    async def _give_up(self, user: User, agent: SimProcess) -> None:
        if await user.confirm_dead(agent.name):
            user.process.sometimes("operator.gave_up")
        agent.resume()

    def odd_job(self, kind: str, machine: Machine) -> bool:
        act = getattr(machine, kind, None)
        return act is not None and act()

    # --- processes that come back

    def _start_manager(self, name: str) -> None:
        running = self._managers.get(name)
        if name in self._dismissed or (running is not None and running.process.alive):
            return
        process = self.site.process(name)
        self._managers[name] = SimManager(self.site.database, self.site.network, process)
        process.at_exit.append(lambda _: self.site.later(15.0, partial(self._start_manager, name)))

    # --- one run

    async def main(self) -> None:
        size, chance = self.site.size, self.site.chance
        if self.site.preempting:
            spread = "spread" if self.site.focus.moving else "pack"
            group = ResourceGroup("default", order="priority", placement=spread, options=self.site.options())
            self.site.database.write("group", "group", lambda tx: groups.create(tx, group, "operator"), stands=True)
        for name in self.site.manager_names:
            self._start_manager(name)
        for number in range(size.nodes):
            gpus = chance.choice((0, 1, 2, 4))
            machine = self._make_node(self.site, f"n{number}", 4 if self.site.focus.moving else gpus)
            self._machines.append(machine)
            self.loop.at(chance.random() * 2.0, machine.power_on)
        for number in range(size.users):
            process = self.site.process(f"u{number}")
            user = User(process, self.site, self.seed)
            self._users.append(user)
            process.spawn(user.live(size.sessions, size.nodes, size.chaos_s), name="user")
        self._users[0].process.spawn(self._users[0].watch(), name="watch")
        self.nemesis.process.spawn(self.nemesis.rage(size.chaos_s), name="nemesis")
        await self.site.sleep(size.chaos_s)
        while self.nemesis.pending:  # an operator is about to give up a node
            await self.site.sleep(LOOK_EVERY_S)
        await self._heal()
        await self._rest()

    async def _heal(self) -> None:
        self._healed = True
        self.faults.quiet()
        self.site.network.heal()
        self.site.database.is_down = False
        for process in self.managers():
            process.resume()
        for machine in self._machines:
            machine.heal()
        self._dismiss_managers()
        for user in self._users:
            user.process.spawn(user.let_go(), name="let go")

    def _dismiss_managers(self) -> None:
        """Mostly one manager has to finish what the others began."""
        names = list(self._managers)
        kept = names if self.site.chance.random() < 0.3 else [self.site.chance.choice(names)]
        for name in names:
            manager = self._managers[name]
            if name in kept:
                self._start_manager(name)
            elif manager is not None:
                self._dismissed.add(name)
                manager.process.kill()

    async def _rest(self) -> None:
        """Bounded liveness: within this time all is settled, and stays so."""
        until_s = self.loop.now_s + QUIET_WITHIN_S + JOBS_IN_A_ROW * (self.site.focus.jobs_last_s or 0.0)
        while True:
            await self.site.sleep(LOOK_EVERY_S)
            if not self.left_on_nodes() and self.checkers.is_settled():
                break
            if self.loop.now_s > until_s:
                left = self.checkers.unsettled() + self.left_on_nodes()
                self.loop.violate(f"SE7: not settled within its time after all was healed: {'; '.join(left[:6])}")
                return
        self.checkers.last_look()

    def left_on_nodes(self) -> list[str]:
        found = [f"{token} lives" for token in self.site.truth.live]
        for machine in self._machines:
            left = getattr(machine, "left_over", None)
            found += left() if left else []
        return found

    def run(self) -> Report:
        report = Report(self.seed)
        try:
            self.loop.run(self.main())
        except SimulationError as error:
            report.failure = str(self.loop.failures[0]) if self.loop.failures else str(error)
        finally:
            self.loop.close()
        report.steps, report.lasted_s, report.starts = self.loop.steps, self.loop.now_s, len(self.site.truth.starts)
        report.counts, report.reached = self.faults.counts + self.nemesis.done, self.faults.reached
        report.passes, report.crashes = self.faults.passes, self.faults.crashes
        if self.trace is not None:
            report.digest, report.lines = self.trace.digest(), list(self.trace.lines)
        self.site.database.close()
        return report
