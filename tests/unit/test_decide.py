"""What kernels' facts mean for their session: outcome rules, certificates, cancels, retries by class."""

from dataclasses import replace

import pytest

from corral.model.lifecycle import Effect, ExitClass, Fact, Outcome, Phase, Wanted
from corral.model.session import Certificate, FactKind, Kernel, KernelFact, Result, Session, StopFor, Why
from corral.model.spec import OutcomeRule, SessionSpec
from corral.reconcile.decide import MAX_INFRA_FAILURES, Decision, deciding, judge, overdue, settle, verdict_of

NOW = 1_000_000.0
OK = Result(exit_code=0)
BAD = Result(exit_code=3, exit_class=ExitClass.USER)
STOPPED = Result(signal=15, exit_class=ExitClass.CANCELLED)


def a_session(phase: Phase = Phase.STARTING, ranks: int = 1, **changes) -> Session:
    spec_fields = {
        key: changes.pop(key) for key in ("retries", "continuations", "requeue", "outcome_rule") if key in changes
    }
    spec = SessionSpec(command=("x",), nodes=ranks, **spec_fields)
    return Session("s", 1, spec, "admin", NOW, phase=phase, next_check_at=NOW, **changes)


def a_kernel(rank: int = 0, **changes) -> Kernel:
    return Kernel(f"1-s-1-{rank}", "s", 1, rank, f"n{rank}", 1, "run", claimed_version=1)._replace(**changes)


def ran(rank: int = 0, result: Result = OK, at: float = NOW, **changes) -> Kernel:
    """A kernel that was ready, has a result, and is proven dead."""
    done = {"ready_at": NOW, "result_at": at, "result": result, "certificate": Certificate.EXIT, "certified_at": NOW}
    return a_kernel(rank, **(done | changes))


def decided(session: Session, kernels: list[Kernel], unserved: tuple[str, ...] = ()) -> Decision:
    """What follows; something must."""
    decision = settle(session, kernels, unserved, NOW)
    assert decision is not None
    return decision


def code_of(why: Why | None) -> str | None:
    return why and why.code


def facts_of(decision) -> list[str]:
    return [entry.fact for entry in decision.change.history]


def after(session: Session, kernels: list[Kernel], unserved=()) -> Session:
    decision = settle(session, kernels, unserved, NOW)
    return session if decision is None else decision.change.after


def test_a_command_that_ended_at_once_was_running_first() -> None:
    decision = decided(a_session(), [ran()])
    assert facts_of(decision) == ["ready", "decided", "released"]
    ended = decision.change.after
    assert (ended.phase, ended.outcome, ended.exit_code, ended.seq) == (Phase.ENDED, Outcome.SUCCEEDED, 0, 4)
    assert Effect.GIVE_ROOM_BACK in decision.effects


def test_a_gang_runs_only_when_every_kernel_is_ready_and_then_the_barrier_opens() -> None:
    session = a_session(ranks=2)
    assert settle(session, [a_kernel(0, ready_at=NOW), a_kernel(1)], (), NOW) is None
    decision = decided(session, [a_kernel(0, ready_at=NOW), a_kernel(1, ready_at=NOW)])
    assert facts_of(decision) == ["ready"]
    assert decision.go == ["1-s-1-0", "1-s-1-1"]


@pytest.mark.parametrize("rule", list(OutcomeRule))
def test_a_rank_that_ends_before_the_barrier_opens_ends_the_attempt(rule: OutcomeRule) -> None:
    never_began = Result(exit_class=ExitClass.INFRA, started=False)
    session = a_session(ranks=2, outcome_rule=rule)
    kernels = [a_kernel(0, ready_at=NOW), ran(1, never_began, ready_at=None)]
    decision = decided(session, kernels)
    assert decision.change.after.phase is Phase.STOPPING
    assert decision.stop == ["1-s-1-0"]
    if rule is not OutcomeRule.ANY_FAILURE:  # there the rank's own result decides
        stopped = [ran(0, STOPPED), ran(1, never_began, ready_at=None)]
        again = after(session._replace(phase=Phase.STOPPING), stopped)
        assert (again.phase, again.attempt, again.failures) == (Phase.PENDING, 2, 0)


def test_room_is_kept_until_every_kernel_has_a_certificate() -> None:
    running = a_session(Phase.RUNNING, ranks=2)
    decision = decided(running, [ran(0, BAD), a_kernel(1, ready_at=NOW)])
    assert decision.change.after.phase is Phase.STOPPING
    assert decision.stop == ["1-s-1-1"]
    assert Effect.GIVE_ROOM_BACK not in decision.effects


@pytest.mark.parametrize(
    ("rule", "results", "expected"),
    [
        (OutcomeRule.ANY_FAILURE, {0: OK}, None),
        (OutcomeRule.ANY_FAILURE, {0: OK, 1: OK, 2: OK}, (0, OK)),
        (OutcomeRule.ANY_FAILURE, {1: BAD}, (1, BAD)),
        (OutcomeRule.MAIN_ONLY, {1: BAD, 2: OK}, None),
        (OutcomeRule.MAIN_ONLY, {0: OK, 1: BAD}, (0, OK)),
        (OutcomeRule.ALL, {0: OK, 1: BAD}, None),
        (OutcomeRule.ALL, {0: OK, 1: BAD, 2: OK}, (1, BAD)),
        (OutcomeRule.ALL, {0: OK, 1: OK, 2: OK}, (0, OK)),
    ],
)
def test_the_outcome_rule_decides_not_the_first_exit(rule, results, expected) -> None:
    kernels = [ran(rank, results[rank]) if rank in results else a_kernel(rank, ready_at=NOW) for rank in range(3)]
    assert deciding(rule, kernels) == expected


def test_of_two_failures_the_first_recorded_decides() -> None:
    other = Result(exit_code=9, exit_class=ExitClass.USER)
    kernels = [ran(0, other, at=NOW + 1), ran(1, BAD, at=NOW)]
    assert deciding(OutcomeRule.ANY_FAILURE, kernels) == (1, BAD)


def test_a_rank_that_was_told_to_stop_decides_nothing() -> None:
    assert deciding(OutcomeRule.ANY_FAILURE, [ran(0, STOPPED), ran(1, OK)]) is None


def test_a_cancel_before_any_node_was_told_withdraws_the_claim_at_once() -> None:
    session = a_session(wanted=Wanted.STOP)
    decision = decided(session, [a_kernel()], ("1-s-1-0",))
    assert facts_of(decision) == ["unwanted", "released"]
    assert decision.withdrawn == ["1-s-1-0"]
    assert decision.change.after.outcome is Outcome.CANCELLED
    assert decision.change.after.exit_code == 130


def test_a_cancel_after_a_node_was_told_waits_for_its_word() -> None:
    decision = decided(a_session(wanted=Wanted.STOP), [a_kernel()])
    assert facts_of(decision) == ["unwanted"]
    assert decision.stop == ["1-s-1-0"] and not decision.withdrawn
    assert decision.change.after.phase is Phase.STOPPING


def test_a_cancelled_session_is_never_recorded_running() -> None:
    decision = decided(a_session(wanted=Wanted.STOP), [a_kernel(ready_at=NOW)])
    assert facts_of(decision) == ["unwanted"]


def test_the_real_result_wins_over_a_cancel_of_the_same_moment() -> None:
    ended = after(a_session(Phase.RUNNING, wanted=Wanted.STOP), [ran(0, BAD)])
    assert (ended.outcome, ended.exit_class, ended.exit_code) == (Outcome.FAILED, ExitClass.USER, 3)


def test_a_job_stopped_by_a_cancel_is_cancelled() -> None:
    ended = after(a_session(Phase.STOPPING, wanted=Wanted.STOP), [ran(0, STOPPED)])
    assert (ended.outcome, ended.exit_class, ended.exit_code) == (Outcome.CANCELLED, ExitClass.CANCELLED, 130)


def test_a_failure_is_retried_as_often_as_asked_and_no_more() -> None:
    session = a_session(Phase.RUNNING, retries=1)
    again = after(session, [ran(0, BAD)])
    assert (again.phase, again.attempt, again.failures, again.outcome) == (Phase.PENDING, 2, 1, None)
    assert again.not_before > NOW
    last = after(again._replace(phase=Phase.RUNNING), [ran(0, BAD)._replace(attempt=2)])
    assert (last.phase, last.outcome) == (Phase.ENDED, Outcome.FAILED)


def test_a_command_that_cannot_be_set_up_is_tried_as_often_as_asked_and_says_so() -> None:
    never = Result(exit_class=ExitClass.INFRA, started=False)
    once = after(a_session(Phase.RUNNING), [ran(0, never)])
    assert (once.outcome, once.exit_class, once.exit_code) == (Outcome.FAILED, ExitClass.INFRA, 1)
    assert code_of(once.cause) == "setup_failed"
    again = after(a_session(Phase.RUNNING, retries=1), [ran(0, never)])
    assert (again.phase, again.failures, again.infra_failures) == (Phase.PENDING, 0, 1)
    last = after(again._replace(phase=Phase.RUNNING), [ran(0, never)._replace(attempt=2)])
    assert last.outcome is Outcome.FAILED


def test_a_refusal_spends_no_retry() -> None:
    refused = a_kernel(refused=Why("device_busy", "held"), certificate=Certificate.VOID, certified_at=NOW)
    again = after(a_session(), [refused])
    assert (again.phase, again.failures, again.infra_failures, again.refusals) == (Phase.PENDING, 0, 0, 1)


def test_a_lost_node_spends_no_retry_of_the_users_and_ends_somewhere() -> None:
    lost = a_kernel(ready_at=NOW, certificate=Certificate.NODE_REBOOTED, certified_at=NOW)
    again = after(a_session(Phase.RUNNING), [lost])
    assert (again.phase, again.failures, again.infra_failures) == (Phase.PENDING, 0, 1)
    last = after(a_session(Phase.RUNNING, infra_failures=MAX_INFRA_FAILURES), [lost])
    assert (last.outcome, last.exit_class) == (Outcome.FAILED, ExitClass.LOST)


def test_a_rank_that_fails_after_its_sibling_was_lost_is_not_at_fault() -> None:
    lost = a_kernel(1, ready_at=NOW, certificate=Certificate.NODE_REBOOTED, certified_at=NOW)
    again = after(a_session(Phase.STOPPING, ranks=2), [ran(0, BAD, at=NOW + 5), lost])
    assert (again.phase, again.failures, again.infra_failures) == (Phase.PENDING, 0, 1)
    alone = after(a_session(Phase.STOPPING, ranks=2), [ran(0, BAD, at=NOW - 5), lost])
    assert (alone.outcome, alone.exit_class) == (Outcome.FAILED, ExitClass.USER)


def test_no_requeue_means_a_lost_session_failed() -> None:
    lost = a_kernel(ready_at=NOW, certificate=Certificate.EXIT, certified_at=NOW, exit_reason="supervisor_lost")
    ended = after(a_session(Phase.RUNNING, requeue=False), [lost])
    assert (ended.outcome, ended.exit_class, code_of(ended.cause)) == (
        Outcome.FAILED,
        ExitClass.LOST,
        "supervisor_lost",
    )


@pytest.mark.parametrize("code", [75, 85])
def test_a_command_may_ask_to_be_requeued(code: int) -> None:
    again = after(a_session(Phase.RUNNING), [ran(0, Result(exit_code=code, exit_class=ExitClass.USER))])
    assert (again.phase, again.attempt, again.failures) == (Phase.PENDING, 2, 0)
    assert again.not_before == NOW
    asked = Result(exit_code=code, exit_class=ExitClass.USER)
    short = after(a_session(Phase.RUNNING, started_at=NOW - 1, attempt=4), [ran(0, asked)._replace(attempt=4)])
    assert short.not_before == NOW + 8
    once = after(a_session(Phase.RUNNING, requeue=False), [ran(0, Result(exit_code=code, exit_class=ExitClass.USER))])
    assert once.outcome is Outcome.FAILED


@pytest.mark.parametrize("code", [75, 85])
@pytest.mark.parametrize("class_", [ExitClass.USER, ExitClass.TIMEOUT])
def test_it_goes_on_as_often_as_it_may(code: int, class_: ExitClass) -> None:
    asked = ran(0, Result(exit_code=code, exit_class=class_))
    session = a_session(Phase.RUNNING, continuations=2)
    for number in (1, 2):
        found = settle(session, [asked._replace(attempt=number)], (), NOW)
        assert found is not None
        assert found.change.history[-1].detail == {"continuation": number}
        session = found.change.after
        assert (session.phase, session.attempt, session.continuations) == (Phase.PENDING, number + 1, number)
        assert session.failures == 0
        session = session._replace(phase=Phase.RUNNING, group="default")
    ended = after(session, [asked._replace(attempt=3)])
    assert (ended.outcome, ended.exit_class, code_of(ended.reason)) == (Outcome.FAILED, class_, "continuations_spent")
    assert ended.exit_code == (124 if class_ is ExitClass.TIMEOUT else code)
    assert ended.reason is not None and f"({code})" in ended.reason.message and "2" in ended.reason.message
    retried = after(session._replace(spec=replace(session.spec, retries=1)), [asked._replace(attempt=3)])
    assert (retried.phase, retried.failures, retried.continuations) == (Phase.PENDING, 1, 2)


def test_what_its_command_did_not_ask_for_is_no_continuation() -> None:
    for session, kernel in (
        (preempted(), ran(0, Result(exit_code=85, exit_class=ExitClass.CANCELLED))),
        (a_session(Phase.STOPPING, stop_for=StopFor.REQUEUE), ran(0, STOPPED)),
        (a_session(Phase.RUNNING, retries=1), ran(0, BAD)),
    ):
        again = after(session, [kernel])
        assert (again.phase, again.continuations) == (Phase.PENDING, 0)


def test_one_that_may_never_go_on_has_failed() -> None:
    ended = after(a_session(Phase.RUNNING, continuations=0), [ran(0, Result(exit_code=85, exit_class=ExitClass.USER))])
    assert (ended.outcome, ended.exit_code, code_of(ended.reason)) == (Outcome.FAILED, 85, "continuations_spent")


def test_a_requeue_asked_for_stops_and_goes_back_without_a_charge() -> None:
    session = a_session(Phase.RUNNING, stop_for=StopFor.REQUEUE)
    stopping = after(session, [a_kernel(ready_at=NOW)])
    assert stopping.phase is Phase.STOPPING
    again = after(stopping, [ran(0, STOPPED)])
    assert (again.phase, again.failures, again.infra_failures, again.stop_for) == (Phase.PENDING, 0, 0, None)


def preempted(**changes) -> Session:
    return a_session(Phase.STOPPING, stop_for=StopFor.PREEMPTED, preempted_for="urgent", preemptions=1, **changes)


def test_who_made_way_waits_again_at_once_and_without_a_charge() -> None:
    for end in (STOPPED, *(Result(exit_code=code, exit_class=ExitClass.CANCELLED) for code in (85, 1))):
        again = after(preempted(started_at=NOW - 1, attempt=6), [ran(0, end)._replace(attempt=6)])
        assert (again.phase, again.attempt, again.not_before) == (Phase.PENDING, 7, NOW)
        assert (again.failures, again.infra_failures, again.refusals) == (0, 0, 0)
        assert (again.preemptions, again.preempted_for, again.stop_for) == (1, None, None)


def test_who_made_way_and_may_not_run_twice_is_over_for_good() -> None:
    ended = after(preempted(requeue=False), [ran(0, STOPPED)])
    assert (ended.outcome, ended.exit_class, ended.exit_code) == (Outcome.FAILED, ExitClass.PREEMPTED, 1)
    assert ended.reason == Why("preempted", "preempted for urgent; it was not to be queued again")


def test_who_made_way_and_had_failed_or_finished_has() -> None:
    failed = after(preempted(), [ran(0, Result(exit_code=3, exit_class=ExitClass.USER))])
    assert (failed.outcome, failed.exit_class) == (Outcome.FAILED, ExitClass.USER)
    finished = after(preempted(), [ran(0, Result(exit_code=0, exit_class=ExitClass.CANCELLED))])
    assert finished.outcome is Outcome.SUCCEEDED


def test_a_job_that_finished_during_its_grace_has_finished() -> None:
    finished = Result(exit_code=0, exit_class=ExitClass.CANCELLED)
    ended = after(a_session(Phase.STOPPING, stop_for=StopFor.REQUEUE), [ran(0, finished)])
    assert ended.outcome is Outcome.SUCCEEDED


def test_a_cancel_during_a_requeue_ends_it() -> None:
    ended = after(a_session(Phase.STOPPING, stop_for=StopFor.REQUEUE, wanted=Wanted.STOP), [ran(0, STOPPED)])
    assert ended.outcome is Outcome.CANCELLED


def test_the_time_limit_is_a_failure_of_its_own_class() -> None:
    ended = after(a_session(Phase.RUNNING), [ran(0, Result(signal=15, exit_class=ExitClass.TIMEOUT))])
    assert (ended.exit_class, ended.exit_code, code_of(ended.reason)) == (ExitClass.TIMEOUT, 124, "time_limit")


def test_only_a_session_long_past_its_limit_is_stopped_by_the_manager() -> None:
    session = a_session(Phase.RUNNING, time_limit_s=10, started_at=NOW)
    assert overdue(session, NOW + 11) is None
    assert overdue(session, NOW + 10 + 30 + 61) is StopFor.TIME_LIMIT


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.ENDED])
def test_no_state_is_silent(phase: Phase) -> None:
    """Whatever a session moves to, somebody looks again at a known time (SE5)."""
    for kernel in (a_kernel(), a_kernel(ready_at=NOW), ran()):
        decision = settle(a_session(phase), [] if phase is Phase.PENDING else [kernel], (), NOW)
        if decision is not None:
            moved = decision.change.after
            assert moved.phase is Phase.ENDED or (moved.next_check_at or 0) >= NOW


@pytest.mark.parametrize(
    ("kernel", "kind", "expected"),
    [
        (a_kernel(), FactKind.READY, "new"),
        (a_kernel(ready_at=NOW), FactKind.READY, "known"),
        (a_kernel(certificate=Certificate.VOID), FactKind.READY, "disputed"),
        (ran(), FactKind.EXITED, "known"),
        (a_kernel(ready_at=NOW), FactKind.VOID, "disputed"),
        (a_kernel(certificate=Certificate.VOID), FactKind.VOID, "known"),
        (a_kernel(certificate=Certificate.VOID), FactKind.EXITED, "disputed"),
        (a_kernel(), FactKind.REFUSED, "new"),
    ],
)
def test_facts_are_kept_by_first_write_and_what_cannot_be_is_disputed(kernel, kind, expected) -> None:
    assert judge(kernel, KernelFact(kernel.token, kind, 0.0)) == expected


def test_a_second_result_that_differs_is_disputed() -> None:
    assert judge(ran(0, OK), KernelFact("1-s-1-0", FactKind.RESULT, 0.0, result=OK)) == "known"
    assert judge(ran(0, OK), KernelFact("1-s-1-0", FactKind.RESULT, 0.0, result=BAD)) == "disputed"


def test_infrastructure_is_named_as_the_cause() -> None:
    failed = a_kernel(failed=Why("blob_missing", "gone"), certificate=Certificate.VOID, certified_at=NOW)
    verdict = verdict_of(a_session(Phase.STOPPING), [failed])
    assert (verdict.exit_class, code_of(verdict.cause), verdict.requeue) == (ExitClass.INFRA, "blob_missing", True)
    assert Fact.FAILED.value in facts_of(decided(a_session(), [failed]))
