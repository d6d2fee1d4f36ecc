"""The node's durable store in the simulation: what outlives a process is not all that outlives the power.

`LedgerDisk` is the file: a loss of power takes the commits after the last synced one, from some point on. `SimLedger`
is it in the hands of one agent process. It knows what production's node database keeps, not how. Next: the agent.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from corral.agent.ports import Entries, Identity, NoRoom, Seen, Unsafe
from corral.model.session import KernelFact
from corral.testing.disk import SimDisk
from corral.testing.process import SimProcess, take_time

Key = tuple[str, str]


@dataclass(slots=True)
class Content:
    identity: Identity = field(default_factory=Identity)
    seen: dict[str, Seen] = field(default_factory=dict[str, Seen])
    facts: dict[Key, KernelFact] = field(default_factory=dict[Key, KernelFact])
    acknowledged: set[Key] = field(default_factory=set[Key])

    def apply(self, entries: Entries) -> None:
        if entries.identity is not None:
            self.identity = entries.identity
        for seen in entries.seen:
            known = self.seen.get(str(seen.token))
            if known is not None:
                seen = replace(seen, stopped=known.stopped or seen.stopped, ended=known.ended or seen.ended)
            self.seen[str(seen.token)] = seen
        for fact in entries.facts:
            self.facts.setdefault((fact.token, fact.kind.value), fact)
        self.acknowledged.update(entries.acknowledged)
        if entries.forget_before is not None:
            self._forget(entries.forget_before)

    def _forget(self, before: float) -> None:
        for key in [key for key, fact in self.facts.items() if key in self.acknowledged and fact.at < before]:
            del self.facts[key]
            self.acknowledged.discard(key)


class LedgerDisk:
    """STATE/node.db of one node."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self.content = Content()
        self.safe = Content()
        self._unsynced: list[Entries] = []

    def write(self, entries: Entries, *, sync: bool) -> None:
        self.content.apply(entries)
        if sync:
            self.safe = copy.copy(self.content)
            self.safe.seen, self.safe.facts = dict(self.content.seen), dict(self.content.facts)
            self.safe.acknowledged = set(self.content.acknowledged)
            self._unsynced.clear()
        else:
            self._unsynced.append(entries)

    def reboot(self, *, power_lost: bool) -> None:
        kept = len(self._unsynced)
        if power_lost:
            kept = int(self.disk.chance.random() * (kept + 1))
        for entries in self._unsynced[:kept]:
            self.safe.apply(entries)
        self.content = self.safe
        self._unsynced.clear()
        self.write(Entries(), sync=True)

    def clone(self, disk: SimDisk) -> LedgerDisk:
        made = LedgerDisk(disk)
        made.content = copy.deepcopy(self.content)
        made.write(Entries(), sync=True)
        return made


class SimLedger:
    """agent.ports.Ledger of one process."""

    def __init__(self, store: LedgerDisk, process: SimProcess) -> None:
        self._store = store
        self._process = process

    async def _step(self) -> Content:
        await take_time(self._process, self._store.disk.chance, self._store.disk.step_s)
        return self._store.content

    async def identity(self) -> Identity:
        return (await self._step()).identity

    async def commit(self, entries: Entries, *, sync: bool) -> None:
        disk = self._store.disk
        await self._step()
        if disk.is_full or disk.faults.hit("disk.full"):
            raise NoRoom("no space left on device")
        if sync and disk.faults.hit("disk.sync_error"):
            raise Unsafe("input/output error")
        self._store.write(entries, sync=sync)
        await self._step()

    async def horizon(self, sessions: Sequence[str]) -> list[Seen]:
        asked = set(sessions)
        return [seen for seen in (await self._step()).seen.values() if seen.token.session in asked]

    async def live(self, boot_id: str) -> list[str]:
        seen = (await self._step()).seen
        return [token for token, one in seen.items() if one.boot_id == boot_id and not one.ended and not one.stopped]

    async def facts(self, token: str) -> list[KernelFact]:
        return [fact for key, fact in (await self._step()).facts.items() if key[0] == token]

    async def unacknowledged(self) -> list[KernelFact]:
        content = await self._step()
        return [fact for key, fact in content.facts.items() if key not in content.acknowledged]
