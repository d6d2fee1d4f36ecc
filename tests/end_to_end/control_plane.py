"""A real `corral up` (or managers and agents) in processes of their own, driven through the CLI as a user would."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.services.ports import free_port

WAIT_S = 60.0
CORRAL = [sys.executable, "-m", "corral"]


def wait_until(condition: Callable[[], Any], what: str, timeout_s: float = WAIT_S) -> Any:
    """The first true answer; fails with what was waited for."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if answer := condition():
            return answer
        time.sleep(0.02)
    raise AssertionError(f"not within {timeout_s} s: {what}")


@dataclass
class Answer:
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


@dataclass
class Plane:
    """One control plane. `restart` after `kill` runs the same command on the same data."""

    data_dir: Path
    options: Sequence[str] = ()
    url: str = ""
    process: subprocess.Popen[str] | None = None
    environment: dict[str, str] = field(default_factory=dict)

    def start(self) -> None:
        command = [*CORRAL, "up", "--data-dir", str(self.data_dir), "--listen", self._listen(), "--no-login"]
        with open(self.data_dir.parent / "up.log", "a") as log:
            self.process = subprocess.Popen(
                [*command, *self.options], stdout=subprocess.PIPE, stderr=log, text=True, env=self._environment()
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("ready http"), f"corral up said {line!r}: {self.log()[-3000:]}"
        self.url = line.split()[1]

    def _listen(self) -> str:
        return self.url.removeprefix("http://") or f"127.0.0.1:{free_port()}"

    def _environment(self) -> dict[str, str]:
        return os.environ | self.environment

    def log(self) -> str:
        return (self.data_dir.parent / "up.log").read_text()

    def stop(self) -> None:
        """SIGTERM, as an operator would; jobs go on."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(30)

    def agent_pids(self) -> list[int]:
        assert self.process is not None
        return [pid for pid in children_of(self.process.pid) if "corral.agent" in command_of(pid)]

    def kill_everything(self) -> None:
        """SIGKILL for every process of Corral's own at once: manager, agents, zygotes. The shims and jobs stay."""
        assert self.process is not None
        victims = [self.process.pid]
        for agent in self.agent_pids():
            victims += [agent, *children_of(agent)]
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        self.process.wait(10)

    def run(self, *words: str, stdin: str | None = None, timeout_s: float = WAIT_S, **environment: str) -> Answer:
        """One CLI command against this plane."""
        client = {"CORRAL_URL": self.url, "CORRAL_TOKEN": self.token()}
        done = subprocess.run(
            [*CORRAL, *words],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env=os.environ | client | environment,
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    def token(self) -> str:
        return (self.data_dir / "admin.token").read_text().strip()

    def submit(self, *words: str) -> str:
        """The id of a new session."""
        answer = self.run("submit", "-q", *words)
        assert answer.code == 0, answer.err
        return answer.out.strip()

    def show(self, session: str) -> dict[str, Any]:
        answer = self.run("show", session, "-o", "json")
        assert answer.code == 0, answer.err
        return answer.json()

    def wait_phase(self, session: str, *phases: str, timeout_s: float = WAIT_S) -> dict[str, Any]:
        def reached() -> dict[str, Any] | None:
            shown = self.show(session)
            return shown if shown["phase"] in phases else None

        return wait_until(reached, f"session {session} in {phases}", timeout_s)


def children_of(pid: int) -> list[int]:
    """Direct children, read from /proc."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == pid:
                found.append(int(entry.name))
    return found


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def processes_marked(token_or_session: str) -> list[int]:
    """Processes whose environment carries this launch token or session id."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                marked = token_or_session.encode() in (entry / "environ").read_bytes()
            except OSError:
                continue
            if marked and int(entry.name) != os.getpid():
                found.append(int(entry.name))
    return found


@contextmanager
def plane(folder: Path, *options: str, check: bool = True) -> Iterator[Plane]:
    """A running control plane; at the end everything is ended, and (unless told otherwise) `doctor` must be clean."""
    data_dir = folder / "data"
    data_dir.mkdir(parents=True, exist_ok=True)
    running = Plane(data_dir, options)
    running.start()
    try:
        yield running
        if check:
            doctor = running.run("doctor")
            assert doctor.code == 0, doctor.out + doctor.err
    finally:
        _end(running)


def _end(running: Plane) -> None:
    """Cancel what lives, wait until it has ended, and stop; whatever fails, the processes go."""
    try:
        if running.process is None or running.process.poll() is not None:
            running.start()
        for session in running.run("ps", "-o", "json").json():
            running.run("cancel", session["id"])
        wait_until(lambda: not running.run("ps", "-o", "json").json(), "all sessions ended at the end of the test", 45)
    finally:
        running.stop()
