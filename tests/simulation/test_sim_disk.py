"""The simulated disk keeps synced data, and exposes engines that acknowledge earlier."""

import asyncio
import random

import pytest

from pybroker.simulation.disk import SECTOR, SimulatedDisk
from pybroker.simulation.node import SimulatedCrash
from pybroker.simulation.world import World


def disks(seeds):
    for seed in range(seeds):
        yield SimulatedDisk(World(seed))


def synced_file(disk, content):
    mount = disk.mount()
    file = mount.create("f/a")
    file.pwritev([content], 0)
    file.fdatasync()
    mount.sync_folder("f")
    return file


def read_after_power_cut(disk):
    disk.lose_power()
    file = disk.mount().open("f/a")
    return file.pread(file.size(), 0)


def test_synced_bytes_survive_a_power_cut():
    for disk in disks(50):
        synced_file(disk, b"old")
        assert read_after_power_cut(disk) == b"old"


def test_an_unsynced_write_survives_is_lost_or_is_torn_at_sectors():
    outcomes = set()
    for disk in disks(200):
        file = synced_file(disk, b"o" * 2 * SECTOR)
        file.pwritev([b"n" * 2 * SECTOR], 0)
        content = read_after_power_cut(disk)
        outcomes.add((content[:SECTOR], content[SECTOR:]))
    old, new = b"o" * SECTOR, b"n" * SECTOR
    assert outcomes == {(old, old), (old, new), (new, old), (new, new)}


def test_an_unsynced_extension_may_leave_zeros_or_a_shorter_file():
    seen = set()
    for disk in disks(200):
        file = synced_file(disk, b"o" * SECTOR)
        file.pwritev([b"n" * 2 * SECTOR], SECTOR)
        content = read_after_power_cut(disk)
        assert content[:SECTOR] == b"o" * SECTOR
        seen.add(content[SECTOR:])
    assert b"" in seen
    assert b"n" * 2 * SECTOR in seen
    assert bytes(SECTOR) + b"n" * SECTOR in seen


def test_a_name_lasts_once_its_folder_is_synced():
    survived = []
    for disk in disks(50):
        disk.mount().create("f/a").fdatasync()
        disk.lose_power()
        survived.append(bool(disk.mount().names("f")))
    assert {True, False} == set(survived)


def test_a_renaming_happens_whole_or_not_at_all():
    for disk in disks(50):
        synced_file(disk, b"old")
        mount = disk.mount()
        mount.create("f/tmp").pwritev([b"new"], 0)
        mount.open("f/tmp").fdatasync()
        mount.rename("f/tmp", "f/a")
        assert read_after_power_cut(disk) in (b"old", b"new")


def test_a_killed_process_loses_no_write_but_gains_no_durability():
    lost = 0
    for disk in disks(50):
        file = synced_file(disk, b"old")
        file.pwritev([b"new"], 0)
        assert disk.mount().open("f/a").pread(3, 0) == b"new"
        lost += read_after_power_cut(disk) == b"old"
    assert lost > 5


def test_the_handles_of_a_dead_process_do_nothing():
    disk = SimulatedDisk(World(1))
    file = synced_file(disk, b"old")
    disk.lose_power()
    with pytest.raises(SimulatedCrash):
        file.pwritev([b"new"], 0)
    assert read_after_power_cut(disk) == b"old"


def test_a_full_disk_refuses_and_may_have_written_a_part():
    disk = SimulatedDisk(World(1))
    file = synced_file(disk, b"old")
    disk.capacity_bytes = 10
    with pytest.raises(OSError, match="no space"):
        file.pwritev([bytes(100)], 3)
    assert file.size() < 103


class WriteAheadLog:
    """A minimal engine: fixed-size records, each synced, or (the bug) synced one record late."""

    def __init__(self, disk, acknowledges_early):
        self.early = acknowledges_early
        self.disk = disk
        self.acknowledged = []

    async def write_forever(self):
        loop = asyncio.get_running_loop()
        file = self.disk.create("wal/0")
        self.disk.sync_folder("wal")
        for number in range(1000):
            record = number.to_bytes(4, "big")
            await loop.run_in_executor(None, file.pwritev, [record], 4 * number)
            if self.early:
                self.acknowledged.append(number)
            await loop.run_in_executor(None, file.fdatasync)
            if not self.early:
                self.acknowledged.append(number)


def records_lost(seed, acknowledges_early):
    world = World(seed)
    disk, node = SimulatedDisk(world), world.node("wal")
    log = WriteAheadLog(disk.mount(), acknowledges_early)
    disk.crash_after(random.Random(seed).randint(5, 200), node.crash)
    node.start(log.write_forever())
    world.run(lambda: node.dead, within_s=1000)
    disk.lose_power()
    names = disk.mount().names("wal")
    content = disk.mount().open(names[0]).pread(1 << 20, 0) if names else b""
    world.close()
    return [n for n in log.acknowledged if content[4 * n : 4 * n + 4] != n.to_bytes(4, "big")]


def test_acknowledging_after_the_sync_loses_nothing():
    assert not any(records_lost(seed, acknowledges_early=False) for seed in range(50))


def test_acknowledging_before_the_sync_is_caught_within_few_seeds():
    assert any(records_lost(seed, acknowledges_early=True) for seed in range(20))


def test_a_copy_that_is_put_back_is_all_there_is_and_durable():
    for disk in disks(20):
        synced_file(disk, b"old")
        copy = disk.copy()
        mount = disk.mount()
        mount.open("f/a").pwritev([b"new"], 0)
        mount.create("f/b")
        disk.put_back(copy)
        assert read_after_power_cut(disk) == b"old"
        assert list(disk.names) == ["f/a"]
