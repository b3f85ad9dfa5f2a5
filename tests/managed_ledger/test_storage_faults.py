"""A disk that is full, fails or is in use by another process, and damaged files."""

import asyncio
import errno
import subprocess
import sys

import pytest
from bare_ledgers import checkpointed, make_ledger, opened, read_all
from faulty_disk import FaultyDisk, failing

from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.errors import (
    CorruptStorage,
    DamagedEntries,
    DirectoryInUse,
    NewerFormat,
    StorageFailed,
    StorageFull,
)
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.position import EARLIEST
from managed_ledger.storage.embedded.journal import EmbeddedBackend
from managed_ledger.storage.embedded.os_disk import OsDisk


def test_a_full_disk_fails_appends_and_lets_later_ones_succeed(run, clock):
    async def scenario():
        disk = FaultyDisk()
        backend = await opened(disk, clock)
        ledger = await ManagedLedgerFactory(backend, clock).open("log")
        await ledger.append_one(b"before")
        disk.fault = failing(errno.ENOSPC, ("write", "journal/"))
        outcomes = await asyncio.gather(
            *[ledger.append_one(b"%d" % n) for n in range(5)], return_exceptions=True
        )
        assert all(isinstance(outcome, StorageFull) for outcome in outcomes)
        disk.fault = lambda operation, name: None
        position = await ledger.append_one(b"after")
        assert position.entry_id == 1
        restarted = await opened(FaultyDisk(disk.contents()), clock)
        again = await ManagedLedgerFactory(restarted, clock).open("log")
        assert await read_all(again) == [b"before", b"after"]

    run(scenario())


def test_a_log_that_a_full_disk_kept_from_closing_well_is_closed_and_opens_again(run, clock):
    async def scenario():
        disk = FaultyDisk()
        factory = ManagedLedgerFactory(await opened(disk, clock), clock)
        ledger = await factory.open("log")
        cursor = await ledger.open_cursor("cursor", EARLIEST)
        position = await ledger.append_one(b"entry")
        cursor.delete(*position)
        disk.fault = failing(errno.ENOSPC, ("write", "journal/"))
        with pytest.raises(StorageFull):
            await ledger.close()
        disk.fault = lambda operation, name: None
        await ledger.close()
        again = await factory.open("log")
        assert await read_all(again) == [b"entry"]

    run(scenario())


def test_appends_that_wait_for_the_next_ledger_fail_with_those_before_them(run, clock):
    """Otherwise they would overtake the failed appends: the disk may have room again by then."""

    async def scenario():
        disk = FaultyDisk()
        backend = await opened(disk, clock)
        config = ManagedLedgerConfig(max_entries_per_ledger=2, min_rollover_time_ms=0)
        ledger = await ManagedLedgerFactory(backend, clock, config).open("log")
        disk.fault = failing(errno.ENOSPC, ("write", "journal/"))
        outcomes = []

        def done(first, error):
            disk.fault = lambda operation, name: None
            outcomes.append(error)

        for n in range(4):
            ledger.append([b"%d" % n], [1], done)
        with pytest.raises(StorageFull):
            await ledger.append_one(b"last")
        assert [type(error) for error in outcomes] == [StorageFull] * 4
        await ledger.append_one(b"after")
        assert await read_all(ledger) == [b"after"]

    run(scenario())


def test_appends_queued_behind_a_failed_one_fail_with_it(run, clock):
    """Their numbers follow that of the failed append. An append by a failure's callback is new."""

    async def scenario():
        disk = FaultyDisk()
        backend = await opened(disk, clock)
        ledger = await ManagedLedgerFactory(backend, clock).open("log")
        disk.fault = failing(errno.ENOSPC, ("write", "journal/"))
        outcomes: list[str] = []
        retried = asyncio.get_running_loop().create_future()

        def retry(first, error):
            outcomes.append("a failed")
            disk.fault = lambda operation, name: None
            ledger.append([b"again"], [1], lambda first, error: retried.set_result((first, error)))

        ledger.append([b"a"], [1], retry)
        await asyncio.sleep(0)
        ledger.append([b"b"], [1], lambda first, error: outcomes.append(f"b {type(error)}"))
        first, error = await retried
        assert error is None
        assert first.entry_id == 0
        assert outcomes == ["a failed", f"b {StorageFull}"]
        assert await read_all(ledger) == [b"again"]

    run(scenario())


def test_a_put_refused_for_lack_of_space_leaves_no_trace(run, clock):
    async def scenario():
        disk = FaultyDisk()
        backend = await opened(disk, clock)
        await backend.metadata.put("key", b"old")
        disk.fault = failing(errno.ENOSPC, ("write", "journal/"))
        with pytest.raises(StorageFull):
            await backend.metadata.put("key", b"new", expected_version=0)
        disk.fault = lambda operation, name: None
        assert backend.metadata.get("key").value == b"old"
        assert await backend.metadata.put("key", b"newer", expected_version=0) == 1

    run(scenario())


@pytest.mark.parametrize("operation", ["fdatasync", "write"])
def test_after_an_io_error_nothing_is_acknowledged_any_more(run, clock, operation):
    async def scenario():
        disk = FaultyDisk()
        fatal: list[Exception] = []
        backend = await opened(disk, clock, on_fatal=fatal.append)
        ledger = await ManagedLedgerFactory(backend, clock).open("log")
        disk.fault = failing(errno.EIO, (operation, "journal/"))
        with pytest.raises(StorageFailed):
            await ledger.append_one(b"a")
        disk.fault = lambda operation, name: None
        with pytest.raises(StorageFailed):
            await ledger.append_one(b"b")
        with pytest.raises(StorageFailed):
            await backend.metadata.put("key", b"value")
        assert len(fatal) == 1
        assert "after a restart" in str(fatal[0])
        await backend.close()

    run(scenario())


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_failed_sync_is_fatal_whatever_the_reason(run, clock, number):
    async def scenario():
        disk = FaultyDisk()
        fatal: list[Exception] = []
        backend = await opened(disk, clock, on_fatal=fatal.append)
        disk.fault = failing(number, ("fdatasync", "journal/"))
        with pytest.raises(StorageFailed):
            await backend.metadata.put("key", b"value")
        assert len(fatal) == 1

    run(scenario())


def test_an_io_error_in_the_background_is_fatal_too(run, clock):
    async def scenario():
        disk = FaultyDisk()
        fatal = asyncio.Event()
        backend = await opened(
            disk, clock, on_fatal=lambda error: fatal.set(), journal_max_bytes=100
        )
        disk.fault = failing(errno.EIO, ("fdatasync", "metadata/"))
        await backend.metadata.put("key", b"x" * 200)
        await backend.metadata.put("key", b"x")
        await fatal.wait()
        with pytest.raises(StorageFailed):
            await backend.metadata.put("key", b"value")

    run(scenario())


def test_commits_that_wait_for_the_background_work_hear_that_it_failed(run, clock):
    async def scenario():
        disk = FaultyDisk()
        fatal: list[Exception] = []
        options = {"journal_max_bytes": 100, "max_old_journals": 1}
        backend = await opened(disk, clock, on_fatal=fatal.append, **options)
        disk.fault = failing(errno.EIO, ("fdatasync", "metadata/"))
        with pytest.raises(StorageFailed):
            for _ in range(10):
                await backend.metadata.put("key", b"x" * 200)
        assert len(fatal) == 1
        await backend.close()

    run(scenario())


def test_commits_fail_for_lack_of_space_when_the_background_work_has_none(run, clock):
    """This limits memory: the journal does not run ahead of the ledger files forever."""

    async def scenario():
        disk = FaultyDisk()
        backend = await opened(disk, clock, journal_max_bytes=100, max_old_journals=2)
        disk.fault = failing(errno.ENOSPC, ("write", "metadata/"))
        with pytest.raises(StorageFull):
            for _ in range(10):
                await backend.metadata.put("key", b"x" * 200)
        assert len(disk.names("journal")) == 3
        disk.fault = lambda operation, name: None
        await checkpointed(backend)
        assert len(disk.names("journal")) == 1
        await backend.metadata.put("key", b"again")
        await backend.close()

    run(scenario())


@pytest.mark.slow
def test_a_bit_flipped_anywhere_in_a_ledger_file_is_noticed(run, clock):
    async def scenario():
        disk = FaultyDisk()
        backend = await opened(disk, clock)
        ledger = await make_ledger(backend)
        for first, size in enumerate((3, 300, 0, 20)):
            done = asyncio.get_running_loop().create_future()
            backend.append(ledger, first, [b"x" * size], [1], done.set_result)
            await done
        await backend.close()
        files = disk.contents()
        name = f"ledgers/{ledger}"
        for at in range(len(files[name])):
            flipped = bytearray(files[name])
            flipped[at] ^= 1 << at % 8
            damaged = await opened(FaultyDisk({**files, name: bytes(flipped)}), clock)
            with pytest.raises(CorruptStorage, match=f"{name} does not return what was written"):
                await damaged.read(ledger, 0, 3, 100, 1 << 20)

    run(scenario())


@pytest.mark.parametrize("damage", ["missing", "short"])
def test_a_ledger_file_that_lacks_something_is_corrupt(run, clock, damage):
    async def scenario():
        disk = FaultyDisk()
        backend = await opened(disk, clock)
        ledger = await ManagedLedgerFactory(backend, clock).open("log")
        await ledger.append_one(b"x" * 100)
        await backend.close()
        files = disk.contents()
        (name,) = disk.names("ledgers")
        data = files.pop(name)
        if damage == "short":
            files[name] = data[:-1]
        restarted = await opened(FaultyDisk(files), clock)
        again = await ManagedLedgerFactory(restarted, clock).open("log")
        with pytest.raises(CorruptStorage, match=name):
            await read_all(again)

    run(scenario())


@pytest.mark.parametrize("damage", ["missing", "short"])
def test_a_ledger_file_that_lacks_something_stops_nothing_when_it_is_written_to(run, clock, damage):
    """The journal has more entries of that ledger, and must still be flushed completely."""

    async def scenario():
        disk = FaultyDisk()
        backend = await opened(disk, clock)
        factory = ManagedLedgerFactory(backend, clock)
        damaged, other = await factory.open("damaged"), await factory.open("other")
        await damaged.append_one(b"flushed")
        await backend._in_thread(backend._writer.rotate)
        await checkpointed(backend)
        await damaged.append_one(b"in the journal")
        await other.append_one(b"in the journal, too")
        (name,) = disk.names("ledgers")
        files = disk.contents()
        data = files.pop(name)
        if damage == "short":
            files[name] = data[:-1]
        restarted = await opened(FaultyDisk(files), clock)
        factory = ManagedLedgerFactory(restarted, clock)
        other = await factory.open("other")
        await restarted._in_thread(restarted._writer.rotate)
        await checkpointed(restarted)
        assert len(restarted._disk.names("journal")) == 1
        await other.append_one(b"later")
        assert await read_all(other) == [b"in the journal, too", b"later"]
        await factory.close()
        await restarted.close()

    run(scenario())


@pytest.mark.parametrize("kept", [None, 0, 30, 1_000, -1, -600_000])
@pytest.mark.parametrize("reads_first", [False, True])
def test_what_the_journal_has_of_a_ledger_outlives_what_its_file_lacks(
    run, clock, kept: int | None, reads_first: bool
):
    """`kept` bytes of the file are left; None: the file is missing."""
    flushed = [bytes([number]) * 300_000 for number in range(10)]

    async def checkpoint(backend: EmbeddedBackend) -> None:
        await backend._in_thread(backend._writer.rotate)
        await checkpointed(backend)

    async def read(backend: EmbeddedBackend, entry_id: int) -> bytes:
        found = await backend.read(backend.ledger_ids()[0], entry_id, 99, 100, 1 << 20)
        return found.entries[0]

    async def scenario():
        disk = FaultyDisk()
        backend = await opened(disk, clock)
        ledger = await make_ledger(backend)
        for first, entry in enumerate([*flushed, b"in the journal"]):
            if entry not in flushed:
                await checkpoint(backend)
            done = asyncio.get_running_loop().create_future()
            backend.append(ledger, first, [entry], [1], done.set_result)
            await done
        files = disk.contents()
        data = files.pop(f"ledgers/{ledger}")
        if kept is not None:
            files[f"ledgers/{ledger}"] = data[:kept]
        disk = FaultyDisk(files)
        restarted = await opened(disk, clock)
        left = 0 if kept is None else len(data[:kept]) // (len(data) // 10)
        if reads_first:
            with pytest.raises(DamagedEntries):
                await read(restarted, left)
        await checkpoint(restarted)
        for number in range(3):  # until the entry leaves memory
            await restarted.metadata.put("key", bytes([number]))
            await checkpoint(restarted)
        for backend in (restarted, await opened(FaultyDisk(disk.contents()), clock)):
            assert [await read(backend, each) for each in range(left)] == flushed[:left]
            assert await read(backend, 10) == b"in the journal"
            with pytest.raises(DamagedEntries) as damage:
                await read(backend, left)
            assert (damage.value.first, damage.value.last) == (left, 9)

    run(scenario())


def test_a_flipped_bit_in_the_snapshot_refuses_the_start(run, clock):
    async def scenario():
        disk = FaultyDisk()
        backend = await opened(disk, clock)
        await backend.metadata.put("key", b"value")
        await backend.close()
        files = disk.contents()
        for at in range(len(files["metadata/snapshot"])):
            flipped = bytearray(files["metadata/snapshot"])
            flipped[at] ^= 1 << at % 8
            if flipped.startswith(b"pybroker data directory, format 2\n"):
                continue  # it reads the same
            damaged = FaultyDisk({**files, "metadata/snapshot": bytes(flipped)})
            with pytest.raises((CorruptStorage, NewerFormat)):
                await opened(damaged, clock)

    run(scenario())


LOCK = """
import sys
from managed_ledger.errors import DirectoryInUse
from managed_ledger.storage.embedded.os_disk import OsDisk
try:
    OsDisk(sys.argv[1]).lock()
except DirectoryInUse as error:
    print(error)
"""


def test_a_data_directory_serves_one_process_at_a_time(tmp_path, run, clock):
    def refusal_of_another_process() -> str:
        command = [sys.executable, "-c", LOCK, str(tmp_path)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    async def scenario():
        backend = await opened(OsDisk(tmp_path), clock)
        refusal = await asyncio.to_thread(refusal_of_another_process)
        assert f"{tmp_path} is in use by another process" in refusal
        with pytest.raises(DirectoryInUse):
            await opened(OsDisk(tmp_path), clock)
        await backend.close()

    run(scenario())
    assert refusal_of_another_process() == ""
    run(scenario())
