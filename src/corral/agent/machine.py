"""What this machine is: read once when the agent starts."""

from __future__ import annotations

import hashlib
import json
import os
import pwd
from pathlib import Path

import psutil

from corral.agent import jobdir, trees
from corral.agent.jobspec import JsonObject
from corral.agent.ports import Machine

TMPFS = ("tmpfs", "ramfs")


def read_machine(state: str, name: str, cpu_milli: int | None, memory_mib: int | None) -> Machine:
    """This machine, with what it offers cut (or stretched, for trying) to the amounts given."""
    user = pwd.getpwuid(os.getuid())
    boot_id = jobdir.boot_id()
    return Machine(
        boot_id=boot_id,
        hardware_id=_hardware_id(state),
        cpu_milli=len(os.sched_getaffinity(0)) * 1000 if cpu_milli is None else cpu_milli,
        memory_mib=psutil.virtual_memory().total // 2**20 if memory_mib is None else memory_mib,
        containment=_containment(state, boot_id),
        home=user.pw_dir,
        user=user.pw_name,
    )


def _containment(state: str, boot_id: str) -> JsonObject:
    """Where this node's trees live, chosen once per boot: its folders lie beneath the cgroup of the agent that chose,
    and an agent started from another must find the same trees."""
    kept = Path(state) / "containment.json"
    try:
        known = json.loads(kept.read_text())
        if known["boot_id"] == boot_id:
            return known["containment"]
    except (OSError, ValueError, KeyError):
        pass
    tree = hashlib.sha256(os.path.abspath(state).encode()).hexdigest()[:12]
    found = trees.detect(f"corral-{tree}").to_json()
    partial = kept.with_suffix(".partial")
    partial.write_text(json.dumps({"boot_id": boot_id, "containment": found}))
    partial.replace(kept)
    return found


def _hardware_id(state: str) -> str:
    """The machine's own id with the state directory's place, so that several agents on one machine differ."""
    known = ""
    for path in ("/etc/machine-id", "/sys/class/dmi/id/product_uuid"):
        try:
            known = Path(path).read_text().strip()
        except OSError:
            continue
        if known:
            break
    return hashlib.sha256(f"{known}\0{os.path.abspath(state)}".encode()).hexdigest()[:32]


def choose_run_dir(state: str) -> str:
    """A place on a tmpfs where there is one, since a reboot voids job directories anyway; else beneath `state`."""
    name = hashlib.sha256(os.path.abspath(state).encode()).hexdigest()[:16]
    for base in ("/run/corral", f"/dev/shm/corral-{os.getuid()}"):
        if _on_tmpfs(base) and _made(f"{base}/{name}"):
            return f"{base}/{name}"
    return f"{state}/run"


def _on_tmpfs(path: str) -> bool:
    mounts = {mount.mountpoint: mount.fstype for mount in psutil.disk_partitions(all=True)}
    while path not in mounts and path != "/":
        path = os.path.dirname(path)
    return mounts.get(path) in TMPFS


def _made(path: str) -> bool:
    try:
        os.makedirs(path, 0o700, exist_ok=True)
    except OSError:
        return False
    return os.access(path, os.W_OK) and os.stat(path).st_uid == os.getuid()
