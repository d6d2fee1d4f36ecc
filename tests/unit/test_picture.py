"""A picture kept from pass to pass is what is there, and the plan made of it that of everything read anew."""

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.clock import SystemClock
from corral.model.faults import Unavailable
from corral.ports import Reads, Tx
from corral.reconcile import placement
from corral.reconcile.loops import manager_loops
from corral.scheduling.kept.picture import Changed, Picture
from corral.store.wakeups import Hints
from corral.testing.builders import Play, spec
from corral.testing.faults import Faults
from corral.testing.pictures import Doings
from corral.testing.sim_store import RATES, SimDatabase
from corral.testing.simloop import SimLoop

T = TypeVar("T")


class AtOnce:
    """ports.Store on a database in memory: every transaction is done when it returns."""

    def __init__(self) -> None:
        self.loop = SimLoop(random.Random(1))
        self.wakeups = Hints()
        self.database = SimDatabase(self.loop, Faults(1, RATES), 0.0)
        self.deeds = self.database.deeds
        self._operations = iter(range(10**9))

    async def tx(self, name: str, fn: Callable[[Tx], T]) -> T:
        return self.database.write(name, str(next(self._operations)), fn, stands=True)[0]

    async def read(self, name: str, fn: Callable[[Reads], T]) -> T:
        return self.database.read(fn)

    def sleep(self, seconds: float) -> None:
        self.loop.now_s += seconds


def done(work: Awaitable[T]) -> T:
    """What never waits for anything is done at its first step."""
    try:
        next(work.__await__())
    except StopIteration as stopped:
        return stopped.value
    raise AssertionError("it waits for something")


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_a_picture_is_what_is_there_whatever_happens(data: st.DataObject) -> None:
    store = AtOnce()

    def choose(count: int) -> int:
        return data.draw(st.integers(0, count - 1))

    doings = Doings(store, choose, store.sleep)
    done(doings.begin())
    try:
        for _ in range(data.draw(st.integers(1, 40))):
            done(doings.step())
            assert done(doings.check()) == []
    finally:
        store.database.close()


def test_long_histories() -> None:
    for seed in range(12):
        store, chance = AtOnce(), random.Random(seed)
        doings = Doings(store, chance.randrange, store.sleep)
        done(doings.begin())
        for number in range(150):
            done(doings.step())
            if number % 3 == 0:
                assert done(doings.check()) == [], f"seed {seed}, step {number}"
        store.database.close()


def test_a_pass_that_fails_as_none_should_makes_the_next_one_read_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    store, read = AtOnce(), list[bool]()
    merge = Picture.merge

    def noting(self: Picture, told: Changed, now: float) -> None:
        read.append(told.whole)
        merge(self, told, now)

    def failing(error: Exception) -> Callable[..., Sequence[object]]:
        def cycle(*_: object, **__: object) -> Sequence[object]:
            raise error

        return cycle

    monkeypatch.setattr(Picture, "merge", noting)
    done(Play(store).join("n1"))
    run = next(loop.run for loop in manager_loops(store, "m", "http://m", SystemClock()) if loop.name == "placement")
    for error, whole in (
        (None, True),
        (None, False),
        (Unavailable("database_unreachable", "gone"), False),
        (None, False),
        (KeyError("what should not be"), False),
        (None, True),
        (None, False),
    ):
        done(Play(store).submit(spec(cpus=100)))
        with monkeypatch.context() as patch:
            if error is None:
                done(run())
            else:
                patch.setattr(placement, "cycle", failing(error))
                with pytest.raises(type(error)):
                    done(run())
        assert read.pop() is whole
    store.database.close()
