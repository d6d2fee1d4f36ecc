"""The public suites for policies, on every policy of Corral's own; and each seen to catch what it is for."""

from typing import Any

import pytest

from corral.scheduling.policies.order import OrderPolicy
from corral.scheduling.policies.registry import ORDERS
from corral.scheduling.policies.score import PLACEMENTS, Pack, PlacementPolicy
from corral.testing.conformance import OrderConformance, PlacementConformance


class TestOrders(OrderConformance):
    @pytest.fixture(params=sorted(ORDERS))
    def policy(self, request: pytest.FixtureRequest) -> OrderPolicy:
        return ORDERS[request.param]


class TestPlacements(PlacementConformance):
    @pytest.fixture(params=sorted(PLACEMENTS))
    def policy(self, request: pytest.FixtureRequest) -> PlacementPolicy:
        return PLACEMENTS[request.param]


def forgets_one(view) -> Any:
    yield from list(view.waiting)[:-1]


def remembers() -> Any:
    seen: list[int] = []

    def turns(view) -> Any:
        seen.append(1)
        waiting = sorted(view.waiting, key=lambda one: one.ordinal * (-1) ** len(seen))
        for one in waiting:  # noqa: UP028
            yield one

    return turns


def sorts_in_place(view) -> Any:
    view.options["x"] = 1
    for one in view.waiting:  # noqa: UP028
        yield one


@pytest.mark.parametrize("turns", [forgets_one, remembers(), sorts_in_place])
def test_a_bad_order_is_caught(turns: Any) -> None:
    policy, suite = OrderPolicy("bad", turns, "Bad."), OrderConformance()
    failed = 0
    for name in (name for name in dir(suite) if name.startswith("test_")):
        try:
            getattr(suite, name)(policy)
        except Exception:
            failed += 1
    assert failed


class OneNode(Pack):
    """Refuses all nodes but the first."""

    def choose(self, scores: Any, count: int) -> Any:
        return [0] if count == 1 else []


def test_a_bad_placement_is_caught() -> None:
    with pytest.raises(AssertionError):
        PlacementConformance().test_every_plan_made_with_it_is_sound_and_nothing_went_wrong(OneNode)
