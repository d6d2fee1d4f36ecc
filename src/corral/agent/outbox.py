"""What this node has to say, until a manager has said that it has it.

Results and ends are made durable before they are sent (docs/protocol.md 8), all of one exchange in one commit. Never
speaks to anybody: `daemon` takes the facts from here and brings the acknowledgement back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from corral.agent.horizon import token_of
from corral.agent.ports import Entries, Identity, Ledger, Seen
from corral.model.lifecycle import ExitClass
from corral.model.session import FactKind, KernelFact, Result
from corral.ports import CrashPoint

DURABLE = (FactKind.RESULT, FactKind.EXITED)
CRASH_POINTS = ("agent.before_durable", "agent.after_durable")


class Outbox:
    """Facts by (token, kind), each kept by its first report. `news` is set when there is something to say, `urgent`
    when somebody waits for it: that a launch was accepted, or has begun alone, goes out with what becomes of it, or a
    little later."""

    def __init__(self, ledger: Ledger, boot_id: str, point: CrashPoint) -> None:
        self._ledger = ledger
        self._boot_id = boot_id
        self._point = point
        self._fresh: dict[tuple[str, FactKind], KernelFact] = {}
        self._ready: dict[tuple[str, FactKind], KernelFact] = {}
        self.news = asyncio.Event()
        self.urgent = asyncio.Event()

    def add(self, fact: KernelFact, *, urgent: bool = True) -> None:
        waiting = self._fresh if fact.kind in DURABLE else self._ready
        waiting.setdefault((fact.token, fact.kind), fact)
        if fact.kind is not FactKind.ACCEPTED:
            self.news.set()
            if urgent:
                self.urgent.set()

    def begin(self) -> None:
        """What is added from here on is news."""
        self.news.clear()
        self.urgent.clear()

    async def restore(self) -> None:
        """After a start: what was durable and not acknowledged is said again."""
        for fact in await self._ledger.unacknowledged():
            self._ready[fact.token, fact.kind] = fact

    async def facts(self) -> list[KernelFact]:
        """What is to be sent now, in the order it can have happened."""
        fresh = list(self._fresh.values())
        if fresh:
            self._point("agent.before_durable")
            ended = [
                Seen(token_of(fact.token), self._boot_id, ended=True, at=fact.at)
                for fact in fresh
                if fact.kind is FactKind.EXITED
            ]
            await self._ledger.commit(Entries(facts=fresh, seen=ended), sync=True)
            self._point("agent.after_durable")
            for fact in fresh:
                self._fresh.pop((fact.token, fact.kind), None)
                self._ready.setdefault((fact.token, fact.kind), fact)
        return sorted(self._ready.values(), key=lambda fact: _ORDER[fact.kind])

    async def acknowledge(self, facts: Sequence[KernelFact], identity: Identity) -> None:
        """A manager has these for good, and answered `identity`. Where that cannot be written down, they are said
        again."""
        durable = [(fact.token, fact.kind.value) for fact in facts if fact.kind in DURABLE]
        await self._ledger.commit(Entries(identity=identity, acknowledged=durable), sync=False)
        for fact in facts:
            self._ready.pop((fact.token, fact.kind), None)


_ORDER = {kind: place for place, kind in enumerate(FactKind)}


def result_of(said: Mapping[str, object]) -> Result:
    """The manager's words for what result.json says."""
    code, signal = said.get("exit_code"), said.get("signal")
    if said.get("timed_out"):
        class_ = ExitClass.TIMEOUT
    elif said.get("oom_killed"):
        class_ = ExitClass.OOM
    elif said.get("stopped"):
        class_ = ExitClass.CANCELLED
    elif said.get("not_started"):
        class_ = ExitClass.INFRA
    else:
        class_ = ExitClass.OK if code == 0 else ExitClass.USER
    return Result(
        code if isinstance(code, int) else None,
        signal if isinstance(signal, int) else None,
        class_,
        not said.get("not_started"),
    )
