"""A node's disks as its processes use them: every operation is one step or more, and each can fail.

`SimDisk` is the node's: a durable disk at /, a tmpfs at `tmpfs`; both outlive the processes, the tmpfs no reboot.
`SimFiles` is that disk in the hands of one process: its calls raise `Dead` in a killed one, and its locks go with it.
A kill between two steps of an operation leaves what a real kill leaves: an empty file, half a write, a temporary name.
It never decides that a process dies. Next: the world's job port and the agent's state port call it.
"""

from __future__ import annotations

import errno
import random

from corral.testing.faults import Faults
from corral.testing.files import Directory, File, FileTree
from corral.testing.process import SimProcess, take_time
from corral.testing.simloop import SimLoop


class SimDisk:
    """One node's. `is_full` is the world's switch: while it is on, every write that needs space gets ENOSPC.
    `step_s` is the longest that one operation takes undisturbed; with 0 it is a mere scheduling point."""

    def __init__(self, loop: SimLoop, faults: Faults, node: str, tmpfs: str = "/run", step_s: float = 0.0) -> None:
        self.loop = loop
        self.faults = faults
        self.node = node
        self.tmpfs = tmpfs
        self.tree = FileTree()
        self.is_full = False
        self.boots = 1
        self.step_s = step_s
        self.chance = random.Random(f"{faults.seed}:disk:{node}")
        self._mount_tmpfs()

    def _mount_tmpfs(self) -> None:
        """Empty, and the mount point itself is never lost: it is a name at the top."""
        where, name = self.tree.parent(self.tmpfs)
        where.children[name] = where.durable[name] = Directory()

    def reboot(self, power_lost: bool) -> None:
        """The caller has killed the node's processes. An orderly reboot syncs; a loss of power does not."""
        self.boots += 1
        self._mount_tmpfs()
        if power_lost:
            self.tree.lose_power(self.chance)
        else:
            _settle_all(self.tree)
        self.loop.world_note(f"reboot {self.node} power_lost={power_lost}")

    # --- for checkers

    def peek(self, path: str) -> bytes | None:
        """What a file holds, or None. No step of anybody."""
        found = self.tree.find(path)
        return found.data if isinstance(found, File) else None

    def names(self, path: str) -> list[str]:
        found = self.tree.find(path)
        return sorted(found.children) if isinstance(found, Directory) else []


class SimFiles:
    """One process's view of its node's disk."""

    SLOW_S = 3.0

    def __init__(self, disk: SimDisk, process: SimProcess) -> None:
        self.disk = disk
        self.process = process
        self._tree = disk.tree
        self._faults = disk.faults
        self._locked: list[File] = []
        process.at_exit.append(lambda _: self.let_go())

    async def _step(self) -> None:
        longest_s = self.SLOW_S if self._faults.hit("disk.slow") else self.disk.step_s
        await take_time(self.process, self.disk.chance, longest_s)

    def _need_space(self, path: str) -> None:
        if self.disk.is_full or self._faults.hit("disk.full"):
            raise OSError(errno.ENOSPC, "no space left on device", path)

    # --- reading

    async def read(self, path: str) -> bytes:
        await self._step()
        return self._tree.file(path).data

    async def list(self, path: str) -> list[str]:
        await self._step()
        return sorted(self._tree.directory(path).children)

    async def exists(self, path: str) -> bool:
        await self._step()
        return self._tree.find(path) is not None

    # --- whole files

    async def create_excl(self, path: str, data: bytes = b"") -> None:
        """open(O_EXCL), then write: a kill between the two leaves the file empty. See `link` for all or nothing."""
        await self._step()
        self._tree.parent(path)  # a directory that is not there is noticed before a disk that is full
        self._need_space(path)
        file = self._tree.create_excl(path)
        if data:
            await self._fill(file, path, data)

    async def write(self, path: str, data: bytes) -> None:
        """Overwrite an existing file in place, in two halves. Within its reserved bytes it needs no space."""
        await self._step()
        file = self._tree.file(path)
        await self._fill(file, path, data)

    async def _fill(self, file: File, path: str, data: bytes) -> None:
        await self._step()
        if len(data) > file.reserved_bytes:
            self._need_space(path)
        file.write(data[: len(data) // 2])
        await self._step()
        file.write(data)

    async def append(self, path: str, data: bytes) -> None:
        """One write at the end; makes the file."""
        await self._step()
        self._need_space(path)
        found = self._tree.find(path)
        file = found if isinstance(found, File) else self._tree.create_excl(path)
        file.append(data)

    async def replace_atomic(self, path: str, data: bytes, sync: bool = False) -> None:
        """A temporary file next to it, then rename. With `sync` the content is durable before the name is, and both
        are when the call returns."""
        temporary = f"{path}.tmp"
        await self._step()
        self._need_space(path)
        if self._tree.find(temporary) is not None:
            self._tree.remove(temporary)
        file = self._tree.create_excl(temporary)
        await self._fill(file, temporary, data)
        if sync:
            await self.sync(temporary)
        await self.rename(temporary, path)
        if sync:
            await self.sync(path.rsplit("/", 1)[0])

    async def reserve(self, path: str, size_bytes: int) -> None:
        """posix_fallocate: later writes of up to `size_bytes` in place succeed on a full disk."""
        await self._step()
        self._need_space(path)
        found = self._tree.find(path)
        file = found if isinstance(found, File) else self._tree.create_excl(path)
        file.reserved_bytes = max(file.reserved_bytes, size_bytes)

    # --- names

    async def link(self, source: str, target: str) -> None:
        """link(2): the target appears with all of its content, or FileExistsError."""
        await self._step()
        self._tree.link(source, target)

    async def rename(self, source: str, target: str) -> None:
        await self._step()
        self._tree.rename(source, target)

    async def rename_new(self, source: str, target: str) -> None:
        """renameat2(RENAME_NOREPLACE): the name appears with all of its content, or FileExistsError."""
        await self._step()
        if self._tree.find(target) is not None:
            raise FileExistsError(errno.EEXIST, "exists", target)
        self._tree.rename(source, target)

    async def remove(self, path: str) -> None:
        await self._step()
        self._tree.remove(path)

    async def make_directories(self, path: str) -> None:
        await self._step()
        if self._tree.find(path) is None:
            self._need_space(path)
        self._tree.make_directories(path)

    async def mkdir_rename(self, path: str, files: dict[str, bytes], temporary: str) -> None:
        """Fill a directory under a temporary name, then give it its own: readers see all of it or nothing."""
        await self._step()
        self._need_space(temporary)
        self._tree.make_directory(temporary)
        for name, data in files.items():
            await self.create_excl(f"{temporary}/{name}", data)
        await self.rename(temporary, path)

    async def remove_tree(self, path: str) -> None:
        """File by file, by name, as rm -r does; a kill leaves the rest."""
        for name in await self.list(path):
            child = f"{path}/{name}"
            if isinstance(self._tree.find(child), Directory):
                await self.remove_tree(child)
            else:
                await self.remove(child)
        await self._step()
        self._tree.remove_directory(path)

    # --- durability

    async def sync(self, path: str) -> None:
        """fsync of a file or a directory. EIO: what was written may be lost, and no later sync will say so."""
        await self._step()
        found = self._tree.find(path) if path.strip("/") else self._tree.root
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        if self._faults.hit("disk.sync_error"):
            if isinstance(found, File):
                found.poisoned = True
            raise OSError(errno.EIO, "input/output error", path)
        found.sync()

    # --- locks

    async def try_lock(self, path: str) -> bool:
        """flock(LOCK_EX | LOCK_NB) on an existing file. Held until `unlock` or the death of the process."""
        await self._step()
        file = self._tree.file(path)
        if file.holder is not None:
            return False
        file.holder = self.process
        self._locked.append(file)
        return True

    async def unlock(self, path: str) -> None:
        await self._step()
        file = self._tree.file(path)
        if file.holder is self.process:
            file.holder = None
            self._locked.remove(file)

    async def is_locked(self, path: str) -> bool:
        """F_GETLK: ask without taking it."""
        await self._step()
        return self._tree.file(path).holder is not None

    @property
    def holds_a_lock(self) -> bool:
        return bool(self._locked)

    def let_go(self) -> None:
        """Close what is open."""
        for file in self._locked:
            file.holder = None
        self._locked.clear()


def _settle_all(tree: FileTree) -> None:
    pending = [tree.root]
    while pending:
        directory = pending.pop()
        directory.sync()
        for child in directory.children.values():
            if isinstance(child, Directory):
                pending.append(child)
            else:
                child.sync()
                child.poisoned = False
