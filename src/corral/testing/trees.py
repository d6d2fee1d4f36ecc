"""The process trees of jobs, and the ground truth about them that checkers compare the ledger with.

`GroundTruth` knows every start of every launch token, for ever, and every tree that lives now. `SimTrees` is one node's
kernel: it starts trees, delivers signals, and ends them by plan. It never reads a database or a job directory: it is
what those have to agree with. Next: the simulated job port of the world calls `SimTrees`; checkers read `GroundTruth`.
"""

from __future__ import annotations

import errno
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from corral.testing.faults import Faults
from corral.testing.process import SimProcess, take_time
from corral.testing.simloop import SimLoop


@dataclass(frozen=True, slots=True)
class JobPlan:
    """What a job does when left alone, and how it answers signals."""

    lasts_s: float
    exit_code: int = 0
    heeds_term: bool = True
    term_takes_s: float = 0.0
    descendants: int = 0
    descendants_outlive_s: float = 0.0
    unkillable_for_s: float = 0.0


@dataclass(slots=True)
class Tree:
    """The living processes of one start. `main_pid` is in `pids` until the main process has ended."""

    token: str
    session: str
    rank: int
    node: str
    devices: tuple[str, ...]
    plan: JobPlan
    main_pid: int
    started_at_s: float
    pids: set[int]
    exit_code: int | None = None
    signal: int | None = None
    dying: bool = False
    on_main_end: list[Callable[[Tree], object]] = field(default_factory=list[Callable[["Tree"], object]])
    on_empty: list[Callable[[Tree], object]] = field(default_factory=list[Callable[["Tree"], object]])

    @property
    def main_lives(self) -> bool:
        return self.main_pid in self.pids


class GroundTruth:
    """All nodes together. A start that breaks KE1 or KE2 is a violation at that very step."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.starts: Counter[str] = Counter()
        self.live: dict[str, Tree] = {}
        self.executions: dict[tuple[str, int], Tree] = {}
        self.ended = 0
        self.on_start: list[Callable[[Tree], object]] = []

    def started(self, tree: Tree) -> None:
        self.starts[tree.token] += 1
        if self.starts[tree.token] > 1:
            self.loop.violate(f"KE1: token {tree.token} was started {self.starts[tree.token]} times")
        other = self.executions.get((tree.session, tree.rank))
        if other is not None:
            self.loop.violate(f"KE2: {tree.token} was started on {tree.node} while {other.token} lives on {other.node}")
        self.live[tree.token] = tree
        self.executions[tree.session, tree.rank] = tree
        for hook in self.on_start:
            hook(tree)

    def emptied(self, tree: Tree) -> None:
        self.ended += 1
        if self.live.get(tree.token) is tree:
            del self.live[tree.token]
        if self.executions.get((tree.session, tree.rank)) is tree:
            del self.executions[tree.session, tree.rank]

    def unbacked(self, held: Iterable[tuple[str, str, str]]) -> list[Tree]:
        """KE3: the live trees that use a device for which `held` has no (token, node, device)."""
        rows = set(held)
        return [
            tree
            for tree in self.live.values()
            if any((tree.token, tree.node, device) not in rows for device in tree.devices)
        ]


class SimTrees:
    """One node. Process ids come from a small space and are used again, so a signal to a stale id hits an innocent."""

    PID_SPACE = 300

    def __init__(self, loop: SimLoop, faults: Faults, node: str, truth: GroundTruth, step_s: float = 0.0) -> None:
        self.loop = loop
        self.faults = faults
        self.node = node
        self.truth = truth
        self.trees: dict[str, Tree] = {}
        self.pids: dict[int, Tree] = {}
        self.innocents_hit = 0
        self.step_s = step_s
        self._last_pid = 100
        self._chance = random.Random(f"{faults.seed}:trees:{node}")

    # --- asked by the shim's and the agent's ports; each call is a scheduling point

    async def start(
        self,
        caller: SimProcess,
        token: str,
        session: str,
        rank: int,
        plan: JobPlan,
        devices: tuple[str, ...] = (),
        dies_with_caller: bool = True,
    ) -> Tree:
        """Fork and exec: the one moment that docs/invariants.md counts as a start."""
        await self._turn(caller)
        if len(self.pids) + 1 + plan.descendants > self.PID_SPACE // 2:
            raise BlockingIOError(errno.EAGAIN, f"node {self.node} has no process ids left")
        pids = [self._take_pid() for _ in range(1 + plan.descendants)]
        tree = Tree(token, session, rank, self.node, devices, plan, pids[0], self.loop.now_s, set(pids))
        self.pids.update(dict.fromkeys(pids, tree))
        self.trees[token] = tree
        self.truth.started(tree)
        self.loop.at(plan.lasts_s, self._main_ends, tree, plan.exit_code, None)
        if dies_with_caller:
            caller.at_exit.append(lambda _: self._main_ends(tree, None, 9))
        return tree

    async def terminate(self, caller: SimProcess, pid: int, token: str) -> bool:
        """SIGTERM to a process id that the caller believes to be of `token`. False: no such process."""
        await self._turn(caller)
        tree = self.pids.get(pid)
        if tree is None:
            return False
        if tree.token != token:
            self.innocents_hit += 1
        if tree.plan.heeds_term and pid == tree.main_pid:
            self.loop.at(tree.plan.term_takes_s, self._main_ends, tree, None, 15)
        elif tree.plan.heeds_term:
            self._ends(tree, {pid})
        return True

    async def kill_tree(self, caller: SimProcess, token: str) -> None:
        """SIGKILL to all of it. Death may take a moment, or as long as the plan's device driver wants."""
        await self._turn(caller)
        self.kill_now(token)

    async def is_empty(self, caller: SimProcess, token: str) -> bool:
        await self._turn(caller)
        return token not in self.trees

    async def tokens(self, caller: SimProcess) -> list[str]:
        """The tokens with a living process, whether or not a job directory knows them."""
        await self._turn(caller)
        return sorted(self.trees)

    async def wait_empty(self, caller: SimProcess, token: str) -> None:
        await self._turn(caller)
        tree = self.trees.get(token)
        if tree is not None:
            await _until(caller, tree.on_empty)

    async def wait_main(self, caller: SimProcess, tree: Tree) -> tuple[int | None, int | None]:
        """The main process's (exit code, signal), when it has ended."""
        await self._turn(caller)
        if tree.main_lives:
            await _until(caller, tree.on_main_end)
        return tree.exit_code, tree.signal

    async def _turn(self, caller: SimProcess) -> None:
        await take_time(caller, self._chance, self.step_s)

    # --- the world's doing

    def kill_now(self, token: str) -> None:
        tree = self.trees.get(token)
        if tree is None or tree.dying:
            return
        tree.dying = True
        delay_s = tree.plan.unkillable_for_s
        if self.faults.hit("tree.slow_death"):
            delay_s += self.faults.span_s(5.0)
        self.loop.at(delay_s, self._killed, tree)

    def power_off(self) -> None:
        """Reboot or loss of power: every tree ends at once."""
        for tree in list(self.trees.values()):
            self._killed(tree)

    def _take_pid(self) -> int:
        while True:
            self._last_pid = 100 + (self._last_pid - 99) % self.PID_SPACE
            if self._last_pid not in self.pids:
                return self._last_pid

    def _main_ends(self, tree: Tree, exit_code: int | None, signal: int | None) -> None:
        if not tree.main_lives:
            return
        tree.exit_code, tree.signal = exit_code, signal
        rest = tree.pids - {tree.main_pid}
        self._ends(tree, {tree.main_pid})
        if rest:
            self.loop.at(tree.plan.descendants_outlive_s, self._ends, tree, rest)

    def _killed(self, tree: Tree) -> None:
        if tree.main_lives:
            tree.exit_code, tree.signal = None, 9
        self._ends(tree, set(tree.pids))

    def _ends(self, tree: Tree, pids: set[int]) -> None:
        had_main, had_any = tree.main_lives, bool(tree.pids)
        for pid in pids & tree.pids:
            tree.pids.discard(pid)
            del self.pids[pid]
        if had_main and not tree.main_lives:
            _tell(tree.on_main_end, tree)
        if had_any and not tree.pids:
            if self.trees.get(tree.token) is tree:
                del self.trees[tree.token]
            self.truth.emptied(tree)
            _tell(tree.on_empty, tree)


async def _until(caller: SimProcess, hooks: list[Callable[[Tree], object]]) -> None:
    done = caller.loop.create_future()

    def settle(_: Tree) -> None:
        if not done.done():
            done.set_result(None)

    hooks.append(settle)
    await done


def _tell(hooks: list[Callable[[Tree], object]], tree: Tree) -> None:
    for hook in list(hooks):
        hook(tree)
    hooks.clear()
