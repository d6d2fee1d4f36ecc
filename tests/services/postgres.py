"""A PostgreSQL server of the tests' own, and fresh databases on it.

Knows how to make a cluster in memory, start it on a free port and stop it by its own process id. Never touches a server
that happens to run here, unless CORRAL_TEST_POSTGRES names it. It dies with the test run, however that ends.
"""

import fcntl
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from psycopg import sql

from tests.services.absence import absent
from tests.services.ports import free_port

START_WITHIN_S = 60
STOP_WITHIN_S = 30
FOLDER_PREFIX = "corral-postgres-"

ALWAYS = ("listen_addresses=127.0.0.1", "max_connections=200", "shared_buffers=64MB", "jit=off", "timezone=UTC")
IN_MEMORY = ("fsync=off", "full_page_writes=off")


@dataclass(frozen=True, slots=True)
class Server:
    """A running server, named by the URL of its maintenance database."""

    url: str

    def url_of(self, database: str) -> str:
        return urlunsplit(urlsplit(self.url)._replace(path=f"/{database}"))

    @contextmanager
    def fresh_database(self, template: str = "template1") -> Iterator[str]:
        """The URL of a database that is a copy of `template`, dropped afterwards whoever is still connected."""
        name = f"corral_{secrets.token_hex(6)}"
        with psycopg.connect(self.url, autocommit=True) as admin:
            admin.execute(
                sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
            )
        try:
            yield self.url_of(name)
        finally:
            with psycopg.connect(self.url, autocommit=True) as admin:
                admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    if named := os.environ.get("CORRAL_TEST_POSTGRES"):
        yield Server(named)
        return
    binaries = find_binaries()
    if binaries is None:
        absent("PostgreSQL", "no initdb and postgres found; the Debian package is postgresql")
    with own_server(binaries) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_url(postgres_server: Server) -> str:
    """The maintenance database: for making and dropping databases, never for tables."""
    return postgres_server.url


@pytest.fixture
def postgres_database(postgres_server: Server) -> Iterator[str]:
    """The URL of an empty database that only this test has."""
    with postgres_server.fresh_database() as url:
        yield url


def find_binaries() -> Path | None:
    """The newest folder with both programs: Debian keeps them off the PATH, one folder per version."""
    folders = [Path(found).parent for found in [shutil.which("initdb")] if found]
    folders += sorted(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: float(folder.parent.name), reverse=True
    )
    return next((folder for folder in folders if (folder / "initdb").exists() and (folder / "postgres").exists()), None)


@contextmanager
def own_server(binaries: Path, durable: bool = False) -> Iterator[Server]:
    """Runs a cluster until the block ends. `durable` keeps it on disk with fsync on, for tests about lost power."""
    with ExitStack() as stack:
        folder = stack.enter_context(cluster_folder(in_memory=not durable))
        password = secrets.token_hex(16)
        make_cluster(binaries, folder, password)
        port = free_port()
        settings = ALWAYS if durable else ALWAYS + IN_MEMORY
        options = [part for setting in settings for part in ("-c", setting)]
        command = [str(binaries / "postgres"), "-D", str(folder / "data"), "-k", str(folder), "-p", str(port), *options]
        log = stack.enter_context((folder / "log").open("wb"))
        process = subprocess.Popen([*as_owner(), *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        stack.callback(stop, process)
        server = Server(f"postgresql://postgres:{password}@127.0.0.1:{port}/postgres")
        wait_until_ready(server, process, folder / "log")
        yield server


@contextmanager
def cluster_folder(in_memory: bool) -> Iterator[Path]:
    parent = Path("/dev/shm" if in_memory and os.access("/dev/shm", os.W_OK) else tempfile.gettempdir())
    remove_abandoned_folders(parent)
    folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=parent))
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, "postgres", "postgres")
        with (folder / "lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_abandoned_folders(parent: Path) -> None:
    """A test run that was killed left its folder; the lock says that nobody is there any more."""
    for lock_file in parent.glob(f"{FOLDER_PREFIX}*/lock"):
        with suppress(OSError), lock_file.open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock_file.parent, ignore_errors=True)


def make_cluster(binaries: Path, folder: Path, password: str) -> None:
    password_file = folder / "password"
    password_file.write_text(password)
    if os.geteuid() == 0:
        shutil.chown(password_file, "postgres")
    command = [str(binaries / "initdb"), "-D", str(folder / "data"), "-U", "postgres", "--no-sync", "-E", "UTF8"]
    command += ["--locale=C.UTF-8", "--auth=password", f"--pwfile={password_file}"]
    subprocess.run(
        [*as_owner(), *command], check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=120
    )


def as_owner() -> list[str]:
    """PostgreSQL refuses to run as root. The death signal ends it with this process, even one that is killed."""
    prefix = ["setpriv", "--pdeathsig", "QUIT"]
    if os.geteuid() != 0:
        return prefix
    group = pwd.getpwnam("postgres").pw_gid
    return [*prefix, "--reuid", "postgres", "--regid", str(group), "--init-groups"]


def wait_until_ready(server: Server, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + START_WITHIN_S
    while True:
        try:
            psycopg.connect(server.url, connect_timeout=5).close()
            return
        except psycopg.OperationalError as failure:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL did not start: {log.read_text()[-2000:]}") from failure
            time.sleep(0.02)


def stop(process: "subprocess.Popen[bytes]") -> None:
    for how in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
        process.send_signal(how)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_WITHIN_S)
            return
