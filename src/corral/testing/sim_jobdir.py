"""The files of a job directory on a simulated disk: `agent.jobdir` step by step, each system call a scheduling point.

It knows which call comes after which and nothing of when. Next: `sim_shim.py` and `sim_agent.py` call it.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any, cast

from corral.agent import jobdir
from corral.agent.jobspec import JsonObject
from corral.testing.disk import SimFiles

RESERVED = ("started.tmp", "void.tmp", "stop.tmp", "result.tmp", "exit.tmp")


async def reserve(files: SimFiles, folder: str) -> None:
    await files.create_excl(f"{folder}/{jobdir.LOCK}")
    for name in RESERVED:
        await files.reserve(f"{folder}/{name}", jobdir.RESERVE_BYTES)


async def read_object(files: SimFiles, folder: str, name: str) -> JsonObject | None:
    try:
        content = await files.read(f"{folder}/{name}")
    except FileNotFoundError:
        return None
    try:
        value: Any = json.loads(content)
    except ValueError as error:
        raise jobdir.Unreadable(f"{folder}/{name}: {error}") from None
    if not isinstance(value, dict):
        raise jobdir.Unreadable(f"{folder}/{name}: not an object")
    return cast(JsonObject, value)


async def write_object(files: SimFiles, folder: str, name: str, value: JsonObject) -> None:
    temporary = f"{folder}/{name.removesuffix('.json')}.tmp"
    await _fill(files, temporary, value)
    await files.rename(temporary, f"{folder}/{name}")


async def _fill(files: SimFiles, path: str, value: JsonObject) -> None:
    await _open(files, path)
    await files.write(path, json.dumps(value).encode())


async def _open(files: SimFiles, path: str) -> None:
    """open(O_CREAT): only a file that is not there needs an inode."""
    if not await files.exists(path):
        with contextlib.suppress(FileExistsError):
            await files.create_excl(path)


async def decide(files: SimFiles, folder: str, temporary: str, decision: JsonObject) -> bool:
    final = f"{folder}/{jobdir.STARTED}"
    if await files.exists(final):
        return False
    private = f"{folder}/{temporary}"
    await _fill(files, private, decision)
    try:
        await files.rename_new(private, final)
    except FileExistsError:
        return False
    return True


async def decision_of(files: SimFiles, folder: str) -> str | None:
    try:
        started = await read_object(files, folder, jobdir.STARTED)
    except jobdir.Unreadable:
        return "run"
    if started is None:
        return None
    return "void" if started.get("says") == "void" else "run"


async def try_lock(files: SimFiles, folder: str) -> bool:
    path = f"{folder}/{jobdir.LOCK}"
    await _open(files, path)
    return await files.try_lock(path)
