"""Several managers on one PostgreSQL at the same moment, READ COMMITTED: each a thread with a store of its own."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import psycopg
import pytest

from corral.clock import SystemClock, SystemIds
from corral.model.lifecycle import Phase
from corral.model.resources import GpuRequest
from corral.model.session import Entry, KernelFact
from corral.ports import Reads, Store, Tx
from corral.reconcile.placement import commit
from corral.reconcile.promising import Ahead
from corral.reconcile.sessions import change_of, lock_with_nodes, sweep_due
from corral.scheduling.ahead.promises import NewStarts
from corral.scheduling.cycle import cycle
from corral.scheduling.plan import Plan
from corral.scheduling.snapshot import Promise
from corral.store import PostgresStore
from corral.testing.builders import BY, Play, accepted, exited, new_session, ready, result, spec, whole_run

T = TypeVar("T")
ROUNDS = 25
WAITS = """
SELECT 1 FROM pg_locks w JOIN pg_locks l ON l.pid = w.pid JOIN pg_database d ON d.oid = l.database
WHERE NOT w.granted AND d.datname = current_database()"""
TOGETHER_S = 60


@pytest.fixture
def stores(postgres_url_migrated: str) -> Iterator[list[PostgresStore]]:
    opened = [PostgresStore(postgres_url_migrated, SystemClock(), SystemIds(), connections=2) for _ in range(3)]
    yield opened
    for store in opened:
        store.close()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def at_once(threads: ThreadPoolExecutor, *moves: Callable[[], Awaitable[T]]) -> list[T]:
    """Each move on a thread and a loop of its own, let go together; their answers."""
    gate = threading.Barrier(len(moves))

    def run(move: Callable[[], Awaitable[T]]) -> T:
        async def limited() -> T:
            gate.wait(TOGETHER_S)
            async with asyncio.timeout(TOGETHER_S):
                return await move()

        return asyncio.run(limited())

    return [future.result(TOGETHER_S) for future in [threads.submit(run, move) for move in moves]]


def sound(store: Store) -> None:
    assert asyncio.run(Play(store).violations()) == []


def test_managers_that_place_the_same_sessions_place_each_once(
    stores: list[PostgresStore], threads: ThreadPoolExecutor
) -> None:
    play = Play(stores[0])
    asyncio.run(play.join("n1", cpus=4))
    asyncio.run(play.join("n2", cpus=4))
    for _ in range(ROUNDS // 2):
        ids = asyncio.run(play.submit(*(spec(memory_mib=1) for _ in range(10))))
        placed = at_once(threads, *(Play(store).place for store in stores))
        assert sum(placed) <= 8
        while asyncio.run(play.place()):
            pass
        sessions = asyncio.run(stores[1].read("look", lambda reads, ids=ids: reads.sessions(ids)))
        assert sum(session.phase is Phase.PLACED for session in sessions.values()) == 8
        sound(stores[2])
        for id_ in ids:
            asyncio.run(play.cancel(id_))
        assert asyncio.run(stores[0].read("nodes", lambda reads: reads.nodes()))["n1"].cpu_used_milli == 0


def test_the_last_free_device_goes_to_one(stores: list[PostgresStore], threads: ThreadPoolExecutor) -> None:
    play = Play(stores[0])
    asyncio.run(play.join("n1", gpus=1))
    for _ in range(ROUNDS):
        ids = asyncio.run(play.submit(*(spec(gpu=GpuRequest()) for _ in range(3))))
        at_once(threads, *(Play(store).place for store in stores))
        asyncio.run(play.place())
        sessions = asyncio.run(stores[1].read("look", lambda reads, ids=ids: reads.sessions(ids)))
        assert sum(session.phase is Phase.PLACED for session in sessions.values()) == 1
        (device,) = asyncio.run(stores[1].read("device", lambda reads: reads.devices()))
        assert (device.used_milli, device.used_mib) == (1000, 80_000)
        for id_ in ids:
            asyncio.run(play.cancel(id_))
    sound(stores[2])


def test_placements_that_looked_before_they_leapt_are_stopped_by_the_checks(
    stores: list[PostgresStore], threads: ThreadPoolExecutor
) -> None:
    """Bodies without a lock, as a careless caller would write them: the database itself never over-commits."""
    from corral.testing.conformance.store_room import placement

    asyncio.run(Play(stores[0]).join("n1", cpus=4))
    sessions = asyncio.run(stores[0].tx("new", lambda tx: tx.submit([new_session() for _ in range(12)])))

    def hold(store: Store, mine: int) -> Callable[[], Awaitable[int]]:
        async def move() -> int:
            held = 0
            for session in sessions[mine::3]:
                try:
                    await store.tx("hold", lambda tx, s=session: tx.hold([placement(s, "n1")], BY))
                    held += 1
                except Exception:
                    continue
            return held

        return move

    assert sum(at_once(threads, *(hold(store, index) for index, store in enumerate(stores)))) == 4
    node = asyncio.run(stores[0].read("nodes", lambda reads: reads.nodes()))["n1"]
    assert node.cpu_used_milli == 4000


def test_managers_that_claim_the_same_sessions_claim_each_once(
    stores: list[PostgresStore], threads: ThreadPoolExecutor
) -> None:
    play = Play(stores[0])
    asyncio.run(play.join("n1"))
    for _ in range(ROUNDS):
        ids = asyncio.run(play.submit(spec(), spec(), spec()))
        asyncio.run(play.place())
        assert sum(at_once(threads, *(Play(store).claim for store in stores))) == 3
        for id_ in ids:
            assert asyncio.run(play.facts(id_)) == ["submitted", "placed", "claimed"]
            asyncio.run(play.cancel(id_))
    sound(stores[0])


def test_two_ranks_that_end_at_the_same_moment_decide_their_session(
    stores: list[PostgresStore], threads: ThreadPoolExecutor
) -> None:
    """Each exchange sees only its own rank's result if the other is not yet committed: without the lock on the session
    neither would decide it, and nobody would ever look again."""
    play = Play(stores[0])
    for node in ("n1", "n2"):
        asyncio.run(play.join(node, cpus=1))
    others = [_as_node(play, store) for store in stores[:2]]
    for code in [0, 3] * (ROUNDS // 2):
        (id_,) = asyncio.run(play.submit_and_claim(spec(nodes=2, requeue=False)))
        kernels = asyncio.run(play.kernels(id_))
        tokens = {kernel.node: kernel.token for kernel in kernels}
        assert sorted(tokens) == ["n1", "n2"]
        for node, token in tokens.items():
            asyncio.run(play.exchange(node))
            asyncio.run(play.exchange(node, accepted(token), ready(token, port=1)))

        def report(mine: Play, node: str, *facts: KernelFact) -> Callable[[], Awaitable[object]]:
            return lambda: mine.exchange(node, *facts)

        at_once(
            threads,
            report(others[0], "n1", result(tokens["n1"], code)),
            report(others[1], "n2", result(tokens["n2"], 0)),
        )
        session = asyncio.run(play.session(id_))
        assert session.phase is Phase.STOPPING, "both results are in, and it was not decided"
        at_once(
            threads,
            report(others[0], "n1", exited(tokens["n1"])),
            report(others[1], "n2", exited(tokens["n2"])),
        )
        session = asyncio.run(play.session(id_))
        assert (session.phase, session.outcome) == (Phase.ENDED, "failed" if code else "succeeded")
        assert asyncio.run(play.facts(id_)).count("decided") == 1
        sound(stores[2])


def _as_node(play: Play, store: Store) -> Play:
    """The same nodes, talking to another manager."""
    other = Play(store)
    other.share_nodes(play)
    return other


def test_a_cancel_against_the_exchange_that_serves_the_claim(
    stores: list[PostgresStore], threads: ThreadPoolExecutor
) -> None:
    """Either the claim was withdrawn and no node hears of it, or it was served and only the node's word ends it."""
    play = Play(stores[0])
    asyncio.run(play.join("n1"))
    node = _as_node(play, stores[1])
    outcomes = {"withdrawn": 0, "served": 0}
    for round_ in range(ROUNDS * 4):
        (id_,) = asyncio.run(play.submit_and_claim(spec()))
        (token,) = asyncio.run(play.tokens([id_]))
        moves: list[Callable[[], Awaitable[object]]] = [
            lambda: node.exchange("n1"),
            lambda id_=id_: Play(stores[2]).cancel(id_),
        ]
        desired = at_once(threads, *(moves if round_ % 2 else moves[::-1]))[0 if round_ % 2 else 1]
        heard = [order.token for order in desired.orders if order.launch is not None]  # type: ignore[attr-defined]
        session = asyncio.run(play.session(id_))
        if session.phase is Phase.ENDED:
            outcomes["withdrawn"] += 1
            assert token not in heard
        else:
            outcomes["served"] += 1
            assert session.phase is Phase.STOPPING
            assert (asyncio.run(play.kernels(id_)))[0].certificate is None
            asyncio.run(node.exchange("n1", *whole_run(token)))
            assert asyncio.run(play.session(id_)).phase is Phase.ENDED
    sound(stores[0])
    assert min(outcomes.values()) > 0, f"one side always won, so nothing was raced: {outcomes}"


def test_a_result_against_a_cancel_and_a_sweep_ends_once(
    stores: list[PostgresStore], threads: ThreadPoolExecutor
) -> None:
    play = Play(stores[0])
    asyncio.run(play.join("n1"))
    node = _as_node(play, stores[0])
    for _ in range(ROUNDS):
        (id_,) = asyncio.run(play.submit_and_claim(spec()))
        (token,) = asyncio.run(play.tokens([id_]))
        asyncio.run(node.exchange("n1"))

        def make_due(tx: Tx, id_: str = id_) -> None:
            tx.postpone([id_], tx.now - 1)

        asyncio.run(stores[0].tx("due", make_due))
        moves: list[Callable[[], Awaitable[object]]] = [
            lambda token=token: node.exchange("n1", *whole_run(token)),
            lambda id_=id_: Play(stores[1]).cancel(id_),
            lambda: sweep_due(stores[2], BY),
        ]
        at_once(threads, *moves)
        session = asyncio.run(play.session(id_))
        assert (session.phase, session.outcome) == (Phase.ENDED, "succeeded"), "the real result wins"
        facts = asyncio.run(play.facts(id_))
        assert facts.count("released") == 1
    sound(stores[2])


def test_deadlocked_transactions_are_both_done_in_the_end(
    stores: list[PostgresStore], threads: ThreadPoolExecutor, postgres_url_migrated: str
) -> None:
    """Bodies that lock in opposite orders, against the rule: the server picks a victim, and its body runs again."""
    asyncio.run(Play(stores[0]).join("n1"))
    asyncio.run(Play(stores[0]).join("n2"))
    tries: list[str] = []

    def in_order(store: Store, first: str, second: str) -> Callable[[], Awaitable[None]]:
        meet = gates[first]

        def body(tx: Tx) -> None:
            tries.append(first)
            tx.lock([first], ())
            if tries.count(first) == 1:
                meet.set()
                assert gates[second].wait(TOGETHER_S)
            tx.lock([second], ())
            tx.back_off(first, float(len(tries)))

        async def move() -> None:
            await store.tx("cross", body)

        return move

    gates = {"n1": threading.Event(), "n2": threading.Event()}
    at_once(threads, in_order(stores[0], "n1", "n2"), in_order(stores[1], "n2", "n1"))
    assert len(tries) == 3
    nodes = asyncio.run(stores[0].read("nodes", lambda reads: reads.nodes()))
    assert all(node.backoff_until > 0 for node in nodes.values())
    with psycopg.connect(postgres_url_migrated) as direct:
        assert direct.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone() == (0,)


def test_cancels_of_a_waiting_session_at_several_managers_are_one_cancel(
    stores: list[PostgresStore], threads: ThreadPoolExecutor
) -> None:
    play = Play(stores[0])
    for _ in range(ROUNDS):
        (id_,) = asyncio.run(play.submit(spec()))
        moves = [lambda store=store, id_=id_: Play(store).cancel(id_) for store in stores]
        assert {session.phase for session in at_once(threads, *moves)} == {Phase.ENDED}
        assert asyncio.run(play.facts(id_)) == ["submitted", "cancel", "unwanted"]


def test_equal_keys_at_several_managers_make_one_session(
    stores: list[PostgresStore], threads: ThreadPoolExecutor
) -> None:
    for round_ in range(ROUNDS):

        def submit(store: Store, key: str = f"key-{round_}") -> Callable[[], Awaitable[str]]:
            async def move() -> str:
                new = new_session(spec(), key, "same")
                return (await store.tx("submit", lambda tx: tx.submit([new])))[0].id

            return move

        assert len(set(at_once(threads, *(submit(store) for store in stores)))) == 1

    def count(reads: Reads) -> dict[str, int]:
        return reads.count_sessions()

    assert asyncio.run(stores[0].read("count", count)) == {"pending": ROUNDS}


def test_registrations_of_one_name_at_several_managers_let_one_agent_in(
    stores: list[PostgresStore], threads: ThreadPoolExecutor
) -> None:
    for round_ in range(ROUNDS):

        def join(store: Store, agent: int, name: str = f"n{round_}") -> Callable[[], Awaitable[bool]]:
            async def move() -> bool:
                try:
                    await Play(store).join(name, incarnation=f"agent-{agent}", nonces=("", f"nonce-{agent}"))
                except Exception:
                    return False
                return True

            return move

        assert sorted(at_once(threads, *(join(store, index) for index, store in enumerate(stores)))) == [
            False,
            False,
            True,
        ]


def test_who_only_notes_why_others_wait_holds_up_nobody_who_waits_for_him(
    stores: list[PostgresStore], threads: ThreadPoolExecutor
) -> None:
    """Whoever needs several sessions locks them by id; a pass tells them in the order in which they wait."""
    first, second = sorted(asyncio.run(Play(stores[0]).submit(spec(), spec())))
    tries: Counter[str] = Counter()
    begun = threading.Event()

    def ask_both(tx: Tx) -> None:
        tries["ask"] += 1
        tx.lock((), [first])
        begun.set()
        deadline = time.monotonic() + 20
        while not tx._rows(WAITS) and time.monotonic() < deadline:  # type: ignore[attr-defined]
            pass
        tx.lock((), [second])

    def note(tx: Tx) -> None:
        tries["note"] += 1
        start = Promise(1.0, 1.0, "default")
        starts = NewStarts({second: start}, [first], {}, {}, {second: start})
        commit(tx, Plan(), {second: "[]", first: "[]"}, BY, ahead=Ahead(starts))

    async def asking() -> None:
        await stores[1].tx("ask", ask_both)

    async def noting() -> None:
        assert await asyncio.to_thread(begun.wait, 20)
        await stores[2].tx("place", note)

    at_once(threads, asking, noting)
    assert tries == {"ask": 1, "note": 1}


@pytest.mark.parametrize("moved", ["placed", "pinned"])
def test_who_finds_a_session_moved_begins_again_with_no_lock_held(stores: list[PostgresStore], moved: str) -> None:
    """A transaction that waits for one more node while it holds a session could be waited for by who has that node."""
    play = Play(stores[0])
    asyncio.run(play.join("n1", cpus=2))
    (id_,) = asyncio.run(play.submit(spec(cpus=2)))
    tries: list[list[tuple[list[str], list[str]]]] = []

    def body(tx: Tx) -> None:
        locks: list[tuple[list[str], list[str]]] = []
        tries.append(locks)
        lock = tx.lock

        def noted(nodes: Iterable[str], sessions: Iterable[str]) -> None:
            nodes, sessions = sorted(nodes), sorted(sessions)
            if len(tries) == 1 and not locks:  # it has looked, and does not hold it yet
                asyncio.run(stores[1].tx(moved, meanwhile))
            locks.append((nodes, sessions))
            lock(nodes, sessions)

        tx.lock = noted  # type: ignore[method-assign]
        assert set(lock_with_nodes(tx, [id_])) == {id_}

    def meanwhile(tx: Tx) -> None:
        snapshot = tx.snapshot(8)
        if moved == "placed":
            assert commit(tx, cycle(snapshot), {}, BY, claiming=True) == 1
            return
        session = tx.sessions([id_])[id_]
        tx.lock(["n1"], [id_])
        entry = Entry("preempting", session.phase, session.phase, 1, BY)
        tx.write([change_of(session, session._replace(room_by=tx.now + 60), entry)], BY)
        tx._run("INSERT INTO pin (token, device, owner, node, expires_at) "  # type: ignore[attr-defined]
                "VALUES ('t', '', :id, 'n1', :at)", id=id_, at=tx.now + 60)  # fmt: skip

    asyncio.run(stores[0].tx("look", body))
    assert tries == [[([], [id_])], [(["n1"], [id_])]]
