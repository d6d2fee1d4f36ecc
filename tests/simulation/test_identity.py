"""Who may say that a node was rebooted: not a request that was under way too long, nor a copy of the machine."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from corral import wire
from corral.model.faults import Refused
from corral.model.node import Inventory
from corral.reconcile.exchange import NODE_TIMEOUT_S, exchange, register
from corral.testing.faults import Faults
from corral.testing.sim_store import RATES, SimDatabase
from corral.testing.simloop import SimLoop


class Office:
    """A manager and its database, asked by hand."""

    def __init__(self) -> None:
        self.loop = SimLoop(random.Random(1))
        self.database = SimDatabase(self.loop, Faults(1, RATES), 0.0)
        self.operations = 0

    def wait(self, seconds: float) -> None:
        self.loop.now_s += seconds

    def register(self, boot: str, *nonces: str) -> wire.Registered:
        message = wire.Registration(
            name="n0", group="default", boot_id=boot, run_id=f"run-{boot}", incarnation=f"agent-{boot}",
            hardware_id="hardware", nonces=(nonces[0], nonces[1]), address="n0", inventory=Inventory(4000, 4096),
        )  # fmt: skip
        self.operations += 1
        return self.database.write(
            "register", str(self.operations), lambda tx: register(tx, message, "m"), stands=True
        )[0]

    def exchange(self, boot: str, epoch: int, *nonces: str) -> wire.Desired:
        message = wire.Exchange(
            node="n0", incarnation=f"agent-{boot}", epoch=epoch, boot_id=boot, run_id=f"run-{boot}",
            nonces=(nonces[0], nonces[1]),
        )  # fmt: skip
        self.operations += 1
        return self.database.write(
            "exchange", str(self.operations), lambda tx: exchange(tx, message, "m", "u"), stands=True
        )[0]


@pytest.fixture
def office() -> Iterator[Office]:
    made = Office()
    assert made.register("one", "a", "b").epoch == 1
    assert not made.exchange("one", 1, "b", "c").stale
    yield made
    made.database.close()


def test_a_rebooted_node_is_taken_back_once_it_was_silent(office: Office) -> None:
    with pytest.raises(Refused, match="another agent holds the name"):
        office.register("two", "c", "d")
    office.wait(NODE_TIMEOUT_S)
    assert office.register("two", "c", "d") == wire.Registered(epoch=2, generation=1, node_timeout_s=NODE_TIMEOUT_S)


def test_a_request_from_before_the_reboot_changes_nothing(office: Office) -> None:
    office.wait(NODE_TIMEOUT_S)
    office.register("two", "c", "d")
    assert not office.exchange("two", 2, "d", "e").stale
    office.wait(NODE_TIMEOUT_S)
    late = office.register("one", "a", "b")
    assert late.challenge
    assert late.epoch == 2
    assert not office.exchange("two", 2, "e", "f").stale, "the node is who it was"


def test_who_lost_its_nonces_shows_that_it_asks_now(office: Office) -> None:
    office.wait(NODE_TIMEOUT_S)
    challenge = office.register("two", "x", "y").challenge
    assert office.register("two", challenge, "z").epoch == 2
    assert not office.exchange("two", 2, "z", "w").stale


def test_a_copy_is_refused_as_long_as_the_node_is_heard(office: Office) -> None:
    for boot, nonces in (("copy", ("c", "d")), ("copy", ("x", "y")), ("one", ("x", "y"))):
        office.wait(NODE_TIMEOUT_S / 2)
        with pytest.raises(Refused, match="another agent holds the name"):
            office.register(boot, *nonces)
        assert not office.exchange("one", 1, "b", "c").stale


def test_an_agent_that_was_restarted_is_taken_back_at_once(office: Office) -> None:
    assert office.register("one", "c", "d").epoch == 1
