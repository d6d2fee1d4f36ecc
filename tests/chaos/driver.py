"""Lets faults strike while sessions are submitted, run, end and are cancelled; asks the oracle on the way and after."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tests.chaos import oracle
from tests.chaos.work import Strike, Tale, Work, plan_strikes, plan_work
from tests.chaos.world import World, kill_exactly, pick
from tests.end_to_end.control_plane import command_of
from tests.services.proxy import Proxy

LOOK_EVERY_S = 1.0
INSISTING = 30

KILLS = {
    "kill manager": 3,
    "freeze manager": 2,
    "kill agent": 3,
    "kill zygote": 2,
    "kill shim": 3,
    "crash manager": 3,
    "kill everything": 1,
}
CUTS = {"cut connections": 3, "lose commit answer": 4, "stop commit": 3, "hold connections": 1}


@dataclass
class Driver:
    """One run of one seed."""

    world: World
    tale: Tale
    proxies: list[Proxy] = field(default_factory=list[Proxy])
    later: list[tuple[float, Callable[[], Any]]] = field(default_factory=list[tuple[float, Callable[[], Any]]])
    began: float = 0.0

    def run(self, seconds: float, kinds: Mapping[str, int]) -> dict[str, Any]:
        """All of it, and then the oracle. The choices depend on the seed alone, not on what happens."""
        chance = random.Random(self.tale.seed)
        plan: list[tuple[float, Callable[[], Any]]] = []
        for number, work in enumerate(plan_work(chance, seconds)):
            plan.append((work.at_s, lambda w=work, n=number: self.submit(w, n)))
        for strike in plan_strikes(chance, seconds, kinds):
            plan.append((strike.at_s, lambda s=strike: self.strike(s)))
        self.began = time.monotonic()
        self.later = sorted(plan, key=lambda one: one[0])
        looked = 0.0
        while self.later:
            self.later.sort(key=lambda one: one[0])
            at_s, act = self.later[0]
            if at_s <= self.now_s():
                self.later.pop(0)
                act()
            elif self.now_s() - looked > LOOK_EVERY_S:
                looked = self.now_s()
                oracle.ledger_covers_what_lives(self.world, 2.0)
                oracle.no_double(self.world)
            else:
                time.sleep(min(0.05, at_s - self.now_s()))
        for proxy in self.proxies:
            proxy.release()
        self.world.heal()
        return oracle.everything_holds(self.world, self.tale)

    def now_s(self) -> float:
        return time.monotonic() - self.began

    def after(self, seconds: float, act: Callable[[], Any]) -> None:
        self.later.append((self.now_s() + seconds, act))

    # --- work

    def submit(self, work: Work, number: int) -> None:
        """Repeated under one key until it is acknowledged; whoever is down is started again meanwhile."""
        key = f"chaos-{self.tale.seed}-{number}"
        answer = self._insist("POST", "sessions", work.fields(self.world), key)
        self.tale.submitted[answer["id"]] = work
        if work.cancel_after_s is not None:
            self.after(work.cancel_after_s, lambda: self.cancel(answer["id"]))

    def cancel(self, id_: str) -> None:
        self._insist("POST", f"sessions/{id_}/cancel")
        self.tale.cancelled.add(id_)

    def _insist(self, method: str, path: str, body: Any = None, key: str | None = None) -> Any:
        for _ in range(INSISTING):
            with suppress(AssertionError):
                return self.world.ask(method, path, body, key, prefer=self.tale.seed, patience_s=3.0)
            self.world.heal()
            for proxy in self.proxies:
                proxy.release()
        raise AssertionError(f"nobody answered {method} {path} in {INSISTING} tries, with everything healed")

    # --- faults

    def strike(self, strike: Strike) -> None:
        self.tale.struck.append(f"{strike.at_s}: {strike.kind} ({strike.pick}, {strike.length_s} s)")
        getattr(self, strike.kind.replace(" ", "_"))(strike)

    def kill_manager(self, strike: Strike) -> None:
        victim = pick(self.world.managers, strike.pick)
        victim.kill()
        self.after(strike.length_s, self.world.tend)

    def crash_manager(self, strike: Strike) -> None:
        """It dies at a later commit, just before or just after, and is started again as it should be."""
        victim = pick(self.world.managers, strike.pick)
        point = "manager.before_commit" if strike.length_s < 1.5 else "manager.after_commit"
        victim.kill()
        victim.start(crash=f"{point}:{1 + int(strike.pick * 997) % 40}")
        self.after(strike.length_s + 2.0, self.world.tend)

    def freeze_manager(self, strike: Strike) -> None:
        victim = pick(self.world.managers, strike.pick)
        victim.freeze()
        self.after(strike.length_s * 3, victim.thaw)

    def kill_agent(self, strike: Strike) -> None:
        victim = pick(self.world.agent_pids(), strike.pick)
        kill_exactly([victim] if victim else [], lambda pid: "corral.agent" in command_of(pid))
        self.after(strike.length_s, self.world.tend)

    def kill_zygote(self, strike: Strike) -> None:
        victim = pick(self.world.zygote_pids(), strike.pick)
        kill_exactly([victim] if victim else [], lambda pid: "zygote.py" in command_of(pid))

    def kill_shim(self, strike: Strike) -> None:
        victim = pick(self.world.shim_pids(), strike.pick)
        killed = kill_exactly([victim] if victim else [], lambda pid: "zygote.py" in command_of(pid))
        self.tale.lost_supervisors += killed

    def kill_everything(self, strike: Strike) -> None:
        """All of Corral's processes at once; only the supervisors and their jobs stay."""
        pids = [*self.world.zygote_pids(), *self.world.agent_pids(), *(m.pid for m in self.world.managers if m.alive)]
        kill_exactly(pids, lambda pid: "corral" in command_of(pid))
        self.after(strike.length_s, self.world.tend)

    def cut_connections(self, strike: Strike) -> None:
        pick(self.proxies, strike.pick).cut()

    def lose_commit_answer(self, strike: Strike) -> None:
        pick(self.proxies, strike.pick).lose_answer()

    def stop_commit(self, strike: Strike) -> None:
        pick(self.proxies, strike.pick).stop_command()

    def hold_connections(self, strike: Strike) -> None:
        proxy = pick(self.proxies, strike.pick)
        proxy.hold()
        self.after(strike.length_s, proxy.release)
