"""docs/requirements.md names tests; each of them is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "requirements.md").read_text()
BUILT = set(
    re.findall(
        r"\w+",
        "A1 A2 A3 A4 A5 A6 A7 A8 A9 B1 B2 B3 B4 B5 B6 B7 C1 C2 C3 C4 D1 D3 D4 D6 D7 D10 D12 D13 E4 F3 F4 "
        "F5 G1 G2 G5 G8 G9 G10",
    )
)


def rows() -> dict[str, list[str]]:
    found = re.findall(r"^\| ([A-G]\d+) \| .* \| (.*) \|$", PAGE, re.M)
    return {row: re.findall(r"`([^`]+)`", tests) for row, tests in found}


def test_every_requirement_that_is_built_names_its_tests() -> None:
    assert rows().keys() == BUILT
    assert all(rows().values())


def test_every_test_that_is_named_is_there() -> None:
    for row, tests in rows().items():
        for test in tests:
            path, _, name = test.partition("::")
            text = (ROOT / path).read_text()
            assert not name or re.search(rf"def {name}\(", text), f"{row}: {test}"
