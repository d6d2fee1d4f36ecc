"""Values and moves for tests, with everything that a test does not care about filled in.

Values: `spec`, `registration`, the facts of a kernel. Moves: `Play` drives a `ports.Store` through the production
transaction bodies as a manager and its nodes would, and looks at the ledger with `model.invariants` afterwards.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any

from corral import wire
from corral.model import invariants
from corral.model.faults import Fault
from corral.model.lifecycle import ExitClass
from corral.model.node import DeviceInventory, Inventory
from corral.model.resources import GpuRequest, Resources
from corral.model.session import Change, Entry, FactKind, Kernel, KernelFact, Result, Session, Why
from corral.model.spec import SessionSpec
from corral.ports import NewSession, Store
from corral.reconcile import exchange, intents
from corral.reconcile.placement import claim_pass, place_pass

BY = "manager:test"
URL = "http://manager.test"

_numbers = itertools.count(1)


def session_id() -> str:
    """An id that no other test of this run has."""
    return f"{next(_numbers):010d}"


def spec(
    *command: str, cpus: int = 1, memory_mib: int = 64, gpu: GpuRequest | None = None, **fields: Any
) -> SessionSpec:
    resources = Resources(cpu_milli=cpus * 1000, memory_mib=memory_mib, gpu=gpu)
    return SessionSpec(command=command or ("true",), resources=resources, **fields)


def new_session(
    what: SessionSpec | None = None, key: str | None = None, digest: str = "", owner: str = "ann"
) -> NewSession:
    return NewSession(session_id(), what or spec(), owner, key, digest)


def registration(
    name: str, *, cpus: int = 8, memory_mib: int = 16_384, gpus: int = 0, **fields: Any
) -> wire.Registration:
    """A node of that name as its agent introduces it, with A100s of 80,000 MiB."""
    devices = tuple(
        DeviceInventory(f"{name}-gpu-{index}", index, "nvidia", "A100", "sm_80", 80_000) for index in range(gpus)
    )
    plain: dict[str, Any] = {
        "name": name,
        "group": "default",
        "boot_id": "boot-1",
        "run_id": "run-1",
        "incarnation": "agent-1",
        "hardware_id": f"machine-of-{name}",
        "nonces": ("", "nonce-0"),
        "address": f"{name}.test",
        "inventory": Inventory(cpus * 1000, memory_mib, devices),
    }
    return wire.Registration(**{**plain, **fields})


def accepted(token: str) -> KernelFact:
    return KernelFact(token, FactKind.ACCEPTED, 0.0)


def ready(token: str, port: int | None = None) -> KernelFact:
    return KernelFact(token, FactKind.READY, 0.0, port=port)


def result(token: str, code: int = 0) -> KernelFact:
    ended = Result(exit_code=code, exit_class=ExitClass.USER if code else ExitClass.OK)
    return KernelFact(token, FactKind.RESULT, 0.0, result=ended)


def exited(token: str, why: str | None = None) -> KernelFact:
    return KernelFact(token, FactKind.EXITED, 0.0, why=None if why is None else Why(why))


def refused(token: str, code: str = "device_busy") -> KernelFact:
    return KernelFact(token, FactKind.REFUSED, 0.0, why=Why(code, "not now"))


def whole_run(token: str, code: int = 0) -> list[KernelFact]:
    """All that a node reports of a kernel that ran and ended."""
    return [accepted(token), ready(token), result(token, code), exited(token)]


def noted(before: Session, fact: str = "update", **fields: Any) -> Change:
    """A change that leaves the phase alone, with its one line of history."""
    entry = Entry(fact, before.phase, before.phase, before.attempt, BY)
    return Change(before, before._replace(seq=before.seq + 1, **fields), (entry,), None, before.started_at)


@contextmanager
def raising(kind: type[BaseException], text: str = "") -> Generator[None]:
    """The block must raise an error of this kind: a `Fault` with the code `text`, any other with `text` in it."""
    try:
        yield
    except kind as error:
        if text not in (error.code if isinstance(error, Fault) else str(error)):
            raise AssertionError(f"expected {kind.__name__} {text!r}, got {error!r}") from error
        return
    raise AssertionError(f"expected {kind.__name__} {text!r}, and nothing was raised")


class Play:
    """Drives one store as a manager and as the nodes that it lets join."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._registered: dict[str, tuple[wire.Registration, int]] = {}
        self._nonces: dict[str, tuple[str, str]] = {}
        self._have: dict[str, int] = {}

    def share_nodes(self, other: Play) -> None:
        """The nodes of `other` talk to this manager too, each still one agent."""
        self._registered, self._nonces, self._have = other._registered, other._nonces, other._have

    async def join(self, name: str, **fields: Any) -> wire.Registered:
        """The node registers, for the first time or again."""
        if name in self._nonces:
            fields.setdefault("nonces", self._nonces[name])
        message = registration(name, **fields)
        answer = await self.store.tx("register", lambda tx: exchange.register(tx, message, BY))
        self.know(message, answer.epoch)
        return answer

    def know(self, message: wire.Registration, epoch: int) -> None:
        """The node has registered like this."""
        self._registered[message.name] = message, epoch
        self._nonces[message.name], self._have[message.name] = message.nonces, 0

    async def submit(self, *specs: SessionSpec) -> list[str]:
        new = [new_session(one) for one in specs]
        made = await self.store.tx("submit", lambda tx: intents.submit(tx, new, "user:ann"))
        return [session.id for session in made]

    async def place(self) -> int:
        return await place_pass(self.store, BY)

    async def claim(self) -> int:
        return await claim_pass(self.store, BY)

    async def submit_and_claim(self, *specs: SessionSpec) -> list[str]:
        ids = await self.submit(*specs)
        await self.place()
        await self.claim()
        return ids

    async def exchange(self, node: str, *facts: KernelFact, have: int | None = None) -> wire.Desired:
        """One exchange of the node's agent, which remembers the version it was given."""
        message, epoch = self._registered[node]
        last = self._nonces[node][1]
        self._nonces[node] = last, f"nonce-{next(_numbers)}"
        sent = wire.Exchange(
            node=node,
            incarnation=message.incarnation,
            epoch=epoch,
            boot_id=message.boot_id,
            run_id=message.run_id,
            nonces=self._nonces[node],
            have_version=self._have[node] if have is None else have,
            facts=list(facts),
        )
        answer = await self.store.tx("exchange", lambda tx: exchange.exchange(tx, sent, BY, URL))
        if not answer.stale:
            self._have[node] = answer.version
        return answer

    async def cancel(self, id_: str) -> Session:
        return await self.store.tx("cancel", lambda tx: intents.cancel(tx, id_, "user:ann"))

    async def session(self, id_: str) -> Session:
        return (await self.store.read("session", lambda reads: reads.sessions([id_])))[id_]

    async def kernels(self, id_: str) -> list[Kernel]:
        return (await self.store.read("kernels", lambda reads: reads.kernels([id_]))).get(id_, [])

    async def tokens(self, ids: Iterable[str]) -> list[str]:
        found = await self.store.read("kernels", lambda reads: reads.kernels(ids))
        return [kernel.token for group in found.values() for kernel in group]

    async def facts(self, id_: str) -> list[str]:
        """The session's history, as the words of its facts."""
        return [row.entry.fact for row in await self.store.read("history", lambda reads: reads.history(id_))]

    async def violations(self) -> Sequence[invariants.Violation]:
        """What is wrong with the ledger now."""
        rows = await self.store.read("ledger", lambda reads: list(reads.ledger()))
        return invariants.check(invariants.gather(rows))
