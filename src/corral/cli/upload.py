"""`--upload DIR`: a tree as one tar that is the same, byte for byte, whenever the tree is, whoever packs it.

`.gitignore` files count as in Git, `.git` never comes along. Names and contents count; owners and times do not.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple, cast

from corral.cli.terminal import one_line
from corral.model.faults import Invalid

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

LIMIT_BYTES = 256 * 1024 * 1024
MOST_ENTRIES = 100_000
FIXED_TIME = 315_532_800  # 1980-01-01: the earliest that every archive format can carry


class Packed(NamedTuple):
    digest: str
    entries: int
    size_bytes: int


class _Rules(NamedTuple):
    """The patterns of one .gitignore, for what lies beneath `base`."""

    base: str
    spec: GitIgnoreSpec


class _Counted:
    """A file that digests what is written to it, and stops at the limit."""

    def __init__(self, file: IO[bytes], root: Path) -> None:
        self._file = file
        self._root = root
        self._seen = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> int:
        self.size += len(data)
        if self.size > LIMIT_BYTES:
            raise Invalid(
                "upload_too_large",
                f"--upload {self._root} is larger than {LIMIT_BYTES // 1024**2} MiB; leave things out by .gitignore",
                subject="--upload",
            )
        self._seen.update(data)
        return self._file.write(data)

    @property
    def digest(self) -> str:
        return f"sha256:{self._seen.hexdigest()}"


def pack(root: Path, into: IO[bytes]) -> Packed:
    """Write the tree's tar; `Invalid` when it is too large or cannot be read."""
    if not os.path.isdir(root):  # unlike the method, no path is too long for it
        raise Invalid("no_such_directory", f"--upload {one_line(str(root))} is not a directory", subject="--upload")
    out = _Counted(into, root)
    entries = 0
    try:
        with tarfile.open(fileobj=cast("IO[bytes]", out), mode="w|", format=tarfile.PAX_FORMAT) as tar:
            for path, name in _entries(root, "", ()):
                entries += 1
                if entries > MOST_ENTRIES:
                    raise Invalid("upload_too_large", f"--upload {root} holds more than {MOST_ENTRIES} entries")
                _add(tar, path, name)
    except OSError as error:
        where = error.filename or root
        raise Invalid("cannot_read", f"--upload {one_line(str(where))}: {error.strerror or error}") from None
    return Packed(out.digest, entries, out.size)


def _entries(folder: Path, inside: str, rules: tuple[_Rules, ...]) -> Iterator[tuple[Path, str]]:
    """Every file, link and folder that comes along, parents first, by name. Links are not followed."""
    ignore = folder / ".gitignore"
    if ignore.is_file():
        rules = (*rules, _read_rules(ignore, inside))
    for entry in sorted(os.scandir(folder), key=lambda one: one.name):
        name = f"{inside}{entry.name}"
        is_folder = entry.is_dir(follow_symlinks=False)
        if entry.name == ".git" or _ignored(name + "/" * is_folder, rules):
            continue
        if is_folder or entry.is_symlink() or entry.is_file(follow_symlinks=False):
            _require_text(name)
            yield Path(entry.path), name
        if is_folder:
            yield from _entries(Path(entry.path), f"{name}/", rules)


def _read_rules(path: Path, inside: str) -> _Rules:
    from pathspec import GitIgnoreSpec

    return _Rules(inside, GitIgnoreSpec.from_lines(path.read_text(errors="surrogateescape").splitlines()))


def _ignored(name: str, rules: tuple[_Rules, ...]) -> bool:
    """The nearest .gitignore that says anything decides."""
    for base, spec in reversed(rules):
        verdict = spec.check_file(name.removeprefix(base)).include
        if verdict is not None:
            return verdict
    return False


def _add(tar: tarfile.TarFile, path: Path, name: str) -> None:
    info = tarfile.TarInfo(name)
    status = path.lstat()
    info.mtime = FIXED_TIME
    info.mode = 0o755 if stat.S_ISDIR(status.st_mode) or status.st_mode & 0o100 else 0o644
    if stat.S_ISLNK(status.st_mode):
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, os.readlink(path), 0o777
        tar.addfile(info)
    elif stat.S_ISDIR(status.st_mode):
        info.type = tarfile.DIRTYPE
        tar.addfile(info)
    else:
        with path.open("rb") as file:
            info.size = os.fstat(file.fileno()).st_size
            tar.addfile(info, file)


def _require_text(name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise Invalid("not_text", f"--upload: the file name {one_line(name)!r} is not UTF-8; rename it") from None
