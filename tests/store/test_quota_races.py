"""Several managers and one quota at the same moment, on one PostgreSQL: never above it, never in each other's way."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from corral.model.faults import Refused
from corral.model.quota import Held, Quota
from corral.ports import Reads, Tx
from corral.reconcile import intents, quotas
from corral.reconcile.placement import commit
from corral.scheduling.cycle import cycle
from corral.store import PostgresStore, quota_reads, quota_sql
from corral.testing.builders import BY, Play, new_session, spec
from tests.store.test_postgres_races import WAITS, at_once, sound, stores, threads  # noqa: F401 - fixtures among them

ROUNDS = 12
ADMIN = "user:admin"


def put(store: PostgresStore, quota: Quota) -> None:
    asyncio.run(store.tx("set quota", lambda tx: quotas.put(tx, quota, ADMIN)))


def held(store: PostgresStore) -> int:
    return asyncio.run(store.read("held", _held))


def _held(reads: Reads) -> int:
    return sum(one.amounts.sessions for one in reads.all_held().held)


def test_managers_that_place_at_once_stay_within_one_quota(
    stores: list[PostgresStore],  # noqa: F811
    threads: ThreadPoolExecutor,  # noqa: F811
) -> None:
    """Each on nodes of its own, so that nothing but the quota makes them follow one another."""
    play = Play(stores[0])
    for name in ("n0", "n1", "n2"):
        asyncio.run(play.join(name, cpus=8))
    put(stores[0], Quota("each", owner="*", limits={"cpu_milli": 3000}))
    put(stores[0], Quota("all", group="default", limits={"sessions": 4}))
    for _ in range(ROUNDS):
        ids = asyncio.run(
            play.submit(*(spec(memory_mib=1, on_nodes=(f"n{number % 3}",)) for number in range(9)))
        )  # fmt: skip
        plans = [
            asyncio.run(stores[0].read("snapshot", lambda reads, on=f"n{number}": _only(reads, on)))
            for number in range(3)
        ]
        moves = [_committing(store, plan) for store, plan in zip(stores, plans, strict=True)]
        assert sum(at_once(threads, *moves)) == 3
        assert held(stores[1]) == 3
        sound(stores[2])
        for id_ in ids:
            asyncio.run(play.cancel(id_))


def _only(reads: Reads, node: str):
    snapshot = reads.snapshot(128)
    mine = [one for one in snapshot.waiting if one.shape.on_nodes == (node,)]
    return type(snapshot)(snapshot.now, snapshot.nodes, snapshot.devices, mine, snapshot.groups)


def _committing(store: PostgresStore, snapshot) -> Callable[[], Awaitable[int]]:
    """A manager that planned before there were quotas."""
    plan = cycle(snapshot)
    assert len(plan.placements) == 3

    async def move() -> int:
        return await store.tx("place", lambda tx: commit(tx, plan, {}, BY))

    return move


def test_a_quota_counts_from_its_acknowledgement(
    stores: list[PostgresStore],  # noqa: F811
    threads: ThreadPoolExecutor,  # noqa: F811
) -> None:
    play = Play(stores[0])
    asyncio.run(play.join("n1", cpus=64))
    for number in range(ROUNDS):
        ids = asyncio.run(play.submit(*(spec(memory_mib=1) for _ in range(6))))

        async def limit(number: int = number) -> int:
            new = Quota(f"q{number}", owner="ann", limits={"sessions": 2})
            await stores[2].tx("set quota", lambda tx: quotas.put(tx, new, ADMIN))
            return await stores[2].read("held", _held)

        *_, then = at_once(threads, *(Play(store).place for store in stores[:2]), limit)
        after = held(stores[0])
        assert then in (0, 2, 6) and after in ((then,) if then else (0, 2)), "a pass came before it, or was held to it"
        sound(stores[1])
        asyncio.run(stores[0].tx("drop", lambda tx, name=f"q{number}": quotas.delete(tx, name, ADMIN)))
        for id_ in ids:
            asyncio.run(play.cancel(id_))


def test_two_who_submit_at_once_do_not_pass_the_limit_together(
    stores: list[PostgresStore],  # noqa: F811
    threads: ThreadPoolExecutor,  # noqa: F811
) -> None:
    play = Play(stores[0])
    put(stores[0], Quota("few", owner="ann", limits={"waiting": 3}))
    for _ in range(ROUNDS):

        def submitting(store: PostgresStore) -> Callable[[], Awaitable[str]]:
            async def move() -> str:
                new = [new_session(spec()) for _ in range(2)]
                try:
                    await store.tx("submit", lambda tx: intents.submit(tx, new, "user:ann"))
                except Refused as refused:
                    return refused.code
                return "made"

            return move

        assert sorted(at_once(threads, *map(submitting, stores))) == ["made", "quota_waiting", "quota_waiting"]
        for id_ in asyncio.run(stores[0].read("pending", lambda reads: reads.in_phase("pending", 10))):
            asyncio.run(play.cancel(id_))


def test_who_is_under_no_quota_waits_for_none(stores: list[PostgresStore]) -> None:  # noqa: F811
    """Whoever holds the quota's row holds up nobody else."""
    play = Play(stores[0])
    asyncio.run(play.join("n1", cpus=8))
    asyncio.run(play.join("n2", cpus=8))
    put(stores[0], Quota("bob", owner="bob", limits={"sessions": 1}))
    asyncio.run(play.submit(spec()))

    async def main() -> int:
        held_open, go_on = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def hold(tx) -> None:
            tx.lock_quotas(["bob"])
            loop.call_soon_threadsafe(held_open.set)
            asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(20)

        holding = asyncio.create_task(stores[1].tx("hold", hold))
        await held_open.wait()
        try:
            async with asyncio.timeout(10):
                return await Play(stores[0]).place()
        finally:
            go_on.set()
            await holding

    assert asyncio.run(main()) == 1


def test_who_is_placed_while_what_is_held_is_added_up_disturbs_nobody(stores: list[PostgresStore]) -> None:  # noqa: F811
    """A transaction's statements each see what was committed by then; all that it did not lock may move between."""
    play = Play(stores[0])
    asyncio.run(play.join("n1", cpus=8))
    put(stores[0], Quota("each", owner="*", limits={"cpu_milli": 3000}))
    asyncio.run(play.submit(spec()))

    def look(tx: Tx) -> list[Held]:
        def ask(statement: str, **values: object) -> list[Any]:
            found = tx._rows(statement, **values)  # type: ignore[attr-defined]
            if statement == quota_sql.QUOTA_HOLDING:
                with ThreadPoolExecutor(1) as other:
                    assert other.submit(asyncio.run, Play(stores[1]).place()).result(20) == 1
            return found

        return list(quota_reads.quotas(ask, tx.now).held)

    assert [one.amounts.cpu_milli for one in asyncio.run(stores[0].tx("look", look))] == [1000]
    assert held(stores[2]) == 1


def array(tx: Tx) -> None:
    intents.submit_all(tx, [new_session(spec(array="1-9", group="default"))], "user:ann")


def session(tx: Tx) -> None:
    intents.submit(tx, [new_session(spec(group="default"))], "user:ann")


@pytest.mark.parametrize("submitted", [array, session])
@pytest.mark.parametrize("others", ["place", "set a quota"])
def test_nobody_who_submits_waits_for_somebody_who_waits_for_him(
    stores: list[PostgresStore],  # noqa: F811
    threads: ThreadPoolExecutor,  # noqa: F811
    submitted: Callable[[Tx], None],
    others: str,
) -> None:
    """Placing holds sessions, then the quota, and writes the sessions; setting a quota holds groups, then the quota."""
    play = Play(stores[0])
    asyncio.run(play.join("n1"))
    put(stores[0], Quota("few", owner="ann", limits={"waiting": 50}))
    (id_,) = asyncio.run(play.submit(spec()))
    tries: Counter[str] = Counter()
    begun = threading.Event()

    def other(tx: Tx) -> None:
        tries["other"] += 1
        if others == "place":
            tx.lock((), [id_])
            tx.lock_quotas(["few"])
        else:
            tx.lock_group("default")
        begun.set()
        deadline = time.monotonic() + 20
        while not tx._rows(WAITS) and time.monotonic() < deadline:  # type: ignore[attr-defined]
            pass
        if others == "place":
            tx.note_refusals({id_: "[]"})
        else:
            tx.lock_quotas(["few"])

    def submit(tx: Tx) -> None:
        tries["submit"] += 1
        submitted(tx)

    async def go_first() -> None:
        await stores[1].tx("other", other)

    async def go_then() -> None:
        assert await asyncio.to_thread(begun.wait, 20)
        await stores[2].tx("submit", submit)

    at_once(threads, go_first, go_then)
    assert tries == {"other": 1, "submit": 1}
