"""What a launch needs before it may begin: blobs fetched and verified, the upload unpacked, a port that is free.

What is large is done in pieces or by another process, so that one slow preparation delays no other.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import socket
import sys
import weakref
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from pathlib import Path

from corral.agent import unpack
from corral.agent.environment import Layout
from corral.agent.ports import NotProvided, Provided, Rejected, Unreachable
from corral.model.session import Why, path_name
from corral.wire import Launch

FETCHES, UNPACKINGS = 16, 4
LEAST_FREE_BYTES, LEAST_FREE_FILES = 16 << 20, 64
REMOVED_AT_ONCE = 200
Fetch = Callable[[str, Path], Awaitable[None]]
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Provisioner:
    """agent.ports.Provision on a real disk. `fetch` writes a blob, named by its digest, to a file."""

    def __init__(self, layout: Layout, fetch: Fetch) -> None:
        self._layout = layout
        self._fetch = fetch
        self._fetches = asyncio.Semaphore(FETCHES)
        self._unpackings = asyncio.Semaphore(UNPACKINGS)
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._partials = 0

    async def provide(self, launch: Launch) -> Provided:
        workspace = Path(self._layout.workspace(launch.session))
        try:
            _need_room(self._layout.state)
            if launch.upload is not None:
                async with self._lock(str(workspace)):
                    await self._upload(launch.upload, workspace)
            script = await self._program(launch.script, launch)
            bootstrap = await self._program(launch.bootstrap, launch)
            port = _free_port(self._layout.address) if launch.ranks == 1 else None
        except OSError as error:
            full = error.errno in _FULL
            why = Why("node_disk" if full else "prepare_failed", f"{error.strerror or error}: {error.filename}")
            raise NotProvided(why, refused=full) from None
        return Provided(str(workspace), script, bootstrap, port)

    def _lock(self, name: str) -> asyncio.Lock:
        lock = self._locks.get(name)
        if lock is None:
            lock = self._locks[name] = asyncio.Lock()
        return lock

    def _partial(self, path: Path) -> Path:
        self._partials += 1
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        return path.with_name(f".{path.name}.{self._partials}.partial")

    # --- blobs

    async def _program(self, digest: str | None, launch: Launch) -> str | None:
        """The script's file, executable, as it was at submit."""
        if digest is None:
            return None
        path = Path(self._layout.state) / "programs" / path_name(launch.session) / digest.removeprefix("sha256:")[:16]
        if not path.exists():
            content = await self._content(digest)
            partial = self._partial(path)
            partial.write_bytes(content if content.startswith(b"#!") else b"#!/bin/sh\n" + content)
            partial.chmod(0o755)
            partial.replace(path)
        return str(path)

    async def _content(self, digest: str) -> bytes:
        for _ in range(2):
            cached = await self._blob(digest)
            content = cached.read_bytes()
            if f"sha256:{hashlib.sha256(content).hexdigest()}" == digest:
                return content
            cached.unlink(missing_ok=True)
        raise NotProvided(Why("blob_corrupt", f"{digest} did not arrive as it is named"), refused=True)

    async def _blob(self, digest: str) -> Path:
        """Where the blob lies; whoever uses it verifies it."""
        cached = Path(self._layout.state) / "blobs" / digest.replace(":", "-")
        async with self._lock(digest):
            if cached.exists():
                os.utime(cached)
                return cached
            async with self._fetches:
                await self._download(digest, cached)
        return cached

    async def _download(self, digest: str, cached: Path) -> None:
        partial = self._partial(cached)
        try:
            await self._fetch(digest, partial)
            partial.replace(cached)
        except Unreachable as error:
            raise NotProvided(Why("blob_unreachable", str(error)), refused=True) from None
        except Rejected as error:
            raise NotProvided(Why("blob_missing", f"{digest}: {error.message}")) from None
        finally:
            partial.unlink(missing_ok=True)

    # --- the upload

    async def _upload(self, digest: str, workspace: Path) -> None:
        """The uploaded tree as the workspace. It appears whole or not at all, once for all attempts of the session."""
        for _ in range(2):
            if workspace.exists():
                return
            cached = await self._blob(digest)
            partial = self._partial(workspace)
            if partial.exists():
                await _remove([partial])
            try:
                async with self._unpackings:
                    code, text = await _run(
                        sys.executable, "-I", "-S", unpack.__file__, str(cached), digest, str(partial)
                    )
                if code == unpack.OK:
                    partial.rename(workspace)
                    return
            finally:
                if partial.exists():
                    await _remove([partial])
            if code != unpack.OTHER_BLOB:
                raise _not_unpacked(code, digest, text)
            cached.unlink(missing_ok=True)
        raise NotProvided(Why("blob_corrupt", f"{digest} did not arrive as it is named"), refused=True)

    # --- what is old

    async def sweep(self, keep: set[str], before: float) -> None:
        state = Path(self._layout.state)
        folders = [state / kind for kind in ("logs", "workspaces", "programs")]
        kept = {path_name(session) for session in keep}
        old = [entry for folder in folders for entry in _older(folder, before) if entry.name not in kept]
        old += _older(state / "blobs", before)
        for first in range(0, len(old), REMOVED_AT_ONCE):
            await _remove(old[first : first + REMOVED_AT_ONCE])


def _need_room(state: str) -> None:
    """A command on a full disk would fail, and so would the next one: a node that eats its queue."""
    room = os.statvfs(state)
    # some file systems count no files
    few_files = room.f_files > 0 and room.f_favail < LEAST_FREE_FILES
    if room.f_bavail * room.f_frsize < LEAST_FREE_BYTES or few_files:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), state)


def _not_unpacked(code: int, digest: str, text: str) -> NotProvided:
    if code == unpack.NO_ROOM:
        return NotProvided(Why("node_disk", f"no room to unpack the upload: {text}"), refused=True)
    if code == unpack.TOO_LARGE:
        return NotProvided(Why("upload_too_large", f"{digest}: {text}"))
    if code == unpack.BAD:
        return NotProvided(Why("bad_upload", f"{digest} is not a tree that may be unpacked: {text}"))
    return NotProvided(Why("prepare_failed", f"the upload could not be unpacked: {text or f'status {code}'}"))


async def _run(*command: str) -> tuple[int, str]:
    """A program's exit status and what it said on stderr. Who stops waiting ends it."""
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE, env={"PATH": os.defpath}
    )
    try:
        _, stderr = await process.communicate()
    except asyncio.CancelledError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        raise
    return process.returncode or 0, stderr.decode(errors="replace")


async def _remove(paths: Sequence[Path]) -> None:
    """By another process, since a workspace may hold a million files."""
    await _run("rm", "-rf", "--", *(str(path) for path in paths))


def _older(folder: Path, before: float) -> Iterator[Path]:
    entries: Iterable[Path] = folder.iterdir() if folder.is_dir() else ()
    for entry in entries:
        with contextlib.suppress(FileNotFoundError):
            if entry.lstat().st_mtime < before:
                yield entry


def _free_port(address: str) -> int:
    for host in (address, ""):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind((host, 0))
            return probe.getsockname()[1]
    raise OSError(errno.EADDRNOTAVAIL, "no free port", address)
