"""Mutants of the manager's half: facts, cancels, outcome, served versions, epochs, certificates, refusals.

Each is a function that names what it replaces, and its text says which rule is gone. It knows production code by name
and is known by none of it. Next: `mutants.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from corral import wire
from corral.model.lifecycle import Fact, Phase
from corral.model.node import Node
from corral.model.session import Certificate, Kernel, KernelFact, Result, Session, Token, Verdict, parse_token
from corral.model.spec import OutcomeRule
from corral.ports import Tx
from corral.reconcile import decide, dependencies, exchange, intents, nodes, placement
from corral.store import tx as tx_module
from corral.store.reads import SqlReads
from corral.testing.patches import Patch
from corral.testing.sim_store import SimStore

SqlTx = tx_module.SqlTx


def _repeats_are_disputed() -> list[Patch]:
    judge = decide.judge

    def changed(kernel: Kernel, fact: KernelFact) -> str:
        verdict = judge(kernel, fact)
        return "disputed" if verdict == "known" else verdict

    return [Patch(exchange, "judge", changed)]


def _stale_facts_count() -> list[Patch]:
    apply_facts = exchange.apply_facts

    def changed(tx: Tx, node: str, facts: Sequence[KernelFact], by: str) -> None:
        sessions = tx.sessions([parse_token(fact.token).session for fact in facts])

        def newest(fact: KernelFact) -> KernelFact:
            generation, session, _, rank = parse_token(fact.token)
            attempt = sessions[session].attempt if session in sessions else 1
            return replace(fact, token=str(Token(generation, session, attempt, rank)))

        apply_facts(tx, node, [newest(fact) for fact in facts], by)

    return [Patch(exchange, "apply_facts", changed)]


def _cancel_waits() -> list[Patch]:
    def nothing_follows(tx: Tx, ids: Any, by: str) -> list[Session]:
        return []

    return [Patch(intents, "settle_locked", nothing_follows)]


def _placing_ignores_hold() -> list[Patch]:
    placeable = placement._placeable  # pyright: ignore[reportPrivateUsage]

    def changed(session: Session, placed: Any, now: float) -> bool:
        return (session.phase is Phase.PENDING and session.attempt == placed.session.attempt) or placeable(
            session, placed, now
        )

    return [Patch(placement, "_placeable", changed)]


def _first_exit_decides() -> list[Patch]:
    def changed(rule: OutcomeRule, kernels: Sequence[Kernel]) -> tuple[int, Result] | None:
        ended = [kernel for kernel in kernels if kernel.result is not None]
        first = min(ended, key=lambda kernel: (kernel.result_at or 0.0, kernel.rank), default=None)
        return (first.rank, first.result) if first and first.result else None

    return [Patch(decide, "deciding", changed)]


def _served_is_not_recorded() -> list[Patch]:
    def nothing(self: object, name: str, version: int, have_version: int) -> None:
        return None

    return [Patch(_owner("served"), "served", nothing)]


def _version_is_not_raised() -> list[Patch]:
    def changed(self: Any, names: Iterable[str]) -> dict[str, int]:
        return {name: node.desired_version for name, node in self.nodes(list(names)).items()}

    return [Patch(_owner("_raise_desired"), "_raise_desired", changed)]


def _any_registration_raises() -> list[Patch]:
    next_epoch = exchange._next_epoch  # pyright: ignore[reportPrivateUsage]

    def changed(tx: Tx, registration: wire.Registration, before: Node | None) -> int:
        epoch = next_epoch(tx, registration, before)
        return epoch if before is None else before.epoch + 1

    return [Patch(exchange, "_next_epoch", changed)]


def _any_twin_may_register() -> list[Patch]:
    def changed(tx: Tx, registration: wire.Registration, before: Node | None) -> int:
        return 1 if before is None else before.epoch + int(before.boot_id != registration.boot_id)

    return [Patch(exchange, "_next_epoch", changed)]


def _late_registrations_count() -> list[Patch]:
    """Whoever asks once the node was silent is taken for it, whatever nonces the request has."""
    register = exchange.register

    def changed(tx: Tx, registration: wire.Registration, by: str) -> wire.Registered:
        before = tx.nodes([registration.name]).get(registration.name)
        if before is not None and tx.now - before.seen_at >= exchange.NODE_TIMEOUT_S:
            nonces = (before.nonce, registration.nonces[1])
            registration = msgspec.structs.replace(registration, nonces=nonces)
        return register(tx, registration, by)

    return [Patch(exchange, "register", changed)]


def _reboot_sweeps_nothing() -> list[Patch]:
    def nothing(tx: Tx, node: str, epoch: int, by: str) -> None:
        return None

    return [Patch(exchange, "sweep_epoch", nothing), Patch(nodes, "sweep_epoch", nothing)]


def _facts_after_the_sweep() -> list[Patch]:
    """Results that come with a registration are applied after the epoch was raised, not before."""
    apply_facts = exchange.apply_facts
    register = exchange.register

    def changed(tx: Tx, registration: wire.Registration, by: str) -> wire.Registered:
        answer = register(tx, msgspec.structs.replace(registration, facts=[]), by)
        apply_facts(tx, registration.name, registration.facts, by)
        return answer

    return [Patch(exchange, "register", changed)]


def _silence_is_death() -> list[Patch]:
    mark_silent = nodes.mark_silent

    def changed(tx: Tx, names: Sequence[str]) -> None:
        mark_silent(tx, names)
        for name in names:
            ids = tx.sessions_on(name)
            kernels = [kernel for group in tx.kernels(ids).values() for kernel in group]
            dead = [kernel.token for kernel in kernels if kernel.node == name and kernel.certificate is None]
            tx.certify(dead, Certificate.NODE_REBOOTED, "mutant")
            exchange.settle_locked(tx, ids, "mutant")

    return [Patch(nodes, "mark_silent", changed)]


def _stop_is_death() -> list[Patch]:
    owner = _owner("ask_stop")
    ask_stop = owner.__dict__["ask_stop"]

    def changed(self: Any, tokens: Sequence[str]) -> None:
        ask_stop(self, tokens)
        self.certify(tokens, Certificate.VOID, "mutant")

    return [Patch(owner, "ask_stop", changed)]


def _one_death_releases() -> list[Patch]:
    next_fact = decide._next_fact  # pyright: ignore[reportPrivateUsage]

    def changed(session: Session, kernels: Sequence[Kernel], now: float) -> Any:
        dead = [kernel for kernel in kernels if kernel.certificate is not None]
        if session.phase is Phase.STOPPING and dead:
            return decide.Seen(Fact.RELEASED)
        return next_fact(session, kernels, now)

    return [Patch(decide, "_next_fact", changed)]


def _refused_is_failed() -> list[Patch]:
    next_attempt = decide._next_attempt  # pyright: ignore[reportPrivateUsage]

    def changed(session: Session, verdict: Verdict, now: float) -> Session:
        after = next_attempt(session, verdict, now)
        if after.refusals > session.refusals:
            return after._replace(refusals=session.refusals, failures=session.failures + 1)
        return after

    return [Patch(decide, "_next_attempt", changed)]


def _lost_commit_is_repeated() -> list[Patch]:
    async def surely_not(self: object, operation: str) -> bool:
        return False

    return [Patch(SimStore, "stands", surely_not)]


def _requeue_forgets_results() -> list[Patch]:
    verdict_of = decide.verdict_of

    def changed(session: Session, kernels: Sequence[Kernel]) -> Verdict:
        verdict = verdict_of(session, kernels)
        return verdict._replace(requeue=True) if session.stop_for is not None else verdict

    return [Patch(decide, "verdict_of", changed)]


def _dependents_go_early() -> list[Patch]:
    def at_once(kind: object, phase: Phase, outcome: object) -> bool:
        return True

    def all_of_them(self: Any, limit: int) -> list[str]:
        found = self._rows("SELECT id FROM session WHERE after_open = 1 AND phase = 'pending' AND in_array IS NULL")
        return [row[0] for row in found][:limit]

    return [Patch(dependencies, "is_met", at_once), Patch(SqlReads, "decided_dependents", all_of_them)]


def _a_pause_is_no_barrier() -> list[Patch]:
    still_fitting = placement._still_fitting  # pyright: ignore[reportPrivateUsage]

    def blind(tx: Any, *rest: Any) -> Any:
        groups = tx.groups
        tx.groups = lambda: {name: replace(group, paused=False) for name, group in groups().items()}
        try:
            return still_fitting(tx, *rest)
        finally:
            del tx.groups

    return [Patch(placement, "_still_fitting", blind)]


def _owner(name: str) -> type:
    """The class of the store's transaction that defines this method."""
    return next(base for base in SqlTx.__mro__ if name in base.__dict__)


MANAGER_MUTANTS: dict[str, tuple[str, str, Callable[[], list[Patch]]]] = {
    "repeats_are_disputed": ("1", "a repeat of a fact is known", _repeats_are_disputed),
    "stale_facts_count": ("1", "a fact of an older attempt is stale", _stale_facts_count),
    "cancel_waits": ("2", "a cancel is a barrier from its acknowledgement on", _cancel_waits),
    "placing_ignores_hold": ("2", "placing carries `wanted = run` and the seq it planned with", _placing_ignores_hold),
    "requeue_forgets_results": ("2", "requeued needs that no deciding result is recorded", _requeue_forgets_results),
    "first_exit_decides": ("3", "the outcome rule decides, not the first exit", _first_exit_decides),
    "served_is_not_recorded": ("4", "a version is recorded as served before it is answered", _served_is_not_recorded),
    "version_is_not_raised": ("4", "the desired version is raised with the set", _version_is_not_raised),
    "facts_after_the_sweep": ("8", "results travel with the registration, before the epoch", _facts_after_the_sweep),
    "any_registration_raises": ("9", "only a reboot raises an epoch", _any_registration_raises),
    "any_twin_may_register": ("9", "an identity in use is refused", _any_twin_may_register),
    "late_registrations_count": ("9", "unknown nonces have to be shown anew", _late_registrations_count),
    "reboot_sweeps_nothing": ("10", "a raised epoch sweeps the kernels of the old one", _reboot_sweeps_nothing),
    "silence_is_death": ("11", "silence is no death certificate", _silence_is_death),
    "stop_is_death": ("11", "asking for a stop is no death certificate", _stop_is_death),
    "one_death_releases": ("12", "every kernel is certified before release", _one_death_releases),
    "dependents_go_early": (
        "after",
        "who waits for others starts when they have ended as wished",
        _dependents_go_early,
    ),
    "pause_is_no_barrier": ("pause", "placing looks at the group again in its transaction", _a_pause_is_no_barrier),
    "refused_is_failed": ("14", "a refusal spends no retry", _refused_is_failed),
    "lost_commit_is_repeated": ("16", "a lost commit is resolved by its operation id", _lost_commit_is_repeated),
}
