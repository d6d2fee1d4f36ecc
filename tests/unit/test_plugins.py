"""Policies of other distributions, found by real entry points of real (if small) installed distributions."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from corral.model.faults import Invalid
from corral.model.node import Node, NodeState, ResourceGroup
from corral.model.spec import SessionSpec
from corral.plugins import offer_policies
from corral.scheduling.cycle import cycle
from corral.scheduling.fleet import Fleet
from corral.scheduling.policies.registry import PolicyKind, names, order_policy, own_names, placement_policy, withdraw
from corral.scheduling.snapshot import Snapshot, Waiting, shape_of

GOOD = """
from corral.scheduling.policies.options import Kind, Option
from corral.scheduling.policies.order import OrderPolicy
from corral.scheduling.policies.score import Pack

def backwards(view):
    for waiting in reversed(view.waiting):
        yield waiting

order = OrderPolicy("backwards", backwards, "Backwards.")

class Far(Pack):
    "The last node by name."
    options = {"strength": Option(Kind.NUMBER, 1.0, "how much")}
    def __init__(self, pool, demand, strength):
        super().__init__(pool, demand)
        self.strength = strength
    def score(self, rows, shape):
        import numpy as np
        return self.strength * np.arange(len(self.pool.room), dtype=float)[rows]
"""

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Puts a distribution with these entry points on the path."""
    modules: list[str] = []

    def make(name: str, points: dict[str, str], **sources: str) -> None:
        folder = tmp_path / name
        info = folder / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        lines = [f"{point} = {what}" for point, what in points.items()]
        (info / "entry_points.txt").write_text("\n".join(["[corral.policies]", *lines]) + "\n")
        for module, source in sources.items():
            (folder / f"{module}.py").write_text(source)
            modules.append(module)
        monkeypatch.syspath_prepend(folder)

    yield make
    for kind in PolicyKind:
        for name in set(names(kind)) - set(own_names(kind)):
            withdraw(kind, name)
    for module in modules:
        sys.modules.pop(module, None)


def snapshot(*groups: ResourceGroup, order: tuple[str, ...] = ("a", "b")) -> Snapshot:
    where = ("default", NodeState.UP, True, 1, "boot", "run", "inc", "hw", "0", "127.0.0.1", 8000, 16384)
    nodes = [Node(f"{group}{number}", group, *where[1:]) for group in order for number in range(3)]
    rows = [
        Waiting(f"s{n}", n, 1, 1, 0, "ann", "default", 0.0, shape_of(SessionSpec(("x",), group=order[n % len(order)])))
        for n in range(4)
    ]
    return Snapshot(0.0, nodes, {}, rows, {group.name: group for group in groups})


def test_an_installed_policy_is_found_and_used(install: Install) -> None:
    install("good_policies", {"order.backwards": "good_module:order", "placement.far": "good_module:Far"},
            good_module=GOOD)  # fmt: skip
    assert offer_policies() == []
    assert "good_module" not in sys.modules, "names are enough until a group asks"
    assert "backwards" in names(PolicyKind.ORDER) and "far" in names(PolicyKind.PLACEMENT)
    group = ResourceGroup("a", "backwards", "far", placement_options={"strength": 2})
    plan = cycle(snapshot(group, ResourceGroup("b")))
    turns = [(placed.session.id, placed.ranks[0].node) for placed in plan.placements if placed.group == "a"]
    assert turns == [("s2", "a2"), ("s0", "a2")]
    assert {placed.session.id for placed in plan.placements} == {"s0", "s1", "s2", "s3"}


def test_broken_ones_stop_their_own_groups_alone(install: Install) -> None:
    install(
        "bad_policies",
        {
            "order.no-module": "nowhere_to_be_found:order",
            "order.no-name": "bad_module:nothing",
            "order.no-policy": "bad_module:text",
            "order.raises": "raising_module:order",
        },
        bad_module="text = 'no policy'",
        raising_module="raise SystemError('no')",
    )
    assert offer_policies() == []
    for name in ("no-module", "no-name", "no-policy", "raises"):
        with pytest.raises(Invalid) as found:
            order_policy(name)
        assert (found.value.code, name in found.value.message) == ("policy_broken", True)
        plan = cycle(snapshot(ResourceGroup("a", name), ResourceGroup("b")))
        assert {placed.session.id for placed in plan.placements} == {"s1", "s3"}
        assert {why.code for why in plan.refusals["s0"]} == {"group_broken"}
        assert name in plan.refusals["s0"][0].message


RUDE = """
import asyncio, sys
from types import SimpleNamespace
from corral.scheduling.policies.order import OrderPolicy
from corral.scheduling.policies.scorer import Scorer

class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("not even that")

def policy(turns):
    return OrderPolicy("rude", turns, "Rude.")

def leaving(view):
    sys.exit(3)
    yield

def cancelling(view):
    yield view.waiting[0]
    raise asyncio.CancelledError

def unspeakable(view):
    raise Unspeakable
    yield

def nonsense(view):
    yield SimpleNamespace(id=[])

leaves, cancels, unsaid, names_nobody = map(policy, (leaving, cancelling, unspeakable, nonsense))

class Leaves(Scorer):
    "Leaves."
    def score(self, rows, shape):
        sys.exit(3)
"""


def test_whatever_one_raises_ends_nothing_but_its_own_work(install: Install) -> None:
    points = {f"order.{name}": f"rude_module:{name}" for name in ("leaves", "cancels", "unsaid", "names_nobody")}
    install("rude_policies", points | {"placement.leaves": "rude_module:Leaves", "order.exits": "exiting_module:order"},
            rude_module=RUDE, exiting_module="import sys; sys.exit('no')")  # fmt: skip
    assert offer_policies() == []
    groups = [ResourceGroup("a", name.partition(".")[2]) for name in (*points, "order.exits")]
    for group in (*groups, ResourceGroup("a", placement="leaves")):
        plan = cycle(snapshot(group, ResourceGroup("b")))
        assert {"s1", "s3"} <= {placed.session.id for placed in plan.placements} <= {"s0", "s1", "s3"}
        assert {why.code for why in plan.refusals["s2"]} == {"group_broken"}, group


def test_once_its_policy_is_another_a_group_goes_on_where_the_nodes_were_known(install: Install) -> None:
    """A manager keeps from pass to pass what fits where: that a policy failed says nothing of that."""
    install("rude_policies", {"placement.leaves": "rude_module:Leaves"}, rude_module=RUDE)
    assert offer_policies() == []
    none = {"backfill": "none"}
    broken, mended = (
        snapshot(ResourceGroup("a", placement=name, options=none), ResourceGroup("b")) for name in ("leaves", "pack")
    )
    fleet = Fleet(broken.nodes, broken.devices, {}, broken.now)
    for _ in range(2):
        told = cycle(broken, fleet=fleet)
        assert {"s0", "s2"} <= told.refusals.keys()
        for placed in told.placements:
            fleet.give_back(placed.ranks)
    assert {placed.session.id for placed in cycle(mended, fleet=fleet).placements} == {"s0", "s1", "s2", "s3"}


def test_names_that_make_no_sense_are_told_and_left_out(install: Install) -> None:
    points = {"best": "x:y", "order.": "x:y", "color.red": "x:y", "order.fifo": "x:y", "placement.pack": "x:y"}
    install("odd_policies", points)
    wrong = offer_policies()
    assert len(wrong) == 5 and all("odd_policies" in line for line in wrong)
    assert names(PolicyKind.ORDER) == own_names(PolicyKind.ORDER)
    assert names(PolicyKind.PLACEMENT) == own_names(PolicyKind.PLACEMENT)


def test_one_that_two_bring_is_nobodys(install: Install) -> None:
    install("one", {"placement.far": "good_module:Far"}, good_module=GOOD)
    install("two", {"placement.far": "other_module:Far"}, other_module=GOOD)
    assert offer_policies() == []
    with pytest.raises(Invalid, match="several distributions bring"):
        placement_policy("far")
