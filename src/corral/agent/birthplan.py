"""What a command is to be born with, as data.

Knows names, limits and places. Never makes a process: `birth` does, or `quickbirth` where it can.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Mapping
from dataclasses import dataclass

from corral.agent.jobspec import Limits, Mount

_RLIMITS = {
    "nofile": resource.RLIMIT_NOFILE,
    "nproc": resource.RLIMIT_NPROC,
    "core": resource.RLIMIT_CORE,
    "fsize": resource.RLIMIT_FSIZE,
    "stack": resource.RLIMIT_STACK,
    "memlock": resource.RLIMIT_MEMLOCK,
    "cpu_s": resource.RLIMIT_CPU,
    "address_space": resource.RLIMIT_AS,
}
_DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True, slots=True)
class Inherited:
    """What the zygote was given before it changed its own, to be given back to every command."""

    rlimits: Mapping[int, tuple[int, int]]
    oom_score_adj: str | None = None


@dataclass(frozen=True, slots=True)
class Birth:
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    stdin: int
    stdout: int
    stderr: int
    limits: Limits
    mounts: tuple[Mount, ...]
    uid: int | None
    gid: int | None
    born_in: str | None
    move_into: tuple[str, ...]
    inherited: Inherited

    def rlimits(self) -> dict[int, tuple[int, int]]:
        """What the zygote was given, then what the launch asks for. Raises OSError where that is not allowed."""
        wanted = dict(self.inherited.rlimits)
        for name, kind in _RLIMITS.items():
            value = getattr(self.limits, name)
            if value is None:
                continue
            hard = resource.getrlimit(kind)[1]
            if hard != resource.RLIM_INFINITY and value > hard and os.geteuid() != 0:
                raise OSError(errno.EPERM, f"{name} {value} is more than this node allows ({hard})")
            wanted[kind] = (value, value)
        return wanted

    def programs(self) -> list[str]:
        """Where the command may be, in the order of the search."""
        name = self.argv[0]
        if "/" in name:
            return [name]
        return [os.path.join(folder or ".", name) for folder in (self.env.get("PATH") or _DEFAULT_PATH).split(":")]
