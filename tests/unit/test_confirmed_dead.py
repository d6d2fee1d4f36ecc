"""A node that an operator took for dead returns all the same: it is told to end what it still runs."""

import random

from corral import wire
from corral.model.node import Inventory, NodeState
from corral.model.session import FactKind, KernelFact
from corral.model.spec import SessionSpec
from corral.ports import NewSession
from corral.reconcile import exchange, intents, placement
from corral.scheduling.cycle import cycle
from corral.testing.faults import Faults
from corral.testing.sim_store import RATES, SimDatabase
from corral.testing.simloop import SimLoop


def test_a_node_that_returns_after_confirm_dead_is_told_to_stop() -> None:
    loop = SimLoop(random.Random(1))
    database = SimDatabase(loop, Faults(1, RATES), 0.0)
    count = iter(range(1000))

    def tx(fn):
        return database.write("x", str(next(count)), fn, stands=True)[0]

    def register(incarnation: str, nonces: tuple[str, str]) -> wire.Registered:
        message = wire.Registration(
            name="n1", group="default", boot_id="b", run_id="r", incarnation=incarnation, hardware_id="h",
            nonces=nonces, address="n1", inventory=Inventory(4000, 4096),
        )  # fmt: skip
        return tx(lambda t: exchange.register(t, message, "m"))

    def talk(incarnation: str, nonces: tuple[str, str], facts: list[KernelFact]) -> wire.Desired:
        message = wire.Exchange(
            node="n1", incarnation=incarnation, epoch=1, boot_id="b", run_id="r", nonces=nonces, facts=facts
        )
        return tx(lambda t: exchange.exchange(t, message, "m", "http://m"))

    register("i", ("0", "1"))
    tx(lambda t: intents.submit(t, [NewSession("s", SessionSpec(command=("sleep", "600"), requeue=False), "a")], "a"))
    plan = cycle(tx(lambda t: t.snapshot(10)))
    tx(lambda t: placement.commit(t, plan, {}, "m"))
    tx(lambda t: placement.claim(t, ["s"], "m"))
    (order,) = talk("i", ("1", "2"), []).orders
    talk("i", ("2", "3"), [KernelFact(order.token, FactKind.READY, 0.0)])
    loop.now_s += 200
    tx(lambda t: t.set_node_state(["n1"], NodeState.UNREACHABLE, t.now - 30))
    assert tx(lambda t: intents.confirm_dead(t, "n1", "user:admin")) == ["s"]
    assert tx(lambda t: t.sessions(["s"])["s"]).phase == "ended"

    register("j", ("3", "4"))
    (told,) = talk("j", ("4", "5"), []).orders
    assert told.token == order.token and told.stop is not None and told.launch is None
    ended = KernelFact(order.token, FactKind.EXITED, 0.0)
    talk("j", ("5", "6"), [ended])
    assert tx(lambda t: t.sessions(["s"])["s"]).phase == "ended"
