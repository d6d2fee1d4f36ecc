"""Whatever rule, invariant or page is cited can be read in docs/."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
READ = [*(ROOT / "src").rglob("*.py"), *(ROOT / "tests").rglob("*.py"), *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "benchmarks").rglob("*.py"), ROOT / "README.md"]  # fmt: skip
RULES = re.compile(r"(?:docs/protocol\.md|PROTOCOL)[ )]+((?:rules? )?\d+(?:(?:, | and | to )\d+)*)")
OTHER_PAGES = re.compile(r"\b(?:PROTOCOL|INVARIANTS|CONTRACT|DESIGN|FAILURES|EXAMPLES|SERVICES|REQUIREMENTS)\.md")
CODES = re.compile(r"\b(?:SE|KE|AL|CB|EP|EV|IN|LE|QU|DE)[1-9]\b")
PAGES = re.compile(r"\bdocs/[a-z0-9_/-]+\.md")


def texts() -> Iterator[tuple[str, str]]:
    for path in READ:
        if path.name != Path(__file__).name:
            yield str(path.relative_to(ROOT)), path.read_text()


def numbers(text: str) -> set[int]:
    """`2, 11`, `5 to 8`, `7 to 9`."""
    ends = [(int(one), int(to or one)) for one, to in re.findall(r"(\d+)(?: to (\d+))?", text)]
    return {number for first, last in ends for number in range(first, last + 1)}


def test_every_rule_that_is_cited_is_in_the_page() -> None:
    page = (ROOT / "docs" / "protocol.md").read_text()
    there = {int(number) for number in re.findall(r"^### (\d+)\. ", page, re.MULTILINE)}
    assert there == set(range(1, len(there) + 1))
    cited = {(name, number) for name, text in texts() for found in RULES.findall(text) for number in numbers(found)}
    assert len({number for _, number in cited}) > 10, "the citations were not found"
    assert sorted((name, number) for name, number in cited if number not in there) == []


def test_every_invariant_that_is_cited_is_in_the_page() -> None:
    page = (ROOT / "docs" / "invariants.md").read_text()
    there = set(CODES.findall(page)) | {f"LE{number}" for number in range(1, 7)}
    there |= {f"QU{number}" for number in range(1, 5)} | {f"DE{number}" for number in range(1, 4)}
    cited = {(name, code) for name, text in texts() for code in CODES.findall(text)}
    assert sorted((name, code) for name, code in cited if code not in there) == []


def test_no_page_is_cited_that_is_not_here() -> None:
    gone = [(name, page) for name, text in texts() for page in PAGES.findall(text) if not (ROOT / page).exists()]
    gone += [(name, page) for name, text in texts() for page in OTHER_PAGES.findall(text)]
    assert gone == []
