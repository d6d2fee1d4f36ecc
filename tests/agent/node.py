"""A node's bottom half for tests: a real zygote, real job directories, and what the agent does with them, blocking."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from corral.agent import jobdir, trees, zygote
from corral.agent.trees import Containment

T = TypeVar("T")
PATIENCE_S = 20.0
RUN_ID, NODE_EPOCH = "run-1", 3


def until(look: Callable[[], T | None], what: str, patience_s: float = PATIENCE_S) -> T:
    """The first answer of `look` that is true."""
    give_up = time.monotonic() + patience_s
    while time.monotonic() < give_up:
        answer = look()
        if answer:
            return answer
        time.sleep(0.002)
    raise AssertionError(f"never came to be: {what}")


def removed(folder: str) -> bool:
    """A cgroup stays busy for an instant after its last process is gone and its subfolders are removed."""
    try:
        os.rmdir(folder)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False
    return True


class Zygote:
    """The agent's end of the wire (docs/node.md)."""

    def __init__(self, crash: str | None = None, first: Callable[[], object] | None = None) -> None:
        ours, theirs = socket.socketpair()
        env = {**os.environ, **({"CORRAL_CRASH": crash} if crash else {})}
        base = getattr(sys, "_base_executable", sys.executable)
        command = [base, "-S", "-E", zygote.__file__, str(theirs.fileno())]
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=env, preexec_fn=first)
        theirs.close()
        ours.settimeout(PATIENCE_S)
        self.channel = ours
        self._answers = ours.makefile("rb")

    def send(self, *requests: dict[str, Any]) -> None:
        self.channel.sendall(b"".join(json.dumps(request).encode() + b"\n" for request in requests))

    def answer(self) -> dict[str, Any]:
        """The next answer to a request."""
        while (said := self.hear()).get("news"):
            pass
        return said

    def hear(self) -> dict[str, Any]:
        line = self._answers.readline()
        if not line:
            raise ConnectionError("the zygote is gone")
        return json.loads(line)

    def news(self) -> str:
        """The token of the next launch of which there is news."""
        while not (said := self.hear()).get("news"):
            pass
        return os.path.basename(said["jobdir"])

    def close(self) -> None:
        self._answers.close()
        self.channel.close()
        self.process.wait(PATIENCE_S)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)


class Node:
    """One run directory, one containment, one zygote that is replaced when it dies."""

    def __init__(self, root: Path, containment: Containment) -> None:
        self.root = root
        self.jobs = root / "jobs"
        self.jobs.mkdir(parents=True)
        self.containment = containment
        self.boot_id = jobdir.boot_id()
        self.zygote = Zygote()

    def close(self) -> None:
        self.zygote.close()
        for token in self.tokens():
            until(lambda token=token: self.ended(token), f"{token} ended at the test's end")
        for token in trees.list_trees(self.containment):
            if self.containment.kind != "marker":
                trees.remove_tree(self.containment, token)
        for folder in (self.containment.tree_root, self.containment.memory_root, self.containment.pids_root):
            if folder and os.path.isdir(folder):
                until(lambda folder=folder: removed(folder), f"{folder} empty")

    def tokens(self) -> list[str]:
        return [path.name for path in self.jobs.iterdir() if not path.name.startswith(".")]

    def folder(self, token: str) -> str:
        return str(self.jobs / token)

    def log(self, token: str, stream: str = "stdout") -> str:
        return str(self.root / "logs" / token / stream)

    def accept(self, token: str, *argv: str, **changes: Any) -> str:
        """Write the launch down as the agent does: under a temporary name, then renamed."""
        workspace = str(self.root / "workspaces" / token)
        spec: dict[str, Any] = {
            "token": token,
            "boot_id": self.boot_id,
            "run_id": RUN_ID,
            "node_epoch": NODE_EPOCH,
            "argv": list(argv),
            "env": {"PATH": "/usr/bin:/bin", trees.MARKER: token},
            "cwd": workspace,
            "make_dirs": [workspace],
            "stdout": self.log(token),
            "stderr": self.log(token, "stderr"),
            "stop_file": str(self.root / "stops" / token),
            "containment": self.containment.to_json(),
        } | changes
        temporary = self.jobs / f".new-{token}-1"
        temporary.mkdir()
        jobdir.write_object(str(temporary), jobdir.SPEC, spec)
        jobdir.reserve(str(temporary))
        temporary.rename(self.jobs / token)
        return self.folder(token)

    def request(self, token: str, crash: str | None = None) -> dict[str, Any]:
        crash_too = {"crash": crash} if crash else {}
        return {"jobdir": self.folder(token), "run_id": RUN_ID, "node_epoch": NODE_EPOCH} | crash_too

    def spawn(self, token: str, crash: str | None = None) -> dict[str, Any]:
        self.zygote.send(self.request(token, crash))
        return self.zygote.answer()

    def launch(self, token: str, *argv: str, **changes: Any) -> None:
        self.accept(token, *argv, **changes)
        self.spawn(token)

    def read(self, token: str, name: str) -> dict[str, Any] | None:
        return jobdir.read_object(self.folder(token), name)

    def wait_for(self, token: str, name: str) -> dict[str, Any]:
        return until(lambda: self.read(token, name), f"{token}: {name}")

    def result(self, token: str) -> dict[str, Any]:
        return self.wait_for(token, jobdir.RESULT)

    def finish(self, token: str) -> dict[str, Any]:
        """The result, once the tree is proven gone."""
        self.wait_for(token, jobdir.EXIT)
        return self.result(token)

    def output(self, token: str, stream: str = "stdout") -> bytes:
        stem, offset, data = self.log(token, stream), 0, b""
        while (chunk := logfile_read(stem, offset)).data:
            data, offset = data + chunk.data, chunk.next_offset
        return data

    def hint(self, token: str) -> None:
        started = self.read(token, jobdir.STARTED) or {}
        if "pid" in started:
            trees.signal_exactly(started["pid"], started["start_time"], signal.SIGUSR1)

    def tell(self, token: str, name: str, **words: Any) -> None:
        """Write a file for the shim, then hint."""
        jobdir.write_object(self.folder(token), name, words)
        self.hint(token)

    def kill_shim(self, token: str) -> bool:
        started = self.read(token, jobdir.STARTED) or {}
        return "pid" in started and trees.signal_exactly(started["pid"], started["start_time"], signal.SIGKILL)

    def ended(self, token: str) -> bool:
        """One look of the agent after a restart: judge what can be judged, void what never began. True at the end."""
        folder = self.folder(token)
        if self.read(token, jobdir.EXIT):
            return True
        with jobdir.held_lock(folder) as free:
            if not free:
                return False
            if self.read(token, jobdir.EXIT) or jobdir.void(folder, "test", "over"):
                return True
            trees.kill_tree(self.containment, token)
            if not trees.tree_is_empty(self.containment, token):
                return False
            jobdir.write_object(folder, jobdir.EXIT, {"reason": "supervisor_lost", "at": time.time()})
            return True


def logfile_read(stem: str, offset: int) -> Any:
    from corral.agent.logfile import read_log

    return read_log(stem, offset, 1 << 20)
