"""The agent process: `python -m corral.agent`. Puts the parts together; SIGTERM ends the agent and never a job."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import os
import re
import signal
import sys
from collections.abc import Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import structlog

from corral import __version__, openfiles
from corral.agent.daemon import Daemon, Me
from corral.agent.devices.simulated import SimulatedDevices
from corral.agent.environment import Layout
from corral.agent.jobs import Jobs
from corral.agent.link import HttpLink
from corral.agent.linux import set_parent_death_signal
from corral.agent.machine import check_private, choose_run_dir, forget_orphans, mark_run_dir, read_machine
from corral.agent.nodedb import NodeDatabase
from corral.agent.ports import Entries, NoRoom, Unreachable, Unsafe
from corral.agent.processes import ProcessTrees
from corral.agent.provision import Provisioner
from corral.agent.rundir import RunDirectory
from corral.agent.shims import ZygoteShims
from corral.agent.streams import Streams
from corral.clock import SystemClock, SystemIds
from corral.crashplan import CrashPlan
from corral.model.faults import Fault, Invalid, Refused
from corral.model.resources import parse_cpu_milli, parse_fleet, parse_memory_mib
from corral.model.session import parse_token
from corral.model.spec import LABEL_KEY, NAME
from corral.observe import configure_logging
from corral.tasks import end_all

BLOB_TIMEOUT_S = 120.0
FORGET_AFTER_S = 86400.0
KEEP_FILES_S = 7 * 86400.0
SWEEP_S = 3600.0
HINTS = "hints"
LONGEST_SOCKET_PATH = 107

T = TypeVar("T")

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """What an operator sets. Amounts None: what the machine has."""

    managers: tuple[str, ...]
    token: str
    name: str
    state_dir: Path
    run_dir: Path | None = None
    address: str = "127.0.0.1"
    labels: dict[str, str] = field(default_factory=dict[str, str])
    group: str = "default"
    simulate_gpus: str | None = None
    cpu_milli: int | None = None
    memory_mib: int | None = None
    kill_grace_s: float = 60.0
    keeper: int | None = None


def main(argv: Sequence[str] | None = None) -> int:
    """Run until told to stop; 0 after SIGTERM, 1 or 2 with one line on stderr otherwise."""
    try:
        start(_parser().parse_args(argv))
    except Fault as error:
        print(f"corral agent: {error.message}", file=sys.stderr)
        return 2 if isinstance(error, Invalid) else 1
    return 0


def start(given: argparse.Namespace) -> None:
    """Run until told to stop. Every reason why it cannot is a `Fault` in one line."""
    configure_logging()
    try:
        run_agent(settings_of(given))
    except OSError as error:
        where = "" if error.filename is None else f"{error.filename}: "
        raise Fault("cannot_run", f"{where}{error.strerror or error}") from error
    except (NoRoom, Unsafe) as error:
        raise Fault("cannot_run", str(error)) from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="corral agent", description="The node daemon of Corral.")
    parser.add_argument("--manager", required=True, help="URL of a manager; several separated by commas")
    parser.add_argument("--token-file", required=True, type=Path, help="file with the agents' token")
    parser.add_argument("--name", required=True, help="the node's name")
    parser.add_argument("--state-dir", required=True, type=Path, help="durable state, logs and workspaces")
    parser.add_argument("--run-dir", type=Path, help="job directories; default: on a tmpfs where there is one")
    parser.add_argument("--address", default="127.0.0.1", help="where other nodes' ranks reach this one (MASTER_ADDR)")
    parser.add_argument("--label", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--group", default="default", help="the resource group it belongs to")
    parser.add_argument("--simulate-gpus", metavar="SPEC", help="for example 4xA100:80GB")
    parser.add_argument("--cpus", help="CPUs to offer; default: the machine's")
    parser.add_argument("--memory", help="memory to offer; default: the machine's")
    parser.add_argument(
        "--kill-grace", type=float, default=60.0, metavar="SECONDS", help="how long killing may take before it is stuck"
    )
    parser.add_argument("--keeper", type=int, metavar="PID", help="end when this process, which started it, is gone")
    return parser


def settings_of(given: argparse.Namespace) -> AgentSettings:
    """What was given, checked; `Invalid` names the option that makes no sense."""
    token = _token(given.token_file)
    for what, name in (("name", given.name), ("group", given.group)):
        if not NAME.match(name):
            raise Invalid("bad_name", f"--{what} {name!r}: letters, digits, '.', '_' and '-', at most 128 of them")
    if not re.fullmatch("[A-Za-z0-9_.:-]+", given.address):
        raise Invalid("bad_address", f"--address {given.address[:80]!r} is not a host name or address")
    labels = dict(_label(text) for text in given.label)
    _amount("--simulate-gpus", parse_fleet, given.simulate_gpus)
    return AgentSettings(
        managers=_managers(given.manager),
        token=token,
        name=given.name,
        state_dir=given.state_dir.absolute(),
        run_dir=given.run_dir and given.run_dir.absolute(),
        address=given.address,
        labels=labels,
        group=given.group,
        simulate_gpus=given.simulate_gpus,
        cpu_milli=_amount("--cpus", parse_cpu_milli, given.cpus),
        memory_mib=_amount("--memory", parse_memory_mib, given.memory),
        kill_grace_s=_kill_grace_s(given.kill_grace),
        keeper=given.keeper,
    )


def _token(path: Path) -> str:
    try:
        token = path.read_text().strip()
    except OSError as error:
        raise Invalid("bad_token_file", f"--token-file {path}: {error.strerror}") from None
    except (UnicodeDecodeError, ValueError):
        token = ""
    if not re.fullmatch("[!-~]+", token):
        raise Invalid("bad_token_file", f"--token-file {path} holds no token; copy a manager's agent.token there")
    return token


def _amount(option: str, parse: Callable[[str], T], value: str | None) -> T | None:
    try:
        if value is not None and not parse(value):
            raise Invalid("bad_amount", f"{value!r} is nothing to offer")
        return None if value is None else parse(value)
    except Invalid as error:
        raise Invalid(error.code, f"{option}: {error.message}", subject=option) from None


def _kill_grace_s(seconds: float) -> float:
    if not 1 <= seconds <= 86400:
        raise Invalid("bad_kill_grace", f"--kill-grace {seconds:g}: from 1 to 86400 seconds")
    return seconds


def _managers(text: str) -> tuple[str, ...]:
    urls = tuple(url.strip().rstrip("/") for url in text.split(",") if url.strip())
    for url in urls or (text,):
        if not re.match(r"^https?://[^/\s]+$", url):
            raise Invalid("bad_manager", f"--manager {url!r} is not a URL; write for example http://10.0.0.1:7700")
    return urls


def _label(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not sign or not LABEL_KEY.match(key):
        raise Invalid("bad_label", f"--label {text!r} is not KEY=VALUE")
    return key, value


def run_agent(settings: AgentSettings) -> None:
    """One agent on its state directory; `Refused` when another has it."""
    if settings.keeper is not None:
        _end_with(settings.keeper)
    openfiles.allow_many()
    settings.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    run_dir = settings.run_dir or Path(choose_run_dir(str(settings.state_dir)))
    if len(os.fsencode(run_dir / HINTS)) > LONGEST_SOCKET_PATH:
        raise Invalid(
            "run_dir_too_long", f"--run-dir {run_dir}: too long for a socket beneath it; choose a shorter one"
        )
    run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_private(os.path.realpath(run_dir))
    with _sole(settings.state_dir, "--state-dir"), _sole(run_dir, "--run-dir"):
        mark_run_dir(run_dir, settings.state_dir)
        forget_orphans(run_dir)
        try:
            import uvloop
        except ImportError:
            asyncio.run(_agent(settings, run_dir))
        else:
            uvloop.run(_agent(settings, run_dir))


def _end_with(keeper: int) -> None:
    """The next keeper on the same data starts an agent of its own, which must not find this one in its place."""
    set_parent_death_signal(signal.SIGTERM)
    if os.getppid() != keeper:
        raise Refused("keeper_gone", f"process {keeper}, which started this agent, is gone")


@contextlib.contextmanager
def _sole(folder: Path, option: str) -> Generator[None]:
    lock = os.open(folder / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise Refused("agent_running", f"another agent runs on {folder}; stop it, or choose another {option}") from None
    try:
        yield
    finally:
        os.close(lock)


async def _agent(settings: AgentSettings, run_dir: Path) -> None:
    """Until told to stop, or until a part fails: then the process ends, and whoever keeps it starts it again."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    stop = loop.create_task(stopped.wait())
    parts = [loop.create_task(part) for part in _assemble(settings, run_dir)]
    done, _ = await asyncio.wait({stop, *parts}, return_when=asyncio.FIRST_COMPLETED)
    await end_all([stop, *parts])
    for task in done - {stop}:
        task.result()


def _assemble(settings: AgentSettings, run_dir: Path) -> list[Coroutine[Any, Any, None]]:
    clock, ids = SystemClock(), SystemIds()
    state = str(settings.state_dir)
    run = str(run_dir)
    layout = Layout(state, run, f"{run}/{HINTS}", settings.address)
    machine = read_machine(state, settings.name, settings.cpu_milli, settings.memory_mib)
    machine = replace(machine, kill_grace_s=settings.kill_grace_s)
    dirs = RunDirectory(run)
    ledger = NodeDatabase(f"{state}/node.db")
    crash = os.environ.get("CORRAL_CRASH")
    point = CrashPlan(crash).pass_by
    environment = {"PATH": os.defpath} | ({"CORRAL_CRASH": crash} if crash else {})
    shims = ZygoteShims(dirs.folder, layout.notify, environment)
    trees = ProcessTrees(machine.containment, os.path.dirname(dirs.folder("any")))
    devices = SimulatedDevices(settings.name, parse_fleet(settings.simulate_gpus) if settings.simulate_gpus else ())
    link = HttpLink(settings.token)
    me = Me(settings.name, settings.group, settings.address, settings.labels, ids.nonce(), version=__version__)
    provision = Provisioner(layout, lambda digest, into: _fetch(link, settings.managers, digest, into))
    jobs = Jobs(me, machine, layout, dirs, ledger, shims, trees, devices, provision, clock, point)
    streams = Streams(_Logs(layout, jobs), settings.token, clock)
    daemon = Daemon(
        me,
        machine,
        settings.managers,
        link,
        dirs,
        ledger,
        trees,
        devices,
        jobs,
        streams.serve,
        clock,
        ids,
        point,
        lambda text: log.info(text, node=settings.name),
    )
    return [daemon.run(), jobs.keep_looking(), jobs.sweep(), jobs.fail(), _forget(ledger, provision, jobs, clock)]


async def _fetch(link: HttpLink, managers: Sequence[str], digest: str, into: Path) -> None:
    last: Unreachable | None = None
    for manager in managers:
        try:
            return await link.download(manager, f"/api/v1/agent/blobs/{digest}", into, BLOB_TIMEOUT_S)
        except Unreachable as error:
            last = error
    raise last or Unreachable("no manager is known")


class _Logs:
    """agent.ports.LogSource by the node's layout."""

    def __init__(self, layout: Layout, jobs: Jobs) -> None:
        self._layout = layout
        self._jobs = jobs

    def over(self, token: str) -> bool:
        return not self._jobs.is_alive(token)

    def stem(self, token: str, stream: str) -> str | None:
        try:
            named = parse_token(token)
        except Invalid:
            return None
        folder = self._layout.logs(named.session, named.attempt, named.rank)
        # The shim makes the folder: a launch that lives and has none has written nothing yet.
        here = self._jobs.is_alive(token) or os.path.isdir(folder)
        return f"{folder}/{stream}" if stream in ("stdout", "stderr") and here else None


async def _forget(ledger: NodeDatabase, provision: Provisioner, jobs: Jobs, clock: SystemClock) -> None:
    """Acknowledged results after a day, files of sessions long over after a week."""
    while True:
        await clock.sleep(SWEEP_S)
        now = clock.seconds()
        with contextlib.suppress(NoRoom):
            await ledger.commit(Entries(forget_before=now - FORGET_AFTER_S), sync=False)
        await provision.sweep(jobs.sessions(), now - KEEP_FILES_S)


if __name__ == "__main__":
    sys.exit(main())
