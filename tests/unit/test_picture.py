"""A picture kept from pass to pass is what is there, and the plan made of it that of everything read anew."""

import random
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from hypothesis import given, settings
from hypothesis import strategies as st

from corral.ports import Reads, Tx
from corral.store.wakeups import Hints
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
        self._operations = iter(range(10**9))

    async def tx(self, name: str, fn: Callable[[Tx], T]) -> T:
        return self.database.write(name, str(next(self._operations)), fn, stands=True)[0]

    async def read(self, name: str, fn: Callable[[Reads], T]) -> T:
        return self.database.read(fn)

    def sleep(self, seconds: float) -> None:
        self.loop.now_s += seconds


def done(work: Coroutine[Any, Any, T]) -> T:
    """What never waits for anything is done at its first step."""
    try:
        work.send(None)
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
