"""The simulated disk: what kills, full disks and losses of power leave behind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from corral.testing.disk import SimDisk, SimFiles
from corral.testing.faults import Faults
from corral.testing.process import SimProcess
from corral.testing.simloop import SimLoop


class Machine:
    def __init__(self, loop: SimLoop, faults: Faults) -> None:
        self.loop = loop
        self.faults = faults
        self.disk = SimDisk(loop, faults, "n0")
        self.lives = 0
        self.disk.tree.make_directories("/state/jobs")
        for path in ("/", "/state"):
            self.disk.tree.directory(path).sync()

    def files(self, name: str = "shim") -> SimFiles:
        self.lives += 1
        return SimFiles(self.disk, SimProcess(self.loop, self.faults, name, self.lives))


def run(main: Callable[[Machine], Awaitable[None]], *always: str, seed: int = 1) -> None:
    loop, faults = SimLoop(random.Random(seed)), Faults.none(seed)
    faults.always(*always)

    async def body() -> None:
        await main(Machine(loop, faults))

    try:
        loop.run(body())
    finally:
        loop.close()


async def left_after_kill(machine: Machine, operation: Callable[[SimFiles], Awaitable[None]]) -> set[str]:
    """What kills at many moments leave of a directory, as text."""
    found: set[str] = set()
    for round_number in range(300):
        machine.disk.tree.make_directories("/state/jobs")
        files = machine.files()
        files.process.spawn(_as_task(operation, files))
        for _ in range(round_number % 30):
            await asyncio.sleep(0)
        files.process.kill()
        found.add(
            ", ".join(f"{path[12:]}={file.data.decode()}" for path, file in machine.disk.tree.walk("/state/jobs"))
        )
        for path, _ in list(machine.disk.tree.walk("/state/jobs")):
            machine.disk.tree.remove(path)
    return found


async def _as_task(operation: Callable[[SimFiles], Awaitable[None]], files: SimFiles) -> None:
    await operation(files)


def test_a_file_is_created_by_one_of_many() -> None:
    async def main(machine: Machine) -> None:
        wins: list[int] = []

        async def race(number: int) -> None:
            files = machine.files()
            try:
                await files.create_excl("/run/started", b"%d" % number)
            except FileExistsError:
                return
            wins.append(number)

        await asyncio.gather(*(race(number) for number in range(5)))
        assert len(wins) == 1
        assert machine.disk.peek("/run/started") == b"%d" % wins[0]

    run(main)


def test_a_kill_leaves_of_each_operation_what_a_real_one_does() -> None:
    async def create(files: SimFiles) -> None:
        await files.create_excl("/state/jobs/a", b"1234")

    async def replace(files: SimFiles) -> None:
        await files.replace_atomic("/state/jobs/a", b"1234")

    async def link(files: SimFiles) -> None:
        await files.create_excl("/state/jobs/mine", b"1234")
        await files.link("/state/jobs/mine", "/state/jobs/a")
        await files.remove("/state/jobs/mine")

    async def main(machine: Machine) -> None:
        assert await left_after_kill(machine, create) == {"", "a=", "a=12", "a=1234"}
        assert await left_after_kill(machine, replace) == {"", "a.tmp=", "a.tmp=12", "a.tmp=1234", "a=1234"}
        left = await left_after_kill(machine, link)
        assert {files for files in left if "a=" in files} == {"a=1234, mine=1234", "a=1234"}, "complete or not there"

    run(main)


def test_a_directory_appears_filled_or_not_at_all() -> None:
    async def make(files: SimFiles) -> None:
        await files.mkdir_rename("/run/jobs", {"spec": b"ab", "token": b"cd"}, "/run/.new-jobs")

    async def main(machine: Machine) -> None:
        seen: set[tuple[str, ...]] = set()
        files = machine.files()
        task = files.process.spawn(make(files))
        while not task.done():
            seen.add(tuple(machine.disk.names("/run/jobs")))
            await asyncio.sleep(0)
        seen.add(tuple(machine.disk.names("/run/jobs")))
        assert seen == {(), ("spec", "token")}
        with pytest.raises(OSError, match="not empty"):
            await machine.files().mkdir_rename("/run/jobs", {}, "/run/.new-jobs")

    run(main)


def test_a_lock_is_the_living_process_own() -> None:
    async def main(machine: Machine) -> None:
        first, second = machine.files(), machine.files()
        await first.create_excl("/run/lock")
        assert await first.try_lock("/run/lock")
        assert not await second.try_lock("/run/lock")
        assert await second.is_locked("/run/lock")
        first.process.pause()
        assert not await second.try_lock("/run/lock"), "a stopped process holds on"
        first.process.kill()
        assert not await second.is_locked("/run/lock")
        assert await second.try_lock("/run/lock")
        await second.unlock("/run/lock")
        assert await machine.files().try_lock("/run/lock")

    run(main)


def test_a_lock_is_on_the_file_not_on_its_name() -> None:
    async def main(machine: Machine) -> None:
        first, second = machine.files(), machine.files()
        await first.create_excl("/run/lock")
        assert await first.try_lock("/run/lock")
        await second.remove("/run/lock")
        await second.create_excl("/run/lock")
        assert await second.try_lock("/run/lock")

    run(main)


def test_a_full_disk_takes_nothing_but_what_was_reserved() -> None:
    async def main(machine: Machine) -> None:
        files = machine.files()
        await files.reserve("/run/result.tmp", 100)
        machine.disk.is_full = True
        for attempt in (
            files.create_excl("/run/x", b"1"),
            files.replace_atomic("/run/x", b"1"),
            files.append("/run/x", b"1"),
        ):
            with pytest.raises(OSError, match="no space"):
                await attempt
        with pytest.raises(OSError, match="no space"):
            await files.write("/run/result.tmp", b"x" * 101)
        await files.write("/run/result.tmp", b"x" * 100)
        await files.rename("/run/result.tmp", "/run/result")
        assert await files.read("/run/result") == b"x" * 100
        machine.disk.is_full = False
        await files.append("/run/x", b"1")

    run(main)


def test_a_write_can_fail_by_chance() -> None:
    async def main(machine: Machine) -> None:
        with pytest.raises(OSError, match="no space"):
            await machine.files().create_excl("/run/x", b"1")

    run(main, "disk.full")


def test_an_orderly_reboot_keeps_the_disk_and_empties_the_tmpfs() -> None:
    async def main(machine: Machine) -> None:
        files = machine.files()
        await files.append("/run/log", b"gone")
        await files.append("/state/jobs/log", b"kept")
        files.process.kill()
        machine.disk.reboot(power_lost=False)
        assert machine.disk.peek("/run/log") is None
        assert machine.disk.names("/run") == []
        assert machine.disk.peek("/state/jobs/log") == b"kept"

    run(main)


def after_power_loss(write: Callable[[SimFiles], Awaitable[None]]) -> set[bytes | None]:
    """All that losses of power, one per seed, leave of the file."""
    found: set[bytes | None] = set()

    async def main(machine: Machine) -> None:
        files = machine.files()
        await files.sync("/state")
        await write(files)
        files.process.kill()
        machine.disk.reboot(power_lost=True)
        found.add(machine.disk.peek("/state/jobs/a"))
        machine.disk.reboot(power_lost=True)
        assert machine.disk.peek("/state/jobs/a") in found, "what one loss left the next one leaves too"

    for seed in range(60):
        run(main, seed=seed)
    return found


def test_a_loss_of_power_may_take_or_tear_what_was_not_synced() -> None:
    async def unsynced(files: SimFiles) -> None:
        await files.append("/state/jobs/a", b"ab")

    async def content_only(files: SimFiles) -> None:
        await files.append("/state/jobs/a", b"ab")
        await files.sync("/state/jobs/a")

    async def name_only(files: SimFiles) -> None:
        await files.append("/state/jobs/a", b"ab")
        await files.sync("/state/jobs")

    async def synced(files: SimFiles) -> None:
        await files.replace_atomic("/state/jobs/a", b"ab", sync=True)

    assert after_power_loss(unsynced) == {None, b"", b"a", b"ab"}
    assert after_power_loss(content_only) == {None, b"ab"}
    assert after_power_loss(name_only) == {b"", b"a", b"ab"}
    assert after_power_loss(synced) == {b"ab"}


def test_a_loss_of_power_leaves_the_old_content_or_the_new_of_a_replaced_file() -> None:
    async def replaced(files: SimFiles) -> None:
        await files.replace_atomic("/state/jobs/a", b"old", sync=True)
        await files.replace_atomic("/state/jobs/a.b", b"new", sync=True)
        await files.rename("/state/jobs/a.b", "/state/jobs/a")

    assert after_power_loss(replaced) == {b"old", b"new"}


def test_a_rename_is_taken_back_at_both_names_or_at_none() -> None:
    ends: set[tuple[str, ...]] = set()

    async def main(machine: Machine) -> None:
        files = machine.files()
        await files.make_directories("/state/jobs/a")
        await files.sync("/state/jobs")
        await files.rename("/state/jobs/a", "/state/jobs/b")
        machine.disk.reboot(power_lost=True)
        ends.add(tuple(machine.disk.names("/state/jobs")))

    for seed in range(40):
        run(main, seed=seed)
    assert ends == {("a",), ("b",)}


def test_after_a_failed_sync_later_ones_succeed_and_keep_nothing() -> None:
    async def poisoned(files: SimFiles) -> None:
        await files.append("/state/jobs/a", b"ab")
        await files.sync("/state/jobs")
        files.disk.faults.always("disk.sync_error")
        with pytest.raises(OSError, match="input/output"):
            await files.sync("/state/jobs/a")
        files.disk.faults.never("disk.sync_error")
        await files.sync("/state/jobs/a")

    async def rewritten(files: SimFiles) -> None:
        await poisoned(files)
        await files.write("/state/jobs/a", b"ab")
        await files.sync("/state/jobs/a")

    assert b"" in after_power_loss(poisoned)
    assert after_power_loss(rewritten) == {b"ab"}


def test_errors_are_those_of_the_operating_system() -> None:
    async def main(machine: Machine) -> None:
        files = machine.files()
        await files.make_directories("/state/jobs/a")
        await files.create_excl("/state/jobs/f")
        wrong: list[tuple[Awaitable[object], type[OSError]]] = [
            (files.read("/state/none"), FileNotFoundError),
            (files.read("/state/jobs"), IsADirectoryError),
            (files.list("/none"), FileNotFoundError),
            (files.list("/state/jobs/f"), NotADirectoryError),
            (files.remove("/state/none"), FileNotFoundError),
            (files.rename("/state/none", "/state/x"), FileNotFoundError),
            (files.rename("/state/jobs/f", "/state/jobs/a"), IsADirectoryError),
            (files.rename("/state/jobs/a", "/state/jobs/f"), NotADirectoryError),
            (files.link("/state/jobs/f", "/state/jobs/a"), FileExistsError),
            (files.make_directories("/state/jobs/f/x"), NotADirectoryError),
            (files.sync("/none"), FileNotFoundError),
            (files.create_excl("/none/x"), FileNotFoundError),
        ]
        for attempt, error in wrong:
            with pytest.raises(error):
                await attempt
        await files.remove_tree("/state/jobs")
        assert await files.list("/state") == []

    run(main)


def test_a_slow_disk_lets_the_others_go_first() -> None:
    async def main(machine: Machine) -> None:
        await machine.files().create_excl("/run/x")
        assert machine.loop.now_s > 0.0

    run(main, "disk.slow")
