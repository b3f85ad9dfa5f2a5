"""A disk that fills up while it is in use, and later has room again."""

import asyncio
import errno
import gc
from typing import Any

import pytest
from at_once import AtOnce
from bare_ledgers import checkpointed, opened, read_all
from faulty_disk import FaultyDisk, failing
from virtual_loop import LoopClock, run_virtually

from managed_ledger.errors import StorageFailed, StorageFull
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.position import EARLIEST
from managed_ledger.storage.embedded.room import RESERVE, RESERVE_BYTES, SPARE_BYTES

MB = 1024 * 1024
PLENTY = 1000 * MB


class Disk(FaultyDisk):
    """A disk with `free_bytes` left. At 0 it refuses writes until a file is deleted."""

    def __init__(self, free_bytes: int = PLENTY) -> None:
        super().__init__()
        self.free_bytes_left = free_bytes
        self.free = lambda: self.free_bytes_left
        self.fault = self.full

    def full(self, operation: str, name: str) -> None:
        if operation == "unlink" and name in self.files:
            self.free_bytes_left += len(self.files[name])
        if operation == "write" and self.free_bytes_left == 0:
            raise OSError(errno.ENOSPC, "full", name)


def test_messages_are_refused_before_the_journal_could_not_be_written_again(run, clock):
    async def scenario():
        disk = Disk()
        backend = await opened(disk, clock)
        factory = ManagedLedgerFactory(backend, clock)
        ledger = await factory.open("log")
        await ledger.append_one(b"before")
        disk.free_bytes_left = 15 * MB
        with pytest.raises(StorageFull, match="delete topics"):
            await ledger.append_one(b"refused")
        assert backend._making_room is None, "so short a journal would make none"
        cursor = await ledger.open_cursor("reader", EARLIEST)  # small writes continue
        assert await read_all(ledger) == [b"before"]
        cursor.mark_delete(ledger.last_confirmed)
        await cursor.flush()
        disk.free_bytes_left = PLENTY
        await ledger.append_one(b"after")
        assert await read_all(ledger) == [b"before", b"after"]
        await factory.close()
        await backend.close()

    run(scenario())


def test_what_waits_to_be_written_needs_its_room_twice_over_too(run, clock):
    async def scenario():
        disk = Disk(SPARE_BYTES + 3 * MB)
        backend = await opened(disk, clock)
        ledger = await ManagedLedgerFactory(backend, clock).open("log")
        with pytest.raises(StorageFull):
            await ledger.append_one(b"x" * 4 * MB)
        await ledger.append_one(b"x" * 2 * MB)
        with pytest.raises(StorageFull):
            await ledger.append_one(b"x" * 2 * MB)

    run(scenario())


def test_the_journal_goes_though_there_is_room_without_the_message_that_was_refused():
    """Otherwise every message of that size would be refused, with half of the disk free."""

    async def scenario():
        disk = Disk(SPARE_BYTES + 4 * MB)
        backend = await opened(disk, LoopClock(), executor=AtOnce())
        ledger = await ManagedLedgerFactory(backend, LoopClock()).open("log")
        await ledger.append_one(b"x" * 3 * MB)
        with pytest.raises(StorageFull):
            await ledger.append_one(b"x" * 3 * MB)
        await asyncio.sleep(2)
        await ledger.append_one(b"x" * 3 * MB)
        await backend.close()

    run_virtually(scenario())


def test_a_disk_that_fails_when_room_is_to_be_made_is_told_once(run, clock):
    async def scenario():
        alarms: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: alarms.append(context))
        disk, fatal = Disk(), list[Exception]()
        backend = await opened(disk, clock, on_fatal=fatal.append, executor=AtOnce())
        ledger = await ManagedLedgerFactory(backend, clock).open("log")
        await ledger.append_one(b"x" * MB)
        disk.free_bytes_left = SPARE_BYTES
        disk.fault = failing(errno.EIO, ("create", "journal/"))
        with pytest.raises(StorageFull):
            await ledger.append_one(b"x")
        assert backend._making_room is not None
        await asyncio.wait([backend._making_room])
        await asyncio.sleep(0)
        assert [type(error) for error in fatal] == [StorageFailed]
        await backend.close()
        fatal.clear()  # the last reference
        del backend, ledger
        gc.collect()
        assert alarms == []

    run(scenario())


def test_what_is_appended_on_top_of_a_refused_message_is_refused_too(run, clock):
    async def scenario():
        disk = Disk()
        backend = await opened(disk, clock)
        ledger = await ManagedLedgerFactory(backend, clock).open("log")
        outcomes: dict[bytes, bool] = {}
        last = asyncio.get_running_loop().create_future()

        def append(entry: bytes) -> None:
            ledger.append([entry], [1], lambda first, error: answered(entry, error))

        def answered(entry: bytes, error: Exception | None) -> None:
            outcomes[entry] = error is None
            if entry == b"1":
                append(b"on top")
            if entry == b"on top":
                disk.free_bytes_left = PLENTY
                append(b"again")
            if entry == b"again":
                last.set_result(None)

        append(b"1")
        await asyncio.sleep(0)
        disk.free_bytes_left = 15 * MB
        append(b"2")
        await last
        assert outcomes == {b"1": True, b"2": False, b"on top": False, b"again": True}
        assert await read_all(ledger) == [b"1", b"again"]

    run(scenario())


def test_on_a_disk_without_any_room_a_deletion_is_written_into_the_reserve(run, clock):
    async def scenario():
        disk = Disk()
        backend = await opened(disk, clock)
        factory = ManagedLedgerFactory(backend, clock)
        ledger = await factory.open("log")
        other = await factory.open("other")
        await ledger.append_one(b"x")
        await checkpointed(backend)
        assert RESERVE in disk.files
        disk.free_bytes_left = 0
        with pytest.raises(StorageFull):
            await other.append_one(b"y")
        with pytest.raises(StorageFull):
            await backend.metadata.put("small", b"but not needed")
        assert RESERVE in disk.files
        await factory.delete("log")
        assert RESERVE not in disk.files
        assert not factory.exists("log")
        disk.free_bytes_left = PLENTY
        await other.append_one(b"y")
        await checkpointed(backend)
        assert RESERVE in disk.files
        await factory.close()
        await backend.close()

    run(scenario())


def test_a_reserve_that_was_given_up_is_there_again_soon_after_there_is_room():
    """It returns even without writes, because other processes may fill the disk again."""

    async def scenario():
        disk = Disk()
        backend = await opened(disk, LoopClock(), executor=AtOnce())
        await backend.metadata.delete("small")
        await asyncio.sleep(0.1)
        disk.free_bytes_left = 0
        await backend.metadata.put("decision", b"to delete", makes_room=True)
        disk.free_bytes_left = 10 * MB  # not enough for messages
        await asyncio.sleep(60)
        assert RESERVE not in disk.files
        disk.free_bytes_left = PLENTY
        await asyncio.sleep(2)
        assert RESERVE in disk.files
        await asyncio.sleep(2)
        assert timers() == 0
        await backend.close()

    run_virtually(scenario())


def test_a_reserve_that_went_though_room_did_not_look_low_is_there_again_too():
    """Other processes filled the disk after the check, and have freed it since."""

    async def scenario():
        disk = Disk()
        backend = await opened(disk, LoopClock(), executor=AtOnce())
        await backend.metadata.delete("small")
        await asyncio.sleep(0.1)

        def full(operation: str, name: str) -> None:
            if operation == "write" and RESERVE in disk.files:
                raise OSError(errno.ENOSPC, "full", name)

        disk.fault = full
        await backend.metadata.put("decision", b"to delete", makes_room=True)
        assert RESERVE not in disk.files
        disk.fault = lambda operation, name: None
        await asyncio.sleep(2)
        assert RESERVE in disk.files
        await backend.close()

    run_virtually(scenario())


def timers() -> int:
    loop: Any = asyncio.get_running_loop()
    return sum(not handle.cancelled() for handle in loop._scheduled)


def test_free_space_is_not_checked_after_closing():
    async def scenario():
        disk = Disk(2 * MB)
        backend = await opened(disk, LoopClock(), executor=AtOnce())
        await backend.metadata.put("small", b"and there is no reserve")
        assert timers() == 1
        await backend.close()
        assert timers() == 0

    run_virtually(scenario())


def test_the_reserve_outlasts_a_power_cut(run, clock):
    async def scenario():
        disk = Disk()
        synced = []
        disk.fault = lambda operation, name: operation == "sync_folder" and synced.append(name)
        backend = await opened(disk, clock)
        await backend.close()
        assert RESERVE in disk.files
        assert "reserve" in synced

    run(scenario())


def test_a_reserve_that_a_crash_left_half_written_is_none(run, clock):
    async def scenario():
        disk = Disk()
        backend = await opened(disk, clock)
        await backend.close()
        half = {**disk.contents(), RESERVE: bytes(RESERVE_BYTES - 1)}
        for free_bytes, kept in ((PLENTY, True), (2 * MB, False)):
            disk = Disk(free_bytes)
            disk.files = {name: bytearray(content) for name, content in half.items()}
            backend = await opened(disk, clock)
            await checkpointed(backend)
            assert (RESERVE in disk.files) == kept
            assert not kept or len(disk.files[RESERVE]) == RESERVE_BYTES
            await backend.close()

    run(scenario())


def test_a_start_on_a_disk_without_any_room_uses_the_reserve(run, clock):
    async def scenario():
        disk = Disk()
        backend = await opened(disk, clock)
        await backend.close()
        assert RESERVE in disk.files
        disk.free_bytes_left = 0
        backend = await opened(disk, clock)
        await backend.metadata.put("small", b"without which nothing starts")
        assert RESERVE not in disk.files
        await backend.close()

    run(scenario())


def test_a_deletion_after_a_restart_is_written_into_the_reserve(run, clock):
    async def scenario():
        disk = Disk()
        backend = await opened(disk, clock)
        factory = ManagedLedgerFactory(backend, clock)
        await (await factory.open("log")).append_one(b"x")
        await factory.close()
        await backend.close()
        disk.free_bytes_left = 2 * MB
        backend = await opened(disk, clock)
        disk.free_bytes_left = 0
        await ManagedLedgerFactory(backend, clock).delete("log")
        assert RESERVE not in disk.files
        await backend.close()

    run(scenario())


def test_a_ledger_whose_list_finds_no_room_is_not_made(run, clock):
    """Neither an opening nor a rollover creates it, so nothing needs to be deleted."""

    async def scenario():
        disk = FaultyDisk()
        backend = await opened(disk, clock)
        factory = ManagedLedgerFactory(backend, clock)
        ledger = await factory.open("log")
        await ledger.append_one(b"x")
        put = backend.metadata.put

        def full(operation: str, name: str) -> None:
            if operation == "write":
                raise OSError(errno.ENOSPC, "full", name)

        def put_into_no_room(*arguments):
            disk.fault = full
            return put(*arguments)

        backend.metadata.put = put_into_no_room
        with pytest.raises(StorageFull):
            await factory.open("other")
        disk.fault = lambda operation, name: None
        with pytest.raises(StorageFull):
            await ledger.roll_over()
        disk.fault = lambda operation, name: None
        assert list(backend.ledger_ids()) == factory.ledger_ids("log")
        await factory.close()
        await backend.close()

    run(scenario())


def test_files_of_deleted_ledgers_go_though_the_checkpoint_finds_no_room(run, clock):
    async def scenario():
        disk = FaultyDisk()
        backend = await opened(disk, clock, journal_max_bytes=1000)
        factory = ManagedLedgerFactory(backend, clock)
        ledger = await factory.open("log")
        other = await factory.open("other")
        for _ in range(4):
            await ledger.append_one(b"x" * 600)
        await checkpointed(backend)
        (name,) = disk.names("ledgers")
        gone = asyncio.Event()
        loop = asyncio.get_running_loop()

        def full(operation: str, at: str) -> None:
            if (operation, at) == ("unlink", name):
                loop.call_soon_threadsafe(gone.set)
            if operation == "write" and not at.startswith("journal/"):
                raise OSError(errno.ENOSPC, "full", at)

        disk.fault = full
        await other.append_one(b"y" * 1200)
        await other.append_one(b"y")
        await factory.delete("log")
        await gone.wait()
        disk.fault = lambda operation, name: None
        await factory.close()
        await backend.close()

    run(scenario())


@pytest.mark.parametrize("entry_bytes", [100_000, RESERVE_BYTES // 2])
def test_what_was_deleted_goes_though_the_rest_of_its_journal_fits_only_into_the_reserve(
    entry_bytes,
):
    """Only a deletion justifies the use of the reserve, and only if the rest fits."""

    async def scenario():
        disk = Disk()
        backend = await opened(disk, LoopClock(), executor=AtOnce())
        factory = ManagedLedgerFactory(backend, LoopClock())
        ledger, other = await factory.open("log"), await factory.open("other")
        await ledger.append_one(b"x" * 100_000)
        await other.append_one(b"y" * entry_bytes)
        await asyncio.sleep(0.1)

        def full(operation: str, name: str) -> None:
            if operation == "write" and name.startswith("ledgers/") and RESERVE in disk.files:
                raise OSError(errno.ENOSPC, "full", name)

        disk.fault = full
        disk.free_bytes_left = 2 * MB
        with pytest.raises(StorageFull):
            await ledger.append_one(b"x")
        await asyncio.sleep(5)
        assert RESERVE in disk.files
        assert len(disk.names("journal")) == 2
        await factory.delete("log")
        await asyncio.sleep(5)
        fits = entry_bytes == 100_000
        assert (RESERVE in disk.files, len(disk.names("journal"))) == (
            (False, 1) if fits else (True, 2)
        )
        assert len(await read_all(other)) == 1
        disk.fault = lambda operation, name: None
        disk.free_bytes_left = PLENTY
        await asyncio.sleep(5)
        assert (RESERVE in disk.files, len(disk.names("journal"))) == (True, 1)
        await backend.close()

    run_virtually(scenario())


def test_what_was_deleted_before_the_disk_filled_up_goes_too():
    async def scenario():
        disk = Disk()
        backend = await opened(disk, LoopClock(), executor=AtOnce())
        factory = ManagedLedgerFactory(backend, LoopClock())
        ledger, other = await factory.open("log"), await factory.open("other")
        await ledger.append_one(b"x" * 100_000)
        await other.append_one(b"y" * 100_000)
        await factory.delete("log")
        await asyncio.sleep(0.1)

        def full(operation: str, name: str) -> None:
            if operation == "write" and name.startswith("ledgers/") and RESERVE in disk.files:
                raise OSError(errno.ENOSPC, "full", name)

        disk.fault = full
        disk.free_bytes_left = 2 * MB
        with pytest.raises(StorageFull):
            await other.append_one(b"y")
        await asyncio.sleep(0.5)
        assert (RESERVE in disk.files, len(disk.names("journal"))) == (False, 1)
        disk.free_bytes_left = PLENTY
        await backend.close()

    run_virtually(scenario())


def test_a_journal_goes_early_when_room_is_low(run, clock):
    async def scenario():
        disk = Disk()
        backend = await opened(disk, clock)
        ledger = await ManagedLedgerFactory(backend, clock).open("log")
        for _ in range(4):
            await ledger.append_one(b"x" * MB)
        disk.free_bytes_left = 18 * MB  # not enough beside a second copy of the journal
        with pytest.raises(StorageFull):
            await ledger.append_one(b"x" * MB)
        while backend._making_room is not None:
            await asyncio.wait([backend._making_room])
            await asyncio.sleep(0)
        await checkpointed(backend)
        await ledger.append_one(b"x" * MB)
        assert len(await read_all(ledger)) == 5

    run(scenario())


def test_what_was_deleted_while_no_new_journal_could_be_made_goes_though_nobody_writes_again():
    async def scenario():
        disk = Disk()
        backend = await opened(disk, LoopClock(), executor=AtOnce())
        factory = ManagedLedgerFactory(backend, LoopClock())
        ledger = await factory.open("log")
        await ledger.append_one(b"x" * MB)
        disk.free_bytes_left = 2 * MB
        (before,) = disk.names("journal")
        disk.fault = failing(errno.EMFILE, ("create", "journal/"))
        await factory.delete("log")
        assert disk.names("journal") == [before]
        disk.fault = disk.full
        await asyncio.sleep(5)
        assert before not in disk.names("journal")
        disk.free_bytes_left = PLENTY
        await factory.close()
        await backend.close()

    run_virtually(scenario())
