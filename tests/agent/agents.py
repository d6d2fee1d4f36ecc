"""A real agent process on folders of its own, and an end to everything it started."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from pathlib import Path

from corral.agent import trees
from corral.agent.machine import read_machine
from corral.agent.trees import Containment
from tests.agent.manager import TOKEN, ScriptedManager
from tests.agent.node import PATIENCE_S, until


class Agent:
    """Its folders outlive the process, which may be started and killed at will."""

    def __init__(self, url: str, name: str = "node-1", options: Sequence[str] = ()) -> None:
        self.url = url
        self.name = name
        self.root = Path(tempfile.mkdtemp(prefix="corral-agent-"))
        base = Path("/dev/shm") if os.path.isdir("/dev/shm") else self.root
        self.run = Path(tempfile.mkdtemp(prefix="corral-run-", dir=base))
        self.state = self.root / "state"
        self.token_file = self.root / "token"
        self.token_file.write_text(TOKEN)
        self.log = self.root / "agent.log"
        self.options = list(options)
        self.process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "corral.agent", "--manager", self.url, "--token-file", str(self.token_file)),
            *("--name", self.name, "--state-dir", str(self.state), "--run-dir", str(self.run), *self.options),
        ]

    def start(self, crash: str | None = None, before: Sequence[str] = ()) -> None:
        env = {**os.environ, **({"CORRAL_CRASH": crash} if crash else {})}
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen([*before, *self.command()], env=env, stderr=log, stdout=log)

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(PATIENCE_S)

    def terminate(self) -> int:
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(PATIENCE_S)

    def ended(self) -> int:
        """Its exit status, once it has ended by itself."""
        assert self.process is not None
        return self.process.wait(PATIENCE_S)

    def restart(self) -> None:
        self.kill()
        self.start()

    def tokens(self) -> list[str]:
        jobs = self.run / "jobs"
        return sorted(path.name for path in jobs.iterdir() if not path.name.startswith(".")) if jobs.is_dir() else []

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def containment(self) -> Containment:
        return Containment.from_json(read_machine(str(self.state), self.name, None, None).containment)

    def close(self) -> None:
        self.kill()
        containment = self.containment() if self.state.is_dir() else Containment("marker")
        if containment.kind != "marker":
            for token in trees.list_trees(containment):
                until(lambda token=token: self._is_gone(containment, token), f"{token} gone at the test's end")
            for folder in {containment.tree_root, containment.memory_root, containment.pids_root} - {None}:
                until(lambda folder=folder: _removed(folder), f"{folder} removed")
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.rmtree(self.run, ignore_errors=True)

    def _is_gone(self, containment: Containment, token: str) -> bool:
        trees.kill_tree(containment, token)
        return trees.tree_is_empty(containment, token) and trees.remove_tree(containment, token)


def _removed(folder: str | None) -> bool:
    try:
        os.rmdir(folder or "")
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] != "Z"


def stop_process(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)


@contextlib.contextmanager
def registered(manager: ScriptedManager, *options: str) -> Generator[Agent]:
    """An agent that its manager has heard of; what it said is shown where a test fails."""
    one = Agent(manager.url, options=options)
    one.start()
    try:
        until(lambda: manager.registrations, f"the registration ({one.output()})")
        yield one
    finally:
        print(one.output())
        one.close()
