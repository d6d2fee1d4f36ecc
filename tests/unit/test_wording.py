"""Spans, moments and numbers as people are told them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.model.resources import parse_duration_s, parse_memory_mib
from corral.model.wording import instant, length, like, number_of, size, span


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(-3, "0s"), (0.9, "0s"), (59.9, "59s"), (60, "1m00s"), (184, "3m04s"), (3600, "1h00m"), (84141, "23h22m"),
     (90061, "25h01m"), (172800, "2d"), (5 * 86400 + 7, "5d")],
)  # fmt: skip
def test_a_span_is_told_in_its_largest_unit_or_two(seconds: float, told: str) -> None:
    assert span(seconds) == told


@given(st.integers(0, 10**9))
def test_a_length_is_exact_and_an_option_takes_it(seconds: int) -> None:
    assert parse_duration_s(length(seconds)) == seconds


def test_a_moment_is_in_utc_and_says_so() -> None:
    assert instant(0) == "1970-01-01T00:00:00Z"
    assert instant(1796008453.9) == "2026-11-30T03:14:13Z"


@pytest.mark.parametrize(
    ("number", "told"), [(0, "0 GPUs"), (1, "1 GPU"), (1.0, "1 GPU"), (2, "2 GPUs"), (0.5, "0.5 GPUs")]
)
def test_one_is_one(number: float, told: str) -> None:
    assert number_of(number, "GPU") == told


def test_what_has_a_plural_of_its_own() -> None:
    assert number_of(3, "GPU of its model", "GPUs of its model") == "3 GPUs of its model"


@pytest.mark.parametrize(
    ("name", "meant"),
    [("defualt", "default"), ("Default", "default"), ("defaul", "default"), ("gup", "gpu"), ("gpu-pols", "gpu-pool"),
     ("node-11", "node-1"), ("nope", None), ("x", None), ("", None), ("d" * 500, None)],
)  # fmt: skip
def test_a_name_that_is_nearly_right_is_asked_about(name: str, meant: str | None) -> None:
    known = ["default", "gpu", "gpu-pool", "node-1", "train"]
    assert like(name, known) == (f"; did you mean {meant!r}?" if meant else "")


def test_of_nothing_nothing_is_meant() -> None:
    assert like("x", []) == ""


@pytest.mark.parametrize(
    ("mib", "told"), [(0, "0MiB"), (512, "512MiB"), (1024, "1GiB"), (1536, "1536MiB"), (524288, "512GiB")]
)
def test_memory_is_told_as_it_can_be_given(mib: int, told: str) -> None:
    assert size(mib) == told
    assert parse_memory_mib(told) == mib
