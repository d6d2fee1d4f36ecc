"""Several managers and one resource group at the same moment, on one PostgreSQL."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

from corral.model.faults import Fault, Refused
from corral.model.lifecycle import Phase
from corral.model.node import ResourceGroup
from corral.reconcile import groups, intents
from corral.reconcile.groups import GroupChange
from corral.store import PostgresStore
from corral.testing.builders import Play, spec, whole_run
from tests.store.test_postgres_races import at_once, sound, stores, threads  # noqa: F401 - fixtures among them

ROUNDS = 15
ADMIN = "user:admin"


def create(store: PostgresStore, group: ResourceGroup) -> None:
    asyncio.run(store.tx("create", lambda tx: groups.create(tx, group, ADMIN)))


async def placed(store: PostgresStore, ids: list[str]) -> int:
    sessions = await store.read("look", lambda reads: reads.sessions(ids))
    return sum(session.phase is Phase.PLACED for session in sessions.values())


def test_nothing_is_placed_once_a_pause_was_acknowledged(
    stores: list[PostgresStore],  # noqa: F811
    threads: ThreadPoolExecutor,  # noqa: F811
) -> None:
    play = Play(stores[0])
    asyncio.run(play.join("n1", cpus=64))
    seen: set[int] = set()
    for _ in range(ROUNDS):
        ids = asyncio.run(play.submit(*(spec(memory_mib=1) for _ in range(6))))

        async def pause(ids: list[str] = ids) -> int:
            await stores[2].tx("pause", lambda tx: groups.pause(tx, "default", ADMIN))
            return await placed(stores[2], ids)

        *_, at_pause = at_once(threads, *(Play(store).place for store in stores[:2]), pause)
        assert asyncio.run(placed(stores[0], ids)) == at_pause
        assert asyncio.run(play.place()) == 0
        seen.add(at_pause)
        asyncio.run(stores[0].tx("resume", lambda tx: groups.resume(tx, "default", ADMIN)))
        for id_ in ids:
            asyncio.run(play.cancel(id_))
    assert seen <= {0, 6}, "a pass is one transaction"
    sound(stores[1])


def test_nothing_is_placed_on_a_node_that_joins_while_its_group_is_paused(
    stores: list[PostgresStore],  # noqa: F811
    threads: ThreadPoolExecutor,  # noqa: F811
) -> None:
    play = Play(stores[0])
    for number in range(ROUNDS):
        name = f"group-{number}"
        create(stores[0], ResourceGroup(name))
        (id_,) = asyncio.run(play.submit(spec(group=name)))

        async def join_and_place(name: str = name) -> int:
            joining = Play(stores[1])
            await joining.join(f"node-of-{name}", group=name)
            return await joining.place()

        async def pause(name: str = name, id_: str = id_) -> int:
            await stores[2].tx("pause", lambda tx: groups.pause(tx, name, ADMIN))
            return await placed(stores[2], [id_])

        _, at_pause = at_once(threads, join_and_place, pause)
        assert asyncio.run(placed(stores[0], [id_])) == at_pause
        asyncio.run(play.cancel(id_))
    sound(stores[1])


def test_nobody_waits_for_a_group_that_went_at_the_same_moment(
    stores: list[PostgresStore],  # noqa: F811
    threads: ThreadPoolExecutor,  # noqa: F811
) -> None:
    (other,) = asyncio.run(Play(stores[0]).submit(spec()))
    for number in range(ROUNDS):
        name = f"group-{number}"
        create(stores[0], ResourceGroup(name))

        async def submit(name: str = name) -> str:
            return await said(Play(stores[0]).submit(spec(group=name)))

        async def move(name: str = name) -> str:
            return await said(stores[1].tx("update", lambda tx: intents.update(tx, other, "user:ann", group=name)))

        async def delete(name: str = name) -> str:
            return await said(stores[2].tx("delete", lambda tx: groups.delete(tx, name, ADMIN)))

        submitted, moved, deleted = at_once(threads, submit, move, delete)
        there = name in asyncio.run(stores[0].read("groups", lambda reads: reads.groups()))
        if there:
            assert (deleted, {submitted, moved} <= {"done", "group_unknown"}) == ("group_has_sessions", True)
        else:
            assert (submitted, moved, deleted) == ("group_unknown", "group_unknown", "done")


async def said(asked: Awaitable[object]) -> str:
    try:
        await asked
    except Fault as fault:
        return fault.code
    return "done"


def test_no_node_is_left_without_its_group(
    stores: list[PostgresStore],  # noqa: F811
    threads: ThreadPoolExecutor,  # noqa: F811
) -> None:
    for number in range(ROUNDS):
        name = f"group-{number}"
        create(stores[0], ResourceGroup(name))

        async def join(name: str = name) -> str:
            await Play(stores[1]).join(f"node-of-{name}", group=name)
            return "joined"

        async def delete(name: str = name) -> str:
            try:
                await stores[2].tx("delete", lambda tx: groups.delete(tx, name, ADMIN))
            except Refused as refused:
                return refused.code
            return "deleted"

        _, answer = at_once(threads, join, delete)
        assert answer in ("deleted", "group_has_nodes")
        assert name in asyncio.run(stores[0].read("groups", lambda reads: reads.groups()))


def test_of_two_changes_from_one_version_one_is_made(
    stores: list[PostgresStore],  # noqa: F811
    threads: ThreadPoolExecutor,  # noqa: F811
) -> None:
    create(stores[0], ResourceGroup("g"))

    def change(store: PostgresStore, version: int, order: str) -> Callable[[], Awaitable[str]]:
        async def move() -> str:
            asked = GroupChange(order=order, version=version)
            try:
                await store.tx("change", lambda tx: groups.change(tx, "g", asked, ADMIN))
            except Refused as refused:
                return refused.code
            return "changed"

        return move

    for version in range(1, ROUNDS):
        orders = ("lifo", "drf") if version % 2 else ("fifo", "priority")
        moves = [change(store, version, order) for store, order in zip(stores, orders, strict=False)]
        assert sorted(at_once(threads, *moves)) == ["changed", "version_conflict"]
    rows = asyncio.run(stores[0].read("history", lambda reads: reads.group_history("g")))
    assert [row.seq for row in rows] == list(range(1, ROUNDS + 1))


def test_what_was_used_is_counted_once_by_however_many(
    stores: list[PostgresStore],  # noqa: F811
    threads: ThreadPoolExecutor,  # noqa: F811
) -> None:
    create(stores[0], ResourceGroup("default", "fair-share", order_options={"half_life": "365d"}))
    play = Play(stores[0])
    asyncio.run(play.join("n1", cpus=64))
    ids = asyncio.run(play.submit_and_claim(*(spec() for _ in range(40))))
    tokens = asyncio.run(play.tokens(ids))
    asyncio.run(play.exchange("n1", *(fact for token in tokens for fact in whole_run(token))))

    async def cpu_s() -> float:
        found = await stores[0].read("usage", lambda reads: reads.usage(list(reads.groups().values())))
        return sum(one.cpu_s for one in found)

    def count(store: PostgresStore) -> Callable[[], Awaitable[int]]:
        async def move() -> int:
            counted = 0
            for _ in range(40):
                counted += await store.tx("count", lambda tx: tx.count_usage(3))
            return counted

        return move

    before = asyncio.run(cpu_s())
    assert sum(at_once(threads, *map(count, stores))) == 40
    assert abs(asyncio.run(cpu_s()) - before) < before * 1e-3
