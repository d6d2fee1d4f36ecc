"""A tree of files as a disk holds it: inodes, directories, and for each what would survive a loss of power.

It is plain data with the rules of POSIX and raises the errors of the operating system. It never waits, and never
decides that something fails. Next: `disk.py` makes each operation a step of some process and lets things go wrong.
"""

from __future__ import annotations

import random
from collections.abc import Iterator


class File:
    """An inode. `synced` is the content a loss of power cannot take; None: not even the empty file is safe."""

    __slots__ = ("data", "holder", "links", "poisoned", "reserved_bytes", "synced")

    def __init__(self) -> None:
        self.data = b""
        self.synced: bytes | None = None
        self.reserved_bytes = 0
        self.poisoned = False
        self.links = 1
        self.holder: object | None = None

    def sync(self) -> None:
        """After a failed sync the kernel counts the lost pages as clean: later syncs succeed and keep nothing."""
        if not self.poisoned:
            self.synced = self.data

    def write(self, data: bytes) -> None:
        """Overwrite: every page is dirty again, so the next sync counts."""
        self.data = data
        self.poisoned = False

    def append(self, data: bytes) -> None:
        self.data += data


class Directory:
    """`durable` is the listing a loss of power cannot take."""

    __slots__ = ("children", "durable")

    def __init__(self) -> None:
        self.children: dict[str, File | Directory] = {}
        self.durable: dict[str, File | Directory] = {}

    def sync(self) -> None:
        self.durable = dict(self.children)


class FileTree:
    """Paths are absolute, with single slashes."""

    def __init__(self) -> None:
        self.root = Directory()

    # --- finding

    def directory(self, path: str) -> Directory:
        here = self.root
        for part in _parts(path):
            child = here.children.get(part)
            if child is None:
                raise FileNotFoundError(2, "no such directory", path)
            if isinstance(child, File):
                raise NotADirectoryError(20, "not a directory", path)
            here = child
        return here

    def parent(self, path: str) -> tuple[Directory, str]:
        parts = _parts(path)
        if not parts:
            raise ValueError(f"{path!r} names no entry")
        return self.directory("/".join(parts[:-1])), parts[-1]

    def find(self, path: str) -> File | Directory | None:
        try:
            where, name = self.parent(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return where.children.get(name)

    def file(self, path: str) -> File:
        where, name = self.parent(path)
        found = where.children.get(name)
        if found is None:
            raise FileNotFoundError(2, "no such file", path)
        if isinstance(found, Directory):
            raise IsADirectoryError(21, "is a directory", path)
        return found

    def walk(self, path: str = "/") -> Iterator[tuple[str, File]]:
        """Every file below `path`, by name."""
        base = path.rstrip("/")
        for name, child in sorted(self.directory(path).children.items()):
            if isinstance(child, File):
                yield f"{base}/{name}", child
            else:
                yield from self.walk(f"{base}/{name}")

    # --- changing

    def make_directory(self, path: str) -> None:
        where, name = self.parent(path)
        if name in where.children:
            raise FileExistsError(17, "exists", path)
        where.children[name] = Directory()

    def make_directories(self, path: str) -> None:
        here = self.root
        for part in _parts(path):
            child = here.children.setdefault(part, Directory())
            if isinstance(child, File):
                raise NotADirectoryError(20, "not a directory", path)
            here = child

    def create_excl(self, path: str) -> File:
        where, name = self.parent(path)
        if name in where.children:
            raise FileExistsError(17, "exists", path)
        where.children[name] = made = File()
        return made

    def link(self, source: str, target: str) -> None:
        inode = self.file(source)
        where, name = self.parent(target)
        if name in where.children:
            raise FileExistsError(17, "exists", target)
        where.children[name] = inode
        inode.links += 1

    def rename(self, source: str, target: str) -> None:
        """Replaces a file, or an empty directory; refuses a directory that has content."""
        from_where, from_name = self.parent(source)
        moved = from_where.children.get(from_name)
        if moved is None:
            raise FileNotFoundError(2, "no such file", source)
        to_where, to_name = self.parent(target)
        replaced = to_where.children.get(to_name)
        if replaced is moved:
            return
        if isinstance(moved, Directory):
            if isinstance(replaced, File):
                raise NotADirectoryError(20, "not a directory", target)
            if replaced is not None and replaced.children:
                raise OSError(39, "directory not empty", target)
        elif isinstance(replaced, Directory):
            raise IsADirectoryError(21, "is a directory", target)
        elif replaced is not None:
            replaced.links -= 1
        to_where.children[to_name] = moved
        del from_where.children[from_name]

    def remove(self, path: str) -> None:
        inode = self.file(path)
        where, name = self.parent(path)
        del where.children[name]
        inode.links -= 1

    def remove_directory(self, path: str) -> None:
        if self.directory(path).children:
            raise OSError(39, "directory not empty", path)
        where, name = self.parent(path)
        del where.children[name]

    # --- a loss of power

    def lose_power(self, chance: random.Random) -> None:
        """Each change that was not synced is there or not, as chance has it; unsynced content may be torn."""
        _lose(self.root, chance, {}, set())


def _lose(directory: Directory, chance: random.Random, undone: dict[int, bool], seen: set[int]) -> None:
    """`undone` holds one decision per inode: a rename is taken back at both of its names, or at none."""
    for name in sorted(directory.children.keys() | directory.durable.keys()):
        before, after = directory.durable.get(name), directory.children.get(name)
        if before is not after and undone.setdefault(id(after or before), chance.random() < 0.5):
            if before is None:
                del directory.children[name]
            else:
                directory.children[name] = before
    directory.sync()
    for child in directory.children.values():
        if isinstance(child, Directory):
            _lose(child, chance, undone, seen)
        elif id(child) not in seen:
            seen.add(id(child))
            _tear(child, chance)


def _tear(file: File, chance: random.Random) -> None:
    if file.synced != file.data:
        outcomes = [file.synced or b"", file.data, file.data[: int(len(file.data) * chance.random())]]
        file.data = outcomes[int(chance.random() * 3)]
    file.synced = file.data
    file.poisoned = False
    file.holder = None


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]
