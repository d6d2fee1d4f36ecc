"""The composition root: the only place that knows all parts. Puts a manager together, and `corral up`, and runs them.

SIGTERM or SIGINT end the control plane and nothing else: running sessions go on, and are found again by the next start.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Coroutine, Generator
from pathlib import Path
from typing import Any, NamedTuple

import structlog
import uvicorn

from corral import openfiles
from corral.api.app import create_app
from corral.api.credentials import digest_of
from corral.clock import SystemClock, SystemIds
from corral.crashplan import CrashPlan
from corral.datadir import make_folder, token_in, write_login
from corral.model.faults import Fault, Refused
from corral.model.lifecycle import Phase
from corral.observe import configure_logging
from corral.plugins import offer_policies
from corral.ports import CrashPoint, Reads, Store, Tx
from corral.reconcile.intents import cancel
from corral.reconcile.loop import Loops
from corral.reconcile.loops import manager_loops
from corral.reconcile.quotas import configure
from corral.settings import Listen, ManagerSettings, QuotaFile, UpSettings
from corral.standstill import PolicyWatch
from corral.store import PostgresStore, SqliteStore, open_store, upgrade
from corral.tasks import end_all

STOP_WAIT_S = 10.0
AGENT_RESTART_S = 1.0
AGENT_MISSET = 2  # what an agent exits with when another try cannot help
ALL_ENDED_WAIT_S = 120.0
POLL_S = 0.1
CRASH_POINTS = ("manager.before_commit", "manager.after_commit")
# Rows come and go by the thousand and hold no cycles: the default thresholds cost a tenth of a busy manager's time.
GC_THRESHOLDS = (50_000, 20, 100)

log = structlog.get_logger("corral.server")


def run_manager(settings: ManagerSettings) -> None:
    """One control-plane process, until told to stop."""
    configure_logging()
    _run(_manager(settings))


def up(settings: UpSettings) -> None:
    """Everything for one machine, until told to stop."""
    configure_logging()
    _run(_up(settings))


def _run(main: Coroutine[Any, Any, None]) -> None:
    for wrong in offer_policies():
        log.warning("a policy is left out", why=wrong)
    gc.set_threshold(*GC_THRESHOLDS)
    openfiles.allow_many()
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)


async def _manager(settings: ManagerSettings) -> None:
    clock, ids = SystemClock(), SystemIds()
    store = open_store(settings.database, clock, ids, _crash_point())
    try:
        listening = _bind(settings.listen)
        url = settings.url or _url_of(listening)
        await _credentials_of_manager(store, ids, settings)
        await _configure(store, settings.quotas)
        async with _serving(store, clock, ids, listening, url) as stopped:
            print(f"ready {url}", flush=True)
            await stopped.wait()
    finally:
        store.close()


async def _up(settings: UpSettings) -> None:
    clock, ids = SystemClock(), SystemIds()
    data_dir = settings.data_dir
    for folder in (data_dir, *(_state_dir(settings, name) for name in node_names(settings))):
        make_folder(folder, "--data-dir")
    tokens = _tokens(data_dir / "admin.token", ids, "--data-dir")
    database = f"sqlite:///{data_dir.resolve() / 'corral.db'}"
    upgrade(database)
    store = open_store(database, clock, ids, _crash_point())
    refused: dict[str, Fault] = {}
    try:
        listening = _bind(settings.listen)
        url = _url_of(listening)
        await _store_credentials(store, tokens)
        await _configure(store, settings.quotas)
        write_login(data_dir, url, tokens.admin)
        async with (
            _serving(store, clock, ids, listening, url, refused) as stopped,
            _agents(settings, url, clock, refused),
        ):
            await _all_registered(store, clock, settings, refused, stopped)
            if not stopped.is_set():
                if settings.login:
                    write_login(_user_config(), url, tokens.admin)
                print(f"ready {url}", flush=True)
            await stopped.wait()
            if settings.stop_sessions:
                await _stop_sessions(store, clock)
    finally:
        store.close()


# --- the manager's own process


@contextlib.asynccontextmanager
async def _serving(
    store: SqliteStore | PostgresStore,
    clock: SystemClock,
    ids: SystemIds,
    listening: socket.socket,
    url: str,
    refused: dict[str, Fault] | None = None,
) -> AsyncGenerator[asyncio.Event]:
    """The loops and the HTTP server, running; the event is set when a signal asks to stop. `refused` is kept as
    `create_app` says."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    member = ids.nonce()[:12]
    loops = Loops(manager_loops(store, member, url, clock), store.wakeups, clock, _report)
    watch = PolicyWatch(
        clock.mono, lambda name, seconds: log.error("policy keeps the manager", policy=name, seconds=seconds)
    )
    watch.start()
    app = create_app(store, clock, ids, url=url, by=f"manager:{member}", loops=loops, stopping=stopped,
                     refused=refused, slow_policies=watch.slowest)  # fmt: skip
    config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=2)
    server = _Server(config)
    tasks = [
        loop.create_task(loops.run(), name="loops"),
        loop.create_task(server.serve(sockets=[listening]), name="http"),
    ]
    if isinstance(store, PostgresStore):
        tasks.append(loop.create_task(store.listen(), name="listen"))
        tasks.append(
            loop.create_task(store.cut_frozen(lambda what: log.warning("cut_off", what=what)), name="cut frozen")
        )
    try:
        while not server.started and not tasks[1].done():
            await clock.sleep(0.01)
        yield stopped
    finally:
        stopped.set()
        server.should_exit = True
        await asyncio.wait([tasks[1]], timeout=STOP_WAIT_S)
        await end_all(tasks)
        watch.stop()


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: stopping is decided here."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def _report(name: str, error: BaseException) -> None:
    log.error("loop pass failed", loop=name, error=repr(error), exc_info=not isinstance(error, Fault))


def _crash_point() -> CrashPoint:
    """CORRAL_CRASH, for tests: a manager's own points are those of `CRASH_POINTS`, the others are its agents'."""
    return CrashPlan(os.environ.get("CORRAL_CRASH")).pass_by


def _bind(listen: Listen) -> socket.socket:
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # inherited: a small answer waits for no ACK
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((listen.host, listen.port))
    except OSError as error:
        listening.close()
        raise Refused(
            "cannot_listen", f"cannot listen on {listen.host}:{listen.port}: {error.strerror}; choose another --listen"
        ) from None
    return listening


def _url_of(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


# --- credentials: one static admin token and one agent token, made at first start


class Tokens(NamedTuple):
    admin: str
    agents: str


async def _credentials_of_manager(store: Store, ids: SystemIds, settings: ManagerSettings) -> None:
    if settings.token_file is not None:
        file = settings.token_file.absolute()
        make_folder(file.parent, "--token-file")
        await _store_credentials(store, _tokens(file, ids, "--token-file"))
    elif not await store.read("credentials", lambda reads: reads.has_credentials()):
        raise Refused(
            "no_credentials",
            "nobody could use this control plane: give --token-file FILE at the first start to make its tokens",
        )


def _tokens(admin_file: Path, ids: SystemIds, option: str) -> Tokens:
    """The administrator's token, made at the first start in `admin_file`, and the agents' in `agent.token` beside it;
    both readable by us alone."""
    agent_file = admin_file.with_name("agent.token")
    tokens = Tokens(token_in(admin_file, ids.secret, option), token_in(agent_file, ids.secret, option))
    if tokens.admin == tokens.agents:
        raise Refused("same_tokens", f"{admin_file} and {agent_file} hold the same token; every node would be admin")
    return tokens


async def _store_credentials(store: Store, tokens: Tokens) -> None:
    def add(tx: Tx) -> None:
        tx.add_credential("admin", "admin", digest_of(tokens.admin))
        tx.add_credential("agents", "agent", digest_of(tokens.agents))

    await store.tx("credentials", add)


async def _configure(store: Store, file: QuotaFile | None) -> None:
    if file is not None:
        await store.tx("configure", lambda tx: configure(tx, file.quotas, file.domains, "configuration"))


def _user_config() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "corral"


# --- the agents of `corral up`


@contextlib.asynccontextmanager
async def _agents(
    settings: UpSettings, url: str, clock: SystemClock, refused: dict[str, Fault]
) -> AsyncGenerator[None]:
    """One agent process per node, started again when it ends; told to end, with their jobs left alone, at the end."""
    names = node_names(settings)
    keepers = [asyncio.create_task(_keep_agent(settings, name, url, clock, refused), name=name) for name in names]
    try:
        yield
    finally:
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)


def node_names(settings: UpSettings) -> list[str]:
    return [f"node-{number}" for number in range(1, settings.nodes + 1)]


def _state_dir(settings: UpSettings, name: str) -> Path:
    return settings.data_dir.resolve() / "nodes" / name


async def _keep_agent(settings: UpSettings, name: str, url: str, clock: SystemClock, refused: dict[str, Fault]) -> None:
    options = ["--manager", url, "--token-file", str(settings.data_dir.resolve() / "agent.token")]
    options += ["--name", name, "--state-dir", str(_state_dir(settings, name))]
    options += ["--keeper", str(os.getpid())]
    options += [word for label in settings.labels for word in ("--label", label)]
    for option, value in (("--simulate-gpus", settings.simulate_gpus), ("--cpus", settings.cpus),
                          ("--memory", settings.memory)):  # fmt: skip
        if value is not None:
            options += [option, value]
    while True:
        agent = await asyncio.create_subprocess_exec(sys.executable, "-m", "corral.agent", *options)
        try:
            code = await agent.wait()
        except asyncio.CancelledError:
            with contextlib.suppress(ProcessLookupError):
                agent.terminate()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_WAIT_S):
                    await agent.wait()
            raise
        if code == AGENT_MISSET:
            refused[name] = Refused("agent_misset", f"the agent of {name} cannot run; its own line above says why")
        log.warning("agent ended; starting it again", node=name, code=code)
        await clock.sleep(AGENT_RESTART_S)


async def _all_registered(
    store: Store, clock: SystemClock, settings: UpSettings, refused: dict[str, Fault], stopped: asyncio.Event
) -> None:
    """Wait until this start's agents have registered, so that `ready` means ready. `Refused` when one never can."""
    started = clock.seconds()
    names = set(node_names(settings))
    told: dict[str, Fault] = {}
    while not stopped.is_set():
        known = await store.read("nodes", lambda reads: reads.nodes())
        if names <= {node.name for node in known.values() if node.registered_at >= started - 1}:
            return
        for name in sorted(names & refused.keys() - told.keys()):
            told[name] = refused[name]
            _refuse_what_lasts(settings, name, refused[name])
            log.warning("node is not taken yet", node=name, why=refused[name].message)
        await clock.sleep(POLL_S)


def _refuse_what_lasts(settings: UpSettings, name: str, why: Fault) -> None:
    if why.code == "agent_misset":
        raise why
    if why.code == "hardware_changed":
        raise Refused(
            "data_moved",
            f"the data in {settings.data_dir} was made in another place or on another machine, and {name} is the node "
            "there: its sessions may still run. Start it where it was, or choose an empty --data-dir",
            subject=str(settings.data_dir),
        )


async def _stop_sessions(store: Store, clock: SystemClock) -> None:
    """Cancel every live session and wait, bounded, until all have ended."""
    deadline = clock.mono() + ALL_ENDED_WAIT_S
    live: list[str] = []
    while clock.mono() < deadline:
        live = await store.read("live sessions", _live_sessions)
        if not live:
            return
        for session_id in live:
            await store.tx("cancel", lambda tx, id_=session_id: cancel(tx, id_, "user:operator"))
        await clock.sleep(POLL_S)
    log.warning("sessions did not end in time and go on", sessions=live)


def _live_sessions(reads: Reads) -> list[str]:
    return [id_ for phase in Phase if phase is not Phase.ENDED for id_ in reads.in_phase(phase, 10_000)]
