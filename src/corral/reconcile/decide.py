"""What the kernels' facts mean for their session. Pure: rows and the time in, one change out.

`settle` derives session facts from the kernel rows, one at a time, and walks the table with them until nothing more
follows. Which facts hold in which order is the whole policy:

    starting   ready before decided, so that a command that ended at once was running first
               decided before unwanted: the real result wins over a cancel that came at the same moment
    stopping   released or requeued only when every kernel has a death certificate (docs/protocol.md 11, 12)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from corral.model.lifecycle import Effect, ExitClass, Fact, Outcome, Phase, Wanted, step
from corral.model.session import (
    Certificate,
    Change,
    Entry,
    FactKind,
    Kernel,
    KernelFact,
    Result,
    Session,
    StopFor,
    Verdict,
    Why,
)
from corral.model.spec import OutcomeRule
from corral.model.wording import length

EXIT_REQUEUE = 75  # EX_TEMPFAIL: "requeue me"
EXIT_RESUME = 85  # "checkpointed, resume me"
MAX_INFRA_FAILURES = 5
GOES_ON = {
    EXIT_REQUEUE: Why("requeue_asked", "the command asked for it (75)"),
    EXIT_RESUME: Why("resume_asked", "checkpointed (85)"),
}
LAST_BACKOFF_S = 300.0
SHORT_RUN_S, LAST_ASKED_BACKOFF_S = 10.0, 60.0
REFUSED = "refused"
CAUSES = {
    ExitClass.OOM: Why("oom", "out of memory"),
    ExitClass.INFRA: Why("setup_failed", "the command could not be set up on its node; the end of its stderr says why"),
}
EARLY = "ended_before_ready"
BY_COMMAND = frozenset(why.code for why in GOES_ON.values())
ASKED = BY_COMMAND | {why.value for why in StopFor if why is not StopFor.TIME_LIMIT}

# How long each phase may go without news before the reconciler asks the node (B6).
CHECK_AFTER_S = {
    Phase.PENDING: 300.0,
    Phase.PLACED: 10.0,
    Phase.STARTING: 30.0,
    Phase.RUNNING: 600.0,
    Phase.STOPPING: 30.0,
}
TIME_LIMIT_MARGIN_S = 60.0  # the shim enforces the limit; only when it did not does the manager ask for a stop


@dataclass(slots=True)
class Decision:
    """A change of one session, and what it asks of its kernels (tokens)."""

    change: Change
    effects: list[Effect] = field(default_factory=list[Effect])
    withdrawn: list[str] = field(default_factory=list[str])
    stop: list[str] = field(default_factory=list[str])
    go: list[str] = field(default_factory=list[str])


class Seen(NamedTuple):
    """A session fact derived from the rows, with what history says beside it."""

    fact: Fact
    detail: Mapping[str, object] | None = None


def judge(kernel: Kernel, fact: KernelFact) -> str:
    """Whether a kernel fact is `new`, `known`, or `disputed` because it cannot be (docs/protocol.md 1)."""
    kind = fact.kind
    if kind is FactKind.ACCEPTED:
        return "known" if kernel.accepted_at is not None or kernel.certificate is not None else "new"
    if kind is FactKind.READY:
        if kernel.ready_at is not None or kernel.certificate is Certificate.EXIT:  # what ended was begun
            return "known"
        return "new" if kernel.certificate is None else "disputed"
    if kind is FactKind.RESULT:
        if kernel.result is not None:
            return "known" if kernel.result == fact.result else "disputed"
        return "new" if kernel.certificate is None and fact.result is not None else "disputed"
    if kind is FactKind.EXITED:
        if kernel.certificate is None:
            return "new"
        return "known" if kernel.certificate is not Certificate.VOID else "disputed"
    if kernel.certificate is Certificate.VOID:
        return "known"
    began = kernel.ready_at is not None or kernel.result is not None or kernel.certificate is Certificate.EXIT
    if began:
        return "disputed"
    return "new" if kernel.certificate is None else "known"  # that it never ran agrees with other proofs of its death


def settle(
    session: Session, kernels: Sequence[Kernel], unserved: Collection[str], now: float, by: str = ""
) -> Decision | None:
    """Everything that follows now for one session; None when nothing does.

    `kernels` are the current attempt's; `unserved` the tokens whose claim no node was ever told of, so that a stop
    withdraws them at once (certificate f); `by` whom history names.
    """
    walk = _Walk(session, list(kernels), unserved, now, by)
    while seen := _next_fact(walk.session, walk.kernels, now):
        walk.take(seen)
    return walk.decision()


class _Walk:
    """One session's steps through the table, collected into one change."""

    def __init__(self, session: Session, kernels: list[Kernel], unserved: Collection[str], now: float, by: str) -> None:
        self.before = self.session = session
        self.kernels = kernels
        self.unserved = unserved
        self.now = now
        self.by = by
        self.history: list[Entry] = []
        self.effects: list[Effect] = []
        self.withdrawn: list[str] = []
        self.stop: list[str] = []
        self.go: list[str] = []
        self.verdict: Verdict | None = None
        self.started_at: float | None = session.started_at

    def take(self, seen: Seen) -> None:
        edge = step(self.session.phase, seen.fact)
        assert edge is not None, f"{self.session.phase} has no {seen.fact}"
        entry = Entry(
            seen.fact.value, self.session.phase, edge.target, self.session.attempt, self.by, seen.detail or {}
        )
        self.history.append(entry)
        self.effects += edge.effects
        after = _enter(self.session, edge.target, self.now)
        if seen.fact is Fact.READY:
            after = after._replace(started_at=self.now)
            self.started_at = self.now
            if after.ranks > 1:
                self.go = [kernel.token for kernel in self.kernels]
        elif edge.target is Phase.STOPPING:
            self._stop_the_rest()
        elif edge.target is Phase.ENDED:
            after = self._end(after)
        elif seen.fact is Fact.REQUEUED:
            after = self._requeue(after)
        self.session = after

    def _stop_the_rest(self) -> None:
        for index, kernel in enumerate(self.kernels):
            if kernel.certificate is not None:
                continue
            if kernel.claimed_version is None or kernel.token in self.unserved:
                self.withdrawn.append(kernel.token)
                self.kernels[index] = kernel._replace(certificate=Certificate.NEVER_SERVED, certified_at=self.now)
            elif not kernel.stop_asked:
                self.stop.append(kernel.token)
                self.kernels[index] = kernel._replace(stop_asked=True)

    def _end(self, after: Session) -> Session:
        verdict = verdict_of(self.session, self.kernels)
        self.verdict = verdict
        return after._replace(
            outcome=verdict.outcome,
            exit_class=verdict.exit_class,
            exit_code=verdict.exit_code,
            reason=verdict.reason,
            cause=verdict.cause,
            ended_at=self.now,
            next_check_at=None,
            room_by=None,
        )

    def _requeue(self, after: Session) -> Session:
        self.verdict = verdict = verdict_of(self.session, self.kernels)
        return _next_attempt(after, verdict, self.now)

    def decision(self) -> Decision | None:
        if not self.history:
            return None
        after = self.session._replace(seq=self.before.seq + len(self.history))
        change = Change(self.before, after, tuple(self.history), self.verdict, self.started_at)
        alive = {kernel.token for kernel in self.kernels if kernel.certificate is None}
        stop = [token for token in self.stop if token in alive]
        go = [token for token in self.go if token in alive and token not in stop]
        return Decision(change, self.effects, self.withdrawn, stop, go)


def _enter(session: Session, phase: Phase, now: float) -> Session:
    check_at = now + CHECK_AFTER_S[phase] if phase in CHECK_AFTER_S else None
    if phase is Phase.STOPPING:
        check_at = now + session.spec.grace_s + CHECK_AFTER_S[phase]
    if phase is Phase.RUNNING and session.time_limit_s is not None:
        limit = now + session.time_limit_s + session.spec.grace_s + TIME_LIMIT_MARGIN_S
        check_at = min(limit, now + CHECK_AFTER_S[phase])
    return session._replace(phase=phase, phase_at=now, next_check_at=check_at)


def _next_attempt(session: Session, verdict: Verdict, now: float) -> Session:
    """The session waiting again, its failure counted by its class (docs/protocol.md 14), its place kept."""
    code = verdict.reason.code if verdict.reason else None
    asked = code in ASKED
    refused = code == REFUSED
    user = verdict.exit_class in (ExitClass.USER, ExitClass.OOM, ExitClass.TIMEOUT)
    failures = session.failures + int(user and not asked)
    infra_failures = session.infra_failures + int(not user and not asked and not refused)
    refusals = session.refusals + int(refused)
    tries = failures + infra_failures + refusals
    wait_s = 0.0 if asked else min(LAST_BACKOFF_S, 2.0 ** min(tries - 1, 16))
    short = session.started_at is not None and now - session.started_at < SHORT_RUN_S
    if asked and short and code != StopFor.PREEMPTED.value:  # whoever made way goes on as soon as there is room
        wait_s = min(LAST_ASKED_BACKOFF_S, 2.0 ** min(session.attempt - 1, 16))  # "again" is not "at once, for ever"
    return session._replace(
        attempt=session.attempt + 1,
        group=session.spec.group,
        stop_for=None,
        preempted_for=None,
        started_at=None,
        failures=failures,
        infra_failures=infra_failures,
        refusals=refusals,
        continuations=session.continuations + int(code in BY_COMMAND),
        not_before=now + wait_s,
        next_check_at=now + (wait_s or CHECK_AFTER_S[Phase.PENDING]),
    )


def overdue(session: Session, now: float) -> StopFor | None:
    """Why the system must stop a session that outlived its limit although its node should have ended it."""
    if session.phase is not Phase.RUNNING or session.time_limit_s is None or session.started_at is None:
        return None
    limit = session.started_at + session.time_limit_s + session.spec.grace_s + TIME_LIMIT_MARGIN_S
    return StopFor.TIME_LIMIT if now >= limit and session.stop_for is None else None


def _next_fact(session: Session, kernels: Sequence[Kernel], now: float) -> Seen | None:
    match session.phase:
        case Phase.PENDING:
            return Seen(Fact.UNWANTED) if session.wanted is Wanted.STOP else None
        case Phase.PLACED | Phase.STARTING | Phase.RUNNING:
            return _live_fact(session, kernels, now)
        case Phase.STOPPING:
            if any(kernel.certificate is None for kernel in kernels):
                return None
            verdict = verdict_of(session, kernels)
            if not verdict.requeue:
                return Seen(Fact.RELEASED)
            asked = verdict.reason is not None and verdict.reason.code in BY_COMMAND
            return Seen(Fact.REQUEUED, {"continuation": session.continuations + 1} if asked else None)
        case Phase.ENDED:
            return None


def _live_fact(session: Session, kernels: Sequence[Kernel], now: float) -> Seen | None:
    starting = session.phase is Phase.STARTING
    if starting and session.wanted is not Wanted.STOP and all(kernel.ready_at is not None for kernel in kernels):
        return Seen(Fact.READY)
    if session.phase is not Phase.PLACED:
        decided = deciding(session.spec.outcome_rule, kernels)
        if decided is not None:
            rank, result = decided
            return Seen(Fact.DECIDED, {"rank": rank, "exit_code": result.code, "exit_class": result.exit_class.value})
    for kernel in kernels:
        if kernel.refused is not None and starting:
            return Seen(Fact.REFUSED, {"rank": kernel.rank, "node": kernel.node, "code": kernel.refused.code})
        if kernel.failed is not None and session.phase is not Phase.RUNNING:
            return Seen(Fact.FAILED, {"rank": kernel.rank, "node": kernel.node, "code": kernel.failed.code})
        if starting and kernel.result is not None and kernel.ready_at is None:  # the others would wait for ever
            return Seen(Fact.FAILED, {"rank": kernel.rank, "node": kernel.node, "code": EARLY})
        if kernel.certificate is not None and kernel.result is None:
            proof = {"certificate": kernel.certificate.value, "reason": kernel.exit_reason}
            return Seen(Fact.LOST, {"rank": kernel.rank, "node": kernel.node, **proof})
    if session.wanted is Wanted.STOP:
        return Seen(Fact.UNWANTED, {"reason": "cancelled"})
    if session.stop_for is not None:
        return Seen(Fact.UNWANTED, {"reason": session.stop_for.value})
    return None


def deciding(rule: OutcomeRule, kernels: Sequence[Kernel]) -> tuple[int, Result] | None:
    """The rank and result that settle the outcome, or None while nothing is settled (docs/protocol.md 3).

    `any-failure`: the first rank recorded as failed, or rank 0 once all are good. `main-only`: rank 0. `all`: once all
    are in, the first that failed, else rank 0. A rank that ended because it was told to stop decides nothing.
    """
    results = [
        (kernel.result_at or 0.0, kernel.rank, kernel.result)
        for kernel in kernels
        if kernel.result is not None and kernel.result.exit_class is not ExitClass.CANCELLED
    ]
    main = next(((rank, result) for _, rank, result in results if rank == 0), None)
    if rule is OutcomeRule.MAIN_ONLY:
        return main
    complete = len(results) == len(kernels)
    if rule is OutcomeRule.ALL and not complete:
        return None
    failed = [(at, rank, result) for at, rank, result in results if not result.good]
    if failed:
        _, rank, result = min(failed, key=lambda one: one[:2])
        return rank, result
    return main if complete else None


def verdict_of(session: Session, kernels: Sequence[Kernel]) -> Verdict:
    """How the current attempt ended, and whether another follows."""
    decided = deciding(session.spec.outcome_rule, kernels)
    result = None if decided is None else decided[1]
    if result is not None and result.good:
        return Verdict(Outcome.SUCCEEDED, ExitClass.OK, 0)
    if decided is not None and not _lost_before(decided[0], kernels):
        return _failed_by_result(session, decided[1])
    if session.wanted is Wanted.STOP:
        return Verdict(Outcome.CANCELLED, ExitClass.CANCELLED, 130, Why("cancelled", "cancelled by the user"))
    if session.stop_for is StopFor.TIME_LIMIT:
        timeout = Result(exit_class=ExitClass.TIMEOUT)
        return _failed_by_result(session, timeout)
    if session.stop_for is not None:
        if all(kernel.result is not None and kernel.result.exit_code == 0 for kernel in kernels):
            return Verdict(Outcome.SUCCEEDED, ExitClass.OK, 0)  # it finished during its grace
        return _stopped_for(session, session.stop_for)
    return _failed_without_result(session, kernels)


def _stopped_for(session: Session, why: StopFor) -> Verdict:
    """It goes back in the queue, unless others took its place and it may not run twice."""
    again = session.spec.requeue or why is not StopFor.PREEMPTED
    what = f"preempted for {session.preempted_for}" if session.preempted_for is not None else "stopped"
    what = "asked to go on elsewhere" if session.room_by is not None else what
    reason = Why(why.value, f"{what} and put back in the queue" if again else f"{what}; it was not to be queued again")
    return Verdict(Outcome.FAILED, ExitClass.PREEMPTED, 1, reason, requeue=again)


def _lost_before(rank: int, kernels: Sequence[Kernel]) -> bool:
    """Whether a sibling was lost before this rank failed, which is then no fault of its own."""
    failed_at = next(kernel.result_at or 0.0 for kernel in kernels if kernel.rank == rank)
    return any(kernel.lost and (kernel.certified_at or 0.0) < failed_at for kernel in kernels)


def _failed_by_result(session: Session, result: Result) -> Verdict:
    code, asked = result.code, GOES_ON.get(result.exit_code or 0)
    if session.wanted is Wanted.STOP or not session.spec.requeue:
        asked = None
    if asked is not None and session.continuations < session.spec.continuations:
        return Verdict(Outcome.FAILED, ExitClass.USER, code, asked, None, True)
    spent = session.infra_failures if result.exit_class is ExitClass.INFRA else session.failures
    retry = session.wanted is not Wanted.STOP and spent < session.spec.retries
    reason = None
    if asked is not None:
        reason = Why("continuations_spent", f"it asked to go on ({result.exit_code}) and had as many continuations as "
                     f"it may, {session.spec.continuations}; --continuations allows more")  # fmt: skip
    elif result.exit_class is ExitClass.TIMEOUT:
        reason = Why("time_limit", f"the time limit of {length(session.time_limit_s or 0)} passed")
    return Verdict(Outcome.FAILED, result.exit_class, code, reason, CAUSES.get(result.exit_class), retry)


def _failed_without_result(session: Session, kernels: Sequence[Kernel]) -> Verdict:
    refused = next((kernel for kernel in kernels if kernel.refused is not None), None)
    if refused is not None and refused.refused is not None:
        cause = Why(refused.refused.code, f"node {refused.node}: {refused.refused.message}")
        return Verdict(Outcome.FAILED, ExitClass.INFRA, 1, Why(REFUSED, "refused by its node"), cause, True)
    again = session.spec.requeue and session.infra_failures < MAX_INFRA_FAILURES
    failed = next((kernel for kernel in kernels if kernel.failed is not None), None)
    if failed is not None and failed.failed is not None:
        cause = Why(failed.failed.code, f"node {failed.node}: {failed.failed.message}")
        return Verdict(Outcome.FAILED, ExitClass.INFRA, 1, None, cause, again)
    lost = next((kernel for kernel in kernels if kernel.lost), None)
    if lost is not None and lost.certificate is not None:
        code = lost.exit_reason or lost.certificate.value
        cause = Why(code, f"rank {lost.rank} on node {lost.node} ended without a result")
        return Verdict(Outcome.FAILED, ExitClass.LOST, 1, None, cause, again)
    early = next((kernel for kernel in kernels if kernel.result is not None and kernel.ready_at is None), None)
    if early is not None and session.started_at is None:
        cause = Why(EARLY, f"rank {early.rank} on node {early.node} ended before every rank was ready")
        return Verdict(Outcome.FAILED, ExitClass.INFRA, 1, None, cause, again)
    cause = Why("never_started", "its claim was withdrawn before any node was told")
    return Verdict(Outcome.FAILED, ExitClass.INFRA, 1, None, cause, again)
