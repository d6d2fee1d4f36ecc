"""Order and placement policies: what a group may rely on, whoever wrote the policy."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from corral.model.node import Device, Node, NodeState, ResourceGroup
from corral.model.resources import GpuRequest, Resources
from corral.model.spec import SessionSpec
from corral.scheduling.cycle import cycle
from corral.scheduling.ordering import capacity_of
from corral.scheduling.plan import check
from corral.scheduling.policies.options import complete
from corral.scheduling.policies.order import OrderPolicy, OrderView, Turns
from corral.scheduling.policies.registry import PolicyKind, offer, placement_options, withdraw
from corral.scheduling.policies.score import PlacementPolicy
from corral.scheduling.snapshot import Snapshot, Usage, Waiting, shape_of

GROUP = "policy-suite"
NOW = 1e6
SEEDS = 20
GPUS = (None, GpuRequest(1), GpuRequest(2), GpuRequest(share_milli=250), GpuRequest(share_milli=0, vram_mib=10_000))


def pictures() -> Iterator[Snapshot]:
    """Pictures of all sizes, from nothing at all; the same ones each time."""
    yield Snapshot(NOW, (), {}, (), {GROUP: ResourceGroup(GROUP)})
    for seed in range(SEEDS):
        chance = random.Random(seed)
        nodes = [_node(f"n{number}", chance) for number in range(chance.randrange(0, 6))]
        devices = {node.name: _devices(node.name, chance) for node in nodes}
        waiting = [_waiting(number, chance) for number in range(chance.choice((1, 5, 60)))]
        usage = [
            Usage(GROUP, owner, "p", 1000.0 * chance.randrange(9), gpu_s=9.0)
            for owner in "abc"
            if chance.random() < 0.7
        ]
        yield Snapshot(NOW, nodes, devices, waiting, {GROUP: ResourceGroup(GROUP)}, usage=usage)


def _node(name: str, chance: random.Random) -> Node:
    where = (name, GROUP, NodeState.UP, True, 1, "boot", "run", "agent", "machine", "0", "127.0.0.1")
    return Node(*where, 1000 * chance.randrange(1, 64), 1024 * chance.randrange(1, 256))


def _devices(node: str, chance: random.Random) -> list[Device]:
    count = chance.choice((0, 1, 8))
    return [Device(node, f"{node}-{index}", index, "A100", "sm_80", 80_000) for index in range(count)]


def _waiting(number: int, chance: random.Random) -> Waiting:
    resources = Resources(500 * chance.randrange(1, 20), 512 * chance.randrange(1, 20), chance.choice(GPUS))
    spec = SessionSpec(("x",), resources=resources, group=GROUP, nodes=chance.choice((1, 1, 2)),
                       exclusive=chance.random() < 0.1)  # fmt: skip
    return Waiting(
        id=f"s{number}",
        ordinal=number,
        attempt=chance.choice((1, 1, 3)),
        seq=1,
        priority=chance.randrange(-2, 3),
        owner=chance.choice("abc"),
        project=chance.choice("pq"),
        submitted_at=NOW - chance.choice((0.0, 60.0, 1e5)),
        shape=shape_of(spec),
        time_limit_s=chance.choice((None, 60, 3600)),
        cpu_s=chance.choice((0.0, 50.0)),
        gpu_s=chance.choice((0.0, 5.0)),
    )


class OrderConformance:
    """What an order policy must do, with the defaults of its options. Needs the fixture `policy`."""

    def test_each_session_gets_its_turn_once_whoever_gets_room(self, policy: OrderPolicy) -> None:
        for number, picture in enumerate(pictures()):
            for often in (0.0, 0.5, 1.0):
                chance = random.Random(number)
                turns, answer = policy.turns(self._view(policy, picture)), None
                order: list[str] = []
                while (one := self._next(turns, answer)) is not None:
                    order.append(one.id)
                    assert len(order) <= len(picture.waiting), "it names more than there are"
                    answer = chance.random() < often
                assert sorted(order) == sorted(one.id for one in picture.waiting)

    def test_equal_pictures_give_equal_orders(self, policy: OrderPolicy) -> None:
        for picture in pictures():
            first, second = (self._order(policy, picture) for _ in range(2))
            assert first == second

    def test_it_leaves_what_it_sees_alone(self, policy: OrderPolicy) -> None:
        for picture in pictures():
            view = self._view(policy, picture)
            before = (list(view.waiting), dict(view.options), list(view.usage))
            for _ in policy.turns(view):
                pass
            assert (list(view.waiting), dict(view.options), list(view.usage)) == before

    def test_its_options_and_itself_say_what_they_do(self, policy: OrderPolicy) -> None:
        assert policy.help
        assert all(option.help for option in policy.options.values())
        defaults = {name: option.default for name, option in policy.options.items()}
        assert complete(policy.options, defaults, policy.name) == defaults

    def _order(self, policy: OrderPolicy, picture: Snapshot) -> list[str]:
        return [one.id for one in policy.turns(self._view(policy, picture))]

    def _view(self, policy: OrderPolicy, picture: Snapshot) -> OrderView:
        options = complete(policy.options, {}, policy.name)
        return OrderView(
            picture.now, tuple(picture.waiting), options, tuple(picture.usage), capacity_of(picture, GROUP)
        )

    def _next(self, turns: Turns, answer: bool | None) -> Waiting | None:
        try:
            return turns.send(answer)
        except StopIteration:
            return None


class PlacementConformance:
    """What a placement policy must do, with the defaults of its options. Needs the fixture `policy`."""

    def test_every_plan_made_with_it_is_sound_and_nothing_went_wrong(self, policy: PlacementPolicy) -> None:
        offer(PolicyKind.PLACEMENT, GROUP, lambda: policy)
        try:
            for picture in pictures():
                chosen = replace(picture, groups={GROUP: ResourceGroup(GROUP, placement=GROUP)})
                plan = cycle(chosen)
                told = {
                    why.message for answer in plan.refusals.values() for why in answer if why.code == "group_broken"
                }
                assert not told, told
                assert check(chosen, plan) == []
                assert plan == cycle(chosen), "equal pictures, equal plans"
                fifo = cycle(picture)
                assert bool(plan.placements) == bool(fifo.placements), "it ranks, it never refuses"
        finally:
            withdraw(PolicyKind.PLACEMENT, GROUP)

    def test_its_options_and_itself_say_what_they_do(self, policy: PlacementPolicy) -> None:
        assert policy.__doc__
        assert all(option.help for option in placement_options(policy).values())
