"""Sessions that wait for the end of others."""

from __future__ import annotations

from itertools import product

from corral.model.dependency import Dependency, DependencyKind
from corral.model.lifecycle import Outcome, Phase
from corral.ports import Store, Tx
from corral.reconcile import intents
from corral.reconcile.dependencies import settle_dependents
from corral.testing.builders import Play, new_session, spec, whole_run
from corral.testing.conformance.loop import on_a_loop

OK, NOT_OK, ANY = DependencyKind.OK, DependencyKind.NOT_OK, DependencyKind.ANY


async def submit_after(store: Store, *needs: tuple[str, DependencyKind]) -> str:
    new = new_session(spec(after=tuple(f"{id_}:{kind}" for id_, kind in needs)))

    def body(tx: Tx) -> str:
        (session,) = intents.submit(tx, [new], "user:ann")
        tx.wait_for(session.id, [Dependency(id_, kind) for id_, kind in needs])
        return session.id

    return await store.tx("submit", body)


class DependencyRules:
    @on_a_loop
    async def test_each_kind_with_each_end(self, store: Store) -> None:
        play = Play(store)
        await play.join("n1", cpus=64)
        for kind, end in product((OK, NOT_OK, ANY), (Outcome.SUCCEEDED, Outcome.FAILED, Outcome.CANCELLED)):
            (parent,) = await play.submit_and_claim(spec(requeue=False))
            child = await submit_after(store, (parent, kind))
            assert await play.place() == 0, "its parent runs"
            (row,) = (await store.read("needs", lambda reads, child=child: reads.dependencies([child])))[child]
            assert (row.needs, row.kind, row.phase, row.outcome) == (parent, kind, Phase.STARTING, None)
            (token,) = await play.tokens([parent])
            if end is Outcome.CANCELLED:
                await play.cancel(parent)
            else:
                await play.exchange("n1", *whole_run(token, 0 if end is Outcome.SUCCEEDED else 1))
            assert (await play.session(parent)).outcome is end
            await play.place()
            await play.place()
            session = await play.session(child)
            met = kind is ANY or (kind is OK) is (end is Outcome.SUCCEEDED)
            if met:
                assert session.phase is Phase.PLACED, (kind, end)
                assert await play.facts(child) == ["submitted", "dependency_met", "placed"]
                await play.claim()
                (token,) = await play.tokens([child])
                await play.exchange("n1", *whole_run(token))
            else:
                assert (session.phase, session.outcome) == (Phase.ENDED, Outcome.CANCELLED), (kind, end)
                assert session.reason is not None
                assert (session.reason.code, parent in session.reason.message) == ("dependency_failed", True)
                assert await play.facts(child) == ["submitted", "doomed"]
        assert await play.violations() == []

    @on_a_loop
    async def test_several_are_all_waited_for_and_one_that_fails_is_enough(self, store: Store) -> None:
        play = Play(store)
        await play.join("n1", cpus=64)
        first, second = await play.submit_and_claim(spec(), spec(requeue=False))
        both = await submit_after(store, (first, ANY), (second, ANY))
        doomed = await submit_after(store, (first, OK), (second, OK))
        grandchild = await submit_after(store, (doomed, OK))
        (token,) = await play.tokens([first])
        await play.exchange("n1", *whole_run(token))
        assert await play.place() == 0
        assert (await play.session(both)).phase is Phase.PENDING
        (token,) = await play.tokens([second])
        await play.exchange("n1", *whole_run(token, 3))
        for _ in range(3):
            await play.place()
        assert (await play.session(both)).phase is Phase.PLACED
        assert (await play.session(doomed)).phase is Phase.ENDED
        assert (await play.session(grandchild)).phase is Phase.ENDED, "the doom goes on"
        assert await store.read("none", lambda reads: reads.decided_dependents(10)) == []

    @on_a_loop
    async def test_who_was_let_go_by_another_manager_is_not_let_go_again(self, store: Store) -> None:
        play = Play(store)
        (parent,) = await play.submit(spec())
        child, other = await submit_after(store, (parent, ANY)), await submit_after(store, (parent, OK))
        await play.cancel(parent)
        decided = await store.read("decided", lambda reads: reads.decided_dependents(10))
        assert set(decided) == {child, other}
        for manager in ("manager:a", "manager:b"):
            await store.tx("settle dependents", lambda tx, by=manager: settle_dependents(tx, decided, by))
        assert await play.facts(child) == ["submitted", "dependency_met"]
        assert await play.facts(other) == ["submitted", "doomed"]
        assert await play.violations() == []

    @on_a_loop
    async def test_held_and_cancelled_dependents(self, store: Store) -> None:
        play = Play(store)
        await play.join("n1", cpus=64)
        (parent,) = await play.submit(spec())
        held, cancelled = await submit_after(store, (parent, ANY)), await submit_after(store, (parent, ANY))
        await store.tx("hold", lambda tx: intents.hold(tx, held, "user:ann"))
        assert (await play.cancel(cancelled)).phase is Phase.ENDED
        await play.cancel(parent)
        await play.place()
        assert await play.place() == 0, "its wait is over, and it is held"
        await store.tx("release", lambda tx: intents.release(tx, held, "user:ann"))
        assert await play.place() == 1
        again = await store.tx("again", lambda tx: intents.requeue(tx, cancelled, "x" * 10, "user:ann"))
        assert again.spec.after == ()
        assert await play.place() == 1
