"""Whose turn it is: each policy's order, groups side by side, and policies that do wrong."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.model.faults import Invalid
from corral.model.node import Node, NodeState, ResourceGroup
from corral.model.resources import Resources
from corral.model.spec import SessionSpec
from corral.scheduling.cycle import cycle
from corral.scheduling.explaining.explain import explain
from corral.scheduling.ordering import ordered
from corral.scheduling.policies.order import Need, OrderPolicy, fifo
from corral.scheduling.policies.registry import (
    ORDERS,
    PolicyKind,
    checked_group,
    names,
    needs_of,
    offer,
    order_policy,
    placement_policy,
    withdraw,
)
from corral.scheduling.policies.score import Pack
from corral.scheduling.snapshot import Snapshot, Waiting, shape_of

HOUR_S = 3600.0
NOW = 1000 * HOUR_S


def a_node(name: str, group: str = "default", cpus: int = 8) -> Node:
    where = (name, group, NodeState.UP, True, 1, "boot", "run", "inc", "hw", "0", "127.0.0.1")
    return Node(*where, cpus * 1000, 16384)


def one(number: int, *, group: str | None = None, cpus: float = 1, **changes) -> Waiting:
    spec = SessionSpec(command=("x",), resources=Resources(int(cpus * 1000), 64), group=group)
    return Waiting(f"s{number}", number, 1, 1, 0, "ann", "default", NOW, shape_of(spec))._replace(**changes)


def a_snapshot(waiting: list[Waiting], *groups: ResourceGroup, nodes: list[Node] | None = None) -> Snapshot:
    nodes = [a_node(f"n-{group.name}", group.name) for group in groups] if nodes is None else nodes
    return Snapshot(NOW, nodes, {}, waiting, {group.name: group for group in groups})


def order_of(snapshot: Snapshot, *, taken: bool = True) -> list[str]:
    refusals: dict = {}
    found: list[str] = []
    for waiting, _ in ordered(snapshot, refusals):
        found.append(waiting.id)
        if not taken:
            refusals[waiting.id] = ()
    return found


def order_by(policy: str, *waiting: Waiting, **options: object) -> list[str]:
    return order_of(a_snapshot(list(waiting), ResourceGroup("default", policy, order_options=options)))


# --- the policies


def test_fifo_and_lifo() -> None:
    rows = (one(2), one(0), one(1))
    assert order_by("fifo", *rows) == ["s0", "s1", "s2"]
    assert order_by("lifo", *rows) == ["s2", "s1", "s0"]


def test_priority_goes_by_bands_and_by_age_within_one() -> None:
    rows = (one(0), one(1, priority=5), one(2, priority=-3), one(3, priority=5))
    assert order_by("priority", *rows) == ["s1", "s3", "s0", "s2"]


def test_waiting_gains_priority_at_the_stated_rate() -> None:
    old = one(1, priority=0, submitted_at=NOW - 4.5 * HOUR_S)
    assert order_by("priority", one(2, priority=4), old) == ["s1", "s2"]
    assert order_by("priority", one(2, priority=5), old) == ["s2", "s1"]
    assert order_by("priority", one(2, priority=5), old, ageing=2) == ["s1", "s2"]
    assert order_by("priority", one(2, priority=1), old, ageing=0) == ["s2", "s1"]


def test_shortest_first_puts_unlimited_last_and_the_patient_first() -> None:
    rows = (one(0), one(1, time_limit_s=600), one(2, time_limit_s=60), one(3, time_limit_s=600))
    assert order_by("shortest-first", *rows) == ["s2", "s1", "s3", "s0"]
    waited = one(4, submitted_at=NOW - 2 * HOUR_S)
    assert order_by("shortest-first", *rows, waited, patience="1h") == ["s4", "s2", "s1", "s3", "s0"]
    assert order_by("shortest-first", *rows, waited, patience="3h")[-1] == "s4"


def test_least_attained_service_counts_gpu_and_cpu_seconds() -> None:
    rows = (one(0, gpu_s=10.0), one(1, cpu_s=100.0), one(2))
    assert order_by("least-attained-service", *rows) == ["s2", "s1", "s0"]
    assert order_by("least-attained-service", *rows, cpu_cost=1) == ["s2", "s0", "s1"]
    old = one(3, gpu_s=99.0, submitted_at=NOW - 25 * HOUR_S)
    assert order_by("least-attained-service", *rows, old)[0] == "s3"


rows_of_any_age = st.lists(
    st.tuples(st.integers(-5, 5), st.floats(0, 100), st.one_of(st.none(), st.integers(1, 9))), min_size=2, max_size=12
)


@given(rows_of_any_age, st.floats(0.1, 10))
def test_nothing_starves_by_priority_while_it_ages(rows: list[tuple[int, float, int | None]], ageing: float) -> None:
    waiting = [one(n, priority=p, submitted_at=NOW - age * HOUR_S) for n, (p, age, _) in enumerate(rows)]
    order = order_by("priority", *waiting, ageing=ageing)
    for first in waiting:
        for second in waiting:
            older_h = (second.submitted_at - first.submitted_at) / HOUR_S
            if older_h > (second.priority - first.priority + 1) / ageing + 1e-6 and older_h > 0:
                assert order.index(first.id) < order.index(second.id)


@given(rows_of_any_age, st.sampled_from(["shortest-first", "least-attained-service"]))
def test_nothing_starves_beyond_its_patience(rows: list[tuple[int, float, int | None]], policy: str) -> None:
    waiting = [
        one(n, submitted_at=NOW - age * HOUR_S, time_limit_s=limit, gpu_s=age) for n, (_, age, limit) in enumerate(rows)
    ]
    order = order_by(policy, *waiting, patience="10h")
    late = [w.id for w in waiting if w.submitted_at <= NOW - 10 * HOUR_S]
    assert order[: len(late)] == late


@given(st.sampled_from(sorted(ORDERS)), st.integers(0, 20), st.booleans())
def test_every_policy_gives_each_its_turn_once(policy: str, count: int, taken: bool) -> None:
    waiting = [one(n, owner="ab"[n % 2], project="xyz"[n % 3], priority=n % 4) for n in range(count)]
    snapshot = a_snapshot(waiting, ResourceGroup("default", policy))
    order = order_of(snapshot, taken=taken)
    assert sorted(order) == sorted(w.id for w in waiting)
    assert order == order_of(snapshot, taken=taken), "equal snapshots, equal orders"


# --- groups side by side


def test_a_session_that_names_no_group_stands_in_the_home_groups_line() -> None:
    rows = [one(0), one(1, priority=9), one(2, priority=5, group="default"), one(3, group="a")]
    groups = (ResourceGroup("a"), ResourceGroup("default", "priority"))
    assert [id_ for id_ in order_of(a_snapshot(rows, *groups)) if id_ != "s3"] == ["s1", "s2", "s0"]
    assert order_of(a_snapshot(rows[:2], ResourceGroup("only", "priority"))) == ["s1", "s0"]
    assert order_of(a_snapshot(rows[:2])) == ["s0", "s1"]


@pytest.mark.parametrize(
    ("home", "expected"),
    [
        (ResourceGroup("default", "lifo"), ["s3", "s2", "s1"]),
        (ResourceGroup("default", "lifo", paused=True), ["s3", "s1"]),
        (ResourceGroup("default", "no-such"), ["s1", "s3"]),
    ],
)
def test_the_home_group_is_the_same_whether_it_takes_sessions_or_not(home, expected) -> None:
    """Who names no group goes by the home group's order all the same, or by age where that is broken."""
    rows = [one(1), one(2, group="default"), one(3)]
    assert order_of(a_snapshot(rows, ResourceGroup("aside", "fifo"), home)) == expected


def test_each_group_has_its_own_order() -> None:
    rows = [one(n, group="ab"[n % 2]) for n in range(6)]
    found = order_of(a_snapshot(rows, ResourceGroup("a"), ResourceGroup("b", "lifo")))
    assert [id_ for id_ in found if id_ in ("s0", "s2", "s4")] == ["s0", "s2", "s4"]
    assert [id_ for id_ in found if id_ in ("s1", "s3", "s5")] == ["s5", "s3", "s1"]


def test_a_paused_group_starts_nothing_and_the_others_do() -> None:
    rows = [one(0, group="a"), one(1, group="b"), one(2)]
    plan = cycle(a_snapshot(rows, ResourceGroup("a", paused=True), ResourceGroup("b", paused=False)))
    assert {placed.session.id: placed.group for placed in plan.placements} == {"s1": "b", "s2": "b"}
    (why,) = plan.refusals["s0"]
    assert why.code == "group_paused" and "corral queue resume a" in why.message
    assert not plan.more


def test_one_answer_for_each_shape_that_is_held_back() -> None:
    rows = [one(n, group="a", cpus=1 + n % 2) for n in range(6)]
    plan = cycle(a_snapshot(rows, ResourceGroup("a", paused=True)))
    assert len(plan.refusals) == 6
    assert len({id(why) for why in plan.refusals.values()}) == 2


# --- policies that do wrong


def raising(view) -> Any:
    yield view.waiting[0]
    raise RuntimeError("no idea")


def raising_at_once(view) -> Any:
    raise RuntimeError("no idea")


def no_generator(view) -> Any:
    return list(view.waiting)


def leaving_out(view) -> Any:
    yield view.waiting[0]


def repeating(view) -> Any:
    yield view.waiting[0]
    yield view.waiting[0]


def foreign(view) -> Any:
    yield view.waiting[0]
    yield view.waiting[1]._replace(id="somebody-elses")


def no_sessions(view) -> Any:
    yield view.waiting[0]
    yield "s2"


@pytest.fixture
def plugged() -> Iterator:
    offered: list[str] = []

    def plug(policy: object, name: str = "strange") -> str:
        def load() -> object:
            if isinstance(policy, Exception):
                raise policy
            return policy

        offer(PolicyKind.ORDER, name, load)
        offered.append(name)
        return name

    yield plug
    for name in offered:
        withdraw(PolicyKind.ORDER, name)


@pytest.mark.parametrize("turns", [raising, leaving_out, repeating, foreign, no_sessions])
def test_a_policy_that_fails_on_the_way_holds_back_the_rest_of_its_own_group(plugged, turns) -> None:
    name = plugged(OrderPolicy("strange", turns, ""))
    rows = [one(n, group="ab"[n % 2]) for n in range(6)]
    plan = cycle(a_snapshot(rows, ResourceGroup("a", name), ResourceGroup("b")))
    assert {placed.session.id for placed in plan.placements} == {"s0", "s1", "s3", "s5"}
    assert {refusal.code for id_ in ("s2", "s4") for refusal in plan.refusals[id_]} == {"group_broken"}
    assert not plan.more


@pytest.mark.parametrize(
    "policy",
    [
        OrderPolicy("strange", raising_at_once, ""),
        OrderPolicy("strange", no_generator, ""),
        OrderPolicy("strange", fifo, "", needs={Need.USED, Need.OWNER}),  # pyright: ignore[reportArgumentType]
        OrderPolicy("strange", fifo, "", options={"x": 1}),  # pyright: ignore[reportArgumentType]
        object(),
        ImportError("x"),
    ],
)
def test_a_policy_that_cannot_begin_holds_back_its_own_group(plugged, policy) -> None:
    name = plugged(policy)
    rows = [one(n, group="ab"[n % 2]) for n in range(6)]
    plan = cycle(a_snapshot(rows, ResourceGroup("a", name), ResourceGroup("b")))
    assert {placed.session.id for placed in plan.placements} == {"s1", "s3", "s5"}
    for id_ in ("s0", "s2", "s4"):
        (why,) = plan.refusals[id_]
        assert why.code == "group_broken" and "group a: " in why.message


def test_what_a_policy_makes_of_a_session_changes_nothing_of_it(plugged) -> None:
    def greedy(view) -> Any:
        for waiting in view.waiting:
            yield waiting._replace(shape=replace(waiting.shape, nodes=99), ordinal=-1)

    name = plugged(OrderPolicy("strange", greedy, ""))
    rows = [one(n, group="a") for n in range(2)]
    plan = cycle(a_snapshot(rows, ResourceGroup("a", name)))
    assert [placed.session for placed in plan.placements] == rows


def test_options_that_no_longer_fit_break_their_group_alone() -> None:
    rows = [one(0, group="a"), one(1, group="b")]
    plan = cycle(a_snapshot(rows, ResourceGroup("a", order_options={"ageing": 1}), ResourceGroup("b")))
    assert {placed.session.id for placed in plan.placements} == {"s1"}
    assert plan.refusals["s0"][0].code == "group_broken" and "ageing" in plan.refusals["s0"][0].message


def test_a_plug_in_orders_and_hears_of_each_pick(plugged) -> None:
    heard: list[bool | None] = []

    def turns(view):
        for waiting in reversed(view.waiting):
            heard.append((yield waiting))

    name = plugged(OrderPolicy("strange", turns, ""))
    plan = cycle(a_snapshot([one(0), one(1, cpus=99), one(2)], ResourceGroup("default", name)))
    assert [placed.session.id for placed in plan.placements] == ["s2", "s0"]
    assert heard == [True, False, True]
    assert name in names(PolicyKind.ORDER) and needs_of(ResourceGroup("g", name)) == frozenset()


def test_names_of_policies_are_corrals_own_first(plugged) -> None:
    plugged(OrderPolicy("fifo", raising, ""), name="fifo")
    assert order_policy("fifo") is ORDERS["fifo"]


@pytest.mark.parametrize("kind", [order_policy, placement_policy])
def test_an_unknown_policy_is_named_with_those_there_are(kind) -> None:
    with pytest.raises(Invalid) as found:
        kind("no-such-policy")
    assert found.value.code == "unknown_policy" and "no-such-policy" in found.value.message
    assert "fifo" in found.value.message or "pack" in found.value.message


# --- options


def test_options_are_stored_in_one_form() -> None:
    group = ResourceGroup(
        "g",
        "fair-share",
        order_options={"half_life": "7d", "owner_weights": "ann:2,bob:0.5", "expected": 60, "cpu_cost": "0.1"},
    )
    stored = checked_group(group)
    assert stored.order_options == {
        "half_life": 604800.0,
        "owner_weights": {"ann": 2.0, "bob": 0.5},
        "expected": 60.0,
        "cpu_cost": 0.1,
    }
    assert checked_group(stored) == stored


@pytest.mark.parametrize(
    ("given", "stored"),
    [("room", "room"), (" rack , room ", "rack,room"), ("", None), ("rack,,room", None), ("rack,rack", None),
     (",".join("abcdefghi"), None), (5, None), ("a b", None)],
)  # fmt: skip
def test_labels_that_make_nodes_near(given: object, stored: str | None) -> None:
    group = ResourceGroup("g", placement="topology", placement_options={"label": given})
    if stored is None:
        with pytest.raises(Invalid, match="label"):
            checked_group(group)
    else:
        assert checked_group(group).placement_options == {"label": stored}


@pytest.mark.parametrize(
    ("order", "options", "code"),
    [
        ("fifo", {"ageing": 1}, "unknown_option"),
        ("no-such-policy", {}, "unknown_policy"),
        ("priority", {"ageing": -1}, "bad_option"),
        ("priority", {"ageing": True}, "bad_option"),
        ("priority", {"ageing": "fast"}, "bad_option"),
        ("priority", {"ageing": float("nan")}, "bad_option"),
        ("priority", {"ageing": "1e999"}, "bad_option"),
        ("priority", {"ageing": [1]}, "bad_option"),
        ("priority", {"ageing": None}, "bad_option"),
        ("shortest-first", {"patience": "a while"}, "bad_option"),
        ("fair-share", {"half_life": 0}, "bad_option"),
        ("drf", {"by": "name"}, "bad_option"),
        ("drf", {"by": ["owner"]}, "bad_option"),
        ("drf", {"weights": {"ann": 0}}, "bad_option"),
        ("drf", {"weights": "ann"}, "bad_option"),
        ("drf", {"weights": 3}, "bad_option"),
        ("drf", {"weights": {"": 1}}, "bad_option"),
        ("drf", {"weights": {f"n{n}": 1 for n in range(1001)}}, "bad_option"),
    ],
)
def test_options_that_make_no_sense_are_refused_by_name(order: str, options: dict[str, object], code: str) -> None:
    with pytest.raises(Invalid) as found:
        checked_group(replace(ResourceGroup("g", order), order_options=options))
    assert found.value.code == code
    assert len(found.value.message) < 400


# --- placement policies that do wrong


class Careless(Pack):
    """As told: does one thing wrong."""

    wrong = ""

    def score(self, rows, shape):
        if self.wrong == "score":
            raise RuntimeError("no idea")
        scores = super().score(rows, shape)
        return scores[:-1] if self.wrong == "length" else scores * np.nan if self.wrong == "nan" else scores

    def choose(self, scores, count):
        return [len(scores)] if self.wrong == "choose" else super().choose(scores, count)

    def device(self, row, columns, shape):
        return 99 if self.wrong == "device" else super().device(row, columns, shape)


def making_none(pool, demand):
    return None


def making_trouble(pool, demand):
    raise RuntimeError("no idea")


@pytest.fixture(params=["", "score", "length", "nan", "choose", making_none, making_trouble])
def careless(request) -> Iterator[str]:
    wrong = request.param
    made = wrong if callable(wrong) else type("Made", (Careless,), {"wrong": wrong})
    offer(PolicyKind.PLACEMENT, "careless", lambda: made)
    yield "" if wrong == "" else "wrong"
    withdraw(PolicyKind.PLACEMENT, "careless")


def test_a_placement_policy_that_fails_holds_back_its_own_group(careless: str) -> None:
    rows = [one(0, group="a"), one(1, group="b"), one(2), one(3, group="a"), one(4, group="a", cpus=2)]
    groups = (ResourceGroup("a", placement="careless"), ResourceGroup("b"))
    plan = cycle(a_snapshot(rows, *groups))
    where = {placed.session.id: placed.group for placed in plan.placements}
    if not careless:
        assert where == {"s0": "a", "s1": "b", "s2": "a", "s3": "a", "s4": "a"}
        return
    assert where == {"s1": "b", "s2": "b"}
    for id_ in ("s0", "s3", "s4"):
        (why,) = plan.refusals[id_]
        assert why.code == "group_broken" and "placement policy failed" in why.message


def test_nodes_of_groups_that_take_nothing_are_counted_as_such() -> None:
    groups = (ResourceGroup("a", paused=True), ResourceGroup("b", "no-such"), ResourceGroup("c"))
    nodes = [a_node("n1", "a"), a_node("n2", "a"), a_node("n3", "b"), a_node("n4", "c", cpus=1)]
    snapshot = a_snapshot([one(0, cpus=4), one(1, cpus=4)], *groups, nodes=nodes)
    plan = cycle(snapshot)
    told = {why.code: why.counts["nodes"] for why in plan.refusals["s0"]}
    assert told == {"group_paused": 2, "group_broken": 1, "not_enough_cpus": 1}
    assert plan.refusals["s0"] is plan.refusals["s1"]
    found = explain(snapshot, snapshot.waiting[0].shape)
    assert not found.fits_now and not found.infeasible
    assert {why.code: why.counts["nodes"] for why in found.refusals} == told
