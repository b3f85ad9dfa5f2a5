"""Reads from ledger files: read-ahead, what stays in memory, and how damage is reported."""

import errno

import pytest
from at_once import AtOnce
from faulty_disk import FaultyDisk, failing

from managed_ledger.errors import (
    CorruptStorage,
    DamagedEntries,
    LedgerNotFound,
    NoDescriptors,
    StorageFailed,
)
from managed_ledger.storage.embedded.block_reader import READ_AHEAD_BYTES, BlockReader
from managed_ledger.storage.embedded.ledger_files import BLOCK_BYTES, HEADER_BYTES, write_all
from managed_ledger.storage.engine_state import LedgerState

NAME = "ledgers/4"
LARGE = BLOCK_BYTES  # an entry of that size has a block of its own


class World:
    """A ledger with all entries in its file and none in memory."""

    def __init__(self, entries: list[bytes]) -> None:
        self.disk = FaultyDisk()
        self.state = LedgerState(4)
        self.reader = BlockReader(self.disk, AtOnce())
        self.entries: list[bytes] = []
        self.flush(entries)

    def flush(self, entries: list[bytes]) -> None:
        self.entries += entries
        self.state.tail.extend(entries, [1] * len(entries), b"")
        (result,) = write_all(self.disk, [self.state.flush_job(1 << 30)])
        self.state.note_flushed(result)
        self.state.evict()
        self.state.evict()

    def restart(self) -> None:
        self.state = LedgerState(4, self.state.flushed)
        self.reader = BlockReader(self.disk, AtOnce())

    async def read(self, first: int, last: int | None = None) -> list[bytes]:
        run = await self.reader.read(
            self.state, first, len(self.entries) - 1 if last is None else last, 1000, 1 << 30
        )
        assert run.first_entry_id == first
        return run.entries

    def in_memory(self, first: int) -> bool:
        return self.reader.cached(self.state, first, first, 1, 1) is not None

    def flip_a_bit_of(self, block: int) -> None:
        self.disk.files[NAME][block * (HEADER_BYTES + 8 + LARGE) + HEADER_BYTES + 20] ^= 1

    def count(self, operation: str) -> int:
        return self.disk.operations.count((operation, NAME))


def large(count: int) -> list[bytes]:
    return [bytes([65 + number]) * LARGE for number in range(count)]


def test_blocks_are_read_some_way_ahead_and_stay_in_memory(run):
    async def scenario():
        world = World(large(12))
        assert not world.in_memory(0)
        assert await world.read(0) == [world.entries[0]]
        ahead = READ_AHEAD_BYTES // (LARGE + 8 + HEADER_BYTES)
        assert [world.in_memory(n) for n in range(12)] == [n < ahead for n in range(12)]
        opened = world.count("open")
        for number in range(ahead):
            assert await world.read(number) == [world.entries[number]]
        assert world.count("open") == opened
        assert await world.read(11) == [world.entries[11]]
        assert world.count("open") == opened + 1
        assert not world.in_memory(10)
        world.reader.close()

    run(scenario())


def test_no_more_is_read_than_is_wanted(run):
    async def scenario():
        world = World(large(4))
        assert await world.read(1, last=2) == [world.entries[1]]
        assert [world.in_memory(number) for number in range(4)] == [False, True, True, False]
        world.reader.close()

    run(scenario())


def test_the_index_of_a_file_is_read_once(run):
    async def scenario():
        world = World(large(3))
        world.restart()
        for number in (2, 1, 0):
            assert await world.read(number, last=number) == [world.entries[number]]
        assert world.count("open") == 1 + 3  # for the index, and for each block
        world.reader.close()

    run(scenario())


def test_an_index_that_a_flush_has_overtaken_is_read_anew(run):
    async def scenario():
        world = World(large(2))
        world.restart()

        def flush_meanwhile(operation: str, name: str) -> None:
            if operation == "read":
                world.disk.fault = lambda operation, name: None
                world.flush([b"new"])

        world.disk.fault = flush_meanwhile
        assert await world.read(0, last=0) == [world.entries[0]]
        assert await world.read(2) == [b"new"]
        world.reader.close()

    run(scenario())


def test_a_damaged_block_is_named_with_the_entry_to_go_on_at(run):
    async def scenario():
        world = World([*large(3), b"last", b"of all"])
        world.flip_a_bit_of(1)
        assert await world.read(0) == [world.entries[0]]
        with pytest.raises(DamagedEntries) as found:
            await world.read(1)
        assert (found.value.ledger_id, found.value.first, found.value.last) == (4, 1, 1)
        assert "entries 1 to 1 of ledger 4 cannot be read" in str(found.value)
        assert f"{NAME} does not return what was written" in str(found.value)
        assert "to ledger 4, entry 2 (resetcursor)" in str(found.value)
        assert world.state.damaged == ((1, 1),)
        assert await world.read(2) == [world.entries[2]]
        world.disk.files[NAME][-1] ^= 1
        world.restart()
        for _ in range(2):
            with pytest.raises(DamagedEntries, match="entries 3 to 4 "):
                await world.read(4)
        with pytest.raises(DamagedEntries):
            await world.read(1)
        assert world.state.damaged == ((1, 1), (3, 4))
        world.reader.close()

    run(scenario())


def test_a_block_that_the_disk_has_written_to_another_place_is_damage(run):
    async def scenario():
        world = World(large(4))
        await world.read(0, 0)  # the index is known
        block_bytes = HEADER_BYTES + 8 + LARGE
        data = world.disk.files[NAME]
        data[2 * block_bytes : 3 * block_bytes] = data[block_bytes : 2 * block_bytes]
        assert await world.read(1) == [world.entries[1]]
        with pytest.raises(DamagedEntries, match="entries 2 to 2 of ledger 4 cannot be read"):
            await world.read(2)
        assert await world.read(3) == [world.entries[3]]
        world.reader.close()

    run(scenario())


@pytest.mark.parametrize("lost", ["half", "all"])
def test_of_a_file_that_lacks_its_end_what_is_there_is_read(run, lost):
    async def scenario():
        world = World(large(4))
        world.restart()
        data = world.disk.files[NAME]
        if lost == "half":
            del data[len(data) // 2 + 10 :]
        else:
            del world.disk.files[NAME]
        whole = 2 if lost == "half" else 0
        for number in range(whole):
            assert await world.read(number) == [world.entries[number]]
        for number in range(whole, 4):
            with pytest.raises(DamagedEntries, match=f"entries {whole} to 3 .*{NAME}") as found:
                await world.read(number)
            assert ("is missing" in str(found.value)) == (lost == "all")
            assert world.state.damaged == ((whole, 3),)
        world.reader.close()

    run(scenario())


def test_a_file_that_cannot_be_read_is_deleted_missing_or_the_disk_has_failed(run):
    async def scenario():
        world = World(large(2))
        world.disk.fault = failing(errno.EMFILE, ("open", "ledgers/"))
        with pytest.raises(NoDescriptors, match=NAME):
            await world.read(0)
        world.disk.fault = failing(errno.EIO, ("read", "ledgers/"))
        with pytest.raises(StorageFailed, match=NAME):
            await world.read(0)
        del world.disk.files[NAME]
        world.disk.fault = lambda operation, name: None
        with pytest.raises(CorruptStorage, match=f"{NAME} is missing"):
            await world.read(0)
        world.state.deleted = True
        with pytest.raises(LedgerNotFound, match="ledger 4 was deleted"):
            await world.read(0)

    run(scenario())


def test_a_ledger_that_is_deleted_while_its_index_is_looked_for_is_not_damaged(run):
    async def scenario():
        world = World(large(2))
        world.restart()

        def delete_first(operation: str, name: str) -> None:
            world.state.deleted = True
            world.disk.files.pop(name, None)

        world.disk.fault = delete_first
        with pytest.raises(LedgerNotFound, match="ledger 4 was deleted"):
            await world.read(0)
        assert not world.state.damaged

    run(scenario())
