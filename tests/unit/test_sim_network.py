"""The simulated network: each way a request can go wrong, one at a time, seen to happen."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from corral.testing.faults import Faults
from corral.testing.network import Refused, Reset, SimNetwork, TimedOut
from corral.testing.process import SimProcess
from corral.testing.simloop import SimLoop
from corral.testing.steps import SimulationError


class Pair:
    """A client and a server that echoes, with what the server saw."""

    def __init__(self, loop: SimLoop, faults: Faults, takes_s: float = 0.0) -> None:
        self.loop = loop
        self.faults = faults
        self.network = SimNetwork(loop, faults)
        self.client = SimProcess(loop, faults, "client")
        self.takes_s = takes_s
        self.seen: list[tuple[bytes, str]] = []
        self.server = self.start_server(1)

    def start_server(self, incarnation: int) -> SimProcess:
        server = SimProcess(self.loop, self.faults, "server", incarnation)

        async def serve(payload: bytes, caller: str) -> bytes:
            self.seen.append((payload, caller))
            await server.sleep(self.takes_s)
            return payload + b" from %d" % server.incarnation

        self.network.listen(server, "server", serve)
        return server

    async def ask(self, payload: bytes = b"hello", timeout_s: float = 5.0) -> bytes:
        return await self.client.spawn(self._asked(payload, timeout_s))

    async def _asked(self, payload: bytes, timeout_s: float) -> bytes | Exception:
        try:
            return await self.network.request(self.client, "server", payload, timeout_s)
        except (Refused, Reset, TimedOut) as error:
            return error


def run(main: Callable[[Pair], Awaitable[None]], *always: str, takes_s: float = 0.0, seed: int = 1) -> Faults:
    loop, faults = SimLoop(random.Random(seed)), Faults.none(seed)
    faults.always(*always)

    async def body() -> None:
        await main(Pair(loop, faults, takes_s))

    try:
        loop.run(body())
    finally:
        loop.close()
    return faults


def test_an_answer_comes_back_after_two_trips() -> None:
    async def main(pair: Pair) -> None:
        assert await pair.ask() == b"hello from 1"
        assert pair.seen == [(b"hello", "client")]
        assert 0 < pair.loop.now_s < 0.1

    run(main)


def test_a_request_may_stay_parked() -> None:
    async def main(pair: Pair) -> None:
        assert await pair.ask(timeout_s=30.0) == b"hello from 1"
        assert pair.loop.now_s > 20.0

    run(main, takes_s=20.0)


def test_nobody_there_is_refused() -> None:
    async def main(pair: Pair) -> None:
        pair.server.kill()
        assert isinstance(await pair.ask(), Refused)
        assert pair.seen == []

    run(main)


def test_a_new_incarnation_serves_under_the_same_name() -> None:
    async def main(pair: Pair) -> None:
        pair.server.kill()
        pair.start_server(2)
        assert await pair.ask() == b"hello from 2"

    run(main)


def test_the_death_of_an_old_incarnation_takes_nothing_from_the_new() -> None:
    async def main(pair: Pair) -> None:
        pair.start_server(2)
        pair.server.kill()
        assert await pair.ask() == b"hello from 2"

    run(main)


def test_a_server_that_dies_with_the_request_in_hand_resets_it() -> None:
    async def main(pair: Pair) -> None:
        pair.loop.at(1.0, pair.server.kill)
        assert isinstance(await pair.ask(), Reset)
        assert len(pair.seen) == 1
        assert pair.loop.now_s < 1.1

    run(main, takes_s=3.0)


def test_a_machine_that_loses_power_says_nothing_and_refuses_nothing() -> None:
    async def main(pair: Pair) -> None:
        pair.loop.at(1.0, pair.server.kill, True)
        assert isinstance(await pair.ask(), TimedOut)
        pair.network.darken("server")
        assert isinstance(await pair.ask(), TimedOut)
        pair.network.lighten("server")
        assert isinstance(await pair.ask(), Refused)

    run(main, takes_s=3.0)


def test_a_stopped_server_answers_nobody_until_it_goes_on() -> None:
    async def main(pair: Pair) -> None:
        pair.server.pause()
        assert isinstance(await pair.ask(), TimedOut)
        assert pair.seen == []
        pair.server.resume()
        await asyncio.sleep(1)
        assert pair.seen == [(b"hello", "client")], "the request of long ago is served after all"

    run(main)


def test_a_lost_request_has_no_effect_and_a_lost_answer_has() -> None:
    async def unanswered(pair: Pair) -> None:
        assert isinstance(await pair.ask(), TimedOut)
        assert pair.loop.now_s == 5.0

    async def lost_request(pair: Pair) -> None:
        await unanswered(pair)
        assert pair.seen == []

    async def lost_answer(pair: Pair) -> None:
        await unanswered(pair)
        assert len(pair.seen) == 1

    assert run(lost_request, "network.drop_request").counts["network.drop_request"] == 1
    assert run(lost_answer, "network.drop_reply").counts["network.drop_reply"] == 1


def test_a_connection_that_breaks_after_the_work_is_a_reset() -> None:
    async def main(pair: Pair) -> None:
        assert isinstance(await pair.ask(), Reset)
        assert len(pair.seen) == 1

    run(main, "network.reset")


def test_a_repeated_request_is_served_twice_and_answered_once() -> None:
    async def main(pair: Pair) -> None:
        assert await pair.ask() == b"hello from 1"
        await asyncio.sleep(20)
        assert pair.seen == [(b"hello", "client")] * 2

    run(main, "network.duplicate")


def test_a_repeated_request_is_never_refused_since_its_copy_may_be_served() -> None:
    async def main(pair: Pair) -> None:
        pair.server.kill()
        pair.loop.at(0.05, pair.start_server, 2)
        answers = [await pair.ask(f"{number}".encode()) for number in range(20)]
        assert not any(isinstance(answer, Refused) for answer in answers)

    run(main, "network.duplicate")


def test_a_late_request_arrives_long_after_its_sender_gave_up() -> None:
    async def main(pair: Pair) -> None:
        answers = [await pair.ask(f"{number}".encode(), timeout_s=0.5) for number in range(10)]
        assert any(isinstance(answer, TimedOut) for answer in answers)
        served = len(pair.seen)
        await asyncio.sleep(100)
        assert served < len(pair.seen) == 10

    run(main, "network.late")


def test_requests_overtake_one_another() -> None:
    async def main(pair: Pair) -> None:
        await asyncio.gather(*(pair.ask(f"{number}".encode()) for number in range(10)))
        order = [payload for payload, _ in pair.seen]
        assert sorted(order) == [f"{number}".encode() for number in range(10)]
        assert order != sorted(order)

    run(main)


@pytest.mark.parametrize(("source", "target", "served"), [("client", "server", 0), ("server", "client", 1)])
def test_a_link_can_be_cut_one_way(source: str, target: str, served: int) -> None:
    async def main(pair: Pair) -> None:
        pair.network.cut(source, target)
        assert isinstance(await pair.ask(), TimedOut)
        assert len(pair.seen) == served
        pair.network.mend(source, target)
        assert await pair.ask() == b"hello from 1"

    run(main)


def test_an_answer_to_a_dead_client_is_nobodys() -> None:
    async def main(pair: Pair) -> None:
        asking = pair.client.spawn(pair.network.request(pair.client, "server", b"x", 5.0))
        await asyncio.sleep(0.5)
        pair.client.kill()
        await asyncio.sleep(20)
        assert not asking.done()
        assert len(pair.seen) == 1

    run(main, takes_s=2.0)


def test_an_error_of_the_server_fails_the_run() -> None:
    async def main(pair: Pair) -> None:
        async def broken(payload: bytes, caller: str) -> bytes:
            raise ValueError("a 500")

        pair.network.listen(pair.server, "server", broken)
        await pair.ask()

    with pytest.raises(SimulationError, match=r"server#1.*a 500"):
        run(main)
