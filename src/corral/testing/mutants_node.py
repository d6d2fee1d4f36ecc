"""Mutants of the node's half: the shim's decision and end, the agent's permission, tombstones and proofs.

Each names what it replaces; its text says which rule is gone. It knows production code, and the simulated ports that
stand for system calls, by name. Next: `mutants.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from corral.agent import daemon, jobdir, jobs, launcher, looking, shim
from corral.agent.endings import Endings
from corral.agent.horizon import Horizon
from corral.agent.jobspec import Go, Stop
from corral.agent.ports import Entries
from corral.model.session import FactKind, KernelFact, Why
from corral.testing import sim_jobdir
from corral.testing.disk import SimFiles
from corral.testing.patches import Patch
from corral.testing.process import SimProcess
from corral.testing.sim_agent import SimJobDirs
from corral.testing.sim_node import SimNode
from corral.testing.sim_shim import SimJob

Daemon, Jobs = daemon.Daemon, jobs.Jobs


def _decision_is_ignored() -> list[Patch]:
    create_started = SimJob.create_started

    async def changed(self: SimJob) -> bool:
        await create_started(self)
        return True

    async def undecided(self: object) -> bool:
        return False

    return [Patch(SimJob, "create_started", changed), Patch(SimJob, "_decided", undecided)]


def _judged_without_the_lock() -> list[Patch]:
    async def free(self: object, token: str) -> bool:
        return False

    async def taken(self: object, token: str) -> bool:
        return True

    async def nothing(self: object, token: str) -> None:
        return None

    patches = {"is_locked": free, "try_lock": taken, "unlock": nothing}
    return [Patch(SimJobDirs, name, value) for name, value in patches.items()]


def _death_is_not_proven() -> list[Patch]:
    async def nothing(self: object, token: str) -> None:
        return None

    return [Patch(Endings, "end_tree", nothing)]


def _exit_before_empty() -> list[Patch]:
    async def nothing(job: shim.Job, kill_grace_s: float) -> None:
        return None

    return [Patch(shim, "_end_tree", nothing)]


def _barrier_is_ignored() -> list[Patch]:
    async def go(self: object) -> Go:
        return Go()

    return [Patch(SimJob, "read_go", go)]


def _stop_waits_for_go() -> list[Patch]:
    """Without the force that would end such a launch a minute later."""
    read_stop = SimJob.read_stop

    async def changed(self: SimJob) -> Stop | None:
        return await read_stop(self) if self.has_begun else None

    return [Patch(SimJob, "read_stop", changed), *_stopped_shims_are_waited_for()]


def _run_id_certifies() -> list[Patch]:
    async def changed(self: Any) -> None:
        tokens = await self._ledger.live(self._machine.boot_id)
        lost = Why("supervisor_lost", "the node's run directory was lost")
        facts = [KernelFact(token, FactKind.EXITED, 0.0, why=lost) for token in tokens]
        await self._ledger.commit(Entries(facts=facts), sync=True)

    return [Patch(Daemon, "_prove_all_dead", changed)]


def _permission_never_expires() -> list[Patch]:
    return [Patch(launcher, "START_TTL_S", 1e9)]


def _old_boot_is_adopted() -> list[Patch]:
    async def nothing(self: object, boot_id: str) -> None:
        return None

    return [Patch(Jobs, "void_others", nothing)]


def _horizon_is_forgotten() -> list[Patch]:
    async def nothing(self: object, token: str) -> None:
        return None

    return [Patch(Horizon, "fenced", nothing)]


def _no_room_is_kept() -> list[Patch]:
    async def only_the_lock(files: SimFiles, folder: str) -> None:
        await files.create_excl(f"{folder}/{jobdir.LOCK}")

    return [Patch(sim_jobdir, "reserve", only_the_lock)]


def _stop_is_void_at_once() -> list[Patch]:
    stop = Jobs.__dict__["_stop"]

    async def changed(self: Any, job: jobs.Job, *why: Any) -> None:
        self.outbox.add(KernelFact(job.token, FactKind.VOID, 0.0))
        await stop(self, job, *why)

    return [Patch(Jobs, "_stop", changed)]


def _absence_kills() -> list[Patch]:
    apply = Jobs.__dict__["apply"]

    async def changed(self: Any, orders: Sequence[Any], *rest: Any, **named: Any) -> None:
        await apply(self, orders, *rest, **named)
        wanted = {order.token for order in orders}
        for token in sorted(self._jobs.keys() - wanted):
            await self._endings.end_tree(token)

    return [Patch(Jobs, "apply", changed)]


def _shims_are_not_looked_for() -> list[Patch]:
    def nobody(self: object) -> dict[str, list[SimProcess]]:
        return {}

    return [Patch(SimNode, "lock_holders", nobody)]


def _force_comes_at_once() -> list[Patch]:
    return [Patch(looking, "OVERDUE_SLACK_S", -1e9)]


def _stopped_shims_are_waited_for() -> list[Patch]:
    return [Patch(looking, "OVERDUE_SLACK_S", 1e9)]


def _lost_directory_is_void() -> list[Patch]:
    async def changed(self: Any, token: str, why: Why) -> None:
        self.outbox.add(KernelFact(token, FactKind.EXITED, 0.0, why=why))

    return [Patch(Jobs, "_lost", changed), *_run_id_certifies()]


NODE_MUTANTS: dict[str, tuple[str, str, Callable[[], list[Patch]]]] = {
    "absence_kills": ("4", "only an explicit stop of a token stops it", _absence_kills),
    "decision_is_ignored": ("5", "one file decides, and the loser obeys", _decision_is_ignored),
    "judged_without_the_lock": ("5", "a death is judged with the lock in hand", _judged_without_the_lock),
    "death_is_not_proven": ("5", "a death is judged with the tree empty", _death_is_not_proven),
    "force_comes_at_once": ("5", "a living shim is given its time to end its tree", _force_comes_at_once),
    "stopped_shims_are_waited_for": ("5", "who does not act on a stop is ended", _stopped_shims_are_waited_for),
    "old_boot_is_adopted": ("6", "what another boot left is void", _old_boot_is_adopted),
    "run_id_certifies": ("6", "a new run id means: kill and prove empty", _run_id_certifies),
    "lost_directory_is_void": ("6", "a lost directory's tokens are proven dead", _lost_directory_is_void),
    "shims_are_not_looked_for": ("6", "a shim without its directory is ended too", _shims_are_not_looked_for),
    "permission_never_expires": ("7", "no start on permission older than a minute", _permission_never_expires),
    "horizon_is_forgotten": ("7", "a token stopped here never starts here", _horizon_is_forgotten),
    "no_room_is_kept": ("8", "room for the last words is kept at accept", _no_room_is_kept),
    "exit_before_empty": ("8", "the exit record is written when the tree is empty", _exit_before_empty),
    "stop_is_void_at_once": ("11", "void is what `started` says, not what was asked", _stop_is_void_at_once),
    "barrier_is_ignored": ("barrier", "a rank begins when all are ready", _barrier_is_ignored),
    "stop_waits_for_go": ("barrier", "a stop before the barrier's release ends the launch", _stop_waits_for_go),
}
