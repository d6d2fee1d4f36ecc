"""docs/path.md names functions that exist."""

import importlib
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "path.md"
NAMES = sorted(set(re.findall(r"`(corral\.[\w.]+)`", PAGE.read_text())))


def test_the_page_names_the_way() -> None:
    assert len(NAMES) >= 10


@pytest.mark.parametrize("name", NAMES)
def test_each_step_exists(name: str) -> None:
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part)
        assert callable(found)
        return
    pytest.fail(f"{name} is nowhere")
