"""What users do to a simulated Corral: what they submit, what they ask of it later, and what they are told.

It knows the shape of a seed's jobs and draws all of it from chance. Users retry what got no answer, at any manager; a
watcher reads the event log and resumes from where it was cut off. It never looks into the database. Next:
`sim_manager.py` answers; `checkers.py` holds Corral to what it told.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import msgspec

from corral.model.array import member_id
from corral.model.indices import Indices, indices_of
from corral.model.resources import GpuRequest, Resources
from corral.model.spec import OutcomeRule, SessionSpec
from corral.testing.network import NetworkError
from corral.testing.process import SimProcess
from corral.testing.sim_manager import Answer, Call, answer_of, request
from corral.testing.site import Site
from corral.testing.trees import JobPlan

CALL_TIMEOUT_S = 8.0
PAUSE_S = 2.0
LATE_REQUESTS = 12
GROUPS = ("default", "aside")
ORDERS = ("fifo", "lifo", "priority", "drf", "fair-share", "shortest-first", "least-attained-service")
PLACED = ("pack", "spread", "round-robin", "least-fragmentation", "topology")
ASKED_LATER = ("cancel", "cancel", "cancel", "requeue", "requeue", "hold", "release", "update", "update")


def draw_spec(chance: random.Random, nodes: int, number: int) -> SessionSpec:
    """One session as users ask for it: mostly small, sometimes a gang, sometimes with a limit or retries."""
    spread = chance.choice((1, 1, 1, 1, min(2, nodes), min(3, nodes)))
    per_node = chance.choice((1, 1, 1, 2)) if spread < 3 else 1
    limit_s = chance.choice((None, None, None, 1, 5, 15))
    return SessionSpec(
        command=("job", str(number)),
        project="lab",
        resources=Resources(
            cpu_milli=chance.choice((100, 500, 1000)), memory_mib=chance.choice((64, 512)), gpu=_draw_gpu(chance)
        ),
        nodes=spread,
        ranks_per_node=per_node,
        exclusive=chance.random() < 0.05,
        time_limit_s=limit_s,
        grace_s=chance.choice((0, 1, 3)),
        retries=chance.choice((0, 0, 1, 2)),
        requeue=chance.random() < 0.8,
        outcome_rule=chance.choice(list(OutcomeRule)),
        hold=chance.random() < 0.08,
    )


def _draw_gpu(chance: random.Random) -> GpuRequest | None:
    kind = chance.random()
    if kind < 0.5:
        return None
    if kind < 0.85:
        return GpuRequest(count=chance.choice((1, 1, 2)))
    return GpuRequest(share_milli=chance.choice((250, 500)), vram_mib=chance.choice((0, 1000)))


def draw_job(site: Site, token: str) -> JobPlan:
    """What the command of this launch does, from the seed and the token: nobody has to remember it."""
    chance = random.Random(f"{site.seed}:job:{token}")
    lasts_s = chance.choice((0.0, 0.0, 0.05, 0.05, 0.5, 0.5, 3.0, 3.0, 12.0, 12.0, 60.0)) * chance.random() * 2
    return JobPlan(
        lasts_s=site.focus.jobs_last_s or lasts_s,
        exit_code=chance.choice((0, 0, 0, 0, 0, 1, 3, 75, 85)),
        heeds_term=chance.random() < 0.7 and site.focus.jobs_die_in_s is None,
        term_takes_s=chance.choice((0.0, 0.2, 2.0)),
        descendants=chance.choice((0, 0, 1, 3)),
        descendants_outlive_s=chance.choice((0.0, 1.0, 30.0)) * chance.random(),
        unkillable_for_s=site.focus.jobs_die_in_s or chance.choice((*(0.0,) * 25, *(4.0,) * 8, 90.0)) * chance.random(),
    )


class User:
    """One client process: what it was told goes into `told`."""

    def __init__(self, process: SimProcess, site: Site, seed: int) -> None:
        self.process = process
        self.told = site.checkers.told
        self._network = site.network
        self._managers = site.manager_names
        self._chance = random.Random(f"{seed}:{process.name}")
        self._urgency = random.Random(f"{seed}:{process.name}:urgency")
        self._preempting = site.preempting
        self._arrays = random.Random(f"{seed}:{process.name}:arrays")
        self._limits = random.Random(f"{seed}:{process.name}:quotas")
        limited = self._limits.random() < 0.3 if site.focus.limited is None else site.focus.limited
        self.limits = limited and process.name == "u0"
        self._keeping = random.Random(f"{seed}:{process.name}:reservations")
        reserved = self._keeping.random() < 0.25 if site.focus.reserved is None else site.focus.reserved
        self.reserves = reserved and process.name == "u0"
        self._moving = random.Random(f"{seed}:{process.name}:moving")
        moving = self._moving.random() < 0.5 if site.focus.moving is None else site.focus.moving
        self.moves = moving and site.preempting and process.name == "u0"
        self._scattered = bool(site.focus.moving)
        self._steering = random.Random(f"{seed}:{process.name}:groups")
        steered = self._steering.random() < 0.3 if site.focus.steered is None else site.focus.steered
        self.steers = steered and process.name == "u0"
        self._following = random.Random(f"{seed}:{process.name}:after")
        self._indices: dict[str, Indices] = {}
        self.sessions: list[str] = []

    async def submit(self, specs: list[SessionSpec], keys: list[str]) -> None:
        """All or none, repeated under the same keys until there is an answer."""
        self.told.asked_keys.update(keys)
        call = Call(what="submit", specs=specs, keys=keys, owner=self.process.name)
        answer = await self._ask(call, patient=True)
        if answer is None:
            return
        for key, spec, shown in zip(keys, specs, answer.sessions, strict=True):
            if spec.array is not None:
                self._indices[shown.id] = indices_of(spec.array)
            known = self.told.keys.setdefault(key, shown.id)
            if known != shown.id:
                self.process.loop.violate(f"SE2: submit {key} was answered as {known} and as {shown.id}")
            self.sessions.append(shown.id)
            if self._chance.random() < 0.3:
                self.process.spawn(self._regret(shown.id), name="regret")

    async def _regret(self, session: str) -> None:
        """Meddle with it at once, while it is being placed and claimed."""
        await self.process.sleep(self._chance.choice((0.0, 0.05, 0.2)) * self._chance.random())
        await self.ask_of(self._chance.choice(("cancel", "hold", "hold", "requeue", "update")), session)

    async def ask_of(self, what: str, session: str) -> None:
        if what != "release" and (name := self._one_member(session)) is not None:
            session = name
        values: dict[str, int] = {}
        if what == "update":
            values = self._chance.choice(({"priority": 5}, {"time_limit_s": 4}, {"time_limit_s": 60}))
        call = Call(what=what, session=session, values=values, owner=self.process.name)
        answer = await self._ask(call, patient=what == "cancel")
        if what == "cancel" and answer is not None:
            shown = answer.sessions[0]
            if shown.phase != "ended" and (shown.wanted, shown.phase) != ("stop", "stopping"):
                self.process.loop.violate(f"CB2: the cancel of {session} was answered with {shown}")
            self.told.cancelled.setdefault(session, shown.phase)

    def _one_member(self, session: str) -> str | None:
        """Of an array, in half of the cases one of its members, which may have no row yet."""
        indices = self._indices.get(session)
        if indices is None or self._arrays.random() < 0.5:
            return None
        name = member_id(session, indices.at(self._arrays.randrange(indices.size)))
        self.sessions.append(name)
        return name

    async def confirm_dead(self, node: str) -> bool:
        return await self._ask(Call(what="confirm_dead", session=node), patient=False) is not None

    async def watch(self) -> None:
        """Follow the event log for ever, from the last number seen."""
        after = 0
        while True:
            answer = await self._ask(Call(what="events", after=after), patient=True)
            for told in answer.events if answer else ():
                after = told.id
                self.told.seen_events[told.session].append(told.seq)
            if not answer or not answer.events:
                await self.process.sleep(PAUSE_S)

    async def _ask(self, call: Call, *, patient: bool) -> Answer | None:
        """None: refused, or given up. A patient user asks until somebody answers."""
        body = request("/call", msgspec.json.encode(call))
        while True:
            try:
                data = await self._network.request(
                    self.process, self._chance.choice(self._managers), body, CALL_TIMEOUT_S
                )
            except NetworkError:
                self.process.sometimes("user.no_answer")
            else:
                status, content = answer_of(data)
                if status == 200:
                    return msgspec.json.decode(content, type=Answer)
                if status != 503:
                    self.process.sometimes(f"user.refused.{call.what}")
                    return None
            if not patient:
                return None
            await self.process.sleep(PAUSE_S * self._chance.random())

    # --- a seed's worth of wishes

    async def live(self, count: int, nodes: int, until_s: float) -> None:
        """Submit `count` sessions, one by one or in bulk, and meddle with them, until the loop's time `until_s`."""
        chance, number = self._chance, 0
        if self.limits:
            self.process.spawn(self._limit(until_s), name="limit")
        if self.steers:
            self.process.spawn(self._steer(until_s), name="steer")
        if self.moves:
            self.process.spawn(self._defragment(until_s), name="defragment")
        if self.reserves:
            self.process.spawn(self._reserve(until_s, nodes), name="reserve")
        while number < count:
            await self.process.sleep(chance.random() * max(4.0, until_s / count))
            bulk = min(count - number, chance.choice((1, 1, 1, 2, 4)))
            specs = [
                self._after(self._urged(self._many(draw_spec(chance, nodes, number + offset))))
                for offset in range(bulk)
            ]
            keys = [f"{self.process.name}-{number + offset}" for offset in range(bulk)]
            number += bulk
            twins = 2 if chance.random() < 0.15 else 1  # a hurried user asks twice at once
            for _ in range(twins):
                self.process.spawn(self.submit(specs, keys), name="submit")
        while self.process.loop.now_s < until_s:
            await self.process.sleep(chance.random() * 3.0)
            if self.sessions:
                session = chance.choice(self.sessions)
                self.process.spawn(self.ask_of(chance.choice(ASKED_LATER), session), name="ask")

    async def _limit(self, until_s: float) -> None:
        """An operator who cannot make up his mind about what may be held at once, and by whom."""
        chance = self._limits
        while self.process.loop.now_s < until_s:
            whose = chance.choice(({"owner": "*"}, {"owner": "u0"}, {"project": "lab"}))
            limits = {chance.choice(("sessions", "sessions", "cpu_milli", "gpu_milli")): chance.choice((1, 2, 3))}
            limits = {name: value * (1 if name == "sessions" else 1000) for name, value in limits.items()}
            await self._ask(Call(what="set quota", values={**whose, **limits}, owner="operator"), patient=False)
            await self.process.sleep(chance.random() * 6.0)

    async def _reserve(self, until_s: float, nodes: int) -> None:
        """An operator who keeps one node free for a while, or all of them, soon or at once, for somebody or nobody."""
        chance = self._keeping
        while self.process.loop.now_s < until_s:
            where = chance.choice(({"nodes": (f"n{chance.randrange(nodes)}",)}, {"group": "default"}))
            whose = chance.choice(({}, {}, {"owners": ("u0",)}, {"projects": ("lab",)}))
            times = {"begins": chance.choice(("now", "+2s", "+10s")), "length": chance.choice(("3s", "20s"))}
            values: dict[str, Any] = {**where, **whose, **times}
            call = Call(what="create reservation", values=values, owner="operator")
            self.process.spawn(self._ask(call, patient=False), name="reserve")
            await self.process.sleep(chance.random() * 4.0)

    async def _unreserve(self) -> None:
        """And once more, should an older request to make it come late."""
        for _ in range(LATE_REQUESTS):
            await self._ask(Call(what="delete reservation", owner="operator"), patient=True)
            await self.process.sleep(CALL_TIMEOUT_S)

    async def _steer(self, until_s: float) -> None:
        """An operator who changes the nodes' group, pauses it now and then, and has another for a while, which sessions
        are moved to."""
        chance = self._steering
        while self.process.loop.now_s < until_s:
            await self.process.sleep(chance.random() * 2.0)
            what = chance.choice(("pause", "pause", "resume", "resume", "resume", "change", "create", "delete", "move"))
            if what == "move":
                moved = chance.choice(self.sessions or [""])
                call = Call(what="update", session=moved, values={"group": chance.choice(GROUPS)}, owner="u0")
            else:
                group = GROUPS[what in ("create", "delete")]
                values = {"order": chance.choice(ORDERS), "placement": chance.choice(PLACED)}
                call = Call(what=f"{what} group", session=group, values=values, owner="operator")
            self.process.spawn(self._ask(call, patient=False), name="steer")

    async def _defragment(self, until_s: float) -> None:
        """An operator who has sessions moved, for those who wait, or for room that he wants to see free."""
        chance = self._moving
        while self.process.loop.now_s < until_s:
            await self.process.sleep(chance.random() * 2.0)
            call = Call(what="defragment", values={"gpus": chance.choice((0, 0, 1, 2, 4))}, owner="operator")
            self.process.spawn(self._ask(call, patient=False), name="defragment")

    async def _resume(self) -> None:
        """And once more, should an older request to pause it come late."""
        for _ in range(LATE_REQUESTS):
            await self._ask(Call(what="resume group", session="default", owner="operator"), patient=True)
            await self.process.sleep(CALL_TIMEOUT_S)

    def _after(self, spec: SessionSpec) -> SessionSpec:
        """Now and then one that waits for the end of an earlier one."""
        chance, earlier = self._following, [id_ for id_ in self.sessions if "[" not in id_]
        if not earlier or chance.random() < 0.75:
            return spec
        return replace(spec, after=(f"{chance.choice(earlier)}:{chance.choice(('ok', 'notok', 'any', 'any'))}",))

    async def _lift(self) -> None:
        """And once more, should an older request to set it come late."""
        for _ in range(LATE_REQUESTS):
            await self._ask(Call(what="delete quota", owner="operator"), patient=True)
            await self.process.sleep(CALL_TIMEOUT_S)

    def _many(self, spec: SessionSpec) -> SessionSpec:
        """Now and then not one of it, but an array."""
        if self._arrays.random() < 0.9:
            return spec
        return replace(spec, array=self._arrays.choice(("0-3", "0-5%2", "2-8:3%1", "0-6%3")))

    def _urged(self, spec: SessionSpec) -> SessionSpec:
        """Where sessions may be stopped for others: with a priority, and a word on whether it may be."""
        if not self._preempting:
            return spec
        urgency = self._urgency
        if self._scattered:
            gpu = GpuRequest(count=urgency.choice((1, 1, 1, 1, 4)))
            spec = replace(spec, nodes=1, ranks_per_node=1, exclusive=False, resources=replace(spec.resources, gpu=gpu))
        return replace(
            spec, priority=urgency.choice((0, 0, 0, 5, 10)), preemptible=urgency.choice((None, None, None, True, False))
        )

    async def let_go(self) -> None:
        """At the end nothing is left on hold, by anybody."""
        if self.limits:
            self.process.spawn(self._lift(), name="lift")
        if self.steers:
            self.process.spawn(self._resume(), name="resume")
        if self.reserves:
            self.process.spawn(self._unreserve(), name="unreserve")
        for session in dict.fromkeys(self.sessions):
            await self.ask_of("release", session)
