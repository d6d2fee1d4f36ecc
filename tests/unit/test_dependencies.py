"""What Corral asks to be installed is what it uses, and what is used is in the lock file."""

import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
MODULE_OF = {"prometheus-client": "prometheus_client", "pyyaml": "yaml"}


def imported() -> set[str]:
    """The first part of every name imported anywhere in what is installed or run by `make demo`."""
    found: set[str] = set()
    for path in [*(ROOT / "src").rglob("*.py"), *(ROOT / "examples").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {name.name.partition(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module.partition(".")[0])
    return found


def asked_for() -> set[str]:
    lines = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    return {re.split(r"[\[<>=~! ]", line)[0].lower() for line in lines}


def test_everything_asked_for_is_used() -> None:
    used = imported()
    assert sorted(name for name in asked_for() if MODULE_OF.get(name, name) not in used) == []


def test_everything_used_is_in_the_lock_file() -> None:
    pins = [line.partition("==") for line in (ROOT / "requirements.lock").read_text().splitlines() if "==" in line]
    locked = {name.lower().replace("_", "-") for name, _, _ in pins}
    assert sorted(asked_for() - locked) == []
    modules = {MODULE_OF.get(name, name).replace("-", "_") for name in locked}
    mine = {"corral", "benchmarks", "examples", "tests"} | {path.stem for path in (ROOT / "examples").iterdir()}
    assert sorted(imported() - modules - mine - set(sys.stdlib_module_names)) == []
