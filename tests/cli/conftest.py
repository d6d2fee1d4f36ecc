"""One real control plane with one node, and the CLI run against it: in this process for breadth, as a process where
signals, pipes and exit codes matter."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from corral.cli.main import run
from corral.client import Client
from tests.end_to_end.control_plane import Plane, plane


@dataclass
class Done:
    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def line(self) -> str:
        """The one line of output."""
        (line,) = self.out.splitlines()
        return line

    @property
    def error(self) -> str:
        """The one line of error, of a command that failed."""
        assert self.code != 0, f"it went well: {self.out}"
        (line,) = self.err.splitlines()
        return line


Corral = Callable[..., Done]


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    size = ("--simulate-gpus", "2xA100:80GB:sm_80", "--cpus", "8", "--memory", "16GiB", "--label", "zone=a")
    with plane(tmp_path_factory.mktemp("cluster"), *size) as running:
        yield running


@pytest.fixture
def corral(cluster: Plane, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Corral:
    """Runs one command in this process."""
    monkeypatch.setenv("CORRAL_URL", cluster.url)
    monkeypatch.setenv("CORRAL_TOKEN", cluster.token())

    def command(*words: str) -> Done:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            run(words)
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        assert isinstance(ended.value.code, int)
        return Done(ended.value.code, out, err)

    return command


@pytest.fixture
def client(cluster: Plane) -> Iterator[Client]:
    with Client(cluster.url, cluster.token()) as client:
        yield client


@pytest.fixture
def environment(cluster: Plane) -> dict[str, str]:
    """What a process of the CLI needs."""
    return os.environ | {"CORRAL_URL": cluster.url, "CORRAL_TOKEN": cluster.token()}
