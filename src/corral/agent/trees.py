"""Process trees by launch token: which containment is in force here, and how a whole tree is killed and proven empty.

Knows cgroup v2, cgroup v1 and the environment marker, and that a tree's place is a function of (root, token), so
that it can be ended without its shim. Never decides that a tree should die: the shim does while it lives, the agent
after that.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from corral.agent.jobdir import read_file, start_time_of

MARKER = "CORRAL_LAUNCH_TOKEN"
_FREEZE_TRIES = 200
_EXEC_WINDOW_S = 0.005


@dataclass(frozen=True, slots=True)
class Containment:
    """Where trees of one agent live. `kind` holds the tree; the rest are folders for limits, None where none is."""

    kind: str
    tree_root: str | None = None
    memory_root: str | None = None
    memory_version: int = 0
    pids_root: str | None = None
    pids_version: int = 0

    def without_limits(self) -> Containment:
        """Only what holds the tree, for one that has no limits of its own."""
        return Containment(self.kind, self.tree_root)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Containment:
        return cls(**raw)


# --- which one is in force -------------------------------------------------------------------------------------------


def detect(name: str, kind: str | None = None) -> Containment:
    """The strongest containment this process may use, its folders made. `name` sets agents on one machine apart.

    A kind asked for is given or refused with OSError, never weakened.
    """
    mounts = _cgroup_mounts()
    own = _own_cgroups()
    if kind in (None, "cgroup2") and (root := _usable(mounts, own, "", name, "cgroup.kill")):
        return _with_limits(Containment("cgroup2", root), mounts, own, name)
    if kind in (None, "cgroup1") and (root := _usable(mounts, own, "freezer", name, "freezer.state")):
        return _with_limits(Containment("cgroup1", root), mounts, own, name)
    if kind in (None, "marker"):
        return _with_limits(Containment("marker"), mounts, own, name)
    raise OSError(errno.ENOTSUP, f"containment {kind} is not available on this machine to this user")


def _with_limits(found: Containment, mounts: dict[str, str], own: dict[str, str], name: str) -> Containment:
    places: dict[str, tuple[str | None, int]] = {}
    for controller, control_file in (("memory", "memory.max"), ("pids", "pids.max")):
        root = found.tree_root
        if found.kind == "cgroup2" and root and _delegate(root, controller, control_file):
            places[controller] = (root, 2)
            continue
        version1 = _usable(mounts, own, controller, name, "cgroup.procs")
        places[controller] = (version1, 1) if version1 else (None, 0)
    memory, pids = places["memory"], places["pids"]
    return Containment(found.kind, found.tree_root, memory[0], memory[1], pids[0], pids[1])


def _delegate(root: str, controller: str, control_file: str) -> bool:
    try:
        _write(f"{root}/cgroup.subtree_control", f"+{controller}")
    except OSError:
        return False
    return _probe(root, control_file)


def _usable(mounts: dict[str, str], own: dict[str, str], controller: str, name: str, needs: str) -> str | None:
    """Our folder in the hierarchy, made beneath our own cgroup so that limits set on us go on holding."""
    if controller not in mounts or controller not in own:
        return None
    root = os.path.normpath(f"{mounts[controller]}/{own[controller]}/{name}")
    try:
        os.makedirs(root, exist_ok=True)
    except OSError:
        return None
    return root if os.access(f"{root}/cgroup.procs", os.W_OK) and _probe(root, needs) else None


def _probe(root: str, needs: str) -> bool:
    probe = f"{root}/.probe-{os.getpid()}"
    try:
        os.makedirs(probe, exist_ok=True)
        found = os.path.exists(f"{probe}/{needs}")
        os.rmdir(probe)
    except OSError:
        return False
    return found


def _cgroup_mounts() -> dict[str, str]:
    """Mount point by v1 controller; the v2 hierarchy under the empty name."""
    found: dict[str, str] = {}
    with open("/proc/self/mounts") as file:
        for line in file:
            _, point, kind, options = line.split()[:4]
            if kind == "cgroup2":
                found.setdefault("", point)
            elif kind == "cgroup":
                for option in options.split(","):
                    found.setdefault(option, point)
    return found


def _own_cgroups() -> dict[str, str]:
    found: dict[str, str] = {}
    with open("/proc/self/cgroup") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            for controller in controllers.split(","):
                found[controller] = path
    return found


# --- making a tree's folders ------------------------------------------------------------------------------------------


def make_tree(containment: Containment, token: str, memory_bytes: int | None, pids: int | None) -> tuple[str, ...]:
    """Make the folders this tree needs, limits set; returns those a process must *move* into.

    The v2 tree folder is not among them: the main process is born there.
    """
    move: list[str] = []
    if containment.tree_root:
        folder = _made(containment.tree_root, token)
        if containment.kind == "cgroup1":
            move.append(folder)
    if memory_bytes is not None:
        move += _limit_memory(containment, token, memory_bytes)
    if pids is not None:
        move += _limit_pids(containment, token, pids)
    return tuple(move)


def _limit_memory(containment: Containment, token: str, memory_bytes: int) -> list[str]:
    if not containment.memory_root:
        raise OSError(errno.ENOTSUP, "a memory limit was asked for and no memory controller can be used here")
    folder = _made(containment.memory_root, token)
    if containment.memory_version == 2:
        _write(f"{folder}/memory.max", str(memory_bytes))
        _write_if_there(f"{folder}/memory.swap.max", "0")
        _write_if_there(f"{folder}/memory.oom.group", "1")
        return []
    _write(f"{folder}/memory.limit_in_bytes", str(memory_bytes))
    _write_if_there(f"{folder}/memory.memsw.limit_in_bytes", str(memory_bytes))
    return [folder]


def _limit_pids(containment: Containment, token: str, pids: int) -> list[str]:
    if not containment.pids_root:
        raise OSError(errno.ENOTSUP, "a limit of processes was asked for and no pids controller can be used here")
    folder = _made(containment.pids_root, token)
    _write(f"{folder}/pids.max", str(pids))
    return [folder] if containment.pids_version == 1 else []


def _made(root: str, token: str) -> str:
    folder = f"{root}/{token}"
    try:
        os.mkdir(folder)
    except FileExistsError:
        pass
    except FileNotFoundError:
        os.makedirs(folder, exist_ok=True)
    return folder


def birth_folder(containment: Containment, token: str) -> str | None:
    """The v2 folder the main process is born in."""
    return f"{containment.tree_root}/{token}" if containment.kind == "cgroup2" else None


# --- ending a tree ----------------------------------------------------------------------------------------------------


def kill_tree(containment: Containment, token: str) -> None:
    """Kill everything in the tree once; ask `tree_is_empty`, and kill again while it is not."""
    if containment.kind == "cgroup2":
        _write_if_there(f"{containment.tree_root}/{token}/cgroup.kill", "1")
    elif containment.kind == "cgroup1":
        _kill_frozen(f"{containment.tree_root}/{token}")
    else:
        kill_processes(lambda: marked(token))


def tree_is_empty(containment: Containment, token: str) -> bool:
    """Proof that nothing of the tree lives (marker: that nothing of it that we may look at does)."""
    if containment.kind == "cgroup2":
        events = _read(f"{containment.tree_root}/{token}/cgroup.events")
        return events is None or "populated 0" in events
    if containment.kind == "cgroup1":
        return not _members(f"{containment.tree_root}/{token}")
    if marked(token):
        return False
    time.sleep(_EXEC_WINDOW_S)  # in the middle of an exec a process shows no environment: look twice
    return not marked(token)


def remove_tree(containment: Containment, token: str) -> bool:
    """Take the folders of an empty tree away; False where one is still in use."""
    gone = True
    for root in {containment.tree_root, containment.memory_root, containment.pids_root} - {None}:
        try:
            os.rmdir(f"{root}/{token}")
        except FileNotFoundError:
            pass
        except OSError:
            gone = False
    return gone


def list_trees(containment: Containment, prefix: str = "") -> list[str]:
    """Tokens that have a tree here, whoever started it: what a new run directory must account for."""
    if containment.kind == "marker":
        return sorted({token for token in all_marked().values() if token.startswith(prefix)})
    found: set[str] = set()
    for root in {containment.tree_root, containment.memory_root, containment.pids_root} - {None}:
        try:
            with os.scandir(root) as entries:
                found |= {entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(".")}
        except FileNotFoundError:
            continue
    return sorted(token for token in found if token.startswith(prefix))


def oom_kills(containment: Containment, token: str) -> int:
    """How often the kernel killed for want of memory inside this tree's own limit."""
    if not containment.memory_root:
        return 0
    name = "memory.events" if containment.memory_version == 2 else "memory.oom_control"
    for line in (_read(f"{containment.memory_root}/{token}/{name}") or "").splitlines():
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return 0


def _kill_frozen(folder: str) -> None:
    """v1 has no kill of its own: freeze so that nothing forks, mark everything killed, thaw so that it dies."""
    state = f"{folder}/freezer.state"
    _write_if_there(state, "FROZEN")
    for _ in range(_FREEZE_TRIES):
        if (_read(state) or "FROZEN").strip() == "FROZEN":
            break
        time.sleep(0.001)
    for pid in _members(folder):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    _write_if_there(state, "THAWED")


def _members(folder: str) -> list[int]:
    return [int(line) for line in (_read(f"{folder}/cgroup.procs") or "").split()]


# --- the marker -------------------------------------------------------------------------------------------------------


def all_marked() -> dict[int, str]:
    """Launch token by pid, for every living process whose environment we may read."""
    found: dict[int, str] = {}
    wanted = f"{MARKER}=".encode()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                environ = file.read()
        except OSError:
            continue
        for entry in environ.split(b"\0"):
            if entry.startswith(wanted):
                found[int(name)] = entry[len(wanted) :].decode(errors="replace")
                break
    return found


def marked(token: str) -> set[int]:
    """The marked processes and their descendants, who may have cleared their environment."""
    roots = {pid for pid, found in all_marked().items() if found == token}
    return roots | descendants(roots) if roots else set()


def descendants(roots: Iterable[int]) -> set[int]:
    """Every living (not zombie) process below the roots by parenthood."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (seen := _parent_and_state(int(name))):
            children.setdefault(seen[0], []).append(int(name))
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in found:
                found.add(child)
                waiting.append(child)
    return {pid for pid in found if (seen := _parent_and_state(pid)) and seen[1] != "Z"}


def _parent_and_state(pid: int) -> tuple[int, str] | None:
    stat = _read(f"/proc/{pid}/stat")
    if stat is None:
        return None
    fields = stat.rpartition(")")[2].split()
    return int(fields[1]), fields[0]


def kill_processes(find: Any) -> None:
    """Stop all that `find` shows until it shows no new one (what is stopped cannot fork), then kill them."""
    stopped: dict[int, int] = {}
    for _ in range(50):
        fresh = {pid: started for pid in find() if pid not in stopped and (started := start_time_of(pid)) is not None}
        if not fresh:
            break
        for pid, started in fresh.items():
            signal_exactly(pid, started, signal.SIGSTOP)
        stopped |= fresh
    for pid, started in stopped.items():
        signal_exactly(pid, started, signal.SIGKILL)


def signal_exactly(pid: int, start_time: int, signum: int) -> bool:
    """Signal this very process: a pid that was given to another since is left alone (False)."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if start_time_of(pid) != start_time:
            return False
        signal.pidfd_send_signal(fd, signum)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def _read(path: str) -> str | None:
    try:
        content = read_file(path)
    except OSError as error:
        if error.errno in (errno.ENODEV, errno.ENOTDIR):
            return None  # the cgroup went away while its file was open
        raise
    return None if content is None else content.decode(errors="replace")


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _write_if_there(path: str, text: str) -> None:
    try:
        _write(path, text)
    except FileNotFoundError:
        pass
