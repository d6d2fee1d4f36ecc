"""The run directory on a real file system: agent.ports.JobDirs by blocking calls on small files (a tmpfs, mostly)."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Generator, Mapping, Sequence

import msgspec

from corral.agent import jobdir
from corral.agent.jobspec import JsonObject
from corral.agent.ports import NoRoom

_FULL = (errno.ENOSPC, errno.EDQUOT)
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY)
_PRIVATE_DIR, _PRIVATE, _FOR_ALL = 0o700, 0o600, 0o644
_USUAL = (
    *(jobdir.SPEC, jobdir.LOCK, jobdir.STARTED, jobdir.RESULT, jobdir.EXIT),
    *(f"{name}.tmp" for name in ("void", "stop")),
)
_USUAL_CONTROL = ("hosts",)
_OBJECT = msgspec.json.Decoder(JsonObject)
NEW, GONE = ".new-", ".gone-"


class RunDirectory:
    """RUN/run_id and RUN/jobs/<token>/."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._jobs = f"{run}/jobs"
        self._locks: dict[str, int] = {}
        self._made = 0
        self._control = f"{run}/control"
        os.makedirs(self._jobs, _PRIVATE_DIR, exist_ok=True)

    def folder(self, token: str) -> str:
        return f"{self._jobs}/{token}"

    async def read_run_id(self) -> str | None:
        try:
            with open(f"{self._run}/run_id") as file:
                return file.read().strip() or None
        except FileNotFoundError:
            return None

    async def write_run_id(self, run_id: str) -> None:
        partial = f"{self._run}/run_id.partial"
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _PRIVATE), "w") as file:
            file.write(run_id)
        os.rename(partial, f"{self._run}/run_id")

    async def tokens(self) -> list[str]:
        found: list[str] = []
        for name in sorted(os.listdir(self._jobs)):
            if name.startswith((NEW, GONE)):
                shutil.rmtree(f"{self._jobs}/{name}", ignore_errors=True)
            else:
                found.append(name)
        self._drop_control(found)
        return found

    def _drop_control(self, keep: list[str]) -> None:
        """What was made for launches that are not here."""
        with contextlib.suppress(FileNotFoundError):
            for name in set(os.listdir(self._control)).difference(keep):
                shutil.rmtree(f"{self._control}/{name}", ignore_errors=True)

    async def accept(self, token: str, spec: JsonObject, files: Mapping[str, bytes]) -> None:
        self._made += 1
        partial = f"{self._jobs}/{NEW}{token}-{self._made}"
        try:
            with _no_room():
                os.mkdir(partial, _PRIVATE_DIR)
                _write(f"{partial}/{jobdir.SPEC}", msgspec.json.encode(spec), _PRIVATE)
                jobdir.reserve(partial)
                for path, content in files.items():
                    _make_folder(os.path.dirname(path))
                    _write(path, content, _FOR_ALL)
            os.rename(partial, self.folder(token))
        except (OSError, NoRoom) as error:
            shutil.rmtree(partial, ignore_errors=True)
            if not isinstance(error, OSError) or error.errno not in _TAKEN:
                raise

    async def read(self, token: str, name: str) -> JsonObject | None:
        path = f"{self._jobs}/{token}/{name}"
        try:
            content = jobdir.read_file(path)
        except OSError as error:
            error.filename = path
            raise
        if content is None:
            return None
        try:
            return _OBJECT.decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise jobdir.Unreadable(f"{path}: {error}") from None

    async def write(self, token: str, name: str, value: JsonObject) -> None:
        with _no_room(), contextlib.suppress(FileNotFoundError):
            try:
                jobdir.write_object(self.folder(token), name, value)
            except IsADirectoryError:  # a job of our own user can put one there; it must not end the agent
                shutil.rmtree(f"{self.folder(token)}/{name}", ignore_errors=True)
                jobdir.write_object(self.folder(token), name, value)

    async def decision(self, token: str) -> str | None:
        return jobdir.decision_of(self.folder(token))

    async def void(self, token: str, reason: str, at: float) -> bool:
        return jobdir.void(self.folder(token), "agent", reason, at)

    async def is_locked(self, token: str) -> bool:
        return jobdir.probe_lock(self.folder(token))

    async def try_lock(self, token: str) -> bool:
        lock = jobdir.try_lock(self.folder(token))
        if lock is None:
            return False
        self._locks[token] = lock
        return True

    async def unlock(self, token: str) -> None:
        lock = self._locks.pop(token, None)
        if lock is not None:
            os.close(lock)

    async def collect(self, token: str) -> None:
        gone = f"{self._jobs}/{GONE}{token}"
        try:
            os.rename(self.folder(token), gone)
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
            shutil.rmtree(gone, ignore_errors=True)  # what an earlier removal left
            os.rename(self.folder(token), gone)
        _remove(gone, _USUAL)
        _remove(f"{self._control}/{token}", _USUAL_CONTROL)


def _remove(folder: str, usual: Sequence[str]) -> None:
    """A folder of few files, whose names are known mostly: in half the calls that `rmtree` makes."""
    try:
        for name in usual:
            os.unlink(f"{folder}/{name}")
        os.rmdir(folder)
    except OSError:
        _remove_any(folder)


def _remove_any(folder: str) -> None:
    try:
        for name in os.listdir(folder):
            os.unlink(f"{folder}/{name}")
        os.rmdir(folder)
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)


def _make_folder(path: str) -> None:
    try:
        os.mkdir(path, 0o755)
    except FileExistsError:
        pass
    except FileNotFoundError:
        os.makedirs(path, 0o755, exist_ok=True)


def _write(path: str, content: bytes, mode: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        written = 0
        while written < len(content):
            written += os.write(fd, content[written:])
    finally:
        os.close(fd)


@contextlib.contextmanager
def _no_room() -> Generator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise NoRoom(os.strerror(error.errno or 0)) from None
        raise
