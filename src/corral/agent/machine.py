"""What this machine is: read once when the agent starts."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import pwd
import re
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path

import psutil

from corral.agent import jobdir, trees
from corral.agent.jobspec import JsonObject
from corral.agent.ports import Machine
from corral.agent.processes import lock_holders
from corral.model.faults import Refused

TMPFS = ("tmpfs", "ramfs")
STATE_OF = "state"


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


def choose_run_dir(state: str, bases: Sequence[str] | None = None) -> str:
    """A place on a tmpfs where there is one, since a reboot voids job directories anyway; else beneath `state`."""
    name = hashlib.sha256(os.path.abspath(state).encode()).hexdigest()[:16]
    for base in bases or ("/run/corral", f"/dev/shm/corral-{os.getuid()}"):
        if _on_tmpfs(base) and _made(base):
            return f"{base}/{name}"
    return f"{state}/run"


def check_private(folder: str) -> None:
    """Nobody but us can put anything there; `Refused` where it is another's, or open to others.

    Anybody may make a folder in /dev/shm, under any name: job directories that another user could write would run
    that user's commands as ours.
    """
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise Refused(
            "run_dir_not_ours", f"{folder} is not a folder of this user; remove it, or give another with --run-dir"
        )
    if found.st_mode & 0o022:
        raise Refused("run_dir_open", f"{folder} can be written by other users; chmod it to 700 or give --run-dir")


def _on_tmpfs(path: str) -> bool:
    mounts = {mount.mountpoint: mount.fstype for mount in psutil.disk_partitions(all=True)}
    while path not in mounts and path != "/":
        path = os.path.dirname(path)
    return mounts.get(path) in TMPFS


def _made(base: str) -> bool:
    """False where this user cannot have a folder there."""
    try:
        os.mkdir(base, 0o700)
    except FileExistsError:
        if base.startswith("/run/") and os.lstat(base).st_uid != os.getuid():
            return False  # only root makes folders there
    except OSError:
        return False
    check_private(base)
    return True


def mark_run_dir(run: Path, state: Path) -> None:
    """Whose it is, for those who find it when that is gone."""
    with contextlib.suppress(OSError):  # a full disk does not keep an agent from what runs here
        (run / STATE_OF).write_text(str(state))


def forget_orphans(run: Path) -> None:
    """Remove run directories beside this one whose state directory is gone, no agent holds, and no launch is in."""
    for other in sorted(run.parent.iterdir()) if re.fullmatch("[0-9a-f]{16}", run.name) else ():
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if other != run and not Path((other / STATE_OF).read_text()).exists():
                _remove_if_idle(other)


def _remove_if_idle(run: Path) -> None:
    lock = os.open(run / "agent.lock", os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not any((run / "jobs").iterdir()) and not lock_holders(f"{run}/jobs"):
            shutil.rmtree(run)
    finally:
        os.close(lock)
