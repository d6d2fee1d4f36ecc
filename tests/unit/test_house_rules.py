"""The bans of ruff and our own import contract, each seen to catch what it is for."""

import subprocess
import sys
from pathlib import Path

import pytest
from grimp import ImportGraph

from tools.contracts import AllowOnlyContract

ROOT = Path(__file__).parent.parent.parent

BANNED = [
    "import time\ntime.time()",
    "from time import monotonic\nmonotonic()",
    "from datetime import datetime\ndatetime.now()",
    "from datetime import datetime\ndatetime.utcnow()",
    "import random\nrandom.random()",
    "from random import choice\nchoice([1])",
    "import uuid\nuuid.uuid4()",
    "import secrets\nsecrets.token_hex()",
    "import os\nos.urandom(1)",
    "import os\nos.environ['HOME']",
    "import os\nos.getenv('HOME')",
    "import asyncio\nasyncio.sleep(1)",
    "import asyncio\nasyncio.to_thread(print)",
]


def bans_found(code: str, path: str) -> str:
    command = [sys.executable, "-m", "ruff", "check", "--select", "TID251", "--output-format", "concise"]
    run = subprocess.run(
        [*command, "--stdin-filename", path, "-"],
        input=code + "\n",
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=30,
    )
    assert run.returncode in (0, 1), run.stderr
    return run.stdout


@pytest.mark.parametrize("code", BANNED)
def test_clock_chance_sleep_and_environment_are_banned(code: str) -> None:
    found = bans_found(code, "src/corral/reconcile/loop.py")
    assert "TID251" in found
    assert "ports." in found or "composition root" in found or "behind a port" in found


@pytest.mark.parametrize(
    "path",
    [
        "clock.py",
        "server.py",
        "agent/posixjob.py",
        "agent/zygote.py",
        "agent/__main__.py",
        "cli/main.py",
        "testing/world.py",
    ],
)
def test_the_places_where_the_world_comes_in_may_use_them(path: str) -> None:
    assert "TID251" not in bans_found("\n".join(BANNED), f"src/corral/{path}")


def graph_of(*imports: tuple[str, str]) -> ImportGraph:
    graph = ImportGraph()
    for module in ("pkg", "pkg.pure", "pkg.pure.inner", "pkg.outer"):
        graph.add_module(module)
    for importer, imported in imports:
        if imported not in graph.modules:
            graph.add_module(imported, is_squashed=True)
        graph.add_import(importer=importer, imported=imported)
    return graph


def kept(graph: ImportGraph, *allowed: str, modules: str = "pkg.pure") -> bool:
    options = {"modules": [modules], "allowed": list(allowed)}
    contract = AllowOnlyContract(name="pure", session_options={}, contract_options=options)
    return contract.check(graph, verbose=False).kept


def test_what_is_listed_may_be_imported() -> None:
    graph = graph_of(("pkg.pure", "math"), ("pkg.pure.inner", "numpy"), ("pkg.pure", "pkg.pure.inner"))
    assert kept(graph, "math", "numpy")


@pytest.mark.parametrize("foreign", ["os", "numpy", "pkg.outer"])
def test_what_is_not_listed_may_not(foreign: str) -> None:
    assert not kept(graph_of(("pkg.pure.inner", foreign)), "math")


def test_stdlib_stands_for_all_of_it_and_nothing_else() -> None:
    assert kept(graph_of(("pkg.pure", "os"), ("pkg.pure", "ctypes")), "stdlib")
    assert not kept(graph_of(("pkg.pure", "numpy")), "stdlib")


def test_only_a_module_in_parentheses_may_be_missing() -> None:
    graph = graph_of(("pkg.pure", "os"))
    assert kept(graph, "math", modules="(pkg.later)")
    assert not kept(graph, "math", modules="(pkg.pure)")
    with pytest.raises(Exception, match=r"pkg\.later"):
        kept(graph, "math", modules="pkg.later")
