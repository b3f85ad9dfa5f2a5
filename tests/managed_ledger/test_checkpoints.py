"""Entries move from the journal into ledger files; crashes before every operation."""

import asyncio
import errno
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from at_once import AtOnce
from bare_ledgers import make_ledger
from faulty_disk import FaultyDisk, failing
from virtual_loop import LoopClock, run_virtually

from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.errors import StorageFull
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.position import EARLIEST, LATEST, Position
from managed_ledger.storage.embedded import checkpoints
from managed_ledger.storage.embedded.journal import EmbeddedBackend
from managed_ledger.storage.embedded.ledger_files import write_all

CONFIG = ManagedLedgerConfig(max_entries_per_ledger=7, min_rollover_time_ms=0)


async def start(disk: FaultyDisk, clock, **options) -> tuple[EmbeddedBackend, ManagedLedgerFactory]:
    """One thread for all work, so that disk operations run one at a time."""
    executor = ThreadPoolExecutor(1)
    backend = EmbeddedBackend(disk, clock, executor=executor, journal_max_bytes=600, **options)
    await backend.open()
    return backend, ManagedLedgerFactory(backend, clock, CONFIG)


async def read_all(ledger) -> dict[Position, bytes]:
    found: dict[Position, bytes] = {}
    position = EARLIEST
    while (run := await ledger.read(position, LATEST, 100, 1 << 20)) is not None:
        for offset, entry in enumerate(run.entries):
            found[Position(run.ledger_id, run.first_entry_id + offset)] = entry
        position = Position(run.ledger_id, run.first_entry_id + len(run.entries))
    return found


@pytest.mark.slow
def test_a_crash_before_any_disk_operation_loses_nothing_acknowledged(run, clock):
    """The operations include rotations, flushes, snapshots, deletions and a restart."""
    crashes: list[tuple[dict[str, bytes], dict[Position, bytes], Position]] = []
    acknowledged: dict[Position, bytes] = {}
    marks = [EARLIEST]
    disk = FaultyDisk()

    def remember(operation: str, name: str) -> None:
        if operation != "read":
            crashes.append((disk.contents(), dict(acknowledged), marks[0]))

    async def work(life: int) -> None:
        backend, factory = await start(disk, clock)
        ledger = await factory.open("log")
        cursor = await ledger.open_cursor("sub", EARLIEST)
        for n in range(24):
            entry = b"%d.%d" % (life, n) * (n % 9)
            acknowledged[await ledger.append_one(entry)] = entry
            if n % 8 == 7:
                cursor.mark_delete(list(acknowledged)[len(acknowledged) * 2 // 3])
                await cursor.flush()
                marks[0] = cursor.mark_delete_position
                await ledger.trim()
        await factory.close()
        await backend.close()

    async def check(files, acknowledged, mark) -> None:
        backend, factory = await start(FaultyDisk(files), clock)
        ledger = await factory.open("log")
        cursor = await ledger.open_cursor("sub", EARLIEST)
        assert cursor.mark_delete_position >= mark
        found = await read_all(ledger)
        first = ledger.first_position
        left = {position: entry for position, entry in acknowledged.items() if position >= first}
        assert found.items() >= left.items()
        assert len(found) - len(left) <= 1  # the append in flight
        trimmed = [position for position in acknowledged if position < first]
        assert all(position <= cursor.mark_delete_position for position in trimmed)
        await factory.close()
        await backend.close()

    disk.fault = remember
    for life in range(2):
        run(work(life))
    assert {"journal/0000000003", "metadata/snapshot"} < {n for files, *_ in crashes for n in files}
    for crash in crashes:
        run(check(*crash))


def test_recent_entries_are_in_memory_and_older_ones_come_from_their_file(run, clock):
    async def scenario():
        disk = FaultyDisk()
        backend, _ = await start(disk, clock)
        ledger = await make_ledger(backend)
        for first in range(100):
            done = asyncio.get_running_loop().create_future()
            backend.append(ledger, first, [b"%d" % first * 20], [1], done.set_result)
            await done
        assert backend.read_cached(ledger, 99, 99, 1, 1) is not None
        assert backend.read_cached(ledger, 0, 99, 100, 1000) is None
        for first in (0, 41, 17, 99, 0):
            run_ = await backend.read(ledger, first, 99, 1, 1)
            assert run_.entries == [b"%d" % first * 20]
        assert backend.read_cached(ledger, 0, 0, 1, 1) is not None  # its block is cached
        await backend.close()

    run(scenario())


def test_names_of_files_that_could_not_be_synced_are_synced_before_their_journal_goes():
    """The sync may fail for lack of descriptors. Without the sync, a power cut would remove the
    files, with acknowledged entries.
    """
    done: list[str] = []

    def fault(operation: str, name: str) -> None:
        if (operation, name) == ("sync_folder", "ledgers") and "failed" not in done:
            done.append("failed")
            raise OSError(errno.EMFILE, "too many open files", name)
        done.append(f"{operation} {name}")

    async def scenario() -> None:
        disk = FaultyDisk()
        options: dict[str, Any] = {"executor": AtOnce(), "journal_max_bytes": 600}
        backend = EmbeddedBackend(disk, LoopClock(), **options)
        await backend.open()
        ledger = await ManagedLedgerFactory(backend, LoopClock(), CONFIG).open("log")
        disk.fault = fault
        for _ in range(2):
            await ledger.append_one(b"x" * 700)
        await asyncio.sleep(0.5)
        assert done[-1] == "failed"
        await asyncio.sleep(2)
        assert done.index("sync_folder ledgers") < done.index("unlink journal/0000000001")
        await backend.close()

    run_virtually(scenario())


def test_the_journal_is_empty_after_a_clean_close(run, clock):
    async def scenario():
        disk = FaultyDisk()
        backend, factory = await start(disk, clock)
        ledger = await factory.open("log")
        for n in range(30):
            await ledger.append_one(b"%d" % n * 30)
        await factory.close()
        await backend.close()
        (journal,) = disk.names("journal")
        assert disk.files[journal] == b""
        before = disk.contents()
        backend, factory = await start(disk, clock)
        await backend.close()
        assert disk.contents() == before

    run(scenario())


def test_deleted_ledgers_give_their_files_back(run, clock):
    async def scenario():
        disk = FaultyDisk()
        backend, factory = await start(disk, clock)
        ledger = await factory.open("log")
        for n in range(30):
            await ledger.append_one(b"%d" % n * 30)
        assert disk.names("ledgers") != []
        gone = asyncio.Event()
        loop = asyncio.get_running_loop()

        def note(operation: str, name: str) -> None:
            if (operation, name) == ("unlink", "ledgers/0"):
                loop.call_soon_threadsafe(gone.set)

        disk.fault = note
        await factory.delete("log")
        await gone.wait()
        await factory.close()
        await backend.close()
        assert disk.names("ledgers") == []

    run(scenario())


def test_a_file_that_nothing_refers_to_is_removed_at_start(run, clock):
    async def scenario():
        disk = FaultyDisk()
        backend, _ = await start(disk, clock)
        await backend.close()
        disk.files["ledgers/77"] = bytearray(b"left behind")
        backend, _ = await start(disk, clock)
        await backend.close()
        assert disk.names("ledgers") == []

    run(scenario())


def test_what_a_crashed_process_left_unsynced_is_synced_before_it_is_served(run, clock):
    async def scenario():
        disk = FaultyDisk()
        backend, _ = await start(disk, clock)
        await backend.metadata.put("key", b"value")
        restarted = FaultyDisk(disk.contents())
        await start(restarted, clock)
        (journal,) = restarted.names("journal")
        assert ("fdatasync", journal) in restarted.operations
        assert ("sync_folder", "journal") in restarted.operations

    run(scenario())


def test_relaxed_durability_syncs_no_commit(run, clock, monkeypatch):
    monkeypatch.setattr("managed_ledger.storage.embedded.journal.RELAXED_SYNC_S", 3600)

    async def scenario():
        disk = FaultyDisk()
        backend, _ = await start(disk, clock, durability="relaxed")
        await backend.metadata.put("key", b"value")
        assert ("fdatasync", "journal/0000000001") not in disk.operations
        await backend.close()
        assert ("fdatasync", "journal/0000000001") in disk.operations

    run(scenario())


def test_relaxed_durability_syncs_by_a_timer(run, clock, monkeypatch):
    monkeypatch.setattr("managed_ledger.storage.embedded.journal.RELAXED_SYNC_S", 0.001)

    async def scenario():
        disk = FaultyDisk()
        synced = asyncio.Event()
        loop = asyncio.get_running_loop()
        backend, _ = await start(disk, clock, durability="relaxed")

        def note(operation: str, name: str) -> None:
            if operation == "fdatasync":
                loop.call_soon_threadsafe(synced.set)

        disk.fault = note
        await backend.metadata.put("key", b"value")
        await synced.wait()
        await backend.close()

    run(scenario())


def test_with_relaxed_durability_a_snapshot_is_not_ahead_of_what_a_power_cut_leaves_of_the_journal(
    run, clock, monkeypatch
):
    """The snapshot lacks a ledger that has entries in the journal. The ledger's deletion, which
    follows them in the journal, must be synced before the snapshot.
    """
    monkeypatch.setattr("managed_ledger.storage.embedded.journal.RELAXED_SYNC_S", 3600)

    async def scenario():
        disk, loop = FaultyDisk(), asyncio.get_running_loop()
        flushing, flushed, done = threading.Event(), asyncio.Event(), asyncio.Event()
        synced: dict[str, bytes] = {}

        def note(operation: str, name: str) -> None:
            if operation == "fdatasync":
                synced[name] = disk.contents()[name]
            if (operation, name) == ("write", "ledgers/0"):
                loop.call_soon_threadsafe(flushed.set)
                flushing.wait()
            if (operation, name) == ("unlink", "journal/0000000001"):
                loop.call_soon_threadsafe(done.set)

        disk.fault = note
        backend = EmbeddedBackend(disk, clock, "relaxed", journal_max_bytes=600)
        await backend.open()
        factory = ManagedLedgerFactory(backend, clock)
        ledger = await factory.open("log")
        await ledger.append_one(b"x" * 600)
        await ledger.append_one(b"y")  # in the next journal
        await flushed.wait()
        written = disk.contents()["journal/0000000002"]  # on the disk at the power cut
        await factory.delete("log")
        flushing.set()
        await done.wait()
        left = disk.contents()
        left["journal/0000000002"] = max(written, synced.get("journal/0000000002", b""), key=len)
        again = EmbeddedBackend(FaultyDisk(left), clock)
        await again.open()
        assert ManagedLedgerFactory(again, clock).names() == []
        await again.close()
        await backend.close()

    run(scenario())


def test_with_relaxed_durability_no_file_goes_before_its_deletion_is_on_the_platter(
    run, clock, monkeypatch
):
    monkeypatch.setattr("managed_ledger.storage.embedded.journal.RELAXED_SYNC_S", 3600)

    async def scenario():
        disk, loop = FaultyDisk(), asyncio.get_running_loop()
        synced, left, gone = dict[str, bytes](), dict[str, bytes](), asyncio.Event()

        def note(operation: str, name: str) -> None:
            if operation == "fdatasync":
                synced[name] = disk.contents()[name]
            if (operation, name) == ("unlink", "ledgers/0"):
                left.update(disk.contents(), **{n: synced[n] for n in disk.names("journal")})
                del left[name]
                loop.call_soon_threadsafe(gone.set)

        backend, factory = await start(disk, clock)
        await (await factory.open("log")).append_one(b"x")
        await factory.close()
        await backend.close()  # the entry is now in the ledger's file
        disk.fault = note
        backend, factory = await start(disk, clock, durability="relaxed")
        await factory.delete("log")
        await gone.wait()
        again, factory = await start(FaultyDisk(left), clock)
        assert [again.damaged(ledger_id) for ledger_id in again.ledger_ids()] == []
        assert factory.names() == []
        await again.close()
        await backend.close()

    run(scenario())


@pytest.mark.parametrize("entry_bytes", [250, 333])
def test_ledgers_are_flushed_some_bytes_at_a_time_however_many(
    run, clock, monkeypatch, entry_bytes
):
    """A batch is full at FLUSH_BYTES; a batch one byte short takes one more entry."""
    monkeypatch.setattr(checkpoints, "FLUSH_BYTES", 1000)
    batches: list[int] = []

    def note(disk, jobs):
        batches.append(len(jobs))
        return write_all(disk, jobs)

    monkeypatch.setattr(checkpoints, "write_all", note)

    async def scenario():
        disk = FaultyDisk()
        backend = EmbeddedBackend(disk, clock, executor=AtOnce())
        await backend.open()
        for number in range(10):
            ledger = await make_ledger(backend)
            done = asyncio.get_running_loop().create_future()
            backend.append(ledger, 0, [bytes([number]) * entry_bytes], [1], done.set_result)
            assert await done is None
        await backend.close()
        assert batches == [4, 4, 2]
        assert len(disk.names("ledgers")) == 10

    run(scenario())


def test_the_names_of_ledgers_files_are_made_to_last_when_there_may_be_new_ones():
    async def scenario():
        disk = FaultyDisk()
        backend = EmbeddedBackend(disk, LoopClock(), executor=AtOnce(), journal_max_bytes=100)
        await backend.open()
        synced = ("sync_folder", "ledgers")
        for entries in (1, 2):
            ledger = await make_ledger(backend)
            done = asyncio.get_running_loop().create_future()
            backend.append(ledger, 0, [b"x"], [1], done.set_result)
            await done
            for _ in range(3):
                await backend.metadata.put("key", b"x" * 200)
                await asyncio.sleep(1)
            assert disk.operations.count(synced) == entries
        await backend.close()
        assert disk.operations.count(synced) == 2

    run_virtually(scenario())


def test_when_the_work_behind_the_journal_has_failed_it_is_not_gone_on_with():
    async def scenario():
        disk, fatal = FaultyDisk(), []
        backend = EmbeddedBackend(
            disk, LoopClock(), on_fatal=fatal.append, executor=AtOnce(), journal_max_bytes=100
        )
        await backend.open()
        await backend.metadata.put("key", b"x" * 200)
        disk.fault = failing(errno.EIO, ("fdatasync", "metadata/"))
        await backend.metadata.put("key", b"x")
        await asyncio.sleep(5)
        assert len(fatal) == 1
        disk.fault = lambda operation, name: None
        count = len(disk.operations)
        backend._checkpoints.wake()
        await asyncio.sleep(5)
        assert len(disk.operations) == count
        await backend.close()

    run_virtually(scenario())


def test_a_commit_that_waited_for_the_work_behind_it_is_written_into_the_next_journal(run, clock):
    begun, may_go_on = threading.Event(), threading.Event()

    def hold(operation: str, name: str) -> None:
        if (operation, name) == ("create", "metadata/snapshot.new"):
            begun.set()
            assert may_go_on.wait(10)

    async def scenario():
        disk = FaultyDisk()
        backend = EmbeddedBackend(disk, clock, journal_max_bytes=100, max_old_journals=1)
        await backend.open()
        disk.fault = hold
        for number in range(2):
            await backend.metadata.put("key", b"%d" % number * 200)
        await asyncio.to_thread(begun.wait)
        waiting = backend.metadata.put("key", b"waited")
        for _ in range(5):
            await asyncio.to_thread(int)
        assert not waiting.done()
        may_go_on.set()
        await waiting
        assert b"waited" in disk.files["journal/0000000003"]
        restarted = EmbeddedBackend(FaultyDisk(disk.contents()), clock)
        await restarted.open()
        assert restarted.metadata.get("key").value == b"waited"
        await restarted.close()
        await backend.close()

    run(scenario())


def test_a_write_that_did_not_fit_into_a_new_journal_does_not_stop_the_next_ones():
    """The old journal must still be removed: the next commit waits for that."""

    async def scenario():
        disk = FaultyDisk()
        backend = EmbeddedBackend(
            disk, LoopClock(), executor=AtOnce(), journal_max_bytes=100, max_old_journals=1
        )
        await backend.open()
        await backend.metadata.put("key", b"x" * 200)
        disk.fault = failing(errno.ENOSPC, ("write", "journal/0000000002"))
        with pytest.raises(StorageFull):
            await backend.metadata.put("key", b"y" * 200)
        disk.fault = lambda operation, name: None
        async with asyncio.timeout(60):
            for number in range(3):
                await backend.metadata.put("key", b"%d" % number + bytes(200))
        await backend.close()

    run_virtually(scenario())


def test_a_full_disk_is_tried_again_every_second():
    async def scenario():
        disk = FaultyDisk()
        backend = EmbeddedBackend(disk, LoopClock(), executor=AtOnce(), journal_max_bytes=100)
        await backend.open()
        disk.operations.clear()
        await backend.metadata.put("key", b"x" * 200)
        disk.fault = failing(errno.ENOSPC, ("create", "metadata/"))
        await backend.metadata.put("key", b"x")
        await asyncio.sleep(10.5)
        tried = disk.operations.count(("create", "metadata/snapshot.new"))
        assert tried == 11
        assert len(disk.names("journal")) == 2
        disk.fault = lambda operation, name: None
        await asyncio.sleep(1)
        assert len(disk.names("journal")) == 1
        await backend.close()

    run_virtually(scenario())
