"""What is said to a running launch: the agent's orders as its shim reads them, and the notice left for the command.

Knows that an order may be absent, late or unreadable, and what then holds. Never acts on one: that is `shim`.
"""

from __future__ import annotations

import os

from corral.agent import jobdir
from corral.agent.jobspec import BadJobFile, Go, JsonObject, Stop, Trouble


def read_go(folder: str) -> Go | Trouble | None:
    raw = _read(folder, jobdir.GO)
    try:
        return None if raw is None else Go.from_json(raw)
    except BadJobFile as error:
        return Trouble("bad_go", str(error))


def read_stop(folder: str) -> Stop | None:
    """A stop that does not read is a stop all the same."""
    raw = _read(folder, jobdir.STOP)
    try:
        return None if raw is None else Stop.from_json(raw)
    except BadJobFile as error:
        return Stop("stop", str(error))


def read_limit(folder: str, current_s: float | None) -> float | None:
    raw = _read(folder, jobdir.LIMIT)
    value = current_s if raw is None else raw.get("time_limit_s", current_s)
    return value if value is None or isinstance(value, int | float) else current_s


def _read(folder: str, name: str) -> JsonObject | None:
    try:
        return jobdir.read_object(folder, name)
    except jobdir.Unreadable:
        return {}


def leave_notice(path: str, notice: JsonObject) -> None:
    """The stop file, for the command to read. A full disk must not keep a job from being stopped."""
    folder, name = os.path.split(path)
    try:
        os.makedirs(folder, exist_ok=True)
        jobdir.write_object(folder, name, notice)
        os.chmod(path, 0o644)
    except OSError:
        pass
