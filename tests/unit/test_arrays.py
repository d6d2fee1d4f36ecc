"""Arrays as values: indices, names of members, what is counted, and the invariants, each broken once."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.agent.environment import Layout
from corral.model.array import (
    Array,
    alone,
    member,
    member_id,
    member_of,
    outcome_of,
    phase_of,
    tally,
    variables,
)
from corral.model.array_invariants import array_went_on, check_arrays
from corral.model.faults import Invalid
from corral.model.indices import Indices, Range, indices_of
from corral.model.lifecycle import Outcome, Phase, Wanted
from corral.model.session import Token, parse_token, path_name
from corral.model.spec import SessionSpec

ARRAY = Array("k3f9x2m4qa", 100, SessionSpec(("true",), array="0-9,20-30:2%3"), "ann", 5.0)


@st.composite
def indices(draw: st.DrawFn) -> Indices:
    ranges: list[Range] = []
    at = 0
    for _ in range(draw(st.integers(1, 5))):
        first = at + draw(st.integers(0, 50))
        step, count = draw(st.integers(1, 9)), draw(st.integers(1, 40))
        last = first + step * (count - 1)
        ranges.append(Range(first, last, step if count > 1 else 1))
        at = last + 1
    return Indices(tuple(ranges), draw(st.none() | st.integers(1, 99)))


@given(indices())
def test_what_is_written_is_read(given_: Indices) -> None:
    assert indices_of(str(given_)) == given_
    listed = [given_.at(place) for place in range(given_.size)]
    assert listed == [index for one in given_.ranges for index in range(one.first, one.last + 1, one.step)]
    assert [given_.place_of(index) for index in listed] == list(range(given_.size))
    outside = set(range(max(listed) + 2)) - set(listed)
    assert all(given_.place_of(index) is None for index in outside)


def a_range(first: int, count: int, step: int) -> str:
    return f"{first}-{first + step * (count - 1)}:{step}" if count > 1 else str(first)


ranges = st.builds(a_range, st.integers(0, 60), st.integers(1, 12), st.integers(1, 9))


def meant(text: str) -> list[int]:
    """Every index once, one by one."""
    found: set[int] = set()
    for part in text.split(","):
        span, _, step = part.partition(":")
        first, _, last = span.partition("-")
        found.update(range(int(first), int(last or first) + 1, int(step or 1)))
    return sorted(found)


@settings(max_examples=500)
@given(st.lists(ranges, min_size=1, max_size=8).map(",".join))
def test_ranges_that_interleave_overlap_or_repeat_are_one_set(text: str) -> None:
    found, listed = indices_of(text), meant(text)
    assert [found.at(place) for place in range(found.size)] == listed
    assert [found.place_of(index) for index in listed] == list(range(len(listed)))
    assert all(found.place_of(index) is None for index in set(range(max(listed) + 9)) - set(listed))
    assert indices_of(str(found)) == found, "what is stored is read as it was meant"
    assert len(found.ranges) <= text.count(",") + 1
    for place in (-1, found.size):
        with pytest.raises(IndexError):
            found.at(place)


@pytest.mark.parametrize(
    ("text", "kept", "size"),
    [
        ("0-8:2,1-9:2", "0-8:2,1-9:2", 10),
        ("1,1,1", "1", 1),
        ("5-9,0-5", "0-9", 10),
        ("0-5,6-9", "0-5,6-9", 10),
        ("0-9,3,4-6:2", "0-9", 10),
        ("0-4:2,2-8:2", "0-8:2", 5),
        ("0-999999:2,1-999999:2", "0-999998:2,1-999999:2", 1_000_000),
        ("0-999999999:2500,0-999999999:2501%7", None, 799_681),
    ],
)
def test_what_is_kept_of_ranges_is_no_longer_than_they_are(text: str, kept: str | None, size: int) -> None:
    found = indices_of(text)
    assert found.size == size
    assert str(found) == kept or (kept is None and len(str(found)) <= len(text))
    for place in (0, found.size // 3, found.size - 1):
        assert found.place_of(found.at(place)) == place


def test_ranges_too_many_of_which_lie_across_one_another_are_refused_soon() -> None:
    with pytest.raises(Invalid, match="lie across one another"):
        indices_of(",".join(f"{n}-{900_000 + n}:{1000 + n}" for n in range(300)))
    assert indices_of(",".join(["0-400:2", *(str(n) for n in range(1, 401, 2))])).size == 401
    assert indices_of(",".join(str(n) for n in range(0, 1600, 2))).size == 800


@given(st.sampled_from("0123456789abcdefghjkmnpqrstvwxyz"), st.integers(0, 999_999_999))
def test_a_members_name_is_safe_in_tokens_and_paths(letter: str, index: int) -> None:
    name = member_id(letter * 10, index)
    assert member_of(name) == (letter * 10, index)
    token = str(Token(3, name, 2, 1))
    assert parse_token(token) == Token(3, name, 2, 1)
    assert not set("[]/*?") & {*token, *path_name(name)}
    assert Layout("/s", "/r", "n", "a").workspace(name) == f"/s/workspaces/{letter * 10}_{index}"


@pytest.mark.parametrize("name", ["abc", "abc[]", "abc[-1]", "abc[01]", "abc[1", "abc[1][2]", "[1]", "abc[1234567890]"])
def test_what_is_no_members_name(name: str) -> None:
    assert member_of(name) is None
    if "[" not in name:
        assert path_name(name) == name


def test_a_member_without_a_row_is_told_as_its_array_has_it() -> None:
    waiting = member(ARRAY._replace(priority=7, wanted=Wanted.HOLD), 11)
    assert (waiting.id, waiting.ordinal, waiting.phase) == ("k3f9x2m4qa[22]", 112, Phase.PENDING)
    assert (waiting.priority, waiting.wanted, waiting.submitted_at) == (7, Wanted.HOLD, 5.0)
    stopped = member(ARRAY._replace(wanted=Wanted.STOP), 0)
    assert (stopped.phase, stopped.outcome, stopped.exit_code) == (Phase.ENDED, Outcome.CANCELLED, 130)


def test_a_command_is_told_which_member_it_is() -> None:
    one = member(ARRAY, 11)
    told = {"CORRAL_ARRAY_ID": "k3f9x2m4qa", "CORRAL_ARRAY_INDEX": "22", "CORRAL_ARRAY_SIZE": "16"}
    assert variables(one) == told
    assert variables(one._replace(id="k3f9x2m4qa")) == {}
    again = alone(one)
    assert (again.array, again.environment) == (None, told)
    assert alone(one._replace(id="other", spec=replace(one.spec, array=None))).environment == {}


def test_members_without_rows_are_counted() -> None:
    rows = [("ended", "succeeded", 3), ("ended", "failed", 1), ("running", None, 2)]
    array = ARRAY._replace(made=6)
    assert tally(array, rows).phases == {"pending": 10, "running": 2, "ended": 4}
    stopped = tally(array._replace(wanted=Wanted.STOP), rows)
    assert (stopped.phases, stopped.outcomes["cancelled"]) == ({"running": 2, "ended": 14}, 10)
    assert outcome_of(stopped) is Outcome.FAILED
    assert outcome_of(stopped._replace(outcomes={"succeeded": 1, "cancelled": 2})) is Outcome.CANCELLED
    over = tally(array._replace(ended_at=9.0, succeeded=11, failed=2), [])
    assert (over.phases, over.outcomes) == ({"ended": 16}, {"succeeded": 11, "failed": 2, "cancelled": 3})
    assert phase_of(array, tally(array, rows)) is Phase.RUNNING
    assert phase_of(array, tally(array._replace(made=0), [])) is Phase.PENDING


Tables = dict[str, Any]
SUBMITTED = {"seq": 1, "fact": "submitted"}


def right() -> Tables:
    """Of `a`, ten places and three at a time, the first three have rows; `b` has ended as it was cancelled."""
    row = {"seq": 1, "throttle": 3, "wanted": "run", "ended_at": None, "outcome": None, "succeeded": 0, "failed": 0}
    ended = {"seq": 2, "throttle": None, "wanted": "stop", "ended_at": 9.0, "outcome": "cancelled"}
    ended |= {"succeeded": 0, "failed": 1}
    return {
        "arrays": {
            "a": row | {"id": "a", "ordinal": 10, "size": 10, "reached": 2, "made": 3},
            "b": ended | {"id": "b", "ordinal": 30, "size": 5, "reached": 1, "made": 1},
        },
        "sessions": [
            {"id": "a[0]", "in_array": "a", "ordinal": 11, "phase": "ended", "after_open": 0, "outcome": "succeeded"},
            {"id": "a[1]", "in_array": "a", "ordinal": 12, "phase": "running", "after_open": 0, "outcome": None},
            {"id": "a[7]", "in_array": "a", "ordinal": 18, "phase": "pending", "after_open": 1, "outcome": None},
            {"id": "b[0]", "in_array": "b", "ordinal": 31, "phase": "ended", "after_open": 0, "outcome": "failed"},
            {"id": "plain", "in_array": None, "ordinal": 40, "phase": "running", "after_open": 0},
        ],
        "events": {"a": [SUBMITTED], "b": [SUBMITTED, {"seq": 2, "fact": "cancel"}]},
    }


def codes(tables: Tables) -> set[str]:
    return {code for code, _, _ in check_arrays(tables["arrays"], tables["sessions"], tables["events"])}


def test_what_is_right_breaks_nothing() -> None:
    assert codes(right()) == set()


@pytest.mark.parametrize(
    ("code", "table", "which", "change"),
    [
        ("AR1", "sessions", 1, {"ordinal": 11, "id": "a[0]"}),
        ("AR1", "sessions", 1, {"ordinal": 25}),
        ("AR1", "sessions", 1, {"id": "c[1]"}),
        ("AR1", "sessions", 1, {"id": "a[9]"}),
        ("AR1", "sessions", 1, {"in_array": "c"}),
        ("AR1", "arrays", "a", {"made": 4}),
        ("AR1", "arrays", "a", {"reached": 4}),
        ("AR2", "arrays", "a", {"throttle": 0}),
        ("AR3", "arrays", "a", {"ended_at": 9.0, "made": 10}),
        ("AR3", "sessions", 3, {"phase": "stopping"}),
        ("AR3", "arrays", "b", {"wanted": "run"}),
        ("AR3", "arrays", "b", {"failed": 0}),
        ("CB1", "arrays", "a", {"wanted": "stop"}),
        ("EV1", "arrays", "a", {"seq": 2}),
        ("EV1", "events", "b", [{"seq": 2, "fact": "cancel"}]),
    ],
)
def test_each_rule_broken_once(code: str, table: str, which: Any, change: Any) -> None:
    tables = deepcopy(right())
    if isinstance(change, dict):
        tables[table][which].update(change)
    else:
        tables[table][which] = change
    assert code in codes(tables)


def test_those_that_had_their_turn_keep_it_when_fewer_may_live() -> None:
    tables = deepcopy(right())
    tables["arrays"]["a"] |= {"throttle": 0, "seq": 2}
    tables["events"]["a"].append({"seq": 2, "fact": "update"})
    assert "AR2" in codes(tables)
    tables["events"]["a"][1]["fact"] = "throttle"
    assert codes(tables) == set()


@pytest.mark.parametrize(
    ("code", "array", "change"),
    [
        ("AR3", "b", {"ended_at": None}),
        ("AR3", "b", {"outcome": "succeeded"}),
        ("AR1", "a", {"size": 11}),
        ("AR1", "a", {"made": 2}),
        ("AR1", "a", {"reached": 1}),
        ("CB2", "b", {"wanted": "run"}),
    ],
)
def test_what_may_never_change(code: str, array: str, change: dict[str, Any]) -> None:
    before = right()["arrays"][array]
    assert list(array_went_on(before, before)) == []
    assert code in {found for found, _ in array_went_on(before, before | change)}
