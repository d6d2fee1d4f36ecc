"""A PostgreSQL server that a test may stop, start again and freeze: its own cluster on its own port."""

import secrets
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.services import postgres
from tests.services.ports import free_port
from tests.services.postgres import Server


class RestartableServer:
    """One cluster. `start` and `stop` return when it is done."""

    def __init__(self, binaries: Path, folder: Path) -> None:
        self._password = secrets.token_hex(16)
        self._port = free_port()
        self._folder = folder
        postgres.make_cluster(binaries, folder, self._password)
        settings = [part for one in postgres.ALWAYS + postgres.IN_MEMORY for part in ("-c", one)]
        place = ["-D", str(folder / "data"), "-k", str(folder), "-p", str(self._port)]
        self._command = [*postgres.as_owner(), str(binaries / "postgres"), *place, *settings]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"postgresql://postgres:{self._password}@127.0.0.1:{self._port}/postgres"

    def start(self) -> None:
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        postgres.wait_until_ready(Server(self.url), self._process, self._folder / "log")

    def stop(self) -> None:
        if self._process is not None:
            postgres.stop(self._process)
            self._process = None

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """The server and every backend of it stand still; connections stay open and nobody answers."""
        assert self._process is not None
        parent = psutil.Process(self._process.pid)
        family = [parent, *parent.children(recursive=True)]
        for process in family:
            process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            for process in family:
                process.send_signal(signal.SIGCONT)


@contextmanager
def restartable_server(binaries: Path) -> Iterator[RestartableServer]:
    with postgres.cluster_folder(in_memory=True) as folder:
        server = RestartableServer(binaries, folder)
        server.start()
        try:
            yield server
        finally:
            server.stop()
