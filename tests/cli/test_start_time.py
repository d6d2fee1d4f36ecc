"""What a command imports is what it costs: help and lists stay free of servers, databases and tables."""

import subprocess
import sys

import pytest

from tests.cli.conftest import Corral

HEAVY = ("rich", "fastapi", "starlette", "sqlalchemy", "numpy", "uvicorn", "pydantic", "yaml", "pathspec", "asyncio")


def modules_after(words: list[str], environment: dict[str, str] | None = None) -> set[str]:
    code = (
        "import sys\nfrom corral.cli.main import run\n"
        f"try: run({words!r})\nexcept SystemExit: pass\n"
        "print('\\n'.join(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=60)
    return set(done.stderr.split())


def test_help_imports_little() -> None:
    assert modules_after(["--help"]) & {*HEAVY, "httpx", "ssl"} == set()


def test_ps_imports_the_http_client_and_no_more(corral: Corral, environment: dict[str, str]) -> None:
    loaded = modules_after(["ps"], environment)
    assert "httpx" in loaded
    assert loaded & {"rich", "fastapi", "sqlalchemy", "numpy", "uvicorn", "pydantic", "yaml", "pathspec"} == set()


@pytest.mark.parametrize(
    "words", [["--help"], ["-h"], ["submit", "--help"], ["node", "--help"], ["node", "show", "-h"]]
)
def test_help_is_help(corral: Corral, words: list[str]) -> None:
    done = corral(*words)
    assert done.code == 0
    assert done.out.startswith("Usage: corral")
