"""The table is the life of a session: complete, unambiguous, and what the documents show."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.model.lifecycle import NEXT, TABLE, Effect, Fact, Phase, mermaid, step

DOCS = Path(__file__).parents[2] / "docs" / "lifecycle.md"


def test_each_phase_and_fact_has_one_answer() -> None:
    counts = Counter((source, edge.fact) for edge in TABLE for source in edge.sources)
    assert max(counts.values()) == 1


def test_every_phase_is_reached_and_every_fact_and_effect_is_used() -> None:
    assert {edge.target for edge in TABLE} == set(Phase)
    assert {edge.fact for edge in TABLE} == set(Fact)
    assert {effect for edge in TABLE for effect in edge.effects} == set(Effect)


def test_the_end_is_the_end() -> None:
    assert not [fact for phase, fact in NEXT if phase is Phase.ENDED]


@pytest.mark.parametrize("edge", TABLE, ids=lambda edge: f"{edge.fact}")
def test_room_is_taken_only_by_placing_and_given_back_only_with_proof(edge) -> None:
    for source in edge.sources:
        if not source.holds_room and edge.target.holds_room:
            assert edge.fact is Fact.PLACED
            assert Effect.HOLD_ROOM in edge.effects
        if source.holds_room and not edge.target.holds_room:
            assert edge.fact in (Fact.RELEASED, Fact.REQUEUED)
            assert Effect.GIVE_ROOM_BACK in edge.effects


def test_only_a_requeue_opens_another_attempt() -> None:
    assert [edge.fact for edge in TABLE if Effect.NEXT_ATTEMPT in edge.effects] == [Fact.REQUEUED]
    assert [edge.fact for edge in TABLE if edge.target is Phase.PENDING] == [Fact.REQUEUED]


@given(st.lists(st.sampled_from(list(Fact)), max_size=30))
def test_any_run_of_facts_moves_forward_or_back_to_the_queue(facts: list[Fact]) -> None:
    order = list(Phase)
    phase = Phase.PENDING
    for fact in facts:
        edge = step(phase, fact)
        if edge is None:
            continue
        assert order.index(edge.target) >= order.index(phase) or fact is Fact.REQUEUED
        phase = edge.target


def test_the_picture_in_the_documents_is_this_table() -> None:
    text = DOCS.read_text()
    assert mermaid() in text
    for edge in TABLE:
        sources = ", ".join(sorted(edge.sources))
        effects = ", ".join(edge.effects) or "–"
        assert f"| {sources} | {edge.fact} | {edge.target} | {effects} |" in text
