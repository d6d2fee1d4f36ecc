"""What places hold, remembered as arrays: the same as asked for anew, whatever was asked for before or is forgotten."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.model.node import Device, Node, NodeState
from corral.scheduling.engine import cells as cells_module
from corral.scheduling.engine.pool import Pool
from corral.scheduling.places import Grant, RankPlace

NODES = [
    Node(f"n{number}", "g", NodeState.UP, True, 1, "b", "r", "i", "h", "0", "127.0.0.1", 8000, 16384)
    for number in range(3)
]
DEVICES = {
    node.name: [Device(node.name, f"{node.name}/{index}", index, "A100", None, 80_000) for index in range(2)]
    for node in NODES
}

ranks = st.builds(
    lambda node, cpu, index, share: RankPlace(node, 1, "r", cpu, 2 * cpu, (Grant(f"{node}/{index}", share, share),)),
    st.sampled_from(("n0", "n1", "n2", "elsewhere")),
    st.integers(1, 9),
    st.integers(0, 3),  # the last two are no devices of it any more
    st.integers(1, 9),
)
places = st.lists(ranks, max_size=3).map(tuple)


@settings(max_examples=200, deadline=None)
@given(st.lists(places, min_size=1, max_size=8), st.lists(st.lists(st.integers(0, 7), max_size=9), max_size=5))
def test_what_is_remembered_of_places_is_what_they_hold(known: list[tuple[RankPlace, ...]], asked) -> None:
    pool = Pool(NODES, DEVICES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cells_module, "MORE_KEPT", 3)
        for which in asked:
            pool.held.begin(0)
            many = [known[one % len(known)] for one in which]
            lengths, at, amounts = pool.held.of(pool.held.numbers(many))
            assert lengths.tolist() == [len(list(pool.cells(one))) for one in many]
            assert list(zip(at.tolist(), amounts.tolist(), strict=True)) == [
                cell for one in many for cell in pool.cells(one)
            ]
