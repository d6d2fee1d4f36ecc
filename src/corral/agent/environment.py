"""From a manager's launch to a shim's spec: the paths of this node, and the variables only the node knows. Pure."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from corral.agent.jobspec import JsonObject
from corral.agent.ports import Machine, Provided
from corral.model.session import path_name
from corral.wire import Launch, Stop

MIB = 2**20
BASE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Layout:
    """Where things are on this node: STATE on disk, RUN for job directories, and the hint socket."""

    state: str
    run: str
    notify: str
    address: str

    def logs(self, session: str, attempt: int, rank: int) -> str:
        return f"{self.state}/logs/{path_name(session)}/{attempt}/{rank}"

    def workspace(self, session: str) -> str:
        return f"{self.state}/workspaces/{path_name(session)}"

    def control(self, token: str) -> str:
        """Files Corral itself gives the command: its hosts and the notice before a stop."""
        return f"{self.run}/control/{token}"


class Me(Protocol):
    name: str
    run_id: str
    epoch: int


class Made(NamedTuple):
    """What to accept: the words of spec.json (`jobspec.Spec`), and files beside it."""

    spec: JsonObject
    files: dict[str, bytes]


def spec_for(
    token: str, launch: Launch, provided: Provided, me: Me, machine: Machine, layout: Layout, start_before_s: float
) -> Made:
    """The complete spec of one launch on this node; after `start_before_s` (CLOCK_BOOTTIME) it never starts."""
    logs = layout.logs(launch.session, launch.attempt, launch.rank)
    control = layout.control(token)
    barrier = launch.ranks > 1
    command = launch.command if provided.script is None else (provided.script, *launch.command)
    early = launch.early_signal
    enforced = launch.memory_enforced or machine.containment.get("memory_version") == 2
    # not by way of `Spec`: making one and taking it apart again costs more than writing the file
    spec: JsonObject = {
        "token": token,
        "boot_id": machine.boot_id,
        "run_id": me.run_id,
        "node_epoch": launch.node_epoch,
        "argv": command,
        "env": _variables(launch, provided, me, machine, layout, control),
        "cwd": launch.workdir or provided.workspace,
        "stdout": f"{logs}/stdout",
        "stderr": f"{logs}/stderr",
        "make_dirs": [provided.workspace, f"{provided.workspace}/checkpoints", logs],
        "barrier": barrier,
        "hold_port": barrier and launch.rank == 0,
        "port_address": layout.address,
        "time_limit_s": launch.time_limit_s,
        "grace_s": launch.grace_s,
        "kill_grace_s": machine.kill_grace_s,
        "start_before_s": start_before_s,
        "warn_signal": _number_of(early.signal) if early else None,
        "warn_before_s": early.before_s if early else 0,
        "limits": {"memory_bytes": launch.resources.memory_mib * MIB if enforced else None, "core": 0},
        "memory_enforced": enforced and launch.resources.memory_mib > 0,
        "mounts": [{"src": mount.source, "dst": mount.target, "read_only": mount.read_only} for mount in launch.mounts],
        "bootstrap": provided.bootstrap,
        "stop_file": f"{control}/stop",
        "notify": layout.notify,
        "containment": machine.containment,
    }
    return Made(spec, {f"{control}/hosts": "".join(f"{host}\n" for host in launch.hosts).encode()})


def stop_for(stop: Stop) -> JsonObject:
    """The words of stop.json (`jobspec.Stop`)."""
    said: JsonObject = {"reason": stop.reason, "message": stop.message, "grace_s": stop.grace_s, "deadline": None}
    return said if stop.signal is None else said | {"signal": _number_of(stop.signal)}


def _number_of(name: str) -> int:
    return signal.Signals[f"SIG{name}"].value


def _variables(
    launch: Launch, provided: Provided, me: Me, machine: Machine, layout: Layout, control: str
) -> dict[str, str]:
    devices = ",".join(uuid for uuid, *_ in launch.devices)
    cpus = max(1, launch.resources.cpu_milli // 1000)
    base = {
        "PATH": BASE_PATH,
        "HOME": machine.home,
        "USER": machine.user,
        "LOGNAME": machine.user,
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": str(cpus),
    }
    corral = {
        "CORRAL_NODE_NAME": me.name,
        "CORRAL_HOSTFILE": f"{control}/hosts",
        "CORRAL_STOP_FILE": f"{control}/stop",
        "CORRAL_WORKSPACE": provided.workspace,
        "CORRAL_CHECKPOINT_DIR": f"{provided.workspace}/checkpoints",
        "CUDA_VISIBLE_DEVICES": devices,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "NVIDIA_VISIBLE_DEVICES": devices,
        "ROCR_VISIBLE_DEVICES": devices,
    }
    if launch.ranks == 1:
        corral["MASTER_PORT"] = str(provided.port or 0)
    return base | dict(launch.environment) | corral
