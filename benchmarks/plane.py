"""A control plane of its own for a benchmark: `corral up` in a temporary folder, and an HTTP client that is kept."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

WAIT_S = 300.0
POLL_S = 0.1  # each look at the metrics costs the manager something too


class Plane:
    """A running `corral up` and a client with its token."""

    def __init__(self, folder: Path, process: subprocess.Popen[str], url: str) -> None:
        token = (folder / "admin.token").read_text().strip()
        self.folder = folder
        self.process = process
        self.url = url
        self.token = token
        self.http = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=60)

    def submit(self, sessions: list[dict[str, Any]]) -> list[str]:
        answer = self.http.post("/api/v1/sessions:batch", json={"sessions": sessions})
        answer.raise_for_status()
        return [one["id"] for one in answer.json()["sessions"]]

    def phases(self) -> dict[str, int]:
        """Sessions by phase, from the metrics."""
        lines = self.http.get("/metrics").text.splitlines()
        rows = [line for line in lines if line.startswith("corral_sessions{")]
        return {row.split('"')[1]: int(float(row.split()[-1])) for row in rows}

    def wait_ended(self, count: int) -> None:
        """Until none of the `count` submitted is live: those that have ended are counted now and then only."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            if not any(number for phase, number in self.phases().items() if phase != "ended"):
                return
            time.sleep(POLL_S)
        raise TimeoutError(f"{count} sessions had not ended after {WAIT_S} s: {self.phases()}")


@contextmanager
def plane(*options: str) -> Iterator[Plane]:
    with tempfile.TemporaryDirectory(prefix="corral-bench-") as name:
        folder = Path(name)
        command = [sys.executable, "-m", "corral", "up", "--data-dir", name, "--listen", "127.0.0.1:0", "--no-login"]
        process = subprocess.Popen([*command, *options, "--stop-sessions"], stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line.startswith("ready "):
                raise RuntimeError(f"corral up said {line!r}")
            yield Plane(folder, process, line.split()[1])
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(120)
