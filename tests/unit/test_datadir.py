"""The files of a control plane, made by several who begin at once."""

from __future__ import annotations

import itertools
import stat
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from corral.datadir import token_in, write_private

AT_ONCE = 8


def together(act: Callable[[], str]) -> set[str]:
    start = threading.Barrier(AT_ONCE)

    def one() -> str:
        start.wait(10)
        return act()

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return {done.result(10) for done in [pool.submit(one) for _ in range(AT_ONCE)]}


def test_managers_that_begin_at_once_agree_on_one_token(tmp_path: Path) -> None:
    numbers = itertools.count()
    for turn in range(20):
        path = tmp_path / f"{turn}.token"
        (token,) = together(lambda path=path: token_in(path, lambda: f"token-{next(numbers)}", "--token-file"))
        assert path.read_text() == f"{token}\n"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(list(tmp_path.iterdir())) == 20


def test_a_file_written_by_several_is_one_of_theirs(tmp_path: Path) -> None:
    path, numbers = tmp_path / "client.toml", itertools.count()

    def write() -> str:
        text = f"url = {next(numbers)}"
        write_private(path, text)
        return text

    written = together(write)
    assert path.read_text() in written
    assert [found.name for found in tmp_path.iterdir()] == ["client.toml"]
