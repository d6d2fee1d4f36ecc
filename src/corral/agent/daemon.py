"""The agent's conversation: register, then one exchange after another, for ever (docs/protocol.md 4, 7 to 9).

Observed goes up and desired comes down in the same request, parked by the manager while there is nothing new. A fact
that turns up meanwhile breaks the parked one off and goes out at once. Whatever happens to managers or the network,
the jobs go on; nothing is forgotten until a manager has answered.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from corral import wire
from corral.agent.jobs import Jobs
from corral.agent.ports import (
    Devices,
    Entries,
    Identity,
    JobDirs,
    Ledger,
    Link,
    Machine,
    NoRoom,
    Rejected,
    Trees,
    Unreachable,
)
from corral.model.faults import Invalid
from corral.model.node import Inventory
from corral.model.session import FactKind, KernelFact, Why, parse_token
from corral.ports import Clock, CrashPoint, Ids

T = TypeVar("T")
Note = Callable[[str], None]
PARK_S = 10.0
ANSWER_S = 15.0  # longer than PARK_S, and so short that a frozen manager is left before this node counts as silent
LEAST_ANSWER_S = 5.0
FIRST_PAUSE_S = 0.2
LAST_PAUSE_S = 5.0
FULL_DISK_PAUSE_S = 2.0
MAX_FACTS = 2000
KILL_PAUSE_S = 0.2
GATHER_S = 0.002
SHORT_LIFE_S = 0.02  # a launch that ends within this needs one exchange, not three

CRASH_POINTS = ("agent.before_register", "agent.before_exchange", "agent.after_exchange", "agent.after_apply")


@dataclass(slots=True)
class Me:
    """Who this agent is: its name, its place, and what registration said."""

    name: str
    group: str
    address: str
    labels: Mapping[str, str]
    incarnation: str
    run_id: str = ""
    epoch: int = 0
    version: str = ""


class Daemon:
    """One agent process."""

    def __init__(
        self,
        me: Me,
        machine: Machine,
        managers: Sequence[str],
        link: Link,
        dirs: JobDirs,
        ledger: Ledger,
        trees: Trees,
        devices: Devices,
        jobs: Jobs,
        streams: Callable[[Sequence[wire.StreamOrder]], Awaitable[None]],
        clock: Clock,
        ids: Ids,
        point: CrashPoint,
        note: Note = lambda _: None,
    ) -> None:
        self._me = me
        self._machine = machine
        self._managers = list(managers)
        self._link = link
        self._dirs = dirs
        self._ledger = ledger
        self._trees = trees
        self._devices = devices
        self._jobs = jobs
        self._streams = streams
        self._clock = clock
        self._ids = ids
        self._point = point
        self._note = note
        self._noted = ""
        self._identity = Identity()
        self._have_version = 0
        self._has_launched = False
        self._stuck: list[str] = []
        self._pause_s = FIRST_PAUSE_S
        self._unanswered_since: float | None = None

    async def run(self) -> None:
        """Find what is here, register, and exchange until the process ends."""
        await self._with_room(self.begin)
        while True:
            await self._with_room(self._register)
            while await self._with_room(self._exchange):
                pass

    async def _with_room(self, step: Callable[[], Awaitable[T]]) -> T:
        """A step that found the disk full changed nothing that counts: it is taken again, for ever."""
        while True:
            try:
                return await step()
            except NoRoom as full:
                self._say(f"no room in the state directory ({full}); nothing is reported until there is")
                await self._clock.sleep(FULL_DISK_PAUSE_S)

    def _say(self, text: str) -> None:
        """To whoever reads the log, once until something else happens."""
        if text != self._noted:
            self._noted = text
            self._note(text)

    # --- the start

    async def begin(self) -> None:
        """Tell which start this is: same run directory (adopt), a lost one (prove all dead), or another boot."""
        self._identity = await self._ledger.identity()
        run_id = await self._dirs.read_run_id()
        if run_id is None:
            run_id = self._ids.nonce()
            await self._dirs.write_run_id(run_id)
        same_boot = self._identity.boot_id == self._machine.boot_id
        self._me.run_id = run_id
        if not same_boot:
            await self._jobs.void_others(self._machine.boot_id)
        elif self._identity.run_id not in ("", run_id):
            await self._prove_all_dead()
        nonces = self._identity.nonces
        if nonces == ("", ""):
            nonces = (self._ids.nonce(), self._ids.nonce())
        self._identity = replace(
            self._identity, name=self._me.name, boot_id=self._machine.boot_id, run_id=run_id, nonces=nonces
        )
        await self._ledger.commit(Entries(identity=self._identity), sync=True)
        await self._jobs.outbox.restore()
        await self._jobs.adopt()

    async def _prove_all_dead(self) -> None:
        """The run directory is another under the same boot: end every tree of ours, and report those launches lost."""
        pause_s = KILL_PAUSE_S
        while tokens := await self._our_trees():
            for token in tokens:
                await self._trees.kill(token)
                if await self._trees.is_empty(token):
                    await self._trees.remove(token)
            await self._clock.sleep(pause_s)
        lost = Why("supervisor_lost", "the node's run directory was lost")
        at = self._clock.wall().timestamp()
        tokens = await self._ledger.live(self._machine.boot_id)
        facts = [KernelFact(token, FactKind.EXITED, at, why=lost) for token in tokens]
        await self._ledger.commit(Entries(facts=facts), sync=True)

    async def _our_trees(self) -> list[str]:
        """Without a folder of our own, what is marked may be another agent's: ours is what our horizon names."""
        tokens = await self._trees.tokens()
        if self._machine.containment.get("kind") != "marker":
            return tokens
        sessions = {session for session in map(_session_of, tokens) if session is not None}
        ours = {str(seen.token) for seen in await self._ledger.horizon(sorted(sessions))}
        return [token for token in tokens if token in ours]

    async def _register(self) -> None:
        """Until some manager takes us."""
        while True:
            self._point("agent.before_register")
            facts = await self._jobs.outbox.facts()
            message = await self._registration(facts)
            try:
                answer = wire.decode(await self._post("register", message, ANSWER_S), wire.Registered)
            except (Unreachable, Rejected, Invalid) as error:
                await self._pause(error)
                continue
            if answer.challenge:
                await self._take_challenge(answer.challenge)
                continue
            self._say(f"registered with {self._managers[0]} as {self._me.name}, epoch {answer.epoch}")
            self._pause_s = FIRST_PAUSE_S
            self._me.epoch = answer.epoch
            self._have_version = 0
            await self._take_answer(facts)
            return

    async def _registration(self, facts: list[KernelFact]) -> wire.Registration:
        containment = str(self._machine.containment.get("kind", "marker"))
        devices = await self._devices.inventory()
        return wire.Registration(
            name=self._me.name,
            group=self._me.group,
            boot_id=self._machine.boot_id,
            run_id=self._me.run_id,
            incarnation=self._me.incarnation,
            hardware_id=self._machine.hardware_id,
            nonces=self._identity.nonces,
            address=self._me.address,
            inventory=Inventory(
                cpu_milli=self._machine.cpu_milli,
                memory_mib=self._machine.memory_mib,
                devices=devices,
                containment=containment,
                agent_version=self._me.version,
            ),
            labels=self._me.labels,
            facts=facts,
            held_version=self._identity.held_version,
        )

    # --- one exchange

    async def _exchange(self) -> bool:
        """One request and its answer, applied; False when we have to register again."""
        await self._gather()
        self._jobs.outbox.begin()
        facts = (await self._jobs.outbox.facts())[:MAX_FACTS]
        foreign = self._jobs.foreign()
        message = wire.Exchange(
            node=self._me.name,
            incarnation=self._me.incarnation,
            epoch=self._me.epoch,
            boot_id=self._machine.boot_id,
            run_id=self._me.run_id,
            nonces=self._identity.nonces,
            have_version=self._have_version,
            facts=facts,
            foreign=foreign,
            wait_s=0.0 if any(fact.kind is not FactKind.ACCEPTED for fact in facts) else PARK_S,
        )
        self._point("agent.before_exchange")
        asked_at = self._clock.mono()
        try:
            body = await self._post_or_news(message)
            if body is None:
                return True
            desired = wire.decode(body, wire.Desired)
        except (Unreachable, Rejected, Invalid) as error:
            await self._pause(error)
            return True
        self._pause_s = FIRST_PAUSE_S
        self._unanswered_since = None
        self._noted = ""
        self._point("agent.after_exchange")
        if desired.stale:
            return False
        await self._take_answer(facts, desired.version)
        await self._apply(desired, asked_at)
        return True

    async def _apply(self, desired: wire.Desired, asked_at: float) -> None:
        if desired.version >= self._have_version:
            await self._jobs.apply(desired.orders, asked_at, whole=self._have_version == 0)
            self._have_version = desired.version
            self._has_launched = any(order.launch is not None for order in desired.orders)
        await self._streams(desired.streams)
        self._point("agent.after_apply")

    async def _gather(self) -> None:
        """What was just launched has something to say in a moment: wait for that, not for a parked request to be broken
        off."""
        self._tell_what_is_stuck()
        if self._has_launched:
            self._has_launched = False
            urgent = asyncio.ensure_future(self._jobs.outbox.urgent.wait())
            try:
                await asyncio.wait({urgent}, timeout=SHORT_LIFE_S)
            finally:
                urgent.cancel()

    def _tell_what_is_stuck(self) -> None:
        stuck = self._jobs.stuck()
        if stuck != self._stuck:
            self._stuck = stuck
            if stuck:
                self._note(f"what is left of these launches does not die; it is killed again and again: {stuck}")

    async def _post_or_news(self, message: wire.Exchange) -> bytes | None:
        """The answer; None when the parked request was broken off because there is something to report."""
        post = asyncio.ensure_future(self._post("exchange", message, self._patience_s()))
        if not message.wait_s:
            return await post
        news = asyncio.ensure_future(self._jobs.outbox.news.wait())
        urgent = asyncio.ensure_future(self._jobs.outbox.urgent.wait())
        try:
            await asyncio.wait({post, news}, return_when=asyncio.FIRST_COMPLETED)
            if not post.done() and not urgent.done():
                await asyncio.wait({post, urgent}, timeout=SHORT_LIFE_S, return_when=asyncio.FIRST_COMPLETED)
            if not post.done():
                await asyncio.wait({post}, timeout=GATHER_S)  # what turns up together goes out together
            return await post if post.done() else None
        finally:
            for waiting in (post, news, urgent):
                waiting.cancel()

    def _patience_s(self) -> float:
        """A manager is left when it has been silent for so long, in however many requests."""
        now = self._clock.mono()
        if self._unanswered_since is None:
            self._unanswered_since = now
        return max(LEAST_ANSWER_S, self._unanswered_since + ANSWER_S - now)

    async def _post(self, path: str, message: object, timeout_s: float) -> bytes:
        return await self._link.post(self._managers[0], f"/api/v1/agent/{path}", wire.encode(message), timeout_s)

    async def _take_answer(self, facts: list[KernelFact], version: int = 0) -> None:
        """Only an answer advances the nonces; the next one is durable before it is sent (docs/protocol.md 9). The facts
        that were sent are acknowledged by it, in the same commit."""
        held = max(version, self._identity.held_version)
        identity = replace(self._identity, nonces=(self._identity.nonces[1], self._ids.nonce()), held_version=held)
        await self._jobs.outbox.acknowledge(facts, identity)
        self._identity = identity
        await self._jobs.collect(facts)

    async def _take_challenge(self, last: str) -> None:
        identity = replace(self._identity, nonces=(last, self._ids.nonce()))
        await self._ledger.commit(Entries(identity=identity), sync=False)
        self._identity = identity

    async def _pause(self, error: Unreachable | Rejected | Invalid) -> None:
        """Try the next manager, after a growing wait that differs from node to node; the jobs go on meanwhile."""
        code = f"{error.code}: " if isinstance(error, Rejected) else ""
        self._say(f"{self._managers[0]} did not take this node's word, and is asked again: {code}{error}")
        self._managers.append(self._managers.pop(0))
        self._unanswered_since = None
        share = zlib.crc32(self._ids.nonce().encode()) / 2**32
        await self._clock.sleep(self._pause_s * (0.5 + share))
        self._pause_s = min(LAST_PAUSE_S, self._pause_s * 2)


def _session_of(token: str) -> str | None:
    try:
        return parse_token(token).session
    except Invalid:
        return None
