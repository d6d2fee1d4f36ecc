"""Rules about the code that no linter knows. Each failure names the place."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "src" / "corral"
SOURCES = sorted(PACKAGE.rglob("*.py"))

LONGEST_FUNCTION = 60
LONGEST_FILE = 450
MAY_BE_LONGER: dict[str, int] = {}  # "path/under/corral.py:function": its length, with a reason beside it

BANNED_WORDS = {
    "service",
    "services",
    "handler",
    "handlers",
    "processor",
    "util",
    "utils",
    "common",
    "helper",
    "helpers",
}
BANNED_WORDS |= {"misc"}
BANNED_CLASS_ENDING = "Manager"  # only the process is called so
NAMED_AFTER_THE_PROCESS = {"SimManager"}  # the control-plane process is called manager

TEXT_ENDINGS = {".py", ".md", ".toml", ".sh", ".lock", ".yml", ".yaml", ".cfg", ".ini", ".js", ".css", ".html"}
BUILD_PLACE = re.compile("/" + r"(work|farm)/|/root/\.|/home/\w")
NOT_OURS = {".venv", ".git", "__pycache__", "node_modules"}


def trees() -> Iterator[tuple[Path, ast.Module]]:
    for path in SOURCES:
        yield path.relative_to(PACKAGE), ast.parse(path.read_text())


def own_texts() -> Iterator[tuple[Path, str]]:
    for path in sorted(ROOT.rglob("*")):
        inside = path.relative_to(ROOT)
        text_like = path.suffix in TEXT_ENDINGS or path.name in {"Makefile", "run"}
        if text_like and path.is_file() and not NOT_OURS.intersection(inside.parts):
            yield inside, path.read_text(errors="replace")


def words_of(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def test_functions_are_short() -> None:
    too_long = {
        f"{path}:{node.name}": length(node)
        for path, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and length(node) > LONGEST_FUNCTION
    }
    assert too_long == MAY_BE_LONGER


def test_files_are_short() -> None:
    lengths = {str(path.relative_to(PACKAGE)): path.read_text().count("\n") for path in SOURCES}
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST_FILE} == {}


def test_names_say_what_a_thing_is() -> None:
    modules = [str(path.relative_to(PACKAGE)) for path in SOURCES if words_of(path.stem) & BANNED_WORDS]
    modules += [
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*")
        if path.is_dir() and words_of(path.name) & BANNED_WORDS
    ]
    classes = [
        f"{path}:{node.name}"
        for path, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and (words_of(node.name) & BANNED_WORDS or node.name.endswith(BANNED_CLASS_ENDING))
        and node.name not in NAMED_AFTER_THE_PROCESS
    ]
    assert modules + classes == []


def test_nothing_is_left_for_later() -> None:
    marks = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|raise NotImplementedError")
    left = [
        f"{path.relative_to(PACKAGE)}: {found[0]}" for path in SOURCES for found in marks.finditer(path.read_text())
    ]
    assert left == []


def test_no_place_of_one_machine_is_written_down() -> None:
    places = [f"{path}: {found[0]}" for path, text in own_texts() for found in BUILD_PLACE.finditer(text)]
    temporary = [f"{path.relative_to(ROOT)}: /tmp/" for path in SOURCES if "/tmp/" in path.read_text()]
    assert places + temporary == []


def test_lock_files_hold_exact_versions_and_no_address() -> None:
    lines = [
        line
        for name in ("requirements.lock", "requirements-dev.lock")
        for line in (ROOT / name).read_text().splitlines()
    ]
    pins = [line for line in lines if not line.startswith("#")]
    assert pins
    assert [pin for pin in pins if not re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9_.+!-]+", pin)] == []


def layers() -> list[str]:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (lines,) = [contract["layers"] for contract in contracts if contract["id"] == "layers"]
    return [name.strip(" ()") for line in lines for name in re.split("[|:]", line)]


def test_every_package_has_its_place_in_the_layers() -> None:
    packages = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert packages - {"__init__"} <= set(layers())
    assert len(layers()) == len(set(layers()))


def test_every_folder_of_code_is_a_package() -> None:
    folders = {path.parent for path in SOURCES}
    assert [
        str(folder.relative_to(PACKAGE)) for folder in sorted(folders) if not (folder / "__init__.py").exists()
    ] == []


def test_every_module_says_what_it_is() -> None:
    silent = [str(path) for path, tree in trees() if tree.body and not ast.get_docstring(tree)]
    assert silent == []


@pytest.mark.parametrize(
    ("name", "words"),
    [("HTTPHandler", {"http", "handler"}), ("node_utils", {"node", "utils"}), ("Utilisation", {"utilisation"})],
)
def test_names_are_split_into_words(name: str, words: set[str]) -> None:
    assert words_of(name) == words
