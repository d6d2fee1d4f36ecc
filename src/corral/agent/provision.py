"""What a launch needs before it may begin: blobs fetched and verified, the upload unpacked, a port that is free."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import shutil
import socket
import stat
import tarfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from corral.agent.environment import Layout
from corral.agent.ports import NotProvided, Provided, Rejected, Unreachable
from corral.model.session import Why
from corral.wire import Launch

MAX_UNPACKED_BYTES = 4 * 2**30
MAX_MEMBERS = 200_000
Fetch = Callable[[str], Awaitable[bytes]]


class Provisioner:
    """agent.ports.Provision on a real disk. `fetch` gets a blob by digest from any manager."""

    def __init__(self, layout: Layout, fetch: Fetch) -> None:
        self._layout = layout
        self._fetch = fetch

    async def provide(self, launch: Launch) -> Provided:
        workspace = self._layout.workspace(launch.session)
        try:
            os.makedirs(f"{workspace}/checkpoints", 0o700, exist_ok=True)
            if launch.upload is not None:
                _unpack(await self._blob(launch.upload), Path(workspace), launch.upload)
            script = await self._program(launch.script, launch)
            bootstrap = await self._program(launch.bootstrap, launch)
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            why = Why("node_disk" if full else "prepare_failed", f"{error.strerror}: {error.filename}")
            raise NotProvided(why, refused=full) from None
        return Provided(workspace, script, bootstrap, _free_port(self._layout.address) if launch.ranks == 1 else None)

    async def _program(self, digest: str | None, launch: Launch) -> str | None:
        """The script's file, executable, as it was at submit."""
        if digest is None:
            return None
        folder = Path(self._layout.state) / "programs" / launch.session
        path = folder / digest.removeprefix("sha256:")[:16]
        if not path.exists():
            content = await self._blob(digest)
            folder.mkdir(0o755, parents=True, exist_ok=True)
            partial = path.with_suffix(".partial")
            partial.write_bytes(content if content.startswith(b"#!") else b"#!/bin/sh\n" + content)
            partial.chmod(0o755)
            partial.replace(path)
        return str(path)

    async def _blob(self, digest: str) -> bytes:
        cached = Path(self._layout.state) / "blobs" / digest.replace(":", "-")
        if cached.exists():
            content = cached.read_bytes()
            if _digest(content) == digest:
                return content
        try:
            content = await self._fetch(digest)
        except Unreachable as error:
            raise NotProvided(Why("blob_unreachable", str(error)), refused=True) from None
        except Rejected as error:
            raise NotProvided(Why("blob_missing", f"{digest}: {error.message}")) from None
        if _digest(content) != digest:
            raise NotProvided(Why("blob_corrupt", f"{digest} did not arrive as it is named"), refused=True)
        cached.parent.mkdir(0o700, parents=True, exist_ok=True)
        partial = cached.with_suffix(".partial")
        partial.write_bytes(content)
        partial.replace(cached)
        return content

    async def sweep(self, keep: set[str], before: float) -> None:
        for kind in ("logs", "workspaces", "programs", "control", "blobs"):
            folder = Path(self._layout.state) / kind
            for entry in folder.iterdir() if folder.is_dir() else ():
                if not any(session in entry.name for session in keep) and entry.stat().st_mtime < before:
                    shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink(missing_ok=True)


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _unpack(content: bytes, workspace: Path, digest: str) -> None:
    """The uploaded tree into the workspace: regular files, folders and links that stay inside, nothing else; once."""
    mark = workspace / ".corral-upload"
    if mark.exists() and mark.read_text() == digest:
        return
    total = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            for count, member in enumerate(archive):
                total += member.size
                if count >= MAX_MEMBERS or total > MAX_UNPACKED_BYTES:
                    raise NotProvided(Why("upload_too_large", f"{digest} unpacks to more than this node allows"))
                archive.extract(member, workspace, filter="data")
    except tarfile.TarError as error:
        raise NotProvided(Why("bad_upload", f"{digest} is not a tree that may be unpacked: {error}")) from None
    mark.write_text(digest)
    os.chmod(mark, stat.S_IRUSR)


def _free_port(address: str) -> int:
    try:
        with socket.socket() as probe:
            probe.bind((address, 0))
            return probe.getsockname()[1]
    except OSError:
        with socket.socket() as probe:
            probe.bind(("", 0))
            return probe.getsockname()[1]
