"""A node: one machine with its clock, disk and process trees, and the processes that come and go on it.

It boots, forks, loses power and run directories, and keeps an agent running. It knows which process hangs on which,
and nothing of what they decide. Next: `sim_agent.py` and `sim_shim.py` are what its processes stand on.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from corral.agent.daemon import Daemon, Me
from corral.agent.environment import Layout
from corral.agent.jobs import Jobs
from corral.agent.ports import Birth, Machine, NoRoom, Unsafe
from corral.model.node import DeviceInventory
from corral.testing.checkers import certified, is_known, last_heard
from corral.testing.disk import SimDisk, SimFiles
from corral.testing.files import File
from corral.testing.process import SimProcess
from corral.testing.sim_agent import SimDevices, SimJobDirs, SimLink, SimProvision, SimShims, SimTreesPort
from corral.testing.sim_ledger import LedgerDisk, SimLedger
from corral.testing.sim_shim import Permission, SimJob, SimShim, Surroundings
from corral.testing.site import Site
from corral.testing.trees import SimTrees
from corral.testing.workload import draw_job
from corral.wire import StreamOrder

NODE_RATES = {
    "node.hint_lost": 0.1,
    "node.fork_failed": 0.02,
    "node.device_busy": 0.05,
    "node.slow_provision": 0.1,
    "node.late_copy": 0.02,
    "node.not_provided": 0.04,
    "shim.cannot_prepare": 0.02,
    "shim.pause": 0.01,
    "shim.pause_at_birth": 0.04,
    "shim.pause_early": 0.04,
}
CPU_MILLI, MEMORY_MIB, VRAM_MIB = 4000, 4096, 8192
FIRST_PID, LAST_PID = 1000, 1060


TWIN_LIVES_S, TWIN_LOOKS_S, SILENCE_S = 40.0, 0.5, 20.0


class SimNode:
    """`name` is the node it says it is, `place` the machine it is: of a cloned machine the two differ."""

    def __init__(self, site: Site, name: str, gpus: int, place: str = "") -> None:
        self.site = site
        self.loop = site.loop
        self.name = name
        self.place = place or name
        self.chance = random.Random(f"{site.seed}:node:{self.place}")
        self.clock = site.clock()
        step_s = site.size.disk_step_s
        self.disk = SimDisk(site.loop, site.faults, self.place, step_s=step_s)
        self.trees = SimTrees(site.loop, site.faults, self.place, site.truth, step_s=step_s)
        self.store = LedgerDisk(self.disk)
        self.fleet = [
            DeviceInventory(f"SIM-{name}-{index}", index, "sim", "A100", None, VRAM_MIB) for index in range(gpus)
        ]
        self.run_directory = self.chance.choice(("/run/corral", "/run/corral", "/state/run"))
        self.records = site.checkers.records
        self.is_on = False
        self.boots = 0
        self.agent: SimProcess | None = None
        self.hear = _nobody_hears
        self._zygotes: list[SimProcess] = []
        self._shims: dict[tuple[int, int], SimShim] = {}
        self._last_pid = FIRST_PID
        self._twin: SimNode | None = None
        self._twins = 0
        self._last_start = 0

    # --- the machine

    def machine(self) -> Machine:
        return Machine(f"boot-{self.place}-{self.boots}", f"hardware-{self.name}", CPU_MILLI, MEMORY_MIB)

    def power_on(self) -> None:
        self.is_on = True
        self.boots += 1
        self.site.network.lighten(self.place)
        self.start_agent()

    def power_off(self, *, power_lost: bool) -> None:
        """All of its processes end at once, in silence. What was not durable is forgotten."""
        self.is_on = False
        self.site.network.darken(self.place)
        for process in self.processes():
            process.kill(silently=True)
        self.trees.power_off()
        self.disk.reboot(power_lost=power_lost)
        self.store.reboot(power_lost=power_lost)
        self.clock.reboot()
        self._forget()

    def _forget(self) -> None:
        """Results that are not in the durable store are gone with the run directory, and nobody may miss them."""
        kept = {token for token, kind in self.store.content.facts if kind == "result"}
        self.records.forgotten.update(token for token in self.records.results if token not in kept)

    # --- processes

    def processes(self) -> list[SimProcess]:
        found = [self.agent, *self._zygotes, *(shim.process for shim in self._shims.values())]
        return [process for process in found if process is not None and process.alive]

    def start_agent(self) -> None:
        if not self.is_on or (self.agent is not None and self.agent.alive):
            return
        self.agent = process = self.site.process(self.place, self.clock)
        process.at_exit.append(self._agent_ended)
        run_agent(self, process)

    def _agent_ended(self, _: SimProcess) -> None:
        self.hear = _nobody_hears
        self.site.later(10.0, self.start_agent)

    def new_zygote(self) -> SimProcess:
        zygote = self.site.process(f"{self.place}.zygote", self.clock)
        self._zygotes = [*(one for one in self._zygotes if one.alive), zygote]
        return zygote

    def serve_birth(self, zygote: SimProcess, birth: Birth) -> tuple[int, int]:
        """In the zygote: it goes to a shim that is free, the warmest first, or to a new one; (0, 0): neither."""
        free = [shim for shim in self._shims.values() if shim.is_free and shim.zygote is zygote]
        if free:
            shim = free[-1]
            shim.take(self._job(birth, shim))
        elif len(self._shims) > LAST_PID - FIRST_PID:
            return 0, 0
        else:
            zygote.point("zygote.before_fork")
            shim = self._fork_shim(zygote, birth)
            zygote.point("zygote.after_fork")
        return shim.pid, shim.start_time

    def _fork_shim(self, zygote: SimProcess, birth: Birth) -> SimShim:
        process = self.site.process(f"{self.place}.shim", self.clock)
        shim = SimShim(process, zygote, *self._new_pid())
        key = (shim.pid, shim.start_time)
        self._shims[key] = shim
        process.at_exit.append(lambda _: self._shims.pop(key, None))
        process.spawn(shim.run(self._job(birth, shim)), name=f"shim {birth.token}")
        return shim

    def _job(self, birth: Birth, shim: SimShim) -> SimJob:
        around = Surroundings(
            self.disk, self.trees, self.records, lambda token: draw_job(self.site, token), self.notify
        )
        permission = Permission(self.machine().boot_id, birth.run_id, birth.node_epoch)
        folder = f"{self.run_directory}/jobs/{birth.token}"
        return SimJob(shim.process, shim.pid, shim.start_time, folder, permission, around)

    def _new_pid(self) -> tuple[int, int]:
        """Process ids are used again soon; a start time never is."""
        living = {pid for pid, _ in self._shims}
        while True:
            self._last_pid = self._last_pid + 1 if self._last_pid < LAST_PID else FIRST_PID
            if self._last_pid not in living:
                break
        self._last_start += 1
        return self._last_pid, self._last_start

    def shim_at(self, pid: int, start_time: int) -> SimProcess | None:
        shim = self._shims.get((pid, start_time))
        return shim.process if shim is not None else None

    def poke(self, pid: int, start_time: int) -> None:
        shim = self._shims.get((pid, start_time))
        if shim is not None:
            shim.poke()

    def lock_holders(self) -> dict[str, list[SimProcess]]:
        """The living shims that hold a lock, by token."""
        found: dict[str, list[SimProcess]] = {}
        for shim in self._shims.values():
            if shim.process.alive and shim.job is not None and shim.job.files.holds_a_lock:
                found.setdefault(shim.job.token, []).append(shim.process)
        return found

    def agent_kills(self, token: str) -> None:
        """Is it one whose shim lives? The lock says so; of a lost directory nobody can know."""
        lock = self.disk.tree.find(f"{self.run_directory}/jobs/{token}/lock")
        holder = lock.holder if isinstance(lock, File) else None
        if isinstance(holder, SimProcess) and holder is not self.agent and token in self.trees.trees:
            self.site.checkers.agent_kills(self.place, token)
            holder.sometimes("agent.forced")

    def notify(self, token: str) -> None:
        """A datagram from a shim to the agent that lives when it arrives."""
        if not self.site.faults.hit("node.hint_lost"):
            self.loop.at(self.chance.random() * 0.01, lambda: self.hear(token))

    # --- what the nemesis may do to it

    def disk_full(self) -> bool:
        if self.disk.is_full:
            return False
        self.disk.is_full = True
        self.site.later(20.0, self.disk_emptied)
        return True

    def disk_emptied(self) -> None:
        self.disk.is_full = False

    def lose_run_directory(self) -> bool:
        """Somebody empties it, and restarts the agent: no agent may take what it finds for what was."""
        if self.agent is None or not self.agent.alive:
            return False
        self.agent.kill()
        found = self.disk.tree.find(self.run_directory)
        if found is not None:
            where, name = self.disk.tree.parent(self.run_directory)
            del where.children[name]
            where.durable.pop(name, None)
        self._forget()
        return True

    def kill_zygote(self) -> bool:
        return self._kill_one(self._zygotes)

    def kill_shim(self) -> bool:
        return self._kill_one([shim.process for shim in self._shims.values()])

    def _kill_one(self, processes: list[SimProcess]) -> bool:
        living = [process for process in processes if process.alive]
        if not living:
            return False
        self.chance.choice(living).kill()
        return True

    def pause_shim(self) -> bool:
        running = [shim.process for shim in self._shims.values() if not shim.process.paused]
        if not running:
            return False
        process = self.chance.choice(running)
        process.pause()
        self.site.later(20.0, process.resume)
        return True

    def freeze_shim(self) -> bool:
        """A job stops its own shim, for good."""
        running = [one for one in self._shims.values() if one.job and one.job.has_begun and not one.process.paused]
        if not running:
            return False
        self.chance.choice(running).freeze()
        return True

    def heal(self) -> None:
        """What was stopped goes on, but for shims that were to end their jobs: those are the agent's to end."""
        frozen = {shim.process for shim in self._shims.values() if shim.is_frozen and shim.job and
                  self.site.checkers.stop_was_asked(shim.job.token)}  # fmt: skip
        for process in self.processes():
            if process not in frozen:
                process.resume()
        if not self.is_on:
            self.power_on()

    def clone(self) -> bool:
        """EP2: a second machine from a copy of this one's disk, as long as this one is heard: it may start nothing."""
        if self._twin is not None or self.agent is None or not self.agent.alive:
            return False
        self._twins += 1
        twin = self._twin = SimNode(self.site, self.name, len(self.fleet), f"{self.name}.twin{self._twins}")
        twin.store = self.store.clone(twin.disk)
        self._tend_twin(twin, self.loop.now_s + TWIN_LIVES_S)
        return True

    def _tend_twin(self, twin: SimNode, end_s: float) -> None:
        """It comes up once the original has moved on, and goes before the original has been silent for so long that a
        copy may rightly be taken for it. A copy of this very instant is a documented limit."""
        silent_s = self.site.database.now() - last_heard(self.site.database, self.name)
        if self.loop.now_s >= end_s or silent_s > SILENCE_S:
            twin.power_off(power_lost=True)
            self._twin = None
            return
        mine, copied = self.store.content.identity.nonces, twin.store.content.identity.nonces
        if not twin.is_on and not set(mine) & set(copied):
            twin.power_on()
        self.loop.at(TWIN_LOOKS_S, self._tend_twin, twin, end_s)

    # --- at the end

    def left_over(self) -> list[str]:
        """KE7: what lies in the run directory although its end was acknowledged, or although nobody knows it."""
        found: list[str] = []
        for token in self.disk.names(f"{self.run_directory}/jobs"):
            if not is_known(self.site.database, token):
                found.append(f"KE7 {self.name}: {token} lies on disk, and the ledger does not know it")
            elif certified(self.site.database, token):
                found.append(f"{self.name}: {token} was never collected")
        return found


def _nobody_hears(_: str) -> None:
    return None


def run_agent(node: SimNode, process: SimProcess) -> None:
    """Production's agent, put together as its composition root does, on this node's ports."""
    site = node.site
    me = Me(node.name, "default", node.name, {}, process.nonce())
    machine = node.machine()
    layout = Layout("/state", node.run_directory, f"{node.run_directory}/hints", node.name)
    dirs = SimJobDirs(SimFiles(node.disk, process), node.run_directory, node.records)
    ledger = SimLedger(node.store, process)
    trees = SimTreesPort(node.trees, process, node)
    devices = SimDevices(node.fleet, node.trees, process)
    provision = SimProvision(process, node.chance, site.size.disk_step_s)
    jobs = Jobs(
        me, machine, layout, dirs, ledger, SimShims(node, process), trees, devices, provision, process, process.point
    )
    managers = [f"http://{name}" for name in site.manager_names]
    node.chance.shuffle(managers)
    daemon = Daemon(
        me,
        machine,
        managers,
        SimLink(site.network, process),
        dirs,
        ledger,
        trees,
        devices,
        jobs,
        _no_streams,
        process,
        process,
        process.point,
    )
    for part in (daemon.run, jobs.keep_looking, jobs.sweep, jobs.fail):
        process.spawn(_keep(process, part), name=part.__qualname__)


async def _no_streams(_: Sequence[StreamOrder]) -> None:
    return None


async def _keep(process: SimProcess, part: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """A part that fails for what the disk does ends the process, and whoever keeps it starts it again."""
    try:
        await part()
    except (OSError, NoRoom, Unsafe):
        process.sometimes("agent.ended")
        process.kill()
