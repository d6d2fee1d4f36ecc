"""The simulated loop: time, order, kill, pause, limits, and what it says when something went wrong."""

from __future__ import annotations

import asyncio
import gc
import random
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from corral.testing.faults import Faults
from corral.testing.process import SimProcess, yield_once
from corral.testing.simloop import SimLoop
from corral.testing.steps import Dead, Deadlock, LimitReached, SimulationError
from corral.testing.trace import Trace


def make_loop(seed: int = 1, **limits: Any) -> SimLoop:
    return SimLoop(random.Random(seed), **limits)


def make_process(loop: SimLoop, name: str = "p", incarnation: int = 1) -> SimProcess:
    return SimProcess(loop, Faults.none(), name, incarnation)


def run(main: Callable[..., Coroutine[Any, Any, Any]], loop: SimLoop | None = None) -> Any:
    loop = loop or make_loop()
    try:
        return loop.run(main(loop))
    finally:
        loop.close()


def test_time_is_virtual_and_moves_only_when_nothing_is_ready() -> None:
    async def main(loop: SimLoop) -> float:
        await yield_once()
        assert loop.now_s == 0.0
        await asyncio.sleep(3600.5)
        return loop.time()

    assert run(main) == 3600.5


def test_with_a_step_that_takes_time_a_kill_falls_into_the_middle_of_a_burst() -> None:
    def steps_before_the_kill(step_s: float) -> int:
        done = [0]

        async def main(loop: SimLoop) -> None:
            process = make_process(loop)

            async def burst() -> None:
                await process.sleep(1.0)
                for _ in range(100):
                    done[0] += 1
                    await yield_once()

            process.spawn(burst())
            loop.at(1.0005, process.kill)
            await asyncio.sleep(10)

        run(main, make_loop(step_s=step_s))
        return done[0]

    assert steps_before_the_kill(0.0) == 100
    assert 10 < steps_before_the_kill(0.00002) < 90


def test_the_seed_chooses_the_order_of_what_is_ready() -> None:
    def order(seed: int) -> tuple[int, ...]:
        seen: list[int] = []

        async def main(loop: SimLoop) -> None:
            for number in range(3):
                loop.call_soon(seen.append, number)
            await asyncio.sleep(1)

        run(main, make_loop(seed))
        return tuple(seen)

    orders = {order(seed) for seed in range(100)}
    assert len(orders) == 6, "every order of three steps is found"
    assert order(7) == order(7)


def test_asyncio_works_on_it() -> None:
    async def worker(queue: asyncio.Queue[int], gate: asyncio.Semaphore, lock: asyncio.Lock, out: list[int]) -> None:
        while True:
            item = await queue.get()
            async with gate, lock:
                await asyncio.sleep(0.1)
                out.append(item)
            queue.task_done()

    async def main(loop: SimLoop) -> list[int]:
        queue, out = asyncio.Queue[int](), list[int]()
        lock, gate = asyncio.Lock(), asyncio.Semaphore(2)
        workers = [asyncio.create_task(worker(queue, gate, lock, out)) for _ in range(3)]
        for item in range(10):
            queue.put_nowait(item)
        await queue.join()
        for task in workers:
            task.cancel()
        assert all(
            isinstance(e, asyncio.CancelledError) for e in await asyncio.gather(*workers, return_exceptions=True)
        )
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.Event().wait()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(loop.create_future()), 2)
        assert asyncio.get_running_loop() is loop
        return out

    assert sorted(run(main)) == list(range(10))


def test_a_killed_process_never_runs_again_not_even_finally() -> None:
    traces: list[str] = []

    async def victim(process: SimProcess) -> None:
        try:
            while True:
                traces.append("step")
                await process.sleep(1.0)
        finally:
            traces.append("finally")

    async def main(loop: SimLoop) -> None:
        process = make_process(loop)
        process.spawn(victim(process))
        await asyncio.sleep(2.5)
        process.kill()
        await asyncio.sleep(100)
        gc.collect()
        assert traces == ["step"] * 3

    run(main)


def test_close_releases_coroutines_quietly_and_their_finally_can_do_nothing() -> None:
    outcomes: list[str] = []
    loop = make_loop()
    process = make_process(loop)

    async def child() -> None:
        await process.sleep(1e6)

    async def stubborn() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(child())
                await process.sleep(1e6)
        finally:
            try:
                process.point("anything")
            except Dead:
                outcomes.append("dead")
            await process.sleep(1)
            outcomes.append("went on")

    async def main() -> None:
        process.spawn(stubborn())
        process.spawn(child())
        await asyncio.sleep(1)
        process.spawn(child())  # has not begun when the run ends

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loop.run(main())
        loop.close()
        gc.collect()
    assert outcomes == ["dead"]
    assert not process.tasks


def test_a_paused_process_goes_on_later_with_its_timers_overdue() -> None:
    async def main(loop: SimLoop) -> list[float]:
        process, woke = make_process(loop), list[float]()

        async def sleeper() -> None:
            for _ in range(3):
                await process.sleep(1.0)
                woke.append(loop.now_s)

        process.spawn(sleeper())
        await asyncio.sleep(1.5)
        process.pause()
        await asyncio.sleep(20)
        assert woke == [1.0]
        process.resume()
        await asyncio.sleep(5)
        return woke

    assert run(main) == [1.0, 21.5, 22.5]


def test_a_process_killed_while_paused_stays_dead() -> None:
    async def main(loop: SimLoop) -> list[str]:
        process, seen = make_process(loop), list[str]()

        async def body() -> None:
            await process.sleep(1.0)
            seen.append("woke")

        process.spawn(body())
        await asyncio.sleep(0.5)
        process.pause()
        await asyncio.sleep(5)
        process.kill()
        process.resume()
        await asyncio.sleep(5)
        return seen

    assert run(main) == []


def test_a_timer_of_the_world_survives_the_process_that_set_it() -> None:
    async def main(loop: SimLoop) -> list[str]:
        process, seen = make_process(loop), list[str]()

        async def body() -> None:
            loop.at(5.0, seen.append, "world")
            loop.call_later(5.0, seen.append, "own")
            await process.sleep(1e6)

        process.spawn(body())
        await asyncio.sleep(1)
        process.kill()
        await asyncio.sleep(10)
        return seen

    assert run(main) == ["world"]


def test_tasks_made_by_a_process_belong_to_it() -> None:
    async def main(loop: SimLoop) -> list[str]:
        process, seen = make_process(loop), list[str]()

        async def grandchild() -> None:
            await asyncio.sleep(5)
            seen.append("grandchild")

        async def body() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(grandchild())

        process.spawn(body())
        await asyncio.sleep(1)
        process.kill()
        await asyncio.sleep(10)
        return seen

    assert run(main) == []


def test_waiting_for_nothing_is_a_deadlock_that_names_who_waits() -> None:
    async def main(loop: SimLoop) -> None:
        process = make_process(loop, "m0")

        async def forlorn() -> None:
            await loop.create_future()

        process.spawn(forlorn(), name="launcher")
        await loop.create_future()

    with pytest.raises(SimulationError, match=r"m0#1/launcher") as caught:
        run(main)
    assert isinstance(caught.value.__cause__, Deadlock)


@pytest.mark.parametrize(
    ("limits", "pause_s", "message"),
    [
        ({"max_steps": 500}, 0.1, "500 steps used up"),
        ({"max_time_s": 60.0}, 1.0, "60.0 s of virtual time used up"),
        ({}, 0.0, "100000 steps without a rest used up"),
    ],
)
def test_a_run_that_never_ends_is_stopped(limits: dict[str, Any], pause_s: float, message: str) -> None:
    async def main(loop: SimLoop) -> None:
        while True:
            await asyncio.sleep(pause_s)

    with pytest.raises(SimulationError, match=message) as caught:
        run(main, make_loop(**limits))
    assert isinstance(caught.value.__cause__, LimitReached)


def test_an_error_in_a_spawned_task_is_reported_at_once_with_its_place() -> None:
    loop = make_loop()

    async def fails() -> None:
        await asyncio.sleep(2)
        raise ValueError("broken")

    async def main(loop: SimLoop) -> None:
        make_process(loop, "m1").spawn(fails())
        await asyncio.sleep(100)

    with pytest.raises(SimulationError, match=r"t=2\.000 s, m1#1.*broken") as caught:
        run(main, loop)
    assert isinstance(caught.value.__cause__, ValueError)
    assert loop.now_s == 2.0


def test_an_error_in_a_task_that_nobody_looks_at_is_found_though_it_is_still_referenced() -> None:
    async def fails() -> None:
        raise ValueError("a loop ended silently")

    async def main(loop: SimLoop) -> None:
        kept = asyncio.create_task(fails())
        await asyncio.sleep(100)
        assert kept.done()

    with pytest.raises(SimulationError, match="a loop ended silently"):
        run(main)


def test_many_tasks_are_let_go_and_an_old_unseen_error_among_them_is_found() -> None:
    loop = make_loop()

    async def fails() -> None:
        raise ValueError("early")

    async def main(loop: SimLoop) -> None:
        kept = asyncio.create_task(fails())
        for _ in range(2000):
            await asyncio.create_task(asyncio.sleep(1))
        assert kept.done()

    with pytest.raises(SimulationError, match="early"):
        run(main, loop)
    assert loop.now_s < 1000, "found while it ran, not at its end"


def test_an_error_that_is_taken_is_no_failure() -> None:
    async def fails() -> None:
        await asyncio.sleep(1)
        raise ValueError("expected")

    async def main(loop: SimLoop) -> None:
        with pytest.raises(ValueError, match="expected"):
            await asyncio.create_task(fails())
        with pytest.raises(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(fails())
        await asyncio.gather(fails(), fails(), return_exceptions=True)
        last = asyncio.create_task(fails())
        done, _ = await asyncio.wait([last])
        assert isinstance(done.pop().exception(), ValueError)

    run(main)


def test_errors_of_the_dead_are_nobodys() -> None:
    async def main(loop: SimLoop) -> None:
        process = make_process(loop)

        async def fails() -> None:
            raise ValueError("in a process that is dead by now")

        async def body() -> None:
            kept = asyncio.create_task(fails())
            await asyncio.sleep(5)
            assert kept.done()

        process.spawn(body())
        await asyncio.sleep(1)
        process.kill()
        with pytest.raises(Dead):
            process.spawn(fails())
        await asyncio.sleep(1)

    run(main)


def test_the_main_coroutines_error_is_the_runs() -> None:
    async def main(loop: SimLoop) -> None:
        await asyncio.sleep(1)
        raise KeyError("main")

    with pytest.raises(SimulationError, match="the main coroutine failed"):
        run(main)


def test_a_checker_after_each_step_stops_the_run_where_it_finds_something() -> None:
    loop, counter = make_loop(), [0]

    def check() -> None:
        if counter[0] == 3:
            loop.violate("the counter reached three")

    async def main(loop: SimLoop) -> None:
        for _ in range(10):
            await asyncio.sleep(1)
            counter[0] += 1

    loop.after_step = check
    with pytest.raises(SimulationError, match="the counter reached three"):
        run(main, loop)
    assert counter == [3]


@pytest.mark.parametrize("attempt", ["to_thread", "getaddrinfo", "socket", "subprocess", "threadsafe", "signal"])
def test_what_cannot_be_simulated_is_refused(attempt: str) -> None:
    async def main(loop: SimLoop) -> None:
        calls: dict[str, Callable[[], Any]] = {
            "to_thread": lambda: asyncio.to_thread(print),
            "getaddrinfo": lambda: loop.getaddrinfo("localhost", 80),
            "socket": lambda: asyncio.open_connection("127.0.0.1", 1),
            "subprocess": lambda: asyncio.create_subprocess_exec("/bin/true"),
            "threadsafe": lambda: loop.call_soon_threadsafe(print),
            "signal": lambda: loop.add_signal_handler(15, print),
        }
        with pytest.raises((SimulationError, NotImplementedError)):
            await calls[attempt]()

    run(main)


def test_cancelled_timers_do_not_pile_up() -> None:
    async def main(loop: SimLoop) -> int:
        for _ in range(5000):
            async with asyncio.timeout(1000):
                await asyncio.sleep(0.01)
        return len(loop._timers)

    assert run(main) < 300


def test_an_abandoned_async_generator_runs_its_finally_in_its_process() -> None:
    async def main(loop: SimLoop) -> list[str]:
        seen: list[str] = []

        async def numbers() -> AsyncIterator[int]:
            try:
                yield 1
                yield 2
            finally:
                await asyncio.sleep(1)
                seen.append("closed")

        async for _ in numbers():
            break
        await asyncio.sleep(5)
        return seen

    assert run(main) == ["closed"]


def test_sets_of_tasks_have_the_same_order_in_every_run() -> None:
    """A TaskGroup keeps its tasks in a set, and cancels them in the set's order: that must not be that of addresses."""

    def digest() -> str:
        trace = Trace()

        async def main(loop: SimLoop) -> None:
            ballast = [object() for _ in range(random.randrange(1000))]
            with pytest.raises(ExceptionGroup):
                await sleep_together()
            assert ballast is not None

        async def sleep_together() -> None:
            async with asyncio.TaskGroup() as group:
                for number in range(20):
                    group.create_task(asyncio.sleep(100 + number), name=f"sleeper {number}")
                group.create_task(fails())

        async def fails() -> None:
            await asyncio.sleep(1)
            raise ValueError

        run(main, make_loop(5, trace=trace))
        return trace.digest()

    assert len({digest() for _ in range(5)}) == 1


def test_a_loop_runs_once() -> None:
    loop = make_loop()
    run(lambda _: asyncio.sleep(1), loop)
    late = asyncio.sleep(1)
    with pytest.raises(SimulationError, match="runs once"):
        loop.run(late)
    late.close()
