"""What the files of a job directory say, as plain data with a mapping to and from JSON objects.

Knows the shape of `spec.json`, `stop.json`, `go.json`, `limit.json`, `result.json` and `exit.json`. Never touches a
file: `jobdir` reads and writes them, `shim` decides by them. docs/node.md describes each key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, cast

JsonObject = dict[str, Any]


class BadJobFile(ValueError):
    """A file of the job directory holds something that cannot be understood; the message names key and value."""


@dataclass(frozen=True, slots=True)
class Permission:
    """What the agent said this launch is for; a spec that says otherwise is never started."""

    boot_id: str
    run_id: str
    node_epoch: int


@dataclass(frozen=True, slots=True)
class Mount:
    src: str
    dst: str
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """None leaves the node's own limit in force."""

    memory_bytes: int | None = None
    pids: int | None = None
    nofile: int | None = None
    nproc: int | None = None
    core: int | None = None
    fsize: int | None = None
    stack: int | None = None
    memlock: int | None = None
    cpu_s: int | None = None
    address_space: int | None = None


@dataclass(frozen=True, slots=True)
class Spec:
    """One launch, complete: nothing else is asked of anybody before the command runs."""

    token: str
    boot_id: str
    run_id: str
    node_epoch: int
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    stdout: str
    stderr: str
    make_dirs: tuple[str, ...] = ()
    log_limit_bytes: int = 256 << 20
    log_segment_bytes: int = 16 << 20
    barrier: bool = False
    hold_port: bool = False
    port_address: str = "127.0.0.1"
    time_limit_s: float | None = None
    grace_s: float = 30.0
    warn_signal: int | None = None
    warn_before_s: float = 0.0
    kill_grace_s: float = 60.0
    start_before_s: float | None = None
    limits: Limits = field(default_factory=Limits)
    memory_enforced: bool = False
    mounts: tuple[Mount, ...] = ()
    uid: int | None = None
    gid: int | None = None
    bootstrap: str | None = None
    stop_file: str | None = None
    notify: str | None = None
    containment: JsonObject = field(default_factory=lambda: {"kind": "marker"})

    def to_json(self) -> JsonObject:
        # not asdict(self): its deep copy costs more than the launch's own files
        flat: JsonObject = {name: getattr(self, name) for name in _SPEC_KEYS}
        flat["env"] = dict(self.env)
        flat["limits"] = {name: getattr(self.limits, name) for name in _LIMIT_WORDS}
        flat["mounts"] = [asdict(mount) for mount in self.mounts]
        return flat

    @classmethod
    def from_json(cls, raw: JsonObject) -> Spec:
        """Checks every key; one that is unknown is refused, so that an older shim never drops a newer request."""
        unknown = raw.keys() - _SPEC_KEYS.keys()
        missing = _REQUIRED - raw.keys()
        if unknown or missing:
            raise BadJobFile(f"spec.json: unknown keys {sorted(unknown)}, missing keys {sorted(missing)}")
        for key, value in raw.items():
            if not _SPEC_KEYS[key](value):
                raise BadJobFile(f"spec.json: {key} cannot be {value!r}"[:300])
        if not raw["argv"]:
            raise BadJobFile("spec.json: argv is empty")
        values = dict(raw)
        values["argv"] = tuple(raw["argv"])
        values["make_dirs"] = tuple(raw.get("make_dirs", ()))
        values["mounts"] = tuple(_mount(entry) for entry in raw.get("mounts", ()))
        values["limits"] = _limits(raw.get("limits", {}))
        return cls(**values)


def _is_str(value: object) -> bool:
    return isinstance(value, str) and "\0" not in value


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return _is_int(value) and cast(int, value) >= 0


def _is_signal(value: object) -> bool:
    return _is_count(value) and 0 < cast(int, value) < 65


def _is_bool(value: object) -> bool:
    return isinstance(value, bool)


def _is_span(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e10


def _is_strs(value: object) -> bool:
    return isinstance(value, list | tuple) and all(_is_str(item) for item in cast("list[object]", value))


def _is_env(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    pairs = cast("dict[object, object]", value)
    return all(_is_str(key) and key and "=" not in str(key) and _is_str(item) for key, item in pairs.items())


def _is_object(value: object) -> bool:
    return isinstance(value, dict)


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple)


Check = Callable[[object], bool]


def _or_null(check: Check) -> Check:
    return lambda value: value is None or check(value)


_SPEC_KEYS: dict[str, Check] = {
    "token": _is_str,
    "boot_id": _is_str,
    "run_id": _is_str,
    "node_epoch": _is_int,
    "argv": _is_strs,
    "env": _is_env,
    "cwd": _is_str,
    "stdout": _is_str,
    "stderr": _is_str,
    "make_dirs": _is_strs,
    "log_limit_bytes": _is_count,
    "log_segment_bytes": _is_count,
    "barrier": _is_bool,
    "hold_port": _is_bool,
    "port_address": _is_str,
    "time_limit_s": _or_null(_is_span),
    "grace_s": _is_span,
    "warn_signal": _or_null(_is_signal),
    "warn_before_s": _is_span,
    "kill_grace_s": _is_span,
    "start_before_s": _or_null(_is_span),
    "limits": _is_object,
    "memory_enforced": _is_bool,
    "mounts": _is_list,
    "uid": _or_null(_is_count),
    "gid": _or_null(_is_count),
    "bootstrap": _or_null(_is_str),
    "stop_file": _or_null(_is_str),
    "notify": _or_null(_is_str),
    "containment": _is_object,
}
_REQUIRED = {"token", "boot_id", "run_id", "node_epoch", "argv", "env", "cwd", "stdout", "stderr"}


def _mount(raw: object) -> Mount:
    entry = cast("dict[str, object]", raw) if isinstance(raw, dict) else {}
    src, dst, read_only = entry.get("src"), entry.get("dst"), entry.get("read_only", False)
    if not isinstance(src, str) or not isinstance(dst, str) or not isinstance(read_only, bool):
        raise BadJobFile(f"spec.json: mount {raw!r} needs src, dst and read_only"[:300])
    return Mount(src, dst, read_only)


def _limits(raw: JsonObject) -> Limits:
    known = {key: value for key, value in raw.items() if key in Limits.__dataclass_fields__}
    if len(known) < len(raw) or not all(value is None or _is_count(value) for value in raw.values()):
        raise BadJobFile(f"spec.json: limits {raw!r} holds an unknown name or a value that is no count"[:300])
    return Limits(**known)


@dataclass(frozen=True, slots=True)
class Stop:
    """The agent asks for the end: `signal` now (None: TERM), the rest of the tree killed when `grace_s` is over."""

    reason: str
    message: str = ""
    grace_s: float = 30.0
    deadline: str | float | None = None
    signal: int | None = None

    @classmethod
    def from_json(cls, raw: JsonObject) -> Stop:
        grace, signal = raw.get("grace_s", 30.0), raw.get("signal")
        if not _is_span(grace):
            raise BadJobFile(f"stop.json: grace_s cannot be {grace!r}"[:300])
        if signal is not None and not _is_signal(signal):
            raise BadJobFile(f"stop.json: signal cannot be {signal!r}"[:300])
        reason, message = str(raw.get("reason", "stop")), str(raw.get("message", ""))
        return cls(reason, message, float(grace), raw.get("deadline"), signal)


@dataclass(frozen=True, slots=True)
class Go:
    """Every rank is ready: what the command's environment learns only now."""

    env: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def from_json(cls, raw: JsonObject) -> Go:
        env = raw.get("env", {})
        if not _is_env(env):
            raise BadJobFile(f"go.json: env cannot be {env!r}"[:300])
        return cls(env)


@dataclass(frozen=True, slots=True)
class Usage:
    user_s: float
    system_s: float
    max_rss_kib: int


@dataclass(frozen=True, slots=True)
class Status:
    """How a process ended: exactly one of exit code and signal."""

    exit_code: int | None
    signal: int | None
    usage: Usage


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why the command could not be started."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Result:
    """What happened to the main process; which class of end that is, others derive."""

    exit_code: int | None = None
    signal: int | None = None
    not_started: bool = False
    timed_out: bool = False
    stopped: str | None = None
    killed: bool = False
    oom_killed: bool = False
    ended_in: str = "main"
    error: Trouble | None = None
    started_at: float | None = None
    ended_at: float = 0.0
    usage: Usage | None = None

    def to_json(self) -> JsonObject:
        """By hand: `asdict` copies what it meets, and every shim pays for it."""
        error, usage = self.error, self.usage
        words: JsonObject = {name: getattr(self, name) for name in _RESULT_WORDS}
        words["error"] = error and {"code": error.code, "message": error.message}
        words["usage"] = usage and {name: getattr(usage, name) for name in _USAGE_WORDS}
        return words


_LIMIT_WORDS = tuple(Limits.__dataclass_fields__)
_RESULT_WORDS = tuple(Result.__dataclass_fields__)
_USAGE_WORDS = tuple(Usage.__dataclass_fields__)


@dataclass(frozen=True, slots=True)
class LogEnd:
    """How far a stream went, and how many of its bytes a full disk swallowed."""

    end: int
    lost: int
